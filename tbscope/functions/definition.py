"""Definitions: what calls with the same body have in common, and their uses.

    Layer(%x, %mask; kernel_size=3) -> (%out)

A definition has ordered inputs, a body of steps and ordered outputs. A step names what it
reads by its place among the inputs, or by the way to the operation that gives it: so two
calls have the same steps whatever their tensors are called. A use tells what the inputs of
the definition are in one call.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, NodeKind, Role, Value
from tbscope.ir.nests import walk
from tbscope.ir.scopes import Phase, Scope, ScopeKind
from tbscope.ir.ways_up import way_up

__all__ = [
    "CallStep",
    "Definition",
    "Given",
    "Input",
    "InputKind",
    "Place",
    "Read",
    "Ref",
    "Signature",
    "Step",
    "Use",
]


class Read(NamedTuple):
    """What a body has from outside.

    Attributes:
        place: Its place among the inputs of the definition; of a node that is waited for, its
            place among those that the body waits for.
    """

    place: int


class Given(NamedTuple):
    """What an operation of a body gives.

    Attributes:
        path: The place of a step among those of the body; where what is read inside a call is
            none of its results, further on among the steps of what is called.
        output: Which output of the operation at the end of the path, or which tensor among the
            results of the call there; None for the operation itself, which is waited for.
    """

    path: tuple[int, ...]
    output: int | None


Ref: TypeAlias = Read | Given
"""What stands in a body where a graph has a value, or a node that is waited for."""

InputKind: TypeAlias = Literal["argument", "parameter", "buffer", "captured"]
"""What an input is: a tensor that the call was given, one that the module or a module in it
registers, or one that the body read from elsewhere (closures, caches, parameters of others)."""


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor that a definition reads, or is given.

    Attributes:
        name: The path of an argument (`mask`, `past.0.key`), the name of a parameter from the
            module on (`fc.weight`), or what a captured one is called in the first use. No two
            of a definition have the same.
        kind: What it is.
        written: Whether the body writes into it, itself or through a view of it.
    """

    name: str
    kind: InputKind
    written: bool = False


class Place(NamedTuple):
    """One step of the way from the scope of a use to a scope in it, as a `Scope` has it."""

    kind: ScopeKind
    label: str
    attribute: str | None
    number: int
    phase: Phase


class Signature(NamedTuple):
    """A call without its tensors.

    Attributes:
        class_name: The full name of the module's class.
        hyperparameters: What the module's `extra_repr` tells.
        training: Whether it was in training mode.
        number: Which of the calls in its scope it is (see `Call`).
        arguments: What forward was given, in the order of its parameters: refs and constants.
        results: What it gave.
        state: The names and kinds of its own parameters and buffers.
    """

    class_name: str
    hyperparameters: Mapping[str, Any]
    training: bool
    number: int
    arguments: tuple[Argument, ...]
    results: Nest
    state: tuple[tuple[str, str], ...]


class Step(NamedTuple):
    """One operation of a body.

    Attributes:
        op: The operation.
        kind: What the node is.
        inputs: What it reads.
        arguments: Its arguments, with refs instead of values.
        waits: What it waits for.
        outputs: How many values it gives.
        writes: The places among its inputs that it writes into.
        role: What it is where it computes nothing.
        random: Whether it draws random numbers.
        phase: The part of a training step.
        attributes: Further facts, without those of a single run.
        places: Where it stands below the scope of the use; empty for right in it.
    """

    op: str
    kind: NodeKind
    inputs: tuple[Ref, ...]
    arguments: tuple[Argument, ...]
    waits: tuple[Ref, ...]
    outputs: int
    writes: tuple[int, ...]
    role: Role | None
    random: bool
    phase: Phase
    attributes: Mapping[str, Any]
    places: tuple[Place, ...]


class CallStep(NamedTuple):
    """A use of another definition in a body.

    Attributes:
        definition: What is called.
        inputs: What its inputs are, in their order.
        waits: What its `waits` are, in their order.
        places: The way to its scope from that of the use around it, its own place last.
    """

    definition: "Definition"
    inputs: tuple[Ref, ...]
    waits: tuple[Ref, ...]
    places: tuple[Place, ...]


