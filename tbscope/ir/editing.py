"""Editing of a graph: the only file that updates all references to its nodes and values.

References to a value are in inputs and arguments of nodes, in outputs, in the arguments and
results of calls, and in bodies; references to a node are its place among the nodes, control
dependencies (of nodes, outputs, bodies) and notes. A pass registers its changes, and `apply`
updates all references in one sweep; only the producer of a value changes at once, because passes
read it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tbscope.ir.graph import Call, Graph, Nest, Node, Note, Output, Value
from tbscope.ir.nodes import (
    OPERATIONS,
    STATE,
    Body,
    copy_arguments,
    release_nodes,
    sources_of,
)
from tbscope.ir.pytree import Replacements, map_values
from tbscope.ir.scopes import Scope
from tbscope.utils.components import in_order


def copy_source(node: Node, name: str, scope: Scope | None) -> Node:
    """Return a copy of a source, with another name and in another scope.

    Args:
        node: A parameter, a buffer or a constant, with one output.
        name: The name of the copy, which no other node has.
        scope: The scope of the copy.
    """
    copy = Node(name, node.op, node.kind, scope, source=node.source)
    copy.attributes = {**node.attributes}
    original = node.outputs[0]
    copy.outputs = [
        Value(copy, 0, original.shape, original.dtype, original.device, original.sharding)
    ]
    return copy


def replace_inputs(node: Node, values: Replacements[Value]) -> None:
    """Replace some values that one node reads; other nodes still read the old values."""
    node.inputs = [values[value] for value in node.inputs]
    node.arguments = copy_arguments(node.arguments, values)


def replace_nodes(graph: Graph, nodes: Sequence[Node]) -> None:
    """Set the nodes of a graph, or their order; each value that is read needs its producer."""
    graph.nodes = list(nodes)


def sort_nodes(graph: Graph) -> bool:
    """Put the nodes of a graph after all that they read; return whether they form no cycle.

    Each node moves as little as possible.
    """
    number = {node: at for at, node in enumerate(graph.nodes)}
    steps = ((number[source], at) for node, at in number.items() for source in sources_of(node))
    order = in_order(len(number), steps)
    replace_nodes(graph, [graph.nodes[at] for at in order])
    return len(order) == len(number)


def replace_calls(graph: Graph, calls: Sequence[Call]) -> None:
    """Set the calls of a graph."""
    graph.calls = list(calls)


def drop_repeated_outputs(graph: Graph) -> None:
    """Drop each output of a graph whose value an earlier output has."""
    firsts = {output.value: output for output in reversed(graph.outputs)}
    graph.outputs = [output for output in graph.outputs if firsts[output.value] is output]


def clear_call_values(call: Call) -> None:
    """Remove the values of a call from it, because they are inside of a collapsed box."""
    call.arguments, call.results = [], None


class Editor:
    """Changes of one graph, which are applied together.

    Args:
        graph: Changed in place, once `apply` is called.
        reading: Called with each node before its inputs change.
        giving: Returns the new form of an output whose value changes, from the output and its
            new value.
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
        self._values = Replacements[Value]()
        self._words: dict[Value, Nest] = {}
        self._waited: dict[Node, Sequence[Node]] = {}
        self._noted: dict[Node, Node] = {}
        self._gone: set[Node] = set()
        self._instead: dict[Node, Sequence[Node]] = {}

    def now(self, value: Value) -> Value:
        """Return the replacement of a value, or the value itself if it stays."""
        return self._values[value]

    def read_instead(self, value: Value, replacement: Value) -> None:
        """Replace a value in all references; calls still show the type of the old value."""
        self._values[value] = self.now(replacement)

    def give(self, value: Value, node: Node, index: int | None = None) -> None:
        """Make a node the producer of a value, at once.

        Args:
            value: A value of another node.
            node: The new producer.
            index: The output that the value replaces; None to append the value to the outputs.
        """
        value.producer = node
        if index is None:
            value.index = len(node.outputs)
            node.outputs.append(value)
        else:
            value.index = index
            node.outputs[index] = value

    def put_instead(self, node: Node, others: Sequence[Node]) -> None:
        """Put new nodes in the place of a node, which is removed."""
        self._instead[node] = others
        self._gone.add(node)

    def stand_for(self, node: Node, others: Sequence[Node], *, noted: Node | None = None) -> None:
        """Replace a node by others as a control dependency; in notes by `noted`, or the first."""
        self._waited[node] = others
        self._noted[node] = noted or others[0]

    def merge(self, node: Node, equal: Node) -> None:
        """Replace a node by an equal one, which its readers read instead."""
        self.stand_for(node, (equal,))
        for value, replacement in zip(node.outputs, equal.outputs, strict=True):
            self.read_instead(value, replacement)
        self._gone.add(node)

    def fold(self, node: Node, into: Node) -> None:
        """Merge a node into another node, which takes over its inputs, outputs and kernels."""
        writes = list(into.writes)
        for index, value in enumerate(node.inputs):
            # An edge between the two nodes becomes internal.
            if value.producer is not into:
                if index in node.writes:
                    writes.append(len(into.inputs))
                into.inputs.append(value)
        into.writes = tuple(writes)
        into.random = into.random or node.random
        into.control_inputs += node.control_inputs
        into.kernels = into.kernels + node.kernels
        if into.body is not None:
            # The body would lack the kernels of the merged node.
            release_nodes(into.body.nodes)
            into.body = None
        for value in node.outputs:
            self.give(value, into)
        self.stand_for(node, (into,))
        self._gone.add(node)

    def drop(self, nodes: Iterable[Node], *, word: Nest = None) -> None:
        """Remove nodes.

        Args:
            nodes: Nodes whose outputs no remaining node reads.
            word: The text that replaces their outputs in calls; None to leave those as they are.
        """
        nodes = set(nodes)
        self._gone |= nodes
        if word is not None:
            self._words.update(
                {value: word for node in nodes for value in node.outputs if value.producer is node}
            )

    def apply(self) -> None:
        """Apply all changes."""
        graph, values, gone = self._graph, self._values, self._gone
        if gone:
            graph.nodes = [
                each
                for node in graph.nodes
                for each in (self._instead.get(node, ()) if node in gone else (node,))
            ]
            graph.inputs = [node for node in graph.inputs if node not in gone]
        if gone or self._noted:
            graph.notes = [self._note(note) for note in graph.notes]
        if values or self._waited or gone:
            for node in graph.nodes:
                if node.kind in OPERATIONS or node.control_inputs:
                    self._edit(node)
            graph.outputs = [self._output(output) for output in graph.outputs]
        if values or self._words:
            named = _CallValues(values, self._words)
            for call in graph.calls:
                results = call.results
                call.arguments = copy_arguments(call.arguments, named)
                call.results = (
                    named[results] if type(results) is Value else map_values(results, named)
                )
        for node in self._instead:
            # Its body stays as it is: the nodes in its place may be those of the body.
            node.outputs.clear()
        # Parameters are excluded, since a copied graph may share them with its original.
        release_nodes(
            [node for node in gone if node not in self._instead and node.kind not in STATE]
        )
        # These may be methods of the pass: cutting the reference cycle frees pass and editor.
        self._reading = self._giving = None

    def _edit(self, node: Node) -> None:
        values = self._values
        if values:
            if not values.keys().isdisjoint(node.inputs):
                if self._reading is not None:
                    self._reading(node)
                node.inputs = [values[value] for value in node.inputs]
                node.arguments = copy_arguments(node.arguments, values)
            elif node.kind == "module":
                # A collapsed call also lists the arguments that it did not read.
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
        """Return the updated control dependencies; a node never depends on itself."""
        dependencies: dict[Node, None] = {}
        for dependency in others:
            replacements = self._waited.get(dependency)
            if replacements is not None:
                dependencies.update(dict.fromkeys(replacements))
            elif dependency not in self._gone:
                dependencies[dependency] = None
        if node is not None:
            dependencies.pop(node, None)
        return list(dependencies)

    def _output(self, output: Output) -> Output:
        if output.control_inputs:
            output = replace(output, control_inputs=tuple(self._waits(output.control_inputs, None)))
        replacement = self._values.get(output.value)
        if replacement is None:
            return output
        if self._giving is not None:
            output = self._giving(output, replacement)
        return replace(output, value=replacement)

    def _note(self, note: Note) -> Note:
        node = note.node
        if node is None:
            return note
        replacement = self._noted.get(node)
        if replacement is not None:
            return replace(note, node=replacement)
        return replace(note, node=None) if node in self._gone else note


class _CallValues(dict[Value, Nest]):
    """The replacements of values in calls, where each call still shows the types that it saw.

    If views between a value and its replacement are removed, the call refers to a value of its
    own, with the producer and index of the replacement and the type of the original.

    Args:
        values: The replacements by value.
        words: The texts for values that no node produces any more.
    """

    def __init__(self, values: Mapping[Value, Value], words: Mapping[Value, Nest]) -> None:
        self._values = values
        self._words = words

    def __missing__(self, value: Value) -> Nest:
        """Return the replacement in a call, or the value itself if it stays."""
        current = value
        if value.index < len(value.producer.outputs):
            # The value may itself be such a copy, which an earlier change put into a call.
            current = value.producer.outputs[value.index]
        if current in self._words:
            return self._words[current]
        new = self._values.get(current)
        if new is None:
            return value
        if (value.shape, value.dtype, value.device) == (new.shape, new.dtype, new.device):
            return new
        return Value(
            new.producer, new.index, value.shape, value.dtype, value.device, value.sharding
        )
