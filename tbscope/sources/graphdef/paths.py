"""Nodes of a GraphDef as plain data, and their scope paths, from names or `scope` attributes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.types_pb2 import DataType

from tbscope.analysis.units import names_counted
from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Constant, Nest, Shape
from tbscope.ir.metadata import device_on
from tbscope.ir.scopes import PHASE_BOXES, Phase, Scope, ScopeKind, ScopePart
from tbscope.messages import cut

if TYPE_CHECKING:
    from tbscope.ir.graph import Call


Reference = tuple[str, int]
"""Data input of a node: the name of the producer and the index of the output."""

_DTYPES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "HALF": "float16",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
}
_TYPED_BY = ("dtype", "T", "DstT", "out_type", "output_type", "Tout")
_SHAPES = "_output_shapes"
# Op types with which tbscope's drawings keep the page from folding unlike nodes into a series.
_APART = re.compile(r"(Input|Output|Parameter|Buffer)\[.*\]")
_OF_RANKS = re.compile(r"ranks_([0-9][-0-9,a-z_]*)_([^_]+)")
_MOST_ENTRIES = 1000
_MOST_TEXT = 1000
_MOST_ELEMENTS = 16


@dataclass(slots=True, eq=False)
class Op:
    """Node of a GraphDef.

    Attributes:
        name: The name.
        op: The op type.
        reads: The data inputs, in order.
        waits: The names of the control inputs.
        facts: The attributes, without blanks before their names.
        shapes: The shapes of the outputs, as far as they are recorded.
        dtypes: The element types of the outputs with shapes, or of the first output.
        device: The device in torch's notation.
        drawn: Whether an attribute has blanks before its name, which only tbscope's drawings write.
    """

    name: str
    op: str
    reads: list[Reference] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    facts: dict[str, Nest] = field(default_factory=dict)
    shapes: list[Shape | None] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    device: str = "cpu"
    drawn: bool = False


def op_of(node: Any) -> Op:
    """Return a NodeDef as plain data."""
    result = Op(node.name, plain_op(node.op), device=device_of(node.device))
    for text in node.input:
        if text.startswith("^"):
            result.waits.append(text[1:])
        elif text:
            result.reads.append(reference_of(text))
    for key in sorted(node.attr):
        if key == _SHAPES:
            result.shapes = shapes_of(node)
            continue
        name = key.lstrip(" ")
        result.drawn |= name != key
        result.facts[name] = attribute_value(node.attr[key])
    result.dtypes = dtypes_of(node, len(result.shapes) or 1)
    return result


def shapes_of(node: Any) -> list[Shape | None]:
    """Return the shapes of the outputs of a NodeDef, as far as they are recorded."""
    if _SHAPES not in node.attr:
        return []
    return [_shape(shape) for shape in node.attr[_SHAPES].list.shape[:_MOST_ENTRIES]]


@lru_cache(maxsize=1024)
def plain_op(op: str) -> str:
    """Return an op type without the suffix with which tbscope's drawings prevent folding."""
    apart = _APART.fullmatch(op)
    return apart[1] if apart else op


def dtypes_of(node: Any, count: int) -> list[str]:
    """Return the element types of the first outputs of a NodeDef; "unknown" for missing ones.

    Args:
        node: The NodeDef.
        count: The number of the outputs.
    """
    for name in _TYPED_BY:
        attr = node.attr.get(name)
        if attr is None or not (name == "dtype" or attr.HasField("type") or attr.list.type):
            continue
        fact = attribute_value(attr)
        # tbscope's drawings write "float32", or "float32 x300" for very many results.
        dtypes = fact if isinstance(fact, list) else names_counted(str(fact))
        if len(dtypes) == 1:
            dtypes *= count
        return [*map(str, dtypes), *["unknown"] * count][:count]
    return ["unknown"] * count


def reference_of(text: str) -> Reference:
    """Parse a data input: `name`, or `name:1`."""
    name, _, output = text.partition(":")
    return name, int(output) if output.isdecimal() and len(output) < 10 else 0


