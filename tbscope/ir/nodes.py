"""Nodes: the operations of a graph with their arguments, and the values that flow between them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from tbscope.ir.collectives import Collective, Sharding
from tbscope.ir.facts import Gradient, Measured, Shape, Source, item_size_bytes
from tbscope.ir.nests import Nest, Replacement, map_values
from tbscope.ir.runs import Run
from tbscope.ir.scopes import Phase, Scope
from tbscope.ir.ways_up import way_up

__all__ = [
    "OPERATIONS",
    "OWNED",
    "STATE",
    "TOLD",
    "Argument",
    "Body",
    "Nest",
    "Node",
    "NodeKind",
    "Role",
    "Value",
    "copy_arguments",
    "let_go",
    "sources_of",
    "with_values",
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
        return str(way_up("Node.__str__")(self))

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
            copies.append(_new_argument((name, with_values(nest, values))))
        else:
            copies.append(argument)
    return copies


def with_values(nest: Nest, values: Replacement) -> Nest:
    """Return a nest with other values, or words, instead of some values."""
    return values.get(nest, nest) if type(nest) is Value else map_values(nest, values)


# As `Argument(name, nest)`, in a third of the time.
_new_argument = partial(tuple.__new__, Argument)

_CONTAINERS = frozenset({list, tuple, dict})
