"""Draws the kernels inside of each operation, as a scope that is named like the operation."""

from dataclasses import replace

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Argument, Body, Graph, Nest, Node, Output, Value, with_values
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["expand_kernels"]

_SOURCES = frozenset({"parameter", "buffer", "constant"})


def expand_kernels(graph: Graph) -> None:
    """Make a scope of each operation in which several kernels ran, with them inside.

    What read the operation reads the kernel that gave it, and what it read is read by the
    kernels that took it. An operation of one kernel stays one node, as does one of whose
    kernels not all could be followed.

    Args:
        graph: Changed in place.
    Raises:
        ArgumentError: No kernels were recorded, though operations ran several.
    """
    if not any(node.body is not None for node in graph.nodes):
        if any(len(node.kernels) > 1 for node in graph.nodes):
            raise ArgumentError(
                f"the graph of {graph.name} cannot be drawn at the level 'aten'",
                why="the kernels inside its operations were not recorded",
                fix="trace it with tbscope.trace(model, input, kernels=True)",
            )
        return
    _Expansion(graph).run()


class _Expansion:
    """One graph that is expanded.

    Args:
        graph: Changed in place.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._scopes: dict[tuple[Scope | None, str], int] = {}
        for scope in graph.scopes():
            part = scope.part
            if part.attribute is None:
                key = scope.parent, part.label
                self._scopes[key] = max(self._scopes.get(key, 0), part.index + 1)
        # What an operation handed on is what it read.
        self._instead: dict[Value, Value] = {}
        # What stands for an operation that others wait for, or that notes are about.
        self._last: dict[Node, Node] = {}

    def run(self) -> None:
        graph = self._graph
        nodes: list[Node] = []
        for node in graph.nodes:
            self._read_instead(node)
            if node.body is None or not node.body.nodes:
                nodes.append(node)
            else:
                nodes += self._expand(node, node.body)
        graph.nodes = nodes
        graph.outputs = [self._output(output) for output in graph.outputs]
        graph.notes = [
            replace(note, node=self._last.get(note.node, note.node)) if note.node else note
            for note in graph.notes
        ]
        if self._instead:
            for call in graph.calls:
                call.arguments = self._arguments(call.arguments)
                call.results = self._nest(call.results)

    def _expand(self, node: Node, body: Body) -> list[Node]:
        scope = self._open(node)
        kernels = body.nodes
        last = kernels[-1]
        for kernel in kernels:
            kernel.scope = scope
            kernel.attributes["operation"] = node.op
            if kernel.writes:
                last = kernel
        inside = set(kernels)
        renamed: dict[Value, Value] = {}
        for value, inner in zip(node.outputs, body.results, strict=True):
            result = self._instead.get(inner, inner)
            if result.producer not in inside:
                self._instead[value] = result
            elif result in renamed:
                self._instead[value] = renamed[result]
            else:
                renamed[result] = value
                value.producer, value.index = result.producer, result.index
                result.producer.outputs[result.index] = value
        for kernel in kernels:
            if renamed and not renamed.keys().isdisjoint(kernel.inputs):
                kernel.inputs = [renamed.get(value, value) for value in kernel.inputs]
                kernel.arguments = [
                    Argument(name, with_values(nest, renamed)) for name, nest in kernel.arguments
                ]
            self._read_instead(kernel)
            if node.control_inputs and self._reads_outer(kernel, inside):
                kernel.control_inputs = [*node.control_inputs, *kernel.control_inputs]
        if body.results and body.results[0].producer in inside:
            last.attributes.update(node.attributes)
        else:
            kernels[-1].attributes.update(node.attributes)
        self._last[node] = last
        return kernels

    def _open(self, node: Node) -> Scope:
        key = node.scope, node.op
        index = self._scopes.get(key, 0)
        self._scopes[key] = index + 1
        return Scope(ScopePart(node.op, None, index), parent=node.scope, kind="op")

    def _reads_outer(self, kernel: Node, inside: set[Node]) -> bool:
        """Tell whether a kernel reads something made outside, so that it waits with it."""
        return any(
            value.producer not in inside and value.producer.kind not in _SOURCES
            for value in kernel.inputs
        )

    def _read_instead(self, node: Node) -> None:
        instead = self._instead
        if instead and not instead.keys().isdisjoint(node.inputs):
            node.inputs = [instead.get(value, value) for value in node.inputs]
            node.arguments = self._arguments(node.arguments)
        if node.control_inputs and self._last:
            last = self._last
            others = dict.fromkeys(last.get(other, other) for other in node.control_inputs)
            node.control_inputs = list(others)

    def _output(self, output: Output) -> Output:
        return replace(
            output,
            value=self._instead.get(output.value, output.value),
            control_inputs=tuple(self._last.get(node, node) for node in output.control_inputs),
        )

    def _arguments(self, arguments: list[Argument]) -> list[Argument]:
        return [Argument(name, with_values(nest, self._instead)) for name, nest in arguments]

    def _nest(self, nest: Nest) -> Nest:
        return with_values(nest, self._instead)
