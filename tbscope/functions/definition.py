"""Definitions: the structure that calls with equal bodies share, and their uses.

    Layer(%x, %mask; kernel_size=3) -> (%out)

A definition has ordered inputs, a body of steps and ordered outputs. A step refers to a tensor by
its index among the inputs, or by the path to the operation that produces it (`Ref`), so calls have
equal steps whatever the names of their tensors. A use binds the inputs of the definition to the
values of one call.

`str(definition)` prints it in the form of a printed graph:

    Layer(%x, %mask; kernel_size=3) -> (%out):  # 126 uses
      %1 : Float(1, 2) = Linear(%x), scope: Linear[fc]
      return (%1)

Types are from the first use; a size that differs between uses is printed as `?`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

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
from tbscope.ir.pytree import map_tree, map_values, walk
from tbscope.ir.scopes import Phase, Scope, ScopeKind, ScopePart
from tbscope.messages import one_line

__all__ = [
    "CallStep",
    "Definition",
    "Input",
    "InputKind",
    "Read",
    "Place",
    "Ref",
    "Signature",
    "Step",
    "Given",
    "Use",
]

_MADE_INSIDE = Constant("<made in the call>")


class Read(NamedTuple):
    """A reference to an input of the definition, or to a node outside.

    Attributes:
        place: The index among the inputs of the definition; for a control dependency, the index
            among the nodes outside on which the body depends.
    """

    place: int


class Given(NamedTuple):
    """A reference to a result of an operation in the body, or to the operation itself.

    Attributes:
        path: The index of a step in the body. For a tensor inside a called definition that is not
            among the results of the call, further indices lead on through the called steps.
        output: The index among the outputs of the operation at the end of the path, or among the
            tensors in the results of the call there; None for a control dependency on the
            operation itself.
    """

    path: tuple[int, ...]
    output: int | None


Ref: TypeAlias = Read | Given
"""A reference in a body, in place of a graph's value or control dependency."""

InputKind: TypeAlias = Literal["argument", "parameter", "buffer", "captured"]
"""The kind of an input: a tensor in the call's arguments, one that the module or a submodule
registers, or one that the body reads from elsewhere (closures, caches, parameters of others)."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input tensor of a definition.

    Attributes:
        name: The path of an argument (`mask`, `past.0.key`), the name of a parameter relative to
            the module (`fc.weight`), or the name of a captured tensor in the first use. Unique in
            the definition.
        kind: The kind of the input.
    """

    name: str
    kind: InputKind


class Place(NamedTuple):
    """One scope on the path from the scope of a use to a scope inside, with fields of `Scope`."""

    kind: ScopeKind
    label: str
    attribute: str | None
    number: int
    phase: Phase


class Signature(NamedTuple):
    """A call without its tensors.

    Attributes:
        class_name: The full name of the module's class.
        hyperparameters: The settings that the module's `extra_repr` prints.
        training: Whether the module was in training mode.
        number: The number of the call in its scope (see `Call`).
        arguments: The arguments of forward, in the order of its parameters: refs and constants.
        results: The results, with refs for tensors.
        state: The names and kinds of the module's own parameters and buffers.
    """

    class_name: str
    hyperparameters: Mapping[str, object]
    training: bool
    number: int
    arguments: tuple[Argument, ...]
    results: Nest
    state: tuple[tuple[str, str], ...]


