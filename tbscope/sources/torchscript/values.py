"""Values of TorchScript while a graph is read: their types and contents, and the nodes of graphs.

A tensor is a `Slot`, a constant is itself, and a list or a dict contains more of these. An object
is a `ScriptObject`; a number that has no value before the code runs is a `UnknownValue`. A list or
a dict is open if its length or its keys are unknown: a list ends with a `UnknownEntries`, a dict
has the key `UNKNOWN_KEY`.

Values of a graph are read by index, and nodes by `prev()`: iteration over torch's lists costs ten
times as much, as torch ends each iteration with an exception.
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.fx.aliasing import Content, Slot, slots_in
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType
from tbscope.sources.torch.subclasses import type_names

Contents: TypeAlias = list[Content]
"""Contents of several values, in order."""

_MANGLED = re.compile(r"(^|\.)___torch_mangle_[0-9]+(?=\.)")
_MOST_TEXT = 60
_MOST_ORIGINS = 8


@dataclass(slots=True, eq=False)
class ScriptObject:
    """A module, or another object with attributes.

    Attributes:
        name: Its qualified name from the root; None for an object that is no module.
        kind: TorchScript's name of its class.
        handle: Its C++ object; None for an object that the code constructs.
        attributes: The attributes that the code has set, or has read before.
    """

    name: str | None
    kind: str
    handle: Any = None
    attributes: dict[Any, Content] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class UnknownValue:
    """A number, a text, or another object without tensors, that exists only when the code runs.

    Attributes:
        text: The expression that computes it (`x.size(0)`); `...` for a long one.
        slots: The tensors on which it depends; the first few if they are many.
    """

    text: str
    slots: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        self.text = self.text if len(self.text) <= _MOST_TEXT else "..."
        self.slots = self.slots[:_MOST_ORIGINS]

    def __str__(self) -> str:
        return self.text


UNINITIALIZED = UnknownValue("uninitialized")
"""Content of `prim::Uninitialized`, the result of a branch that raises, or that has returned: no
code reads it."""


@dataclass(slots=True, eq=False)
class UnknownEntries:
    """Last entry of an open list: a placeholder for any number of further entries, or for none.

    Attributes:
        slots: The tensors on which these entries depend.
    """

    slots: tuple[Slot, ...]


@functools.lru_cache(maxsize=4096)
def class_name(kind: str) -> str:
    """Return the full name of a Python class from TorchScript's name of it.

    >>> class_name("__torch__.torch.nn.modules.linear.___torch_mangle_9.Linear")
    'torch.nn.modules.linear.Linear'
    """
    return _MANGLED.sub("", kind.removeprefix("__torch__.")).removeprefix(".") or "Module"


def is_known(content: Content) -> bool:
    """Whether a value is a constant, or a pytree of constants."""
    kind = type(content)
    if kind in FLAT:
        return kind is not Slot
    if isinstance(content, (list, tuple)):
        return all(map(is_known, content))
    if isinstance(content, dict):
        return all(map(is_known, content.values()))
    return kind not in (UnknownValue, ScriptObject, Constant, UnknownEntries)


UNKNOWN_KEY = UnknownValue("...")
"""Key of an open dict for the list of its entries under unknown keys."""


def is_open(content: Content) -> bool:
    """Whether a list or a dict is open: the number and positions of its entries are unknown."""
    if type(content) is dict:
        return UNKNOWN_KEY in content
    return type(content) is list and bool(content) and type(content[-1]) is UnknownEntries


def known_entries(container: Content) -> Content:
    """Return an open list or dict without its unknown entries; any other container as it is."""
    if not is_open(container):
        return container
    if type(container) is dict:
        return {key: entry for key, entry in container.items() if key is not UNKNOWN_KEY}
    return container[:-1]


def make_open(container: Content, *others: Content) -> None:
    """Open a list or a dict: its tensors are among entries of unknown number and position.

    Entries of a dict that contain tensors stay under their keys.

    Args:
        container: The list or dict, changed in place.
        others: Further values that may be among its entries.
    """
    rest = UnknownEntries(origins([container, *others]))
    slots = dict.fromkeys(slots_in([container, *others]))
    if type(container) is dict:
        named = {key: entry for key, entry in known_entries(container).items() if has_slot(entry)}
        for slot in slots_in(named):
            del slots[slot]
        container.clear()
        container.update(named)
        container[UNKNOWN_KEY] = [*slots, rest]
    else:
        container[:] = [*slots, rest]


def has_slot(content: Content) -> bool:
    """Whether a tensor is in a pytree."""
    return next(slots_in(content), None) is not None


FLAT = frozenset({Slot, int, float, bool, str, type(None)})
"""Classes of values that contain no further values."""


def origins(content: Content) -> tuple[Slot, ...]:
    """Return the tensors in a pytree, and the tensors on which its numbers depend, each once."""
    return tuple(dict.fromkeys(_origins(content)))


def _origins(content: Content) -> Iterator[Slot]:
    if type(content) is UnknownValue or type(content) is UnknownEntries:
        yield from content.slots
    elif isinstance(content, list | tuple | dict):
        for entry in content.values() if isinstance(content, dict) else content:
            yield from _origins(entry)
    else:
        yield from slots_in(content)


def lowered(content: Content) -> Content:
    """Return a pytree in the form that `Reader` takes: with a `Constant` per number and object."""
    kind = type(content)
    if kind in FLAT:
        return content
    if kind is UnknownValue:
        return Constant(content.text)
    if kind is UnknownEntries:
        return Constant("...")
    if kind is ScriptObject:
        return Constant(f"<{class_name(content.kind).rpartition('.')[2]}>")
    if kind is list or kind is tuple:
        return kind([lowered(entry) for entry in content])
    if kind is dict:
        return {str(key): lowered(entry) for key, entry in content.items()}
    return content


def mapped(content: Content, change: Callable[[Content], Content]) -> Content:
    """Return a pytree with `change(leaf)` for each leaf.

    Lists, tuples, dicts and objects that the code constructs are no leaves.
    """
    kind = type(content)
    if kind is ScriptObject and content.handle is None:
        return replace(content, attributes=mapped(content.attributes, change))
    if kind is list or kind is tuple:
        return kind([mapped(entry, change) for entry in content])
    if kind is dict:
        return {key: mapped(entry, change) for key, entry in content.items()}
    return change(content)


ScriptNode: TypeAlias = Any
"""Node of a graph, `torch._C.Node`; torch's stubs lack its attributes and its neighbours."""

