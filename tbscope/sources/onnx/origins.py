"""Origins of the nodes of an ONNX model: from their metadata, names, parameters or neighbours.

`torch.onnx.export(dynamo=True)` writes for each node the modules in which it ran, outermost
first, and then the operation itself:

    pkg.torch.onnx.name_scopes      ['', 'layers.0', 'layers.0.q', 'linear']
    pkg.torch.onnx.class_hierarchy  ['nets.Net', 'nets.Att', '...Linear', 'aten.linear.default']
    namespace                       : nets.Net/layers.0: nets.Att/.../linear: aten.linear.default

Source: torch/onnx/_internal/exporter/_core.py. The exporter before it named nodes by
their scopes: `/layers/layers.0/q/MatMul`.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tbscope.sources.torch.recorded_names import scopes_in_trace

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto, StringStringEntryProto


_NAMES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
STACK = "pkg.torch.onnx.stack_trace"
NAMESPACE = "namespace"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
"""Metadata key of a tensor that was folded from others before it was written: their names."""

_BY_HAND = "tbscope.scope "
# The name that torch.export writes for an operation of its own, as for the size of an input.
_NOWHERE = "_empty_nn_module_stack"
# The name of a scope and the number of a further call, as torch's earlier exporter writes both.
_AGAIN = re.compile(r"(.+)_([1-9][0-9]{0,8})")
# Additions to the name of a node that ONNX Runtime has made of several.
_FUSED = re.compile(r"^fused |/\w+Fusion/?$")


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
        return bool(self.name) and (self.class_name or "").startswith(_BY_HAND)

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
        The origin, without levels for a node of the model itself; None if the exporter wrote none.
    """
    origin = any_origin(metadata)
    if origin is None or not origin.levels:
        return None
    is_in_module = not origin.levels[0].name.startswith(_NOWHERE)
    return origin if is_in_module else origin._replace(levels=())


def any_origin(metadata: Mapping[str, str]) -> Origin | None:
    """Return the origin in the metadata of a node, even in no module; None without metadata."""
    names, classes = texts_of(metadata.get(_NAMES, "")), texts_of(metadata.get(_CLASSES, ""))
    if not names or len(names) != len(classes):
        return None
    levels = list(map(ModuleRef, names[:-1], classes[:-1]))
    depth = len(levels)
    for name, at, inside in reversed(scopes_in_trace(metadata.get(STACK))):
        levels.insert(max(depth - inside, 0), ModuleRef(name, f"{_BY_HAND}{at}"))
    return Origin(tuple(levels), names[-1], classes[-1])


def origin_metadata(origin: Origin) -> dict[str, str]:
    """Return the metadata of an origin, as torch's exporter writes it."""
    names = [*(level.name for level in origin.levels), origin.name]
    classes = [*(level.class_name or "" for level in origin.levels), origin.target]
    steps = [f"{name}: {class_name}" for name, class_name in zip(names, classes, strict=True)]
    return {_NAMES: repr(names), _CLASSES: repr(classes), NAMESPACE: "/".join(steps)}


def _origin_by_name(name: str, operation: str) -> Origin | None:
    """Return the origin in a slashed name (`/layer1/layer1.0/conv1/Conv`), or None.

    A step may begin with a class (`torch.nn.modules.conv.Conv2d::conv1`).
    """
    steps = [step for step in _plain(name).split("/")[:-1] if step]
    if not steps and not name.startswith("/"):
        return None
    levels: list[ModuleRef] = []
    for step in steps:
        class_name, _, own_name = step.rpartition("::")
        if "." not in class_name:
            # torch writes classes with their Python module; other tools join names so, too.
            class_name, own_name = "", step
        parent = levels[-1].name if levels else ""
        # The step of a module in a list repeats the name of the list: `layer1/layer1.0`.
        last = parent.rpartition(".")[2]
        if levels and last and own_name.startswith(f"{last}."):
            own_name = own_name[len(last) + 1 :]
        levels.append(ModuleRef(f"{parent}.{own_name}" if parent else own_name, class_name or None))
    return Origin(tuple(levels), name, operation)