class Step(NamedTuple):
    """One operation of a body.

    Attributes:
        op: The operation.
        kind: The kind of the node.
        inputs: The tensors that it reads.
        arguments: The arguments, with refs instead of values.
        waits: The control dependencies.
        outputs: The number of its outputs.
        writes: The positions among its inputs that it writes into.
        role: The role of an operation that computes nothing.
        random: Whether it draws random numbers.
        phase: The phase of a training step.
        attributes: Further properties, without those that belong to a single run.
        places: The path from the scope of the use to its scope; empty in the use's own scope.
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
    attributes: Mapping[str, object]
    places: tuple[Place, ...]


class CallStep(NamedTuple):
    """A use of another definition in a body.

    Attributes:
        definition: The called definition.
        inputs: References for the inputs of that definition, in its order.
        waits: References for the control dependencies of that definition, in its order.
        places: The path from the scope of the enclosing use to the scope of this use, inclusive.
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
        calls: The calls that ran in this scope: nearly always a single call.
        inputs: The values of the definition's inputs in this use, in its order.
        waits: The nodes outside on which operations of the body have control dependencies.
        parts: The node, or the use, of this use for each step of the body.
    """

    definition: "Definition"
    scope: Scope | None
    calls: list[Call]
    inputs: list[Value] = field(default_factory=list)
    waits: list[Node] = field(default_factory=list)
    parts: "list[Node | Use]" = field(default_factory=list)

    @property
    def call(self) -> Call:
        """The first call that ran in the scope."""
        return self.calls[0]

    @property
    def outputs(self) -> list[Value]:
        """The values of the definition's outputs in this use, in its order."""
        return [self.value(ref) for ref in self.definition.outputs.values()]

    def value(self, ref: Ref) -> Value:
        """Return the value in this use for a reference in the definition.

        Args:
            ref: The reference to an input or to an output of a step.
        Raises:
            IndexError: The definition has no input or step for the reference.
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
        """Return the operation or the use at the end of a path through the steps.

        Args:
            path: An index among the steps, for each use on the way and for its last step.
        """
        part: Node | Use = self
        for index in path:
            assert isinstance(part, Use), "an operation has no steps"
            part = part.parts[index]
        return part

    def __repr__(self) -> str:
        return f"<Use of {self.definition.name}: {self.scope or 'the graph'}>"


@dataclass(eq=False)
class Definition:
    """The structure that calls with equal bodies share.

    Attributes:
        name: The class, with a number after an earlier definition of that class (`Linear_2`).
        signatures: The calls that ran in the scope of a use, without their tensors: nearly
            always a single call; none for the graph itself.
        inputs: The tensors from outside: first the arguments in the order of the call, pytrees
            flattened; then parameters, buffers and captured tensors in the order of first use.
        steps: The body.
        results: The results of the first call (see `Signature`); for the graph itself, its outputs
            by name.
        digest: Identifies the definition, also across graphs and processes: two definitions are
            equal if and only if their digests are equal.
        ends: For the graph itself, the control dependencies of each output.
        uses: The calls, in order.
        escapes: References to tensors that are read outside of any of the uses, but are not in
            the results of its call.
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
    def hyperparameters(self) -> Mapping[str, object]:
        """The settings that the module's `extra_repr` prints, by name."""
        return self.signatures[0].hyperparameters if self.signatures else {}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of the call, in the order of forward's parameters: refs and constants."""
        return self.signatures[0].arguments if self.signatures else ()

    @cached_property
    def given(self) -> list[Ref]:
        """The tensors among the results of the call, in order."""
        return [ref for _, ref in walk(self.results) if isinstance(ref, (Read, Given))]

    @cached_property
    def outputs(self) -> dict[str, Ref]:
        """The tensors that a use outputs, by name, each once.

        First the results of the call by their paths (`out`, `logits`, `out.1`), then the tensors
        of `escapes`, which are read outside of some use, but are not in the call's results.
        """
        outputs: dict[str, Ref] = {}
        seen: set[Ref] = set()
        for path, entry in walk(self.results, "" if type(self.results) is dict else "out"):
            if isinstance(entry, (Read, Given)) and entry not in seen:
                seen.add(entry)
                outputs[path] = entry
        for number, ref in enumerate(sorted(self.escapes.difference(seen), key=_order)):
            outputs[f"inner.{number}"] = ref
        return outputs

    @cached_property
    def graph(self) -> Graph:
        """The body as a graph.

        Arguments and captured tensors are its inputs, parameters and buffers keep their kind. A use
        of another definition is a node of the kind "module" with the definition's name and all of
        its outputs. Types are from the first use; a size that differs between uses is None. The
        graph satisfies the invariants, unless a call in it reads a tensor that is only computed
        during that call, as is possible for a module that runs outside of its parent module.
        """
        return _BodyBuilder(self).graph

    @property
    def head(self) -> str:
        """Inputs and outputs on one line: `Layer(%x, %mask, eps=None; size=3) -> (%out)`.

        Arguments are in the order of the call, with pytrees flattened to their paths, and constants
        as they are; captured tensors come after the arguments, as `captured: %scale`.
        """
        names = [f"%{one_line(item.name)}" for item in self.inputs]
        arguments = []
        for at, (name, nest) in enumerate(self.arguments):
            for path, entry in walk(nest, name or str(at)):
                if isinstance(entry, Read):
                    arguments.append(names[entry.place])
                else:
                    constant = _MADE_INSIDE if isinstance(entry, Given) else entry
                    arguments.append(f"{path}={nest_to_text(constant)}")
        both = zip(names, self.inputs, strict=True)
        if captured := [name for name, item in both if item.kind == "captured"]:
            arguments.append(f"captured: {', '.join(captured)}")
        end = f") -> ({', '.join(f'%{one_line(name)}' for name in self.outputs)})"
        options = (
            f"{one_line(key)}={nest_to_text(it)}" for key, it in self.hyperparameters.items()
        )
        if settings := ", ".join(options):
            end = f"; {settings}{end}"
        return listed(f"{one_line(self.name)}(", arguments, end)

    def nested(self) -> "Iterator[Definition]":
        """Yield the definitions that the body uses, each once."""
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