@lru_cache(maxsize=1024)
def device_of(text: str) -> str:
    """Return a device in torch's notation: `cuda:0` for `/job:x/device:GPU:0`.

    The numbers of ranks come before their device: `ranks 0-7 cuda:0` for `/device:ranks_0-7_GPU:0`.
    """
    device = text.rpartition("device:")[2] if "device:" in text else text.strip("/")
    if ranks := _OF_RANKS.fullmatch(device):
        numbers = ranks[1].replace("_", " ")
        several = "rank" if numbers.isdecimal() else "ranks"
        return device_on(f"{several} {numbers}", device_of(f"device:{ranks[2]}"))
    kind, _, index = device.partition(":")
    kind = {"GPU": "cuda", "gpu": "cuda"}.get(kind, kind.lower())
    if not kind:
        return "cpu"
    return f"{kind}:{index}" if index and kind != "cpu" else kind


def _shape(message: Any) -> Shape | None:
    if message.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in message.dim)


def _dtype(number: int) -> str:
    try:
        name: str = DataType.Name(number)
    except ValueError:
        return "unknown"
    name = name.removeprefix("DT_").removesuffix("_REF")
    return "unknown" if name == "INVALID" else _DTYPES.get(name, name.lower())


def attribute_value(attribute: Any) -> Nest:
    """Return the value of an attribute as a constant."""
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    if kind == "list":
        entries: list[Nest] = []
        for entry, items in attribute.list.ListFields():
            entries += [_single(entry.name, item) for item in items[:_MOST_ENTRIES]]
        return entries
    return _single(kind, getattr(attribute, kind))


def _single(kind: str, item: Any) -> Nest:
    if kind == "s" or kind == "placeholder":
        text = item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else item
        return cut(text, _MOST_TEXT)
    if kind == "f":
        # A float32 has some seven significant digits; more of them would be rounding noise.
        return float(f"{item:.7g}")
    if kind == "i" or kind == "b":
        return item
    if kind == "type":
        return _dtype(item)
    if kind == "shape":
        sizes = _shape(item)
        return sizes if sizes is not None else Constant("unknown rank")
    if kind == "tensor":
        return _literal(item)
    return Constant(cut(f"function {getattr(item, 'name', '')}", _MOST_TEXT))


def _literal(tensor: Any) -> Nest:
    """Return the content of a small tensor if it is stored number by number, else its type."""
    sizes = _shape(tensor.tensor_shape)
    for name in ("float_val", "double_val", "int_val", "int64_val", "bool_val", "string_val"):
        numbers = getattr(tensor, name)
        if 0 < len(numbers) <= _MOST_ELEMENTS:
            items = [_single("s" if name == "string_val" else "i", item) for item in numbers]
            return items[0] if sizes == () and len(items) == 1 else items
    return Constant(f"{_dtype(tensor.dtype)}{list(sizes) if sizes is not None else ''}")


Path = tuple[ScopePart, ...]

# The page draws some 60 levels; deeper levels of a name stay in one label.
_MOST_LEVELS = 64
# Container modules that torch never calls.
_LISTS = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
# Boxes of tbscope's drawings, and of TensorFlow's gradients.
_PHASES: dict[str, Phase] = {label: phase for phase, label in PHASE_BOXES.items()}
_STEP = re.compile(r"[^\[\]]+(?:\[[^\[\]]+\])(?:\.[0-9]{1,9})?")


def path_of_name(name: str) -> Path:
    """Return the scope path in the name of a node: all its parts but the last."""
    return _path("/".join(name.split("/", _MOST_LEVELS)[:-1]))


# Many nodes share a scope: one cached object for each part makes paths quick to compare.
@lru_cache(maxsize=4096)
def _path(text: str) -> Path:
    return tuple([_part(step) for step in text.split("/") if step])


@lru_cache(maxsize=4096)
def _part(step: str) -> ScopePart:
    parsed = _parsed(step) if _STEP.fullmatch(step) else None
    return parsed[0] if parsed else ScopePart(step)


def path_of_scope(op: Op) -> Path | None:
    """Return the path in the `scope` attribute that tbscope's drawings write, or None."""
    scope = op.facts.get("scope")
    if not isinstance(scope, str) or scope.count("/") >= _MOST_LEVELS:
        return None
    return _parsed(scope)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Path | None:
    try:
        return Scope.parse(text)
    except ArgumentError:
        return None


def _without_lists(path: Path) -> Path:
    """Return a path as torch writes it for an operation: without lists, which are never called."""
    return tuple(part for part in path if part.label not in _LISTS)


def _called(path: Path) -> Path:
    """Return the path of the innermost module that torch calls: a ParameterList is inside of it."""
    return _called(path[:-1]) if path and path[-1].label in _LISTS else path