def _calls_in_names(
    names: Iterable[str], parameters: Iterable[str]
) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Return the modules and the calls in the names that torch's earlier exporter has written.

    The exporter numbers the calls of a module (`/b/b.0_1/Gemm`, the second call of `b.0`), but in
    the name of the innermost module alone. The number of the call of an outer module follows from
    the number of its calls, or from those of its parts if it has no operations of its own.

    Args:
        names: The names of the nodes.
        parameters: The names of parameters, which differ between modules (`conv_1.weight`).
    Returns:
        By the name of a node, its name in the first call; and the numbers of the enclosing calls,
        outermost first.
    """
    steps = {step for name in parameters for step in name.split(".")}
    parted = {name: _plain(name).rpartition("/") for name in names}
    scopes = {scope for scope, _, _ in parted.values() if scope.startswith("/")}
    counts = dict.fromkeys((outer for scope in scopes for outer in _prefixes(scope, "/")), 0)
    calls: dict[str, tuple[str, int]] = {}
    for scope in scopes:
        match = _AGAIN.fullmatch(scope)
        if match and match[1] in counts and re.split("[/.]", scope)[-1] not in steps:
            calls[scope] = match[1], int(match[2])
        else:
            calls[scope] = scope, 0
        base, number = calls[scope]
        counts[base] = max(counts[base], number + 1)
    parts: dict[str, int] = {}
    for scope in sorted(counts, key=len, reverse=True):
        counts[scope] = counts[scope] or parts.get(scope, 1)
        outer = scope.rpartition("/")[0]
        parts[outer] = math.gcd(parts.get(outer, 0), counts[scope])
    first, numbers = {}, {}
    for name, (scope, _, operation) in parted.items():
        if scope in calls:
            base, number = calls[scope]
            first[name] = f"{base}/{operation}"
            around = [counts[outer] for outer in _prefixes(base, "/")]
            if not any(counts[base] % count for count in around):
                numbers[name] = tuple(number * count // counts[base] for count in around)
    return first, numbers


def _plain(name: str) -> str:
    """Return the name of a node without the names of other nodes that tools have joined to it."""
    return _FUSED.sub("", name.partition(";")[0])


def _prefixes(name: str, separator: str) -> list[str]:
    """Return the names of all that encloses an object, outermost first, and its own name."""
    return [name[:at] for at, mark in enumerate(name + separator) if mark == separator and at]


def _origin_by_parameters(parameters: Iterable[str], operation: str) -> Origin | None:
    """Return the origin of a node that reads a parameter (`layer1.0.conv1.weight`), or None."""
    for parameter in parameters:
        owner, _, attribute = parameter.rpartition(".")
        # A number ends the names of tensors that Paddle's exporter has computed.
        is_owned = owner and "/" not in parameter and not owner.startswith(".")
        if is_owned and not attribute.isdecimal():
            levels = [ModuleRef(name, None) for name in _prefixes(owner, ".")]
            return Origin(tuple(levels), operation, operation)
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


OF_MODULE = "tbscope.module"
"""Metadata key of a function that is a module, with the full name of its class.

Module names in the nodes of the function are relative to this module, as several modules may share
one function.
"""

Way: TypeAlias = "Callable[[NodeProto], Origin | None]"
"""Function that returns the origin of a node, or None."""


def join_name(outer: str, inner: str) -> str:
    """Return the qualified name of an object from its name inside of a module.

    >>> join_name("layers.0", "q"), join_name("", "fc"), join_name("fc", "")
    ('layers.0.q', 'fc', 'fc')
    """
    return ".".join(filter(None, [outer, inner]))


def nodes_in(nodes: "Iterable[NodeProto]") -> "Iterator[NodeProto]":
    """Yield nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from nodes_in(attribute.g.node)


