"""Nodes of a graph, the values on the edges between them, calls of modules, outputs and notes.

`str(node)` prints a node in the form of TorchScript:

    %1 : Float(1, 2) = linear(%x, %layer1.0.weight, %layer1.0.bias), scope: Net/Linear[fc]

The text is for people only; no code parses it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from tbscope.ir.metadata import (
    CallFrame,
    Collective,
    Gradient,
    Measured,
    Parameter,
    Shape,
    Sharding,
    Source,
    item_size_bytes,
)
from tbscope.ir.pytree import Nest, Replacement, map_tree, map_values, values_in
from tbscope.ir.scopes import Phase, Scope
from tbscope.messages import one_line

__all__ = [
    "DTYPE_WORDS",
    "EFFECT_ATTRIBUTES",
    "OPERATIONS",
    "OWNED",
    "SOURCES",
    "STATE",
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
    "nest_to_text",
    "node_names",
    "node_to_text",
    "release_nodes",
    "sources_of",
    "type_text",
    "type_to_text",
    "value_name",
]

NodeKind = Literal["op", "module", "input", "parameter", "buffer", "constant"]
"""The kind of a node: an operation, a leaf module drawn as one operation, or a source of values."""

Role = Literal["view", "cast", "copy", "maker"]
"""The role of an operation that computes nothing.

A "view" returns another description of the one tensor that it reads, a "cast" converts that tensor
to another type or device, and a "copy" copies it. A "maker" builds a tensor from numbers alone,
equal in every run (`arange`). The source that saw the operation run sets the role; passes never
decide by the name of an operation.
"""
EFFECT_ATTRIBUTES = ("error", "fills", "gradient_of", "read_by_python")
"""Attributes of nodes that ran for an effect besides their results.

The node raised an error, filled an existing tensor by `out=`, set the gradient of a parameter, or
returned data to Python.
"""

OPERATIONS: frozenset[NodeKind] = frozenset({"op", "module"})
"""Kinds of nodes that run code: operations, and leaf modules drawn as one operation."""

STATE: frozenset[NodeKind] = frozenset({"parameter", "buffer"})
"""Kinds of nodes for tensors that a module registers: the state of a model."""

OWNED: frozenset[NodeKind] = STATE | {"constant"}
"""Kinds of nodes for tensors that existed before the run: all sources except inputs."""

SOURCES: frozenset[NodeKind] = OWNED | {"input"}
"""Kinds of nodes that run no code."""


@dataclass(slots=True, eq=False)
class Value:
    """One tensor on an edge, at one moment; an in-place operation produces a new value.

    Attributes:
        producer: The node that outputs the value.
        index: Position among the producer's outputs, counted from 0.
        shape: Sizes per dimension, None for an unknown size; None for an unknown rank.
        dtype: The element type as torch names it, without `torch.` (`float32`).
        device: The device as torch prints it (`cpu`, `cuda:0`, `meta`).
        sharding: This rank's shard of the tensor, or None if the tensor is not distributed.
    """

    producer: "Node"
    index: int
    shape: Shape | None
    dtype: str
    device: str
    sharding: Sharding | None = None

    @property
    def name(self) -> str:
        """Printed name without `%`: the producer's, plus `#index` if it has several outputs."""
        node = self.producer
        return f"{node.name}#{self.index}" if len(node.outputs) > 1 else node.name

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all elements, or None if a size or the element size is unknown."""
        size = item_size_bytes(self.dtype)
        for length in (None,) if self.shape is None else self.shape:
            size = None if size is None or length is None else size * length
        return size

    def __repr__(self) -> str:
        return f"Value(%{self.name}, shape={self.shape}, dtype={self.dtype!r})"


class Argument(NamedTuple):
    """One argument of an operation or of a call.

    Attributes:
        name: The keyword or parameter name, or None for a positional argument whose parameter
            name is unknown.
        nest: The argument as a pytree, with values for tensors.
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
        kind: The kind of the node.
        scope: The scope in which the node ran, or None at the top level.
        inputs: The values that the node reads, in order; a value may occur several times.
        outputs: The values that the node produces: results in order, then tensors it wrote into.
        arguments: All arguments in order, with values for tensors and constants as they are.
        control_inputs: Nodes that wrote into storage that this node reads through a view.
        source: The line of the user's code that called the node, or None if unknown.
        kernels: The ATen operations that ran inside, in order (`aten::addmm`).
        attributes: Further properties by name, as plain constants.
        body: The kernels as nodes, if they were recorded and there are several.
        flops: Floating-point operations of the kernels that have a formula. None if no kernel has
            a formula and at least one of them computes something (`Graph.uncounted`).
        gradients: The cost of the backward pass for this node.
        allocated_bytes: Bytes of newly allocated storages of the results; a view, or a tensor
            that the node wrote into, adds none.
        measured: Time and memory, if they were measured.
        role: The role of an operation that computes nothing; None for any other node.
        random: Whether the node drew random numbers.
        writes: Positions among `inputs` of the operands that the node wrote into, also through
            a view: the first operand of an in-place operation, the running statistics of a
            normalisation.
        phase: The phase of a training step in which the node ran.
        run: The run of the user's function that called the node, or None if unknown.
        step: Position of the call in the bytecode of that function: it grows with the lines, and
            separates several calls on one line.
        collective: The communication with other ranks; None for any other operation.
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
    run: CallFrame | None = None
    step: int = 0
    collective: Collective | None = None

    @property
    def duration_us(self) -> float | None:
        """Duration in microseconds, or None if it was not measured."""
        return None if self.measured is None else self.measured.duration_us

    @property
    def peak_bytes(self) -> int | None:
        """Peak bytes of live results while the node ran, or None if not measured."""
        return None if self.measured is None else self.measured.peak_bytes

    @property
    def at_peak_bytes(self) -> int | None:
        """Bytes allocated by the node and live at the peak of the run; None if not measured."""
        return None if self.measured is None else self.measured.at_peak_bytes

    def measure(self, **facts: Any) -> None:
        """Set some fields of `measured`; the others keep their values."""
        self.measured = replace(self.measured or Measured(), **facts)

    def __str__(self) -> str:
        return node_to_text(self)

    def __repr__(self) -> str:
        return f"<Node {self}>"


