"""Bodies as graphs: what a definition holds, in the form in which a model's graph has it."""

from collections.abc import Sequence

from tbscope.functions.definition import CallStep, Definition, Given, Step, Use
from tbscope.ir.graph import Argument, Call, Constant, Graph, Nest, Node, Output, Shape, Value
from tbscope.ir.nests import map_nest, map_values
from tbscope.ir.nodes import STATE
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["body_graph"]

_MADE_INSIDE = Constant("<made in the call>")


def body_graph(definition: Definition) -> Graph:
    """Return the body of a definition as a graph.

    Arguments and captured tensors are its inputs, parameters and buffers keep their kind, and
    a use of another definition is one node of the kind "module", called like the definition,
    which gives all outputs of it. Types are those of the first use; a size is None where those
    of uses differ. It keeps the invariants of a graph, unless a call in it reads what is only
    made while it runs: a module that runs elsewhere than where it is registered may.
    """
    return _Maker(definition).graph


class _Maker:
    """Makes the graph of a body from its first use.

    Args:
        definition: The definition.

    Attributes:
        graph: The graph.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._uses = definition.uses
        self.graph = Graph(definition.name)
        self._nodes: list[Node] = []
        # The values of the graph, by the place at which the first use has them.
        self._values: dict[tuple[Node, int], Value] = {}
        self._scopes: dict[tuple[object, ...], Scope | None] = {(): None}
        taken = self._add_inputs()
        for place, step in enumerate(definition.steps):
            name = str(place + 1)
            self._open(place, step, f"{name}~" if name in taken else name)
        for place, step in enumerate(definition.steps):
            self._wire(place, step)
        named = zip(definition.outputs, self._uses[0].outputs, strict=True)
        self.graph.outputs = [Output(name, self._value(value)) for name, value in named]

    def _add_inputs(self) -> set[str]:
        """Add the nodes of what comes from outside; return their names."""
        for place, one in enumerate(self._definition.inputs):
            kind = one.kind if one.kind in ("parameter", "buffer") else "input"
            node = Node(one.name, kind, kind)
            self._give(node, [use.inputs[place] for use in self._uses])
            self.graph.nodes.append(node)
            if kind not in STATE:
                self.graph.inputs.append(node)
        return {one.name for one in self._definition.inputs}

    def _open(self, place: int, step: Step | CallStep, name: str) -> None:
        """Add the node of a step, which gives what it gives and reads nothing yet."""
        parts = [use.parts[place] for use in self._uses]
        if isinstance(step, CallStep):
            node = Node(name, step.definition.name, "module", self._scope(step))
            for ref in step.definition.outputs.values():
                if isinstance(ref, Given):
                    self._give(node, [part.value(ref) for part in parts if isinstance(part, Use)])
        else:
            node = Node(name, step.op, step.kind, self._scope(step))
            for index in range(step.outputs):
                given = [part.outputs[index] for part in parts if isinstance(part, Node)]
                self._give(node, given)
        self._nodes.append(node)
        self.graph.nodes.append(node)

    def _wire(self, place: int, step: Step | CallStep) -> None:
        node, part = self._nodes[place], self._uses[0].parts[place]
        node.inputs = [self._value(value) for value in part.inputs]
        waits = (self._nodes[ref.path[0]] for ref in step.waits if isinstance(ref, Given))
        node.control_inputs = [other for other in dict.fromkeys(waits) if other is not node]
        if isinstance(part, Use):
            self._wire_call(node, part)
            return
        node.arguments = [Argument(name, map_values(nest, self)) for name, nest in part.arguments]
        node.role, node.random, node.writes = part.role, part.random, part.writes
        assert isinstance(step, Step), "an operation is no call"
        node.phase, node.attributes = part.phase, dict(step.attributes)

    def _wire_call(self, node: Node, part: Use) -> None:
        called = part.definition
        node.writes = tuple(place for place, one in enumerate(called.inputs) if one.written)

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
        shape: Shape | None = first.shape
        for other in others:
            shape = _common(shape, other.shape)
        value = Value(node, len(node.outputs), shape, first.dtype, first.device)
        node.outputs.append(value)
        self._values.setdefault((first.producer, first.index), value)

    def _value(self, value: Value) -> Value:
        return self._values[value.producer, value.index]

    def get(self, value: Value, _: Nest = None) -> Value:
        """Return the value for one of the first use, as a mapping from these does."""
        return self._value(value)

    def _scope(self, step: Step | CallStep) -> Scope | None:
        places = step.places
        for depth in range(1, len(places) + 1):
            if places[:depth] not in self._scopes:
                kind, label, attribute, number, phase = places[depth - 1]
                self._scopes[places[:depth]] = Scope(
                    ScopePart(label, attribute, number),
                    parent=self._scopes[places[: depth - 1]],
                    kind=kind,
                    phase=phase,
                )
        return self._scopes[places]


def _common(one: Shape | None, other: Shape | None) -> Shape | None:
    """Return a shape without the sizes in which another one differs."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))
