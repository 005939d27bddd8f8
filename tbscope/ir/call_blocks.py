"""Blocks of a training step: outermost calls, their gradients, and operations outside of all calls.

Blocks are joined to what belongs together, a micro batch or the stage of a pipeline.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from typing import TypeAlias

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, STATE
from tbscope.ir.scopes import RECOMPUTED, InheritedProperty, Scope, ScopePart

_GRADIENT = "gradient_of"

Block: TypeAlias = Scope | Node
"""The scope of an outermost call or of its gradients, or an operation outside of all of these."""


def block_property() -> InheritedProperty[Scope | None]:
    """Return the property of a scope that is its outermost call; None outside of all calls."""
    return InheritedProperty(_block_in, top=None)


def _block_in(scope: Scope, above: Scope | None) -> Scope | None:
    # Modules that are not called themselves, and the boxes of passes and ranks, contain several.
    if above is not None or scope.kind in ("rank", "container"):
        return above
    outer = scope.parent
    if scope.part.label == RECOMPUTED and outer is not None:
        outer = outer.parent
    is_pass = scope.phase == "backward" and (outer is None or outer.phase != "backward")
    return None if is_pass else scope


def path_of_call(block: Scope) -> tuple[ScopePart, ...]:
    """Return the path of an outermost call, which that of its gradients repeats."""
    return block.parts[block.phase != "forward" :]


def values_of_state(graph: Graph) -> dict[Value, Value]:
    """Return the value of the parameter or buffer of which each value is a later content."""
    of_state: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.kind in STATE:
            of_state.update((value, value) for value in node.outputs)
        # The outputs for written tensors come last.
        for value, index in zip(reversed(node.outputs), reversed(node.writes), strict=False):
            if node.inputs[index] in of_state:
                of_state[value] = of_state[node.inputs[index]]
    return of_state


class CallBlocks:
    """The blocks of a graph without its optimizer, joined step by step.

    Args:
        graph: The graph.

    Attributes:
        operations: The block of each operation that has one.
        backward: The blocks of gradients.
        of_state: The operations that compute from parameters and buffers alone: what ranks gather,
            casts of weights.
    """

    def __init__(self, graph: Graph) -> None:
        block_of = block_property()
        found = {
            node: block_of(node.scope)
            for node in graph.nodes
            if node.kind in OPERATIONS and node.phase != "optimizer"
            # A script scales the gradients of all micro batches.
            if node.phase == "backward" or _GRADIENT not in node.attributes
        }
        phases: dict[str, set[Scope | None]] = defaultdict(set)
        for node, block in found.items():
            phases[node.phase].add(block)
        # A box with a whole step in it is one of the user's own.
        whole = (phases["forward"] & phases["backward"]) - {None}
        self.backward = {block for block in phases["backward"] if block is not None}
        self.operations: dict[Node, Block] = {
            node: block or node for node, block in found.items() if block not in whole
        }
        self._above: dict[Block, Block] = {}
        self._edges: list[tuple[Node, Node]] = []
        of_state = values_of_state(graph)
        self.of_state: set[Node] = set()
        for node in self.operations:
            made = {value.producer for value in node.inputs if value not in of_state}
            reads_state = len(made) < len({value.producer for value in node.inputs})
            # Memory without contents is made of nothing.
            made -= {source for source in made if source.kind in OPERATIONS and not source.inputs}
            if made <= self.of_state and (made or reads_state):
                self.of_state.add(node)
            for value in node.inputs:
                source = value.producer
                # State and accumulated gradients belong to several micro batches.
                is_shared = value in of_state or _GRADIENT in source.attributes
                if source in self.operations and not is_shared:
                    self._edges.append((source, node))

    def edges(self) -> Iterator[tuple[Node, Node, Block, Block]]:
        """Yield the data edges between different blocks: both operations, and their blocks."""
        for source, node in self._edges:
            before, after = self.of(source), self.of(node)
            if before is not after:
                yield source, node, before, after

    def of(self, node: Node) -> Block:
        """Return the block that represents all that are joined with the block of an operation."""
        return self.joined(self.operations[node])

    def joined(self, block: Block) -> Block:
        """Return the block that represents all that are joined with a block."""
        while (above := self._above.get(block, block)) is not block:
            self._above[block] = self._above.get(above, above)
            block = above
        return block

    def join(self, first: Block, second: Block) -> None:
        """Join two blocks; the first one's representative represents both."""
        first, second = self.joined(first), self.joined(second)
        if first is not second:
            self._above[second] = first

    def attach(self, chosen: Set[Block]) -> None:
        """Join each other block to the only one of some that reads it, or else that it reads.

        Args:
            chosen: Representatives.
        """
        sources: dict[Block, list[Node]] = defaultdict(list)
        readers: dict[Block, list[Node]] = defaultdict(list)
        for source, node, before, after in self.edges():
            sources[after].append(source)
            readers[before].append(node)
        others = [
            block
            for block in dict.fromkeys(map(self.joined, self.operations.values()))
            if block not in chosen
        ]
        for block in reversed(others):
            found = self._all_of(readers[block]) & chosen
            if len(found) == 1:
                self.join(found.pop(), block)
        for block in others:
            found = self._all_of(sources[block])
            if len(found) == 1 and found <= chosen and self.joined(block) is block:
                self.join(found.pop(), block)

    def _all_of(self, nodes: Iterable[Node]) -> set[Block]:
        return {self.of(node) for node in nodes}