class _BodyBuilder:
    """Builds the graph of a body from its first use.

    Args:
        definition: The definition.

    Attributes:
        graph: The graph.
    """

    def __init__(self, definition: Definition) -> None:
        self._uses = definition.uses
        self.graph = Graph(definition.name)
        # The values of the new graph, by producer and index of the first use's values.
        self._values: dict[tuple[Node, int], Value] = {}
        self._scopes: dict[tuple[Place, ...], Scope | None] = {(): None}
        for index, entry in enumerate(definition.inputs):
            kind = entry.kind if entry.kind in STATE else "input"
            node = self._add(Node(entry.name, kind, kind))
            self._give(node, [use.inputs[index] for use in self._uses])
            if kind == "input":
                self.graph.inputs.append(node)
        taken = {entry.name for entry in definition.inputs}
        # A step is named by its number, with a `~` if an input has that name.
        nodes = [
            self._open(index, step, f"{index + 1}{'~' * (str(index + 1) in taken)}")
            for index, step in enumerate(definition.steps)
        ]
        for index, step in enumerate(definition.steps):
            node, part = nodes[index], self._uses[0].parts[index]
            node.inputs = [self[value] for value in part.inputs]
            waits = [nodes[ref.path[0]] for ref in step.waits if isinstance(ref, Given)]
            node.control_inputs = list(dict.fromkeys(waits))
            if isinstance(part, Use):
                self._wire_call(node, part)
            else:
                node.arguments = [
                    Argument(name, map_values(nest, self)) for name, nest in part.arguments
                ]
        named = zip(definition.outputs, self._uses[0].outputs, strict=True)
        self.graph.outputs = [Output(name, self[value]) for name, value in named]

    def _add(self, node: Node) -> Node:
        self.graph.nodes.append(node)
        return node

    def _open(self, index: int, step: Step | CallStep, name: str) -> Node:
        """Add the node of a step, with its outputs, but without inputs."""
        parts = [use.parts[index] for use in self._uses]
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
            value = self._values.get((entry.producer, entry.index))
            # A hook of the module may have computed it, inside of the call.
            return _MADE_INSIDE if value is None or value.producer is node else value

        arguments = [Argument(name, map_tree(nest, bound)) for name, nest in part.call.arguments]
        node.arguments = [Argument(None, nest) for _, nest in arguments]
        node.arguments += [
            Argument(called_input.name, value)
            for called_input, value in zip(called.inputs, node.inputs, strict=True)
            if called_input.kind == "captured"
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
        """Add an output to a node, with the type that is common to all uses."""
        first, *rest = values
        shape = first.shape
        for later in rest:
            shape = _common(shape, later.shape)
        value = Value(node, len(node.outputs), shape, first.dtype, first.device)
        node.outputs.append(value)
        self._values.setdefault((first.producer, first.index), value)

    def __getitem__(self, value: Value) -> Value:
        """Return the new value for a value of the first use (the protocol of `Replacement`)."""
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


def _common(left: Shape | None, right: Shape | None) -> Shape | None:
    """Return a shape with None for each size that differs; None if the ranks differ."""
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(a if a == b else None for a, b in zip(left, right, strict=True))
