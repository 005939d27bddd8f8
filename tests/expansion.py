"""Expands the definitions of a graph to that graph again: so a test sees that they lack nothing.

Operations and edges come from the steps of the definitions, and a use has the values of its
inputs. A use also keeps what is in no definition: the names of its nodes, their types, sources
and figures, and their places among those of other calls.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from tbscope.functions.canonicalize import _OF_A_RUN
from tbscope.functions.definition import CallStep, Definition, Given, Read, Ref, Step, Use
from tbscope.functions.functions import Functions
from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, Output, Value, copy_body
from tbscope.ir.nodes import OPERATIONS
from tbscope.ir.pytree import Replacements, map_tree, walk

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


def expand(functions: Functions) -> Graph:
    """Return a graph of new nodes, with the bodies of definitions in place of their uses."""
    return _Expansion(functions.graph).expand(functions.main.uses[0])


class _Body:
    """One use, expanded.

    Attributes:
        definition: The definition, as the body around it names it.
        use: What the use tells.
        inputs: What its inputs are.
        waits: The nodes outside that its operations wait for.
        parts: What stands for each step.
    """

    def __init__(self, definition: Definition, use: Use) -> None:
        self.definition = definition
        self.use = use
        self.inputs: list[Value] = []
        self.waits: list[Node] = []
        self.parts: list[Node | _Body] = []

    def value(self, ref: Ref) -> Value:
        body = self
        while isinstance(ref, Given):
            assert ref.output is not None, "an operation is no value"
            part = body._part(ref.path)
            if isinstance(part, Node):
                return part.outputs[ref.output]
            body, ref = part, part.definition.given[ref.output]
        return body.inputs[ref.place]

    def waited(self, ref: Ref) -> Node:
        if isinstance(ref, Read):
            return self.waits[ref.place]
        part = self._part(ref.path)
        assert isinstance(part, Node), "the way ends at a call"
        return part

    def nest(self, nest: Nest, like: Nest) -> Nest:
        """Return a nest with values for its refs, of the types that the use has there."""
        held = (entry for _, entry in walk(like))

        def changed(entry: Nest) -> Nest:
            old = next(held)
            if not isinstance(entry, (Read, Given)):
                return entry
            value = self.value(entry)
            types = value.shape, value.dtype, value.device
            if not isinstance(old, Value) or (old.shape, old.dtype, old.device) == types:
                return value
            # A pass left out the view through which the call saw it.
            return Value(
                value.producer, value.index, old.shape, old.dtype, old.device, old.sharding
            )

        return map_tree(nest, changed)

    def _part(self, path: tuple[int, ...]) -> "Node | _Body":
        part: Node | _Body = self
        for place in path:
            assert isinstance(part, _Body), "an operation has no steps"
            part = part.parts[place]
        return part


class _Expansion:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: dict[Node, Node] = {}
        self._calls: dict[tuple[Scope | None, int], Call] = {}

    def expand(self, whole: Use) -> Graph:
        graph, nodes = self._graph, self._nodes
        for node in graph.nodes:
            if node.kind not in OPERATIONS:
                nodes[node] = self._told(Node(node.name, node.op, node.kind, node.scope), node)
                nodes[node].attributes = node.attributes.copy()
        main = _Body(whole.definition, whole)
        bodies = [main]
        for body in bodies:
            bodies += self._open(body)
        main.inputs = [
            nodes[value.producer].outputs[value.index] if value.producer in nodes else value
            for value in whole.inputs
        ]
        main.waits = [nodes.get(node, node) for node in whole.waits]
        for body in bodies:
            self._wire(body)
        values = {
            old: new
            for node, twin in nodes.items()
            for old, new in zip(node.outputs, twin.outputs, strict=True)
        }
        for node, twin in nodes.items():
            twin.body = node.body and copy_body(node.body, nodes, Replacements(values))
        return replace(
            graph,
            nodes=[nodes[node] for node in graph.nodes],
            inputs=[nodes[node] for node in graph.inputs],
            outputs=self._outputs(main),
            calls=[self._calls[call.scope, call.number] for call in graph.calls],
            notes=[
                replace(note, node=nodes.get(note.node)) if note.node else note
                for note in graph.notes
            ],
        )

    def _open(self, body: _Body) -> list[_Body]:
        """Make the nodes of a body, which read nothing yet; return the bodies in it."""
        found = []
        for step, part in zip(body.definition.steps, body.use.parts, strict=True):
            if isinstance(step, CallStep):
                assert isinstance(part, Use), "a call stands for a call"
                inner = _Body(step.definition, part)
                body.parts.append(inner)
                found.append(inner)
            else:
                assert isinstance(part, Node), "an operation stands for an operation"
                node = Node(part.name, step.op, step.kind, part.scope)
                self._nodes[part] = self._told(node, part)
                body.parts.append(node)
        return found

    def _told(self, node: Node, old: Node) -> Node:
        """Give a node what no definition tells of it."""
        node.source, node.kernels, node.flops = old.source, old.kernels, old.flops
        node.gradients, node.allocated_bytes = old.gradients, old.allocated_bytes
        node.measured, node.collective = old.measured, old.collective
        node.attributes = {key: old.attributes[key] for key in _OF_A_RUN & old.attributes.keys()}
        for value in old.outputs:
            node.outputs.append(
                Value(node, value.index, value.shape, value.dtype, value.device, value.sharding)
            )
        return node

    def _wire(self, body: _Body) -> None:
        for step, part in zip(body.definition.steps, body.parts, strict=True):
            if isinstance(step, Step):
                assert isinstance(part, Node), "an operation stands for an operation"
                self._wire_node(body, step, part)
            else:
                assert isinstance(part, _Body), "a call stands for a call"
                part.inputs = [body.value(ref) for ref in step.inputs]
                part.waits = [body.waited(ref) for ref in step.waits]
        for one, old in zip(body.definition.signatures, body.use.calls, strict=True):
            self._calls[old.scope, old.number] = Call(
                old.scope,
                one.class_name,
                old.qualified_name,
                [
                    Argument(name, body.nest(nest, given.nest))
                    for (name, nest), given in zip(one.arguments, old.arguments, strict=True)
                ],
                body.nest(one.results, old.results),
                one.hyperparameters,
                one.training,
                old.parameters,
                old.source,
                old.defined,
                one.number,
            )

    def _wire_node(self, body: _Body, step: Step, node: Node) -> None:
        if len(node.outputs) != step.outputs:
            del node.outputs[step.outputs :]
        node.inputs = [body.value(ref) for ref in step.inputs]
        node.control_inputs = [body.waited(ref) for ref in step.waits]
        node.arguments = [
            Argument(
                name,
                map_tree(
                    nest,
                    lambda entry: body.value(entry) if isinstance(entry, (Read, Given)) else entry,
                ),
            )
            for name, nest in step.arguments
        ]
        node.writes, node.role, node.random = step.writes, step.role, step.random
        node.phase = step.phase
        node.attributes.update(step.attributes)

    def _outputs(self, main: _Body) -> list[Output]:
        named = zip(main.definition.results.items(), main.definition.ends, strict=True)
        return [
            replace(
                old,
                name=name,
                value=main.value(ref),
                control_inputs=tuple(main.waited(wait) for wait in waits),
            )
            for ((name, ref), waits), old in zip(named, self._graph.outputs, strict=True)
        ]