def origin_finder(
    nodes: "Iterable[NodeProto]", functions: "Iterable[FunctionProto]", parameters: Set[str]
) -> tuple[Way, Mapping[str, Sequence[int]] | None]:
    """Return the function that finds the origins of a model's nodes, and the numbers of calls.

    Metadata, node names and parameters are tried in this order: the first that has the origin of
    any node is used for all. A model with a function that is a module uses metadata only.

    Args:
        nodes: Its nodes.
        functions: Its functions.
        parameters: The names of its parameters.
    Returns:
        The function, and the numbers of the calls around a node, by its name, as far as names have
        them; None for origins from metadata.
    """
    listed = list(nodes_in(nodes))
    first, numbers = _calls_in_names([node.name for node in listed], parameters)

    def by_metadata(node: "NodeProto") -> Origin | None:
        return origin_by_metadata(properties(node.metadata_props))

    def by_name(node: "NodeProto") -> Origin | None:
        origin = _origin_by_name(first.get(node.name, node.name), node.op_type)
        return origin and origin._replace(name=node.name)

    def by_parameters(node: "NodeProto") -> Origin | None:
        read = [name for name in node.input if name in parameters]
        return _origin_by_parameters(read, node.op_type)

    ways = (by_metadata, by_name, by_parameters)
    if any(map(is_module, functions)):
        return by_metadata, None
    found = (way for way in ways if any(origin.levels for origin in map(way, listed) if origin))
    way = next(found, by_metadata)
    return way, None if way is by_metadata else numbers


def origin_in_function(module: str, node: "NodeProto") -> Origin | None:
    """Return the origin of a node in a function, with full module names, or None.

    Args:
        module: The qualified name of the module whose function this call runs.
        node: The node.
    """
    origin = origin_by_metadata(properties(node.metadata_props))
    if origin is None:
        return None
    # The first level is the module of the function itself.
    levels = [level.renamed(partial(join_name, module)) for level in origin.levels[1:]]
    return origin._replace(levels=tuple(levels))


def is_module(function: "FunctionProto") -> bool:
    """Whether a function is a module, with the origins of its nodes in their metadata."""
    return any(entry.key == OF_MODULE for entry in function.metadata_props)


def fill_from_neighbours(
    known: Sequence[Origin | None], values: Sequence[tuple[Iterable[str], Iterable[str]]]
) -> list[Origin | None]:
    """Return origins; a missing origin is the innermost module on both sides of the node.

    A node that a tool inserted between two nodes of a module belongs to that module, wherever it is
    in the file. Sides are the nearest nodes with an origin along the data flow.

    Args:
        known: The origins of the nodes, in order.
        values: The names of the values that each node reads, and of those that it computes.
    """
    first = next((origin.levels[:1] for origin in known if origin and origin.levels), ())
    model = first if first and not first[0].name else ()
    origins = [origin and origin._replace(levels=origin.levels or model) for origin in known]
    producers = {name: index for index, (_, results) in enumerate(values) for name in results}
    links = [
        (producers[name], index)
        for index, (reads, _) in enumerate(values)
        for name in reads
        if name in producers
    ]
    # By the nodes' numbers: the latest node before each, the first and the last one behind it.
    latest, first_reader, last_reader = ([absent] * len(known) for absent in (-1, len(known), -1))
    for source, index in links:
        latest[index] = max(latest[index], source if origins[source] else latest[source])
    for source, index in reversed(links):
        is_known = origins[index] is not None
        first_reader[source] = min(first_reader[source], index if is_known else first_reader[index])
        last_reader[source] = max(last_reader[source], index if is_known else last_reader[index])
    for index, origin in enumerate(known):
        if origin is None:
            # A node that reads none of the others is in the modules of all its readers.
            sides = latest[index] if latest[index] >= 0 else last_reader[index], first_reader[index]
            levels = model
            if last_reader[index] >= 0:
                before, after = (origins[side] or Origin((), "", "") for side in sides)
                levels = common(before.levels, after.levels)
            origins[index] = Origin(levels, "", "") if levels else None
    return origins


def common(left: Sequence[ModuleRef], right: Sequence[ModuleRef]) -> tuple[ModuleRef, ...]:
    """Return the common prefix of two sequences of levels."""
    pairs = zip(left, right, strict=False)
    return tuple([level for level, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
