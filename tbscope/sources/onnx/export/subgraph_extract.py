"""Regions of an ONNX graph: their inputs, outputs and cycles, and their replacement by a node."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir

__all__ = ["NodeRegion", "RegionIndex", "reads"]


@dataclass(frozen=True, slots=True)
class NodeRegion:
    """Nodes of a graph that one node may replace.

    Attributes:
        nodes: The nodes, in order.
        inputs: The values that they read from outside, except initializers, in the order of their
            first reads.
        initializers: The initializers that they read, in the order of their first reads.
        outputs: The values that they compute and that are read outside, in the order of the nodes.
        cycle: The name of a value that leaves the region and comes back to it through nodes
            outside; None if there is none. A region with a cycle cannot be replaced.
    """

    nodes: list["ir.Node"]
    inputs: list["ir.Value"]
    initializers: list["ir.Value"]
    outputs: list["ir.Value"]
    cycle: str | None


def reads(node: "ir.Node") -> "Iterator[tuple[ir.Node, int, ir.Value]]":
    """Yield each input of a node and its bodies: the reading node, the position, the value."""
    for index, value in enumerate(node.inputs):
        if value is not None:
            yield node, index, value
    for graph in _graphs(node):
        for inner in graph:
            yield from reads(inner)


class RegionIndex:
    """Index of the nodes of one graph, from which regions are extracted and replaced.

    Args:
        graph: A graph of `onnx_ir` in topological order.
    """

    def __init__(self, graph: "ir.Graph") -> None:
        self._graph = graph
        self._index: dict[ir.Node, int] = {}
        self._top: dict[ir.Node, ir.Node] = {}
        for index, node in enumerate(graph):
            self._add(node, index)

    def region(self, nodes: "Sequence[ir.Node]") -> NodeRegion:
        """Return the region of some nodes, with its inputs and outputs."""
        ordered = sorted(nodes, key=self._index.__getitem__)
        inside = set(ordered)
        computed = {value for node in ordered for value in node.outputs}
        values_read: dict[ir.Value, None] = {}
        for node in ordered:
            for _, _, value in reads(node):
                # Values inside a body belong to the graph of the body.
                if value not in computed and value.graph is self._graph:
                    values_read[value] = None
        outputs = [
            value
            for node in ordered
            for value in node.outputs
            if value.is_graph_output() or self._readers(value, inside)
        ]
        initializers = [value for value in values_read if value.is_initializer()]
        inputs = [value for value in values_read if not value.is_initializer()]
        return NodeRegion(
            ordered, inputs, initializers, outputs, self._cycle(ordered, inside, outputs)
        )

    def replace(self, region: NodeRegion, node: "ir.Node") -> None:
        """Replace a region by one node, whose outputs correspond to the outputs of the region."""
        last = region.nodes[-1]
        between = self._needs_order(region)
        self._graph.insert_after(last, node)
        self._add(node, self._index[last])
        # Old nodes without inputs are no readers of any value any more.
        for old_node in region.nodes:
            for reader, index, _ in list(reads(old_node)):
                reader.replace_input_with(index, None)
        for old, new in zip(region.outputs, node.outputs, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self._graph.remove(region.nodes)
        if between:
            # Nodes between those of the region that read its outputs must come after the new node.
            self._graph.sort()
            for new_index, old_node in enumerate(self._graph):
                self._index[old_node] = new_index

    def _needs_order(self, region: NodeRegion) -> bool:
        last, inside = self._index[region.nodes[-1]], set(region.nodes)
        return any(
            self._index[reader] < last
            for value in region.outputs
            for reader in self._readers(value, inside)
        )

    def _cycle(
        self, ordered: "Sequence[ir.Node]", inside: "set[ir.Node]", outputs: "Sequence[ir.Value]"
    ) -> str | None:
        """Return the name of an output that comes back through nodes outside, or None."""
        last = self._index[ordered[-1]]
        for output in outputs:
            pending = self._readers(output, inside)
            seen: set[ir.Node] = set()
            while pending:
                node = pending.pop()
                if node in seen or self._index[node] > last:
                    continue
                seen.add(node)
                for value in node.outputs:
                    readers = [self._top[use.node] for use in value.uses()]
                    if any(reader in inside for reader in readers):
                        return str(output.name)
                    pending += readers
        return None

    def _readers(self, value: "ir.Value", inside: "set[ir.Node]") -> "list[ir.Node]":
        readers = (self._top[use.node] for use in value.uses())
        return [node for node in readers if node not in inside]

    def _add(self, node: "ir.Node", index: int) -> None:
        self._index[node] = index
        for inner in _with_inner(node):
            self._top[inner] = node


def _graphs(node: "ir.Node") -> "Iterator[ir.Graph]":
    for attribute in node.attributes.values():
        if attribute.type.name == "GRAPH" and not attribute.is_ref():
            yield attribute.as_graph()


def _with_inner(node: "ir.Node") -> "Iterator[ir.Node]":
    yield node
    for graph in _graphs(node):
        for inner in graph:
            yield from _with_inner(inner)