def restore_lists(paths: Iterable[tuple[Path, Iterable[Path]]]) -> list[Path]:
    """Return scope paths with the lists that torch has left out.

    torch writes `Net/Linear[0]` for the operations of `Net/ModuleList[layers]/Linear[0]`, and the
    whole path for the parameters of that module.

    Args:
        paths: For each node its path as torch writes it, and the paths of the parameters that it
            reads.
    """
    rows = [
        (path, [_called(owner) for owner in owners if _without_lists(owner) == path])
        for path, owners in paths
    ]
    full_paths: dict[Path, dict[Path, None]] = {}
    for _, owners in rows:
        for owner in owners:
            # The path of a parameter locates each enclosing module, too.
            for size in range(1, len(owner) + 1):
                if owner[size - 1].label not in _LISTS:
                    full_paths.setdefault(_without_lists(owner[:size]), {})[owner[:size]] = None
    deepest = max(map(len, full_paths), default=0)
    return [owners[0] if owners else _moved(path, full_paths, deepest) for path, owners in rows]


def _moved(path: Path, places: dict[Path, dict[Path, None]], deepest: int) -> Path:
    """Return a path with the lists of its longest prefix that the parameters locate uniquely."""
    for size in range(min(len(path), deepest), 0, -1):
        candidates = places.get(path[:size], {})
        if len(candidates) == 1:
            return next(iter(candidates)) + path[size:]
    return path


def number_calls(paths: list[Path], runs: list[bool]) -> list[Path]:
    """Return scope paths in which each call of a module has a scope of its own.

    A call is a sequence of adjacent nodes in the order of execution: a module that is entered again
    after it was left is called again.

    Args:
        paths: The paths of the nodes, in the order of execution.
        runs: For each node, whether it runs an operation. The path of any other node is unchanged:
            it is in the first call.
    """
    counts: dict[tuple[Path, ScopePart], int] = {}
    open_: Path = ()
    numbered: Path = ()
    located = []
    for path, is_operation in zip(paths, runs, strict=True):
        if not is_operation:
            located.append(path)
            continue
        if path != open_:
            shared = 0
            while shared < min(len(path), len(open_)) and path[shared] == open_[shared]:
                shared += 1
            prefix = numbered[:shared]
            for step in path[shared:]:
                part = step
                if part.attribute is not None and part.label not in _LISTS:
                    number = counts.get((prefix, step), 0)
                    counts[prefix, step] = number + 1
                    part = replace(step, index=step.index + number)
                prefix = (*prefix, part)
            open_, numbered = path, prefix
        located.append(numbered)
    return located


class PathScopes:
    """Scopes of a graph, each created at its first use.

    Args:
        build: The builder of the graph.
    """

    def __init__(self, build: GraphBuilder) -> None:
        self._build = build
        self._known: dict[Path, Scope] = {}
        self._roots: set[ScopePart] = set()
        self.calls: dict[Scope, Call] = {}

    def tell(self, paths: Iterable[Path], models: Iterable[Path]) -> None:
        """Register all paths before their use: a top scope that encloses a module is a module.

        Args:
            paths: The paths of all nodes.
            models: Paths that begin with the model.
        """
        outer = [path for path in paths if any(part.attribute is not None for part in path[1:])]
        self._roots.update(path[0] for path in (*outer, *models) if path)

    def of(self, path: Path) -> Scope | None:
        """Return the scope of a path, or None for the top level."""
        if not path:
            return None
        scope = self._known.get(path)
        if scope is None:
            scope = self._known[path] = self._open(path, self.of(path[:-1]))
        return scope

    def _open(self, path: Path, around: Scope | None) -> Scope:
        part = path[-1]
        kind: ScopeKind = "container" if part.label in _LISTS else "module"
        phase = "forward" if path[0].attribute else _PHASES.get(path[0].label, "forward")
        is_root = len(path) == 1 and part in self._roots
        if phase != "forward" or (part.attribute is None and not is_root):
            kind = "hand"
        attributes = [step.attribute for step in path if step.attribute is not None]
        scope = self._build.new_scope(
            part.label,
            part.attribute,
            parent=around,
            kind=kind,
            qualified_name=None if kind == "hand" else ".".join(attributes),
            index=part.index,
        )
        scope.phase = phase
        if kind == "module":
            self.calls[scope] = self._build.add_call(scope, class_name=part.label)
        return scope
