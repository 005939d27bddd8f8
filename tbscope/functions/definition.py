"""Definitions: what calls with the same body have in common, and their uses.

    Layer(%x, %mask; kernel_size=3) -> (%out)

A definition has ordered inputs, a body of steps and ordered outputs. A step names what it
reads by its place among the inputs, or by the way to the operation that gives it: so two
calls have the same steps whatever their tensors are called. A use tells what the inputs of
the definition are in one call.

`str(definition)` prints it in the form of a printed graph:

    Layer(%x, %mask; kernel_size=3) -> (%out):  # 126 uses
      %1 : Float(1, 2) = Linear(%x), scope: Linear[fc]
      return (%1)

Types are those of the first use; a size in which uses differ is printed as `?`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

from tbscope.ir.graph import (
    Argument,
    Call,
    Constant,
    Graph,
    Nest,
    Node,
    NodeKind,
    Output,
    Role,
    Shape,
    Value,
    body_to_lines,
    graph_to_text,
    listed,
)
from tbscope.ir.nodes import STATE, nest_to_text
from tbscope.ir.pytree import map_nest, map_values, walk
from tbscope.ir.scopes import Phase, Scope, ScopeKind, ScopePart
from tbscope.messages import one_line

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

_MADE_INSIDE = Constant("<made in the call>")


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
    """

    name: str
    kind: InputKind


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
        inputs: What the inputs of the definition are here, in their order.
        waits: The nodes outside that operations of the body wait for.
        parts: What stands here for each step of the body: a node, or a use.
    """

    definition: "Definition"
    scope: Scope | None
    calls: list[Call]
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
        """Its body as a graph.

        Arguments and captured tensors are its inputs, parameters and buffers keep their kind, and
        a use of another definition is one node of the kind "module", called like the definition,
        which gives all outputs of it. Types are those of the first use; a size is None where those
        of uses differ. It keeps the invariants of a graph, unless a call in it reads what is only
        made while it runs: a module that runs elsewhere than where it is registered may.
        """
        return _Body(self).graph

    @property
    def head(self) -> str:
        """What it takes and gives, on one line: `Layer(%x, %mask, eps=None; size=3) -> (%out)`.

        Arguments stand in the order of the call, nests flattened with their paths, constants as
        they are; captured tensors come after the arguments, as `captured: %scale`.
        """
        names = [f"%{one_line(one.name)}" for one in self.inputs]
        given = []
        for at, (name, nest) in enumerate(self.arguments):
            for path, entry in walk(nest, name or str(at)):
                if isinstance(entry, Read):
                    given.append(names[entry.place])
                else:
                    constant = _MADE_INSIDE if isinstance(entry, Given) else entry
                    given.append(f"{path}={nest_to_text(constant)}")
        both = zip(names, self.inputs, strict=True)
        if captured := [name for name, one in both if one.kind == "captured"]:
            given.append(f"captured: {', '.join(captured)}")
        end = f") -> ({', '.join(f'%{one_line(name)}' for name in self.outputs)})"
        told = (f"{one_line(key)}={nest_to_text(it)}" for key, it in self.hyperparameters.items())
        if settings := ", ".join(told):
            end = f"; {settings}{end}"
        return listed(f"{one_line(self.name)}(", given, end)

    def nested(self) -> "Iterator[Definition]":
        """Return the definitions that its body uses, each once."""
        yield from dict.fromkeys(
            step.definition for step in self.steps if isinstance(step, CallStep)
        )

    def __str__(self) -> str:
        if not self.signatures:
            return graph_to_text(self.graph)
        count = f"{len(self.uses)} use{'s' * (len(self.uses) != 1)}"
        return "\n".join([f"{self.head}:  # {count}", *body_to_lines(self.graph)])

    def __repr__(self) -> str:
        return f"<Definition {self.name}: {len(self.uses)} uses>"


def _order(ref: Given) -> tuple[tuple[int, ...], int]:
    return ref.path, -1 if ref.output is None else ref.output


class _Body:
    """Makes the graph of a body from its first use.

    Args:
        definition: The definition.

    Attributes:
        graph: The graph.
    """

    def __init__(self, definition: Definition) -> None:
        self._uses = definition.uses
        self.graph = Graph(definition.name)
        # The values of the graph, by the place at which the first use has them.
        self._values: dict[tuple[Node, int], Value] = {}
        self._scopes: dict[tuple[Place, ...], Scope | None] = {(): None}
        for place, one in enumerate(definition.inputs):
            kind = one.kind if one.kind in STATE else "input"
            node = self._add(Node(one.name, kind, kind))
            self._give(node, [use.inputs[place] for use in self._uses])
            if kind == "input":
                self.graph.inputs.append(node)
        taken = {one.name for one in definition.inputs}
        nodes = [
            self._open(place, step, f"{place + 1}{'~' * (str(place + 1) in taken)}")
            for place, step in enumerate(definition.steps)
        ]
        for place, step in enumerate(definition.steps):
            node, part = nodes[place], self._uses[0].parts[place]
            node.inputs = [self.get(value) for value in part.inputs]
            waits = [nodes[ref.path[0]] for ref in step.waits if isinstance(ref, Given)]
            node.control_inputs = list(dict.fromkeys(waits))
            if isinstance(part, Use):
                self._wire_call(node, part)
            else:
                node.arguments = [
                    Argument(name, map_values(nest, self)) for name, nest in part.arguments
                ]
        named = zip(definition.outputs, self._uses[0].outputs, strict=True)
        self.graph.outputs = [Output(name, self.get(value)) for name, value in named]

    def _add(self, node: Node) -> Node:
        self.graph.nodes.append(node)
        return node

    def _open(self, place: int, step: Step | CallStep, name: str) -> Node:
        """Add the node of a step, which gives what it gives and reads nothing yet."""
        parts = [use.parts[place] for use in self._uses]
        scope = self._scope(step.places)
        if isinstance(step, CallStep):
            node = self._add(Node(name, step.definition.name, "module", scope))
            for ref in step.definition.outputs.values():
                if isinstance(ref, Given):
                    self._give(node, [part.value(ref) for part in parts if isinstance(part, Use)])
            return node
        node = self._add(
            Node(
                name,
                step.op,
                step.kind,
                scope,
                attributes=dict(step.attributes),
                role=step.role,
                random=step.random,
                writes=step.writes,
                phase=step.phase,
            )
        )
        for at in range(step.outputs):
            self._give(node, [part.outputs[at] for part in parts if isinstance(part, Node)])
        return node

    def _wire_call(self, node: Node, part: "Use") -> None:
        called = part.definition

        def bound(entry: Nest) -> Nest:
            if not isinstance(entry, Value):
                return entry
            known = self._values.get((entry.producer, entry.index))
            # A hook of the module may have made it.
            return _MADE_INSIDE if known is None or known.producer is node else known

        arguments = [Argument(name, map_nest(nest, bound)) for name, nest in part.call.arguments]
        node.arguments = [Argument(None, nest) for _, nest in arguments]
        node.arguments += [
            Argument(one.name, value)
            for one, value in zip(called.inputs, node.inputs, strict=True)
            if one.kind == "captured"
        ]
        assert node.scope is not None, "a call has a scope"
        self.graph.calls.append(
            Call(
                node.scope,
                called.class_name,
                None,
                arguments,
                list(node.outputs),
                called.hyperparameters,
                called.signatures[0].training,
            )
        )

    def _give(self, node: Node, values: Sequence[Value]) -> None:
        """Have a node give what all uses give there, of the type that they have in common."""
        first, *others = values
        shape = first.shape
        for other in others:
            shape = _common(shape, other.shape)
        value = Value(node, len(node.outputs), shape, first.dtype, first.device)
        node.outputs.append(value)
        self._values.setdefault((first.producer, first.index), value)

    def get(self, value: Value, _: Nest = None) -> Value:
        """Return the value for one of the first use, as a mapping from these does."""
        return self._values[value.producer, value.index]

    def _scope(self, places: tuple[Place, ...]) -> Scope | None:
        if places not in self._scopes:
            kind, label, attribute, number, phase = places[-1]
            self._scopes[places] = Scope(
                ScopePart(label, attribute, number),
                parent=self._scope(places[:-1]),
                kind=kind,
                phase=phase,
            )
        return self._scopes[places]


def _common(one: Shape | None, other: Shape | None) -> Shape | None:
    """Return a shape without the sizes in which another one differs."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))