@dataclass(eq=False)
class Use:
    """One call, as a use of a definition.

    Attributes:
        definition: The definition.
        scope: The scope of the call; None for the graph itself.
        calls: The calls that ran in this scope: nearly always one.
        around: The use in whose body it stands; None for the graph itself.
        inputs: What the inputs of the definition are here, in their order.
        waits: The nodes outside that operations of the body wait for.
        parts: What stands here for each step of the body: a node, or a use.
    """

    definition: "Definition"
    scope: Scope | None
    calls: list[Call]
    around: "Use | None" = None
    inputs: list[Value] = field(default_factory=list)
    waits: list[Node] = field(default_factory=list)
    parts: "list[Node | Use]" = field(default_factory=list)

    @property
    def call(self) -> Call:
        """The first call that ran in its scope."""
        return self.calls[0]

    @property
    def outputs(self) -> list[Value]:
        """What the outputs of the definition are here, in their order."""
        return [self.value(ref) for ref in self.definition.outputs.values()]

    def value(self, ref: Ref) -> Value:
        """Return what a ref of the definition is here.

        Raises:
            IndexError: The definition has no such ref.
        """
        use = self
        while isinstance(ref, Given):
            assert ref.output is not None, "an operation is no value"
            part = use.part(ref.path)
            if isinstance(part, Node):
                return part.outputs[ref.output]
            use, ref = part, part.definition.given[ref.output]
        return use.inputs[ref.place]

    def part(self, path: tuple[int, ...]) -> "Node | Use":
        """Return the operation or the use at the end of a way through the steps."""
        part: Node | Use = self
        for place in path:
            assert isinstance(part, Use), "an operation has no steps"
            part = part.parts[place]
        return part

    def __repr__(self) -> str:
        return f"<Use of {self.definition.name}: {self.scope or 'the graph'}>"


@dataclass(eq=False)
class Definition:
    """What calls with the same body have in common.

    Attributes:
        name: The class, with a number where another definition of that class came before
            (`Linear_2`).
        signatures: The calls that ran in the scope of a use, without their tensors: nearly
            always one; none for the graph itself.
        inputs: The tensors from outside: first the arguments in the order of the call, nests
            flattened; then parameters, buffers and captured ones in the order of first use.
        waits: How many nodes outside of it its operations wait for.
        steps: Its body.
        results: What the first call gives (see `Signature`); of the graph, its outputs by name.
        digest: What tells it from all others, in other graphs and processes too: two
            definitions are the same just if their digests are.
        ends: Of the graph itself, what each of its outputs waits for.
        uses: The calls, in order.
        escapes: What is read outside of a use though no call gave it back, of any use.
    """

    name: str
    signatures: tuple[Signature, ...]
    inputs: tuple[Input, ...]
    waits: int
    steps: tuple[Step | CallStep, ...]
    results: Nest
    digest: str
    ends: tuple[tuple[Ref, ...], ...] = ()
    uses: list[Use] = field(default_factory=list)
    escapes: set[Given] = field(default_factory=set)

    @property
    def class_name(self) -> str:
        """The full name of the class; empty for the graph itself."""
        return self.signatures[0].class_name if self.signatures else ""

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """What the module's `extra_repr` tells, by name."""
        return self.signatures[0].hyperparameters if self.signatures else {}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What the call is given, in the order of forward's parameters: refs and constants."""
        return self.signatures[0].arguments if self.signatures else ()

    @cached_property
    def given(self) -> list[Ref]:
        """The tensors among the results of the call, in order."""
        return [ref for _, ref in walk(self.results) if isinstance(ref, (Read, Given))]

    @cached_property
    def outputs(self) -> dict[str, Ref]:
        """The tensors that it gives, by name, each once.

        First the results of the call by their paths (`out`, `logits`, `out.1`), then what
        escapes: what is read outside of some use though no call gave it back.
        """
        found: dict[str, Ref] = {}
        seen: set[Ref] = set()
        for path, entry in walk(self.results, "" if type(self.results) is dict else "out"):
            if isinstance(entry, (Read, Given)) and entry not in seen:
                seen.add(entry)
                found[path] = entry
        for number, ref in enumerate(sorted(self.escapes.difference(seen), key=_order)):
            found[f"inner.{number}"] = ref
        return found

    @cached_property
    def graph(self) -> Graph:
        """Its body as a graph: inputs and parameters, operations, and calls as one node each.

        Types are those of the first use; where the shapes of uses differ, sizes are None.
        """
        graph: Graph = way_up("Definition.graph")(self)
        return graph

    def nested(self) -> "Iterator[Definition]":
        """Return the definitions that its body uses, each once."""
        yield from dict.fromkeys(
            step.definition for step in self.steps if isinstance(step, CallStep)
        )

    def __str__(self) -> str:
        return str(way_up("Definition.__str__")(self))

    def __repr__(self) -> str:
        return f"<Definition {self.name}: {len(self.uses)} uses>"


def _order(ref: Given) -> tuple[tuple[int, ...], int]:
    return ref.path, -1 if ref.output is None else ref.output
