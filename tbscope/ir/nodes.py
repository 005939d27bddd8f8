"""Nodes, the values that flow between them, calls of modules, outputs and notes, and their text.

The text is what `str(node)` prints, in the form of TorchScript:

    %1 : Float(1, 2) = linear(%x, %layer1.0.weight, %layer1.0.bias), scope: Net/Linear[fc]

Its only reader is a person; nothing parses it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from tbscope.ir.metadata import (
    Collective,
    Gradient,
    Measured,
    Parameter,
    Run,
    Shape,
    Sharding,
    Source,
    item_size_bytes,
)
from tbscope.ir.pytree import Nest, Replacement, map_nest, map_values
from tbscope.ir.scopes import Phase, Scope
from tbscope.messages import one_line

__all__ = [
    "OPERATIONS",
    "OWNED",
    "STATE",
    "TOLD",
    "Argument",
    "Body",
    "Call",
    "Nest",
    "Node",
    "NodeKind",
    "Note",
    "Output",
    "Role",
    "Value",
    "constants_of",
    "copy_arguments",
    "let_go",
    "nest_to_text",
    "node_names",
    "node_to_text",
    "sources_of",
    "type_text",
    "type_to_text",
    "value_name",
]

NodeKind = Literal["op", "module", "input", "parameter", "buffer", "constant"]
"""What a node is: an operation, a leaf module drawn as one operation, or a source of values."""

Role = Literal["view", "cast", "copy", "maker"]
"""What an operation is that computes nothing.

A "view" describes the one tensor that it reads anew, a "cast" gives it in another type or
on another device, a "copy" gives it once more; a "maker" makes of nothing but numbers a
tensor that is the same in every run (`arange`). Whoever saw the operation run says it; no
pass asks for its name.
"""
TOLD = ("error", "fills", "gradient_of", "read_by_python")
"""The attributes that tell for what more than its result a node has run.

