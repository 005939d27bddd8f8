"""Outlines: what a graph is, in words alone, with each block that repeats told once.

A block is the body of one module call: what it takes, its steps, what it gives. It names what a
step reads by the label of an input or of another step, so it holds no node and no tensor; a file
can hold it, and two calls that are the same are one block. Sources, times, kernels, devices and
the names of nodes are in no outline.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from tbscope.utils.components import inner_first

__all__ = ["Block", "Facts", "Held", "Outline", "Port", "Ref", "Step", "Uncalled"]

Facts = tuple[tuple[str, str], ...]
"""What is told by name, each as the text that Python would write; no two have one name."""


class Ref(NamedTuple):
    """What is read.

    Attributes:
        label: That of an input of the block, or of a step in it.
        inner: Further labels, where what is read inside of a call is none of its results.
        output: Which output of the step it is; None for an input.
        role: "in" for an input, "state" for a parameter or buffer, "step" for a step.
    """

    label: str
    inner: tuple[str, ...] = ()
    output: int | None = None
    role: str = "step"

    def __str__(self) -> str:
        text = "/".join((self.label, *self.inner))
        return f"{text}#{self.output}" if self.output else text


class Port(NamedTuple):
    """A tensor that a block is given.

    Attributes:
        name: The path of an argument, or what a captured one is called.
        kind: "argument", "captured", or of the graph itself "input".
        type: Its type as text, `Float(1, 2)`.
    """

    name: str
    kind: str
    type: str


class Held(NamedTuple):
    """A parameter or buffer that a module owns.

    Attributes:
        name: Its attribute in the module.
        kind: "parameter" or "buffer".
        type: Its type as text.
        trainable: Whether a gradient is kept for it.
        numbers: How many numbers it holds; 0 where that is not known.
    """

    name: str
    kind: str
    type: str
    trainable: bool
    numbers: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a block, or a call in it.

    Attributes:
        label: What it is known by in its block: the way to the module (`layer.0`), or the
            operation with a number (`add.1`).
        op: The operation, or the label of the class that is called.
        block: What is called; None for an operation.
        place: The containers and blocks by hand between it and the call around it.
        settings: What is told of it beside: constants, what it writes into, the phase.
        arguments: The arguments of an operation as text, with `%0` for the first that is read.
        reads: What it reads; of a call, its arguments and what it captures.
        ports: The names of the inputs of the called block, one for each of these.
        takes: The types of these.
        gives: The types of what it gives.
    """

    label: str
    op: str
    block: "Block | None" = None
    place: str = ""
    settings: Facts = ()
    arguments: tuple[tuple[str, str], ...] = ()
    reads: tuple[Ref, ...] = ()
    ports: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


@dataclass(eq=False)
class Block:
    """The body of a call, or of the graph itself.

    Attributes:
        label: The name of the class as scopes print it.
        class_name: The full name of the class; empty for the graph itself.
        settings: Hyper-parameters and the training flag.
        arguments: The constants among what it was given, by name.
        state: Its own parameters and buffers; none where it is called again, see `again`.
        again: Whether an earlier call of the same module has told what it owns.
        inputs: The tensors that it is given.
        steps: What runs in it, in order.
        results: What it gives, as text with `%0` for the first tensor.
        given: The tensors among that.
        structure: What is equal for blocks that differ in nothing but types.
        digest: What is equal for equal blocks alone, in other graphs and processes, too.
        operations: How many operations run in it.
        numbers: How many numbers are in the parameters that it and the modules in it own.
        bag: How often each operation, and each class of modules that call no others, is in it.
    """

    label: str
    class_name: str = ""
    settings: Facts = ()
    arguments: Facts = ()
    state: tuple[Held, ...] = ()
    again: bool = False
    inputs: tuple[Port, ...] = ()
    steps: tuple[Step, ...] = ()
    results: str = ""
    given: tuple[Ref, ...] = ()
    structure: str = field(init=False)
    digest: str = field(init=False)
    operations: int = field(init=False)
    numbers: int = field(init=False)
    bag: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        # Blocks are made from the inside out: none of this asks deeper than one level.
        called = list(self.below())
        self.structure = _digest(self._told(types=False))
        self.digest = _digest(self._told(types=True))
        self.operations = len(self.steps) + sum(block.operations - 1 for block in called)
        self.numbers = sum(held.numbers for held in self.state if held.kind == "parameter")
        self.numbers += sum(block.numbers for block in called)
        self.bag = Counter(step.op for step in self.steps if step.block is None)
        for block in called:
            self.bag.update(block.bag)
        if not called:
            self.bag[self.label] += 1

    def _told(self, *, types: bool) -> list[Any]:
        # In which file a class stands is no part of what it does.
        told: list[Any] = [self.label, bool(self.class_name), self.settings, self.arguments]
        told += [self.state if types else [(held.name, held.kind) for held in self.state]]
        told += [self.inputs if types else [port[:2] for port in self.inputs]]
        for step in self.steps:
            inner = step.block and (step.block.digest if types else step.block.structure)
            told += [step.label, step.op, step.place, inner, step.settings, step.arguments]
            told += [step.reads, step.ports, len(step.gives)]
            if types:
                told += [step.takes, step.gives]
        return [*told, self.results, self.given, self.again]

    def below(self) -> "Iterator[Block]":
        """Return the blocks that are called in it."""
        return (step.block for step in self.steps if step.block is not None)

    def __repr__(self) -> str:
        return f"<Block {self.label}: {len(self.steps)} steps>"


class Uncalled(NamedTuple):
    """A module that was never called: a container that holds parameters, or one left unused.

    Attributes:
        name: Its name in `named_modules()`.
        class_name: The full name of its class.
        state: Its own parameters and buffers.
    """

    name: str
    class_name: str
    state: tuple[Held, ...]


@dataclass(frozen=True)
class Outline:
    """What a graph is.

    Attributes:
        name: The name of the graph.
        main: What stands outside of all calls: its inputs are those of the graph.
        outputs: The names of the tensors that it gives, in the order of `main.given`.
        types: Their types.
        uncalled: The modules that were not called, and hold parameters or stand for those in them.
        ties: The names that each tied parameter has.
        totals: Parameters, FLOPs and bytes, by name.
    """

    name: str
    main: Block
    outputs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    uncalled: tuple[Uncalled, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()
    totals: dict[str, int] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """What is equal for equal outlines alone; the name and the totals stand in none."""
        return _digest((self.main.digest, self.outputs, self.uncalled, self.ties))

    def blocks(self) -> Sequence[Block]:
        """Return all blocks, each once and after those that are called in it."""
        return inner_first(self.main, Block.below)


def _digest(told: object) -> str:
    """Return a short text that is equal for things of equal text alone."""
    text = repr(told).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=12).hexdigest()
