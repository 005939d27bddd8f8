"""Editing of a graph: the one place that knows where its nodes and values are named.

A value is named by what reads it (inputs and arguments of nodes), by outputs, by the arguments
and results of calls, and by bodies; a node by its place among the nodes, by what waits for it
(nodes, outputs, bodies) and by notes. A pass says what becomes of them, and `apply` sees to all
of these in one sweep; which node gives a value is changed at once, as passes ask for it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tbscope.ir.graph import Call, Graph, Nest, Node, Note, Output, Value
from tbscope.ir.nodes import STATE, Body, copy_arguments, let_go
from tbscope.ir.pytree import map_values
from tbscope.ir.scopes import Scope

__all__ = ["Editor", "cut_call", "read_there", "replace_calls", "replace_nodes", "twin_of"]


def twin_of(node: Node, name: str, scope: Scope | None) -> Node:
    """Return a source like another one, under another name and in another scope.

    Args:
        node: A parameter, a buffer or a constant, which gives one value.
        name: The name of the new one, which no other node has.
        scope: Where it stands.
    """
    twin = Node(name, node.op, node.kind, scope, source=node.source)
    twin.attributes = {**node.attributes}
    held = node.outputs[0]
    twin.outputs = [Value(twin, 0, held.shape, held.dtype, held.device, held.sharding)]
    return twin


def read_there(node: Node, values: Mapping[Value, Value]) -> None:
    """Have one node read other values instead of some, and no other node."""
    node.inputs = [values.get(value, value) for value in node.inputs]
    node.arguments = copy_arguments(node.arguments, values)


def replace_nodes(graph: Graph, nodes: Sequence[Node]) -> None:
    """Give a graph other nodes, or an other order of them; all that is read stays among them."""
    graph.nodes = list(nodes)


def replace_calls(graph: Graph, calls: Sequence[Call]) -> None:
    """Give a graph other calls."""
    graph.calls = list(calls)


def cut_call(call: Call) -> None:
    """Have a call name no values any more: they are inside of something."""
    call.arguments, call.results = [], None


class Editor:
    """Changes of one graph, which are made together.

    Args:
        graph: Changed in place, once `apply` is called.
        reading: Told of each node before it reads something else.
        giving: Returns what an output is that holds another value from now on.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        reading: Callable[[Node], None] | None = None,
        giving: Callable[[Output, Value], Output] | None = None,
    ) -> None:
        self._graph = graph
        self._reading = reading
        self._giving = giving
        self._values: dict[Value, Value] = {}
        self._words: dict[Value, Nest] = {}
        self._waited: dict[Node, Sequence[Node]] = {}
        self._noted: dict[Node, Node] = {}
        self._gone: set[Node] = set()
        self._instead: dict[Node, Sequence[Node]] = {}

    def now(self, value: Value) -> Value:
        """Return what is read instead of a value; the value itself where it stays."""
        return self._values.get(value, value)

    def read_instead(self, value: Value, other: Value) -> None:
        """Have whatever names a value name another one; calls still tell its type."""
        self._values[value] = self.now(other)

    def give(self, value: Value, node: Node, index: int | None = None) -> None:
        """Have a node give a value, at once.

        Args:
            value: What another node has given so far.
            node: What gives it from now on.
            index: The output whose place it takes; None to be one more, the last.
        """
        value.producer = node
        if index is None:
            value.index = len(node.outputs)
            node.outputs.append(value)
        else:
            value.index = index
            node.outputs[index] = value

    def put_instead(self, node: Node, others: Sequence[Node]) -> None:
        """Have new nodes stand in the place of a node, which is left out."""
        self._instead[node] = others
        self._gone.add(node)

    def stand_for(self, node: Node, others: Sequence[Node], *, noted: Node) -> None:
        """Have what waits for a node wait for others, and notes be about one of them."""
        self._waited[node] = others
        self._noted[node] = noted

    def fold(self, node: Node, into: Node) -> None:
        """Make a node part of another one, which reads, gives and runs what it did too."""
        writes = list(into.writes)
        for place, value in enumerate(node.inputs):
            if value.producer is not into:
                if place in node.writes:
                    writes.append(len(into.inputs))
                into.inputs.append(value)
        into.writes = tuple(writes)
        into.random = into.random or node.random
        into.control_inputs += node.control_inputs
        into.kernels = into.kernels + node.kernels
        if into.body is not None:
            # Its kernels would no longer be all.
            let_go(into.body.nodes)
            into.body = None
        for value in node.outputs:
            self.give(value, into)
        self.stand_for(node, (into,), noted=into)
        self._gone.add(node)

    def drop(self, nodes: Iterable[Node], *, word: Nest = None) -> None:
        """Leave nodes out.

        Args:
            nodes: What nothing that stays reads any more.
            word: What calls name instead of what these gave; None to leave that.
        """
        nodes = set(nodes)
        self._gone |= nodes
        if word is not None:
            self._words.update(
                {value: word for node in nodes for value in node.outputs if value.producer is node}
            )

    def apply(self) -> None:
        """Make the changes."""
        graph, values, gone = self._graph, self._values, self._gone
        if gone:
            graph.nodes = self._standing()
            if not gone.isdisjoint(graph.inputs):
                graph.inputs = [node for node in graph.inputs if node not in gone]
            graph.notes = [self._note(note) for note in graph.notes]
        elif self._noted:
            graph.notes = [self._note(note) for note in graph.notes]
        if values or self._waited or gone:
            for node in graph.nodes:
                self._edit(node)
            graph.outputs = [self._output(output) for output in graph.outputs]
        if values or self._words:
            named = _InCalls(values, self._words)
            for call in graph.calls:
                call.arguments = copy_arguments(call.arguments, named)
                call.results = map_values(call.results, named)
        for node in self._instead:
            # What stands there now is in its body, and stays.
            node.outputs.clear()
        # Parameters may be those of the graph of which this one is a copy.
        let_go([node for node in gone if node not in self._instead and node.kind not in STATE])
        # A pass and its editor refer to each other, where these are methods of the pass.
        self._reading = self._giving = None

    def _standing(self) -> list[Node]:
        gone, instead = self._gone, self._instead
        if not instead:
            return [node for node in self._graph.nodes if node not in gone]
        nodes: list[Node] = []
        for node in self._graph.nodes:
            if node not in gone:
                nodes.append(node)
            elif node in instead:
                nodes += instead[node]
        return nodes

    def _edit(self, node: Node) -> None:
        values = self._values
        if values:
            if not values.keys().isdisjoint(node.inputs):
                if self._reading is not None:
                    self._reading(node)
                node.inputs = [values.get(value, value) for value in node.inputs]
                node.arguments = copy_arguments(node.arguments, values)
            elif node.kind == "module":
                # One that stands for a call tells also the arguments that it did not read.
                node.arguments = copy_arguments(node.arguments, values)
        if node.control_inputs:
            node.control_inputs = self._waits(node.control_inputs, node)
        if node.body is not None:
            self._edit_body(node.body)

    def _edit_body(self, body: Body) -> None:
        for kernel in body.nodes:
            self._edit(kernel)
        body.results = [self.now(value) for value in body.results]

    def _waits(self, others: Iterable[Node], node: Node | None) -> list[Node]:
        """Return what is waited for now; a node never waits for itself."""
        found: dict[Node, None] = {}
        for other in others:
            stands = self._waited.get(other)
            if stands is not None:
                found.update(dict.fromkeys(stands))
            elif other not in self._gone:
                found[other] = None
        if node is not None:
            found.pop(node, None)
        return list(found)

    def _output(self, output: Output) -> Output:
        if output.control_inputs:
            output = replace(output, control_inputs=tuple(self._waits(output.control_inputs, None)))
        other = self._values.get(output.value)
        if other is None:
            return output
        if self._giving is not None:
            output = self._giving(output, other)
        return replace(output, value=other)

    def _note(self, note: Note) -> Note:
        node = note.node
        if node is None:
            return note
        stands = self._noted.get(node)
        if stands is not None:
            return replace(note, node=stands)
        return replace(note, node=None) if node in self._gone else note


class _InCalls:
    """What calls name instead of values: of each call, the types are told that it saw.

    Where views between a value and the one that is read instead are left out, a call names a
    value of its own, which stands at the place of the latter and has the type of the former.

    Args:
        values: The values that are read instead.
        words: What is told of values that nothing gives any more.
    """

    def __init__(self, values: Mapping[Value, Value], words: Mapping[Value, Nest]) -> None:
        self._values = values
        self._words = words

    def get(self, value: Value, _: Nest = None) -> Nest:
        """Return what is named instead of a value; the value itself where it stays."""
        stands = value
        if value.index < len(value.producer.outputs):
            # It may itself be one that an earlier change left to a call.
            stands = value.producer.outputs[value.index]
        if stands in self._words:
            return self._words[stands]
        other = self._values.get(stands)
        if other is None:
            return value
        if (value.shape, value.dtype, value.device) == (other.shape, other.dtype, other.device):
            return other
        return Value(
            other.producer, other.index, value.shape, value.dtype, value.device, value.sharding
        )