ScriptValue: TypeAlias = Any
"""Value in a graph, `torch._C.Value`."""

ScriptBlock: TypeAlias = Any
"""Graph, or a block of a node: `torch._C.Graph` or `torch._C.Block`."""

ScriptType: TypeAlias = Any
"""Type of a value, `torch._C.Type`."""

_CPU = torch.device("cpu")


def dtype_code(dtype: torch.dtype) -> int:
    """Return TorchScript's number of a dtype."""
    code: int = torch.ops.prim.dtype.default(torch.empty((), dtype=dtype, device="meta"))
    return code


@functools.cache
def dtypes_by_code() -> dict[int, torch.dtype]:
    """Return all dtypes by TorchScript's numbers of them."""
    dtypes = [entry for entry in vars(torch).values() if isinstance(entry, torch.dtype)]
    return {dtype_code(dtype): dtype for dtype in dtypes}


def tensor_type_of(kind: ScriptType) -> TensorType | None:
    """Return the type of a tensor in a graph, or None if its sizes or its dtype are missing."""
    if kind.kind() != "TensorType":
        return None
    sizes = kind.sizes()
    dtype = None if sizes is None else kind.dtype()
    if dtype is None:
        return None
    strides = kind.strides()
    return TensorType(
        tuple(sizes),
        *type_names(dtype, kind.device() or _CPU),
        stride=None if strides is None else tuple(strides),
    )


def gives_tensors(kind: ScriptType) -> bool:
    """Whether a value of a type may be a tensor, or contain one."""
    name = kind.kind()
    if name == "TensorType":
        return True
    return name in _NESTS and any(map(gives_tensors, kind.containedTypes()))


_NESTS = frozenset({"ListType", "TupleType", "OptionalType", "DictType", "FutureType", "UnionType"})


def types_from_kind(kind: ScriptType, count: Callable[[], int | None] = lambda: None) -> Content:
    """Return the tensor types in a value, from its TorchScript type alone; None without tensors.

    Args:
        kind: The TorchScript type.
        count: Returns the length of a list, or None if it is unknown.
    """
    name = kind.kind()
    if name == "TensorType":
        return tensor_type_of(kind) or UNKNOWN
    if name == "TupleType":
        return [types_from_kind(entry_type) for entry_type in kind.containedTypes()]
    if name == "ListType":
        entries = count()
        if entries is not None:
            return [types_from_kind(kind.containedTypes()[0])] * entries
    # A list or a dict of tensors is one value while its length is unknown.
    return UNKNOWN if gives_tensors(kind) else None


def common_type(slots: list[Slot]) -> TensorType:
    """Return the type of all slots if their types are equal; else what they have in common.

    The device is the first slot's.
    """
    types = [slot.type for slot in slots]
    first = types[0]
    if len(set(types)) == 1:
        return first
    shapes, dtypes = {typed.shape for typed in types}, {typed.dtype for typed in types}
    return TensorType(
        first.shape if len(shapes) == 1 else None,
        first.dtype if len(dtypes) == 1 else "unknown",
        first.device,
    )


def node_inputs(node: ScriptNode) -> list[ScriptValue]:
    """Return the inputs of a node, in order."""
    input_at = node.inputsAt
    return [input_at(index) for index in range(node.inputsSize())]


def node_outputs(node: ScriptNode) -> list[ScriptValue]:
    """Return the outputs of a node, in order."""
    output_at = node.outputsAt
    return [output_at(index) for index in range(node.outputsSize())]


def nodes_of(block: ScriptBlock) -> list[tuple[str, ScriptNode]]:
    """Return the nodes of a graph or a block in order, each with its kind."""
    node = _last(block)
    if not hasattr(node, "prev"):
        return [(node.kind(), node) for node in block.nodes()]
    nodes: list[tuple[str, ScriptNode]] = []
    while True:
        node = node.prev()
        kind = node.kind()
        if kind == "prim::Param":
            return nodes[::-1]
        nodes.append((kind, node))


def block_inputs(block: ScriptBlock) -> list[ScriptValue]:
    """Return the inputs of a graph or a block."""
    node = block.param_node() if hasattr(block, "param_node") else block.paramNode()
    return node_outputs(node)


def block_outputs(block: ScriptBlock) -> list[ScriptValue]:
    """Return the outputs of a graph or a block."""
    return node_inputs(_last(block))


def _last(block: ScriptBlock) -> ScriptNode:
    return block.return_node() if hasattr(block, "return_node") else block.returnNode()