@dataclass(slots=True, eq=False)
class Body:
    """The kernels that ran inside an operation, with the edges among them.

    Attributes:
        nodes: One node per kernel, in order, which reads values of other kernels and the inputs
            of the operation; these nodes are not in `Graph.nodes`. None if the inputs of the
            kernels could not be recorded (under `vmap`).
        results: For each output of the operation the value that it is: an output of a kernel,
            or an input that the operation returned unchanged.
        writers: The kernels that wrote into tensors which existed before the operation, rather
            than into its own intermediates.
    """

    nodes: list[Node]
    results: list[Value]
    writers: list[Node] = field(default_factory=list)


def sources_of(node: Node) -> list[Node]:
    """Return the producers of a node's inputs, then the nodes of its control dependencies."""
    return [*map(_producer, node.inputs), *node.control_inputs]


_producer = attrgetter("producer")


def release_nodes(nodes: Iterable[Node]) -> None:
    """Clear the outputs and bodies of nodes that are no longer needed.

    A node and its values refer to each other, so without this only the garbage collector could
    free them.
    """
    for node in nodes:
        node.outputs.clear()
        if node.body is not None:
            release_nodes(node.body.nodes)


def copy_arguments(arguments: list[Argument], values: Replacement) -> list[Argument]:
    """Return a list of arguments with some values replaced, by other values or by texts."""
    copies = []
    for argument in arguments:
        name, nest = argument
        kind = type(nest)
        if kind is Value:
            copies.append(_new_argument((name, values[nest])))
        elif kind in _CONTAINERS:
            copies.append(_new_argument((name, map_values(nest, values))))
        else:
            copies.append(argument)
    return copies


# Equal to `Argument(name, nest)`, in a third of the time.
_new_argument = partial(tuple.__new__, Argument)

_CONTAINERS = frozenset({list, tuple, dict})


@dataclass(slots=True, eq=False)
class Call:
    """One invocation of a module: its arguments, its results and the module's settings.

    Attributes:
        scope: The scope in which the operations of the call run.
        class_name: The full name of the module's class (`torch.nn.modules.linear.Linear`).
        qualified_name: The module's name in `named_modules()`, or None if no module
            registers it.
        arguments: The arguments of forward, in the order of its parameters.
        results: The result as a pytree, with values for tensors.
        hyperparameters: The settings that the module's `extra_repr` prints, by name.
        training: The module's training flag during the call.
        parameters: The module's own parameters and buffers, without those of its children.
        source: The line that called the module, or None if unknown.
        defined: The line that defines the module's class, or None if unknown.
        number: The number of the call among all calls in this scope: above 0 for a call that
            reruns in the scope of an earlier call, as in the backward pass of a checkpoint.
        run: The run of the user's function that made the call, or None if unknown.
        step: Position of the call in the bytecode of that function (see `Node.step`).
        caller: The scope that made the call, if the module of that scope does not contain the
            called module, or, in a program, if a module inside of it does; None for any other call,
            and if unknown.
        called_as: The path of the called module in the caller's module (`act`, `layers.1`); empty
            if `caller` is None, or if the caller's module does not contain the called module.
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
    run: CallFrame | None = None
    step: int = 0
    caller: Scope | None = None
    called_as: str = ""

    def __repr__(self) -> str:
        return f"Call({self.scope.path!r})"

    def values(self) -> list[Value]:
        """Return the values among its arguments and its results."""
        return values_in([*[nest for _, nest in self.arguments], self.results])


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor in the result of the model.

    Attributes:
        name: The path of the tensor in the result (`logits`, `out.0`).
        value: The value of the tensor.
        control_inputs: Nodes that wrote into it later, through another view of its storage.
        given: The original result, with its shape and dtype, if a pass removed views between it
            and `value` from the graph.
        via: The removed views, as text.
    """

    name: str
    value: Value
    control_inputs: tuple[Node, ...] = ()
    given: Value | None = None
    via: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A remark about a run that the drawing alone does not show.

    Attributes:
        text: One sentence.
        source: The line of the user's code, or None if unknown.
        node: The node that the note is about, or None for a note about no single node.
        topic: The subject: the course of the run, tensor data that Python read, unused tensors,
            randomness, or operations missing from FLOPs.
    """

    text: str
    source: Source | None = None
    node: Node | None = None
    topic: Literal["run", "python", "unused", "random", "flops"] = "run"

    def __str__(self) -> str:
        return f"{self.text} ({self.source})" if self.source else self.text


# -- text -----------------------------------------------------------------------------------


DTYPE_WORDS = {
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
"""TorchScript's words for element types. Source: c10/core/ScalarType.h."""


