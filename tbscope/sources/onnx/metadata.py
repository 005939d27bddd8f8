"""Enclosing modules of an ONNX node: from torch's metadata, from its name, or from its parameters.

`torch.onnx.export(dynamo=True)` writes for each node the modules in which it ran, outermost
first, and then the operation itself:

    pkg.torch.onnx.name_scopes      ['', 'layers.0', 'layers.0.q', 'linear']
    pkg.torch.onnx.class_hierarchy  ['nets.Net', 'nets.Att', '...Linear', 'aten.linear.default']
    namespace                       : nets.Net/layers.0: nets.Att/.../linear: aten.linear.default

Source: torch/onnx/_internal/exporter/_core.py. The exporter before it named nodes by
their scopes: `/layers/layers.0/q/MatMul`.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tbscope.sources.torch.captured_scopes import scopes_in_trace

if TYPE_CHECKING:
    from onnx import StringStringEntryProto

__all__ = [
    "CLASSES",
    "FOLDED",
    "NAMES",
    "NAMESPACE",
    "STACK",
    "ModuleRef",
    "Origin",
    "any_origin",
    "origin_by_metadata",
    "origin_by_name",
    "origin_by_parameters",
    "origin_metadata",
    "properties",
    "texts_of",
]

NAMES = "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
STACK = "pkg.torch.onnx.stack_trace"
NAMESPACE = "namespace"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
"""Metadata key of a tensor that was folded from others before it was written: their names."""

_BY_HAND = "tbscope.scope "
# The name that torch.export writes for an operation of its own, as for the size of an input.
_NOWHERE = "_empty_nn_module_stack"


class ModuleRef(NamedTuple):
    """One enclosing module of a node, or a scope of the user.

    Attributes:
        name: Its qualified name (`layers.0`), empty for the model itself; or the name of the scope.
        class_name: The full name of its class; None if the file has none. For a scope of the user
            `tbscope.scope`, with a number that separates scopes of one name.
    """

    name: str
    class_name: str | None

    @property
    def by_hand(self) -> bool:
        """Whether it is a scope of the user."""
        return (self.class_name or "").startswith(_BY_HAND)

    def renamed(self, name_of: Callable[[str], str]) -> "ModuleRef":
        """Return the module by another name; a scope of the user keeps its name."""
        return self if self.by_hand else self._replace(name=name_of(self.name))


class Origin(NamedTuple):
    """Enclosing modules of a node, and the operation from which it was converted.

    Attributes:
        levels: The enclosing modules, outermost first.
        name: The name of the operation (`linear_1`).
        target: The callee of the operation (`aten.linear.default`).
    """

    levels: tuple[ModuleRef, ...]
    name: str
    target: str


def properties(entries: "Iterable[StringStringEntryProto]") -> dict[str, str]:
    """Return the `metadata_props` of a message as a dict."""
    return {entry.key: entry.value for entry in entries}


def origin_by_metadata(metadata: Mapping[str, str]) -> Origin | None:
    """Return the origin that torch's exporter wrote for a node.

    Returns:
        The origin, or None if the exporter wrote none, or if the node is in no module.
    """
    origin = any_origin(metadata)
    if origin is None or not origin.levels or origin.levels[0].name.startswith(_NOWHERE):
        return None
    return origin


def any_origin(metadata: Mapping[str, str]) -> Origin | None:
    """Return the origin in the metadata of a node, even in no module; None without metadata."""
    names, classes = texts_of(metadata.get(NAMES, "")), texts_of(metadata.get(CLASSES, ""))
    if not names or len(names) != len(classes):
        return None
    levels = list(map(ModuleRef, names[:-1], classes[:-1]))
    depth = len(levels)
    for scope in reversed(scopes_in_trace(metadata.get(STACK))):
        levels.insert(max(depth - scope.inside, 0), ModuleRef(scope.name, f"{_BY_HAND}{scope.at}"))
    return Origin(tuple(levels), names[-1], classes[-1])


def origin_metadata(origin: Origin) -> dict[str, str]:
    """Return the metadata of an origin, as torch's exporter writes it."""
    names = [*(level.name for level in origin.levels), origin.name]
    classes = [*(level.class_name or "" for level in origin.levels), origin.target]
    steps = [f"{name}: {class_name}" for name, class_name in zip(names, classes, strict=True)]
    return {NAMES: repr(names), CLASSES: repr(classes), NAMESPACE: "/".join(steps)}


def origin_by_name(name: str, operation: str) -> Origin | None:
    """Return the origin in a slashed name (`/layer1/layer1.0/conv1/Conv`), or None.

    A step may begin with a class (`torch.nn.modules.conv.Conv2d::conv1`).
    """
    steps = [step for step in name.split("/") if step]
    if len(steps) < 2:
        return None
    levels: list[ModuleRef] = []
    for step in steps[:-1]:
        class_name, _, own_name = step.rpartition("::")
        parent = levels[-1].name if levels else ""
        # The step of a module in a list repeats the name of the list: `layer1/layer1.0`.
        last = parent.rpartition(".")[2]
        if levels and last and own_name.startswith(f"{last}."):
            own_name = own_name[len(last) + 1 :]
        levels.append(ModuleRef(f"{parent}.{own_name}" if parent else own_name, class_name or None))
    return Origin(tuple(levels), steps[-1], operation)


def origin_by_parameters(parameters: Iterable[str], operation: str) -> Origin | None:
    """Return the origin of a node that reads a parameter (`layer1.0.conv1.weight`), or None."""
    for parameter in parameters:
        owner = parameter.rpartition(".")[0]
        if owner and "/" not in parameter and not owner.startswith("."):
            steps = owner.split(".")
            names = [".".join(steps[: index + 1]) for index in range(len(steps))]
            return Origin(tuple(ModuleRef(name, None) for name in names), operation, operation)
    return None


# Nodes of one module have equal texts.
@lru_cache(maxsize=4096)
def texts_of(text: str) -> tuple[str, ...]:
    """Return the texts of a list that Python has printed; none for any other text."""
    if not text:
        return ()
    try:
        texts = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    is_list = isinstance(texts, list) and all(isinstance(entry, str) for entry in texts)
    return tuple(texts) if is_list else ()
