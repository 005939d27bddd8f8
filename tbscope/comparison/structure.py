"""Outlines: the structure of a graph as text, in which each repeated block occurs once.

A block is the body of one module call: its inputs, its steps, its results. A step refers to its
inputs by the labels of block inputs and of other steps, so a block contains no node and no tensor:
it fits into a file, and two equal calls share a block. Sources, times, kernels, devices and the
names of nodes are not part of an outline.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

from tbscope.utils.components import inner_first

Facts = tuple[tuple[str, str], ...]
"""Named settings, each as the text of a Python value; names are unique."""


class Ref(NamedTuple):
    """Reference to a tensor that a step reads or a block returns.

    Attributes:
        label: Label of an input of the block, or of a step in the block.
        inner: Labels of steps inside of the call, if the tensor is not one of its results.
        output: Index of the step's output, or None for an input.
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
    """Input tensor of a block.

    Attributes:
        name: Path of the argument, or name of the captured tensor.
        kind: "argument" or "captured"; "input" for an input of the graph itself.
        type: Type of the tensor as text, `Float(1, 2)`.
    """

    name: str
    kind: str
    type: str


class Held(NamedTuple):
    """Parameter or buffer of a module.

    Attributes:
        name: Attribute of the module.
        kind: "parameter" or "buffer".
        type: Type of the tensor as text.
        trainable: Whether the tensor requires a gradient.
        numbers: Number of elements, or 0 if it is unknown.
    """

    name: str
    kind: str
    type: str
    trainable: bool
    numbers: int


@dataclass(frozen=True, slots=True)
class BlockStep:
    """Operation of a block, or call in it.

    Attributes:
        label: Label of the step in its block: the path of the module (`layer.0`), or the
            operation with a number (`add.1`).
        op: The operation, or the label of the called class.
        block: The called block, or None for an operation.
        place: Containers and user-named blocks between the step and the enclosing call.
        settings: Further properties: attributes, written inputs, the phase.
        arguments: Arguments of an operation as text, `%0` for the first tensor in `reads`.
        reads: Tensors that an operation reads; for a call, its arguments and captured tensors.
        ports: Names of the called block's inputs, one for each entry of `reads`.
        takes: Types of the tensors in `reads`.
        gives: Types of the results.
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
    """Body of a call, or of the graph itself.

    Attributes:
        label: Name of the class as in scope paths.
        class_name: Full name of the class; empty for the graph itself.
        settings: Hyper-parameters and the training flag.
        arguments: Constant arguments of the call, by name.
        state: Parameters and buffers of the module; empty for a repeated call, see `again`.
        again: Whether an earlier call of the module lists its state.
        inputs: Input tensors.
        steps: Operations and calls, in the order in which they ran.
        results: Results as text, `%0` for the first tensor in `result_refs`.
        result_refs: Tensors in the results.
        structure: Digest that is equal for blocks which differ only in types.
        digest: Digest that is equal only for equal blocks, across graphs and processes.
        operations: Number of operations in the block and in the calls inside of it.
        numbers: Number of elements of the parameters of the module and of the modules inside of it.
        bag: Counts of operations, and of classes of modules that call no others, in the block.
    """

    label: str
    class_name: str = ""
    settings: Facts = ()
    arguments: Facts = ()
    state: tuple[Held, ...] = ()
    again: bool = False
    inputs: tuple[Port, ...] = ()
    steps: tuple[BlockStep, ...] = ()
    results: str = ""
    result_refs: tuple[Ref, ...] = ()
    structure: str = field(init=False)
    digest: str = field(init=False)
    operations: int = field(init=False)
    numbers: int = field(init=False)
    bag: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        # Called blocks exist before their callers, so each property needs only one level of calls.
        called = list(self.below())
        # The module path of a class is no part of the structure, only whether there is a class.
        fields: list[object] = [self.label, bool(self.class_name), self.settings, self.arguments]
        fields += [tensor[:2] for tensor in (*self.state, *self.inputs)]
        for step in self.steps:
            inner = step.block and step.block.structure
            fields += [step.label, step.op, step.place, inner, step.settings, step.arguments]
            fields += [step.reads, step.ports, len(step.gives)]
        self.structure = _digest([*fields, self.results, self.result_refs, self.again])
        types = [(step.takes, step.gives, step.block and step.block.digest) for step in self.steps]
        self.digest = _digest([self.structure, self.state, self.inputs, types])
        self.operations = len(self.steps) + sum(block.operations - 1 for block in called)
        self.numbers = _numbers(self.state) + sum(block.numbers for block in called)
        self.bag = Counter(step.op for step in self.steps if step.block is None)
        for block in called:
            self.bag.update(block.bag)
        if not called:
            self.bag[self.label] += 1

    def below(self) -> "Iterator[Block]":
        """Return the blocks of the calls in this block."""
        return (step.block for step in self.steps if step.block is not None)

    def __repr__(self) -> str:
        return f"<Block {self.label}: {len(self.steps)} steps>"


class Uncalled(NamedTuple):
    """Module without a call: a container with parameters, or an unused module.

    Attributes:
        name: Name in `named_modules()`.
        class_name: Full name of the class.
        state: Parameters and buffers of the module itself.
    """

    name: str
    class_name: str
    state: tuple[Held, ...]

    @property
    def label(self) -> str:
        """Name of the class without its module."""
        return self.class_name.rpartition(".")[2]

    @property
    def numbers(self) -> int:
        """Number of elements of the parameters of the module itself."""
        return _numbers(self.state)


@dataclass(frozen=True)
class Outline:
    """Structure of a graph.

    Attributes:
        name: Name of the graph.
        main: The root block, with all steps outside of calls; its inputs are the graph's inputs.
        outputs: Names of the graph's output tensors, in the order of `main.result_refs`.
        types: Types of the output tensors.
        uncalled: Modules without a call: those with parameters, and the outermost ones in which
            nothing ran.
        ties: Names of each tied parameter.
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
        """Digest that is equal only for equal outlines; it covers neither name nor totals."""
        return _digest((self.main.digest, self.outputs, self.uncalled, self.ties))

    def blocks(self) -> Sequence[Block]:
        """Return all blocks, each once and after the blocks that it calls."""
        return inner_first(self.main, Block.below)


def _numbers(state: tuple[Held, ...]) -> int:
    return sum(tensor.numbers for tensor in state if tensor.kind == "parameter")


def _digest(content: object) -> str:
    """Return a short text that is equal only for values with an equal `repr`."""
    text = repr(content).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=12).hexdigest()
