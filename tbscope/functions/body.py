"""Bodies as graphs: what a definition holds, in the form in which a model's graph has it."""

from tbscope.functions.definition import CallStep, Definition, Given, Read, Ref, Step, Use
from tbscope.ir.graph import Argument, Call, Constant, Graph, Nest, Node, Output, Shape, Value
from tbscope.ir.nests import map_nest
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
    return _Maker(definition).make()


class _Maker:
    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._graph = Graph(definition.name)
        self._inputs: list[Value] = []
        self._steps: list[Node] = []
        # Where in the outputs of the node of a call something stands.
        self._places: list[dict[Ref, int]] = []
        self._scopes: dict[tuple[object, ...], Scope | None] = {(): None}

    def make(self) -> Graph:
        graph, definition = self._graph, self._definition
        for place, one in enumerate(definition.inputs):
            kind = one.kind if one.kind in ("parameter", "buffer") else "input"
            node = Node(one.name, kind, kind)
            self._inputs.append(self._give(node, Read(place)))
            graph.nodes.append(node)
            if kind == "input":
                graph.inputs.append(node)
        taken = {one.name for one in definition.inputs}
        for place, step in enumerate(definition.steps):
            name = str(place + 1)
            node = self._open(place, step, f"{name}~" if name in taken else name)
            self._steps.append(node)
            graph.nodes.append(node)
        for node, step in zip(self._steps, definition.steps, strict=True):
            self._wire(node, step)
        graph.outputs = [Output(name, self._value(ref)) for name, ref in definition.outputs.items()]
        return graph

    def _open(self, place: int, step: Step | CallStep, name: str) -> Node:
        """Return the node of a step, which gives what it gives and reads nothing yet."""
        places: dict[Ref, int] = {}
        if isinstance(step, CallStep):
            node = Node(name, step.definition.name, "module", self._scope(step))
            for ref in step.definition.outputs.values():
                if isinstance(ref, Given):
                    places[ref] = len(node.outputs)
                    self._give(node, Given((place, *ref.path), ref.output))
        else:
            node = Node(name, step.op, step.kind, self._scope(step))
            for index in range(step.outputs):
                self._give(node, Given((place,), index))
        self._places.append(places)
        return node

    def _wire(self, node: Node, step: Step | CallStep) -> None:
        node.inputs = [self._value(ref) for ref in step.inputs]
        waits = (self._steps[ref.path[0]] for ref in step.waits if isinstance(ref, Given))
        node.control_inputs = [other for other in dict.fromkeys(waits) if other is not node]
        if isinstance(step, Step):
            node.arguments = [Argument(name, self._nest(nest)) for name, nest in step.arguments]
            node.role, node.random, node.writes = step.role, step.random, step.writes
            node.phase, node.attributes = step.phase, dict(step.attributes)
            return
        called = step.definition
        node.writes = tuple(place for place, one in enumerate(called.inputs) if one.written)
        arguments = [Argument(name, _bound(nest, node)) for name, nest in called.arguments]
        node.arguments = [Argument(None, nest) for _, nest in arguments]
        node.arguments += [
            Argument(one.name, value)
            for one, value in zip(called.inputs, node.inputs, strict=True)
            if one.kind == "captured"
        ]
        assert node.scope is not None, "a call has a scope"
        self._graph.calls.append(
            Call(
                node.scope,
                called.class_name,
                None,
                arguments,
                [node.outputs[at] for at in range(len(node.outputs))],
                called.hyperparameters,
                called.signatures[0].training,
            )
        )

    def _give(self, node: Node, ref: Ref) -> Value:
        """Have a node give one more value, of the type that all uses have in common."""
        shape, dtype, device = _type(self._definition.uses, ref)
        value = Value(node, len(node.outputs), shape, dtype, device)
        node.outputs.append(value)
        return value

    def _value(self, ref: Ref) -> Value:
        if isinstance(ref, Read):
            return self._inputs[ref.place]
        assert ref.output is not None, "an operation is no value"
        place, *below = ref.path
        node, step = self._steps[place], self._definition.steps[place]
        if isinstance(step, Step):
            return node.outputs[ref.output]
        inner = Given(tuple(below), ref.output) if below else step.definition.given[ref.output]
        return node.outputs[self._places[place][inner]]

    def _nest(self, nest: Nest) -> Nest:
        return map_nest(
            nest, lambda entry: self._value(entry) if isinstance(entry, (Read, Given)) else entry
        )

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


def _bound(nest: Nest, node: Node) -> Nest:
    """Return an argument of a definition with what a call of it reads there."""

    def changed(entry: Nest) -> Nest:
        if isinstance(entry, Read):
            return node.inputs[entry.place]
        return _MADE_INSIDE if isinstance(entry, Given) else entry

    return map_nest(nest, changed)


def _type(uses: list[Use], ref: Ref) -> tuple[Shape | None, str, str]:
    """Return the type of something in the first use, without the sizes in which others differ."""
    first, *others = (use.value(ref) for use in uses)
    shape = first.shape
    for other in others:
        if shape is None or other.shape is None or len(shape) != len(other.shape):
            shape = None
            break
        if shape != other.shape:
            pairs = zip(shape, other.shape, strict=True)
            shape = tuple(size if size == theirs else None for size, theirs in pairs)
    return shape, first.dtype, first.device