def type_to_text(typed: Value | Parameter, *, device: bool = True) -> str:
    """Return the type of a value or parameter as TorchScript writes it.

    Args:
        typed: A value or parameter, with shape, dtype and device.
        device: Whether to print the device.
    Returns:
        `Float(1, 2)`, with `?` for an unknown size, `*` for an unknown rank, and the device
        unless it is the CPU: `Long(?, 8, device=cuda:0)`. A distributed tensor adds the shape of
        the local shard and its placements: `Float(8, 8, here=(4, 8) by tp: Shard(0))`.
    """
    return type_text(typed.shape, typed.dtype, typed.device if device else "cpu", typed.sharding)


def type_text(shape: Shape | None, dtype: str, device: str, sharding: Sharding | None) -> str:
    """Return the text of `type_to_text` for a type in its components."""
    sizes = ["*"] if shape is None else ["?" if size is None else str(size) for size in shape]
    if device != "cpu":
        sizes.append(f"device={device}")
    if sharding is not None:
        sizes.append(f"here={sharding}")
    return f"{DTYPE_WORDS.get(dtype, dtype)}({', '.join(sizes)})"


def node_to_text(node: Node, *, source: bool = False) -> str:
    """Return one node as one line.

    Args:
        node: An operation, or a source of values (`%x : Float(1, 2) = input()`).
        source: Whether to append the line of the user's code (`# net.py:12 in forward`).
    Returns:
        `%1 : Float(1, 2) = linear(%x, %fc.weight), scope: Net/Linear[fc]`. The ` = ` is absent
        for an operation without outputs; control dependencies are appended (`after: %3`), and so
        is any phase but forward (`phase: backward`).
    """
    arguments = node.arguments or [Argument(None, value) for value in node.inputs]
    texts = (f"{name}=" * (name is not None) + nest_to_text(nest) for name, nest in arguments)
    text = f"{one_line(node.op) if node.kind in OPERATIONS else node.kind}({', '.join(texts)})"
    if node.outputs:
        typed_outputs = (f"{value_name(value)} : {type_to_text(value)}" for value in node.outputs)
        text = f"{', '.join(typed_outputs)} = {text}"
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
    """Return the name of a value in printed nodes, with its `%`."""
    return f"%{one_line(value.name)}"


def node_names(nodes: Iterable[Node]) -> str:
    """Return the names of control inputs in the form of printed nodes."""
    return ", ".join(f"%{one_line(node.name)}" for node in nodes)


def _entry(entry: Nest) -> str:
    return value_name(entry) if isinstance(entry, Value) else one_line(repr(entry))


def nest_to_text(nest: Nest, entry: Callable[[Nest], str] = _entry) -> str:
    """Return the text of a pytree in the form of a printed node's arguments.

    Args:
        nest: The pytree.
        entry: Returns the text of one value or constant of the pytree.
    """
    kind = type(nest)
    if kind is dict:
        pairs = (
            f"{one_line(repr(key))}: {nest_to_text(child, entry)}" for key, child in nest.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if kind is not list and kind is not tuple:
        return entry(nest)
    entries = ", ".join(nest_to_text(child, entry) for child in nest)
    return f"[{entries}]" if kind is list else f"({entries}{',' * (len(nest) == 1)})"


def constants_of(node: Node) -> tuple[str, ...]:
    """Return the arguments of a node as texts, with None in place of each value."""

    def without_values(entry: Nest) -> Nest:
        return None if isinstance(entry, Value) else entry

    plain = ((name, repr(map_tree(nest, without_values))) for name, nest in node.arguments)
    return tuple(f"{name}={text}" if name else text for name, text in plain)