It raised, filled by `out=` what was there before the run, gave a parameter its gradient, or
gave what Python read.
"""

OPERATIONS: frozenset[NodeKind] = frozenset({"op", "module"})
"""The kinds of nodes that run something: operations, and leaf modules drawn as one."""

STATE: frozenset[NodeKind] = frozenset({"parameter", "buffer"})
"""The kinds of nodes that hold what a module registers: the state of a model."""

OWNED: frozenset[NodeKind] = STATE | {"constant"}
"""The kinds of nodes that hold a tensor which was there before: sources, but for inputs."""


@dataclass(slots=True, eq=False)
class Value:
    """One tensor on an edge, at one moment; an in-place operation gives a new value.

    Attributes:
        producer: The node that gives it.
        index: Which of the producer's outputs it is, counted from 0.
        shape: Sizes per dimension, None where not known; None for an unknown rank.
        dtype: The element type as torch names it, without `torch.` (`float32`).
        device: The device as torch prints it (`cpu`, `cuda:0`, `meta`).
        sharding: What this rank holds of it; None where it is not spread over ranks.
    """

    producer: "Node"
    index: int
    shape: Shape | None
    dtype: str
    device: str
    sharding: Sharding | None = None

    @property
    def name(self) -> str:
        """The printed name without `%`: the producer's, with `#index` where it gives several."""
        node = self.producer
        return f"{node.name}#{self.index}" if len(node.outputs) > 1 else node.name

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all its elements; None where its sizes or its dtype do not tell."""
        size = item_size_bytes(self.dtype)
        for length in (None,) if self.shape is None else self.shape:
            size = None if size is None or length is None else size * length
        return size

    def __repr__(self) -> str:
        return f"Value(%{self.name}, shape={self.shape}, dtype={self.dtype!r})"


class Argument(NamedTuple):
    """One argument of an operation or of a call.

    Attributes:
        name: Its keyword or parameter name; None where it was given by position and
            the name is not known.
        nest: What was given, tensors as values.
    """

    name: str | None
    nest: Nest


@dataclass(slots=True, eq=False)
class Node:
    """One operation in one scope, or a source of values.

    Attributes:
        name: Unique in the graph: the path of an input (`past.0.key`), the qualified name
            of a parameter (`layer1.0.weight`), or a running number.
        op: The operation as the user wrote it (`linear`), or the class of a leaf module.
        kind: What the node is.
        scope: Where it ran; None at the top level.
        inputs: The values it reads, in order; one value may stand several times.
        outputs: The values it gives: results in order, then tensors it wrote into.
        arguments: All arguments in order, tensors as values and constants as such.
        control_inputs: Nodes that wrote into storage that this one reads through a view.
        source: Where in the user's code it was called; None where that is not known.
        kernels: The ATen operations that ran inside, in order (`aten::addmm`).
        attributes: Further facts by name, as plain constants.
        body: The kernels as nodes, where they were recorded and are several.
        flops: Floating-point operations of the kernels that have a formula; None where none
            of them has one, and one of those that have none computes (`Graph.uncounted`).
        gradients: What the backward pass computes for it.
        allocated_bytes: Bytes of the storages that its results take and that did not exist
            before: none for a view or for what it wrote into.
        measured: Its time and its memory, where they were measured.
        role: What it is if it computes nothing; None for any other node.
        random: Whether it drew random numbers.
        writes: Positions among `inputs` of the operands that it wrote into, also through a
            view: an in-place operation its first, a normalisation its running statistics.
        phase: The part of a training step in which it ran.
        run: The run of the user's function that called it; None where none is known.
        step: Where in the code of that function it was called: a number that grows with the
            lines, and tells what stands on one line apart.
        collective: What it does together with other ranks; None for any other operation.
    """

    name: str
    op: str
    kind: NodeKind = "op"
    scope: Scope | None = None
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    control_inputs: list["Node"] = field(default_factory=list)
    source: Source | None = None
    kernels: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    body: "Body | None" = None
    flops: int | None = None
    gradients: tuple[Gradient, ...] = ()
    allocated_bytes: int = 0
    measured: Measured | None = None
    role: Role | None = None
    random: bool = False
    writes: tuple[int, ...] = ()
    phase: Phase = "forward"
    run: Run | None = None
    step: int = 0
    collective: Collective | None = None

    @property
    def duration_us(self) -> float | None:
        """How long it ran, in microseconds; None where that was not measured."""
        return None if self.measured is None else self.measured.duration_us

    @property
    def peak_bytes(self) -> int | None:
        """The most bytes of results that were alive while it ran; None where not measured."""
        return None if self.measured is None else self.measured.peak_bytes

    @property
    def at_peak_bytes(self) -> int | None:
        """What it allocated and was alive at the peak of the run; None where not measured."""
        return None if self.measured is None else self.measured.at_peak_bytes

    def measure(self, **facts: Any) -> None:
        """Take note of some facts of `Measured`; the others stay."""
        self.measured = replace(self.measured or Measured(), **facts)

    def __str__(self) -> str:
        return node_to_text(self)

    def __repr__(self) -> str:
        return f"<Node {self}>"


@dataclass(slots=True, eq=False)
class Body:
    """The kernels that ran inside an operation, with the edges among them.

    Attributes:
        nodes: One node for each kernel, in order, which reads values of others and of those
            that the operation reads. They do not stand among the nodes of the graph. None
            where it could not be seen what each of them reads (under `vmap`).
        results: For each output of the operation the value that it is: one that a kernel
            gives, or one that the operation reads and handed on.
        writers: Those of the kernels that wrote into what was there before the operation, and
            not into what it made itself.
    """

    nodes: list[Node]
    results: list[Value]
    writers: list[Node] = field(default_factory=list)


def sources_of(node: Node) -> list[Node]:
    """Return the nodes that a node reads, and then those that it only waits for."""
    return [*[value.producer for value in node.inputs], *node.control_inputs]


def let_go(nodes: Iterable[Node]) -> None:
    """Cut what nodes that nothing needs any more have given, and their bodies.

    A node and its values refer to each other: else only the garbage collector would find them.
    """
    for node in nodes:
        node.outputs.clear()
        if node.body is not None:
            let_go(node.body.nodes)


def copy_arguments(arguments: list[Argument], values: Replacement) -> list[Argument]:
    """Return a list of arguments with other values, or words, instead of some values."""
    copies = []
    for argument in arguments:
        name, nest = argument
        kind = type(nest)
        if kind is Value:
            copies.append(_new_argument((name, values.get(nest, nest))))
        elif kind in _CONTAINERS:
            copies.append(_new_argument((name, map_values(nest, values))))
        else:
            copies.append(argument)
    return copies


# As `Argument(name, nest)`, in a third of the time.
_new_argument = partial(tuple.__new__, Argument)

_CONTAINERS = frozenset({list, tuple, dict})


@dataclass(slots=True, eq=False)
class Call:
    """One invocation of a module: its arguments, its results, and what it was set to.

    Attributes:
        scope: Where its operations run.
        class_name: The full name of the module's class (`torch.nn.modules.linear.Linear`).
        qualified_name: The module's name in `named_modules()`; None where no module
            registers it.
        arguments: What forward was given, in the order of its parameters.
        results: What the call gave, tensors as values.
        hyperparameters: What the module's `extra_repr` tells, by name.
        training: The module's training flag during the call.
        parameters: Its own parameters and buffers, not those of its children.
        source: Where it was called; None where that is not known.
        defined: Where its class is defined; None where that is not known.
        number: Which of the calls in its scope it is: above 0 for one that runs again where
            an earlier call ran, as in the backward pass of a checkpoint.
        run: The run of the user's function that called it; None where none is known.
        step: Where in the code of that function it was called (see `Node.step`).
        caller: The scope from which it was called, where the module of that does not contain its
            module; None for any other, and where it is not known.
        called_as: The path of its module in that of the caller (`act`, `layers.1`); empty where
            there is no caller, or the caller has the module from elsewhere.
    """

    scope: Scope
    class_name: str
    qualified_name: str | None
    arguments: list[Argument] = field(default_factory=list)
    results: Nest = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    training: bool = False
    parameters: tuple[Parameter, ...] = ()
    source: Source | None = None
    defined: Source | None = None
    number: int = 0
    run: Run | None = None
    step: int = 0
    caller: Scope | None = None
    called_as: str = ""

    def __repr__(self) -> str:
        return f"Call({self.scope.path!r})"


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that the model gave back.

    Attributes:
        name: Its path in the result (`logits`, `out.0`).
        value: What it holds.
        control_inputs: Nodes that wrote into it later, through another view of its storage.
        given: What came out, where a pass left views between it and `value` out of the
            graph: it tells the shape and the dtype.
        via: These views, as text.
    """

    name: str
    value: Value
    control_inputs: tuple[Node, ...] = ()
    given: Value | None = None
    via: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a run that the drawing alone does not tell.

    Attributes:
        text: One sentence.
        source: Where in the user's code; None where that is not known.
        node: The node it is about; None where it is about none.
        topic: What kind of thing it tells: how the run went, what Python read of tensors, what
            was not used, what is random, or what FLOPs leave out.
    """

    text: str
    source: Source | None = None
    node: Node | None = None
    topic: Literal["run", "python", "unused", "random", "flops"] = "run"

    def __str__(self) -> str:
        return f"{self.text} ({self.source})" if self.source else self.text


# -- text -----------------------------------------------------------------------------------


# Source: TorchScript's words for scalar types, c10/core/ScalarType.h.
_DTYPE_WORDS = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "bfloat16": "BFloat16",
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


def type_to_text(typed: Value | Parameter, *, device: bool = True) -> str:
    """Return the type of a value or parameter as TorchScript writes it.

    Args:
        typed: What has a shape, a dtype and a device.
        device: Whether its device is told.
    Returns:
        `Float(1, 2)`; `?` for a size that is not known, `*` for an unknown rank, and the
        device where it is not the CPU: `Long(?, 8, device=cuda:0)`. One that is spread over
        ranks tells what is here, and how it lies: `Float(8, 8, here=(4, 8) by tp: Shard(0))`.
    """
    return type_text(typed.shape, typed.dtype, typed.device if device else "cpu", typed.sharding)


def type_text(shape: Shape | None, dtype: str, device: str, sharding: Sharding | None) -> str:
    """Return what `type_to_text` does of what has this type."""
    sizes = ["*"] if shape is None else ["?" if size is None else str(size) for size in shape]
    if device != "cpu":
        sizes.append(f"device={device}")
    if sharding is not None:
        sizes.append(f"here={sharding}")
    return f"{_DTYPE_WORDS.get(dtype, dtype)}({', '.join(sizes)})"


def node_to_text(node: Node, *, source: bool = False) -> str:
    """Return one node as one line.

    Args:
        node: An operation, or a source of values (`%x : Float(1, 2) = input()`).
        source: Whether to end in the place in the user's code (`# net.py:12 in forward`).
    Returns:
        `%1 : Float(1, 2) = linear(%x, %fc.weight), scope: Net/Linear[fc]`. An operation
        that gives nothing has no ` = `; one that waits for others names them (`after: %3`),
        and one outside of the forward pass its phase (`phase: backward`).
    """
    given = node.arguments or [Argument(None, value) for value in node.inputs]
    told = (f"{name}=" * (name is not None) + nest_to_text(nest) for name, nest in given)
    text = f"{one_line(node.op) if node.kind in OPERATIONS else node.kind}({', '.join(told)})"
    if node.outputs:
        gives = (f"{value_name(value)} : {type_to_text(value)}" for value in node.outputs)
        text = f"{', '.join(gives)} = {text}"
    if node.control_inputs:
        text += f", after: {node_names(node.control_inputs)}"
    if node.scope is not None:
        text += f", scope: {one_line(node.scope.path)}"
    if node.phase != "forward":
        text += f", phase: {node.phase}"
    if source and node.source is not None:
        text += f"  # {one_line(str(node.source))}"
    return text


def value_name(value: Value) -> str:
    """Return a value as printed nodes name it."""
    return f"%{one_line(value.name)}"


def node_names(nodes: Iterable[Node]) -> str:
    """Return the names of nodes that are waited for, as printed nodes have them."""
    return ", ".join(f"%{one_line(node.name)}" for node in nodes)


def _entry(entry: Nest) -> str:
    return value_name(entry) if isinstance(entry, Value) else one_line(repr(entry))


def nest_to_text(nest: Nest, entry: Callable[[Nest], str] = _entry) -> str:
    """Return a nest as the arguments of a printed node have it.

    Args:
        nest: The nest.
        entry: Gives the text of each value and constant in it.
    """
    kind = type(nest)
    if kind is dict:
        told = (f"{one_line(repr(key))}: {nest_to_text(one, entry)}" for key, one in nest.items())
        return f"{{{', '.join(told)}}}"
    if kind is not list and kind is not tuple:
        return entry(nest)
    entries = ", ".join(nest_to_text(one, entry) for one in nest)
    return f"[{entries}]" if kind is list else f"({entries}{',' * (len(nest) == 1)})"


def constants_of(node: Node) -> tuple[str, ...]:
    """Return the arguments of a node as texts, with None in the place of each value."""

    def without_values(entry: Nest) -> Nest:
        return None if isinstance(entry, Value) else entry

    plain = ((name, repr(map_nest(nest, without_values))) for name, nest in node.arguments)
    return tuple(f"{name}={text}" if name else text for name, text in plain)
