"""Folding of micro batches: parts of a training step that differ in their data alone, drawn once.

Accumulated gradients and pipelines run the same modules on several parts of a batch. The data flow
shows what belongs to one of them: module calls, their gradients, and operations that only these
read or feed. Two are equal if the same modules run the same operations, on the same parameters and
on data of the same source. An operation that one of them runs beyond that (the all-reduce of the
accumulated gradients) is drawn beside the others.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tbscope.ir.editing import Editor, replace_calls, replace_nodes
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, STATE, sources_of
from tbscope.ir.scopes import (
    RECOMPUTED,
    InheritedProperty,
    MovedScopes,
    Scope,
    ScopePart,
    self_and_ancestors,
)
from tbscope.ir.training_steps import unread_sources
from tbscope.utils.components import in_order

__all__ = ["Folded", "fold_micro_batches"]

_Block: TypeAlias = Scope | Node
_GRADIENT = "gradient_of"


class Folded(NamedTuple):
    """A graph whose equal micro batches are drawn once.

    Attributes:
        graph: A new graph.
        originals: The node of the original graph for each node of the new one, in order.
        copies: The node and the scope of the new graph for each of the original graph.
    """

    graph: Graph
    originals: list[Node]
    copies: dict[Node | Scope, Node | Scope]


def fold_micro_batches(graph: Graph) -> Folded | None:
    """Return a copy of a graph in which the first of equal micro batches represents all of them.

    The boxes of a folded micro batch end in their number (`Net x 8`), its nodes have an attribute
    `micro_batches`, and their costs are the sums.

    Args:
        graph: Any graph; it stays as it is.
    Returns:
        None if no micro batches are equal.
    """
    batches = _micro_batches(graph)
    kept = _equal_nodes(batches, graph) if len(batches) > 1 else {}
    return _folded(graph, kept) if kept else None


# -- the micro batches of a graph -----------------------------------------------------------


def _block_in(scope: Scope, above: Scope | None) -> Scope | None:
    """Return the outermost scope of a call; boxes of passes and of ranks contain several calls."""
    if above is not None or scope.kind == "rank":
        return above
    outer = scope.parent
    if scope.part.label == RECOMPUTED and outer is not None:
        outer = outer.parent
    is_pass = scope.phase == "backward" and (outer is None or outer.phase != "backward")
    return None if is_pass else scope


def _micro_batches(graph: Graph) -> list[list[Node]]:
    """Return the operations of each micro batch; operations of several are in none of them."""
    block_of = InheritedProperty[Scope | None](_block_in, top=None)
    operations = [
        node for node in graph.nodes if node.kind in OPERATIONS and node.phase != "optimizer"
    ]
    backward = {block_of(node.scope) for node in operations if node.phase == "backward"}
    if len(backward) < 2:
        return []
    # A box with a whole step in it is one of the user's own.
    whole = {block_of(node.scope) for node in operations if node.phase == "forward"} & backward
    # An operation outside of all calls is a block of its own.
    blocks: dict[Node, _Block] = {
        node: block_of(node.scope) or node
        for node in operations
        if block_of(node.scope) is None or block_of(node.scope) not in whole
    }
    batches, of_state = _Components(), _values_of_state(graph)
    sources: dict[_Block, set[Node]] = defaultdict(set)
    readers: dict[_Block, set[Node]] = defaultdict(set)
    for node, block in blocks.items():
        for value in node.inputs:
            source = value.producer
            source_block = blocks.get(source)
            if value in of_state or _GRADIENT in source.attributes or source_block is None:
                continue
            sources[block].add(source)
            readers[source_block].add(node)
            # An operation that reads nothing has no data of a batch: memory for gradients.
            in_calls = source is not source_block and node is not block and source.inputs
            if node.phase == "backward" and in_calls:
                batches.join(source_block, block)
    differentiated = {batches.of(block) for block in backward if block is not None}
    others = [
        block for block in dict.fromkeys(blocks.values()) if batches.of(block) not in differentiated
    ]
    # Any other block belongs to the only micro batch that reads it, ...
    for block in reversed(others):
        found = {batches.of(blocks[node]) for node in readers[block]} & differentiated
        if len(found) == 1:
            batches.join(found.pop(), block)
    # ... or from whose results alone it computes.
    for block in others:
        found = {batches.of(blocks[node]) for node in sources[block]} - {block}
        if len(found) == 1 and found <= differentiated:
            batches.join(found.pop(), block)
    nodes: dict[_Block, list[Node]] = {}
    for node, block in blocks.items():
        if (batch := batches.of(block)) in differentiated:
            nodes.setdefault(batch, []).append(node)
    # The gradients of a micro batch are added to those of the others.
    return [batch for batch in nodes.values() if any(_GRADIENT in one.attributes for one in batch)]


class _Components:
    """Blocks of operations that are joined step by step."""

    def __init__(self) -> None:
        self._above: dict[_Block, _Block] = {}

    def of(self, block: _Block) -> _Block:
        """Return the block that represents all that are joined with a block."""
        while (above := self._above.get(block, block)) is not block:
            self._above[block] = self._above.get(above, above)
            block = above
        return block

    def join(self, first: _Block, second: _Block) -> None:
        """Join two blocks; the first one's representative represents both."""
        first, second = self.of(first), self.of(second)
        if first is not second:
            self._above[second] = first


def _values_of_state(graph: Graph) -> dict[Value, Value]:
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


# -- equal micro batches --------------------------------------------------------------------


class _Rows:
    """Rows of operations: equal rows mean equal operations, in whatever micro batch.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._of_state = _values_of_state(graph)
        self._path = InheritedProperty[int](self._path_in, top=0)
        self._block_of = InheritedProperty[Scope | None](_block_in, top=None)

    def _number(self, row: Hashable) -> int:
        return self._numbers.setdefault(row, len(self._numbers))

    def _path_in(self, scope: Scope, above: int) -> int:
        block = self._block_of(scope)
        # Later calls of the outermost module, and later passes, have other numbers.
        index = 0 if block is None or block is scope else scope.part.index
        return self._number((above, scope.part.label, scope.part.attribute, index))

    def of(self, batch: Iterable[Node]) -> dict[tuple[int, int], Node]:
        """Return the operations of a micro batch by their row; equal rows are numbered."""
        rows: dict[Node, int] = {}
        times: Counter[int] = Counter()
        nodes: dict[tuple[int, int], Node] = {}
        for node in batch:
            # The first gradient is set, and later ones are added to it.
            gradient = node.attributes.get(_GRADIENT)
            inputs, run = node.inputs, (node.op, *node.kernels)
            if gradient is not None:
                inputs = [value for value in inputs if _GRADIENT not in value.producer.attributes]
                run = (gradient,)
            reads = [self._source(value, rows) for value in inputs]
            types = [(value.shape, value.dtype, value.device) for value in node.outputs]
            path = node.phase, self._path(node.scope)
            rows[node] = row = self._number((run, path, *reads, *types))
            nodes[row, times[row]] = node
            times[row] += 1
        return nodes

    def _source(self, value: Value, rows: dict[Node, int]) -> Hashable:
        producer = value.producer
        if producer in rows:
            return rows[producer], value.index
        state = self._of_state.get(value)
        if state is not None:
            # Buffers change from call to call; changed parameters begin another step.
            return state if state.producer.kind == "buffer" else value
        # Parts of a batch come from one operation, or from nowhere in the graph.
        source = producer if producer.kind in OPERATIONS else None
        return source, value.shape, value.dtype, value.device


def _equal_nodes(batches: Iterable[list[Node]], graph: Graph) -> dict[Node, list[Node]]:
    """Return, for each operation of a first micro batch, the operations of all that are equal."""
    table = _Rows(graph)
    firsts: list[tuple[dict[tuple[int, int], Node], dict[Node, list[Node]]]] = []
    for batch in batches:
        rows = table.of(batch)
        forward = {row for row, node in rows.items() if node.phase == "forward"}
        for first, equal in firsts:
            if forward and forward <= first.keys():
                for row, node in rows.items():
                    if row in first:
                        equal[first[row]].append(node)
                break
        else:
            firsts.append((rows, {node: [node] for node in batch}))
    return {
        node: nodes
        for _, equal in firsts
        if max(map(len, equal.values())) > 1
        for node, nodes in equal.items()
    }


# -- the folded graph -----------------------------------------------------------------------


def _folded(graph: Graph, equal: Mapping[Node, Sequence[Node]]) -> Folded | None:
    """Return the folded copy of a graph; None if its operations would be in a cycle.

    Args:
        graph: The graph.
        equal: The equal operations of all micro batches for each that stays.
    """
    folded = graph.copy()
    copies: dict[Node | Scope, Any] = dict(zip(graph.nodes, folded.nodes, strict=True))
    original_of = dict(zip(folded.nodes, graph.nodes, strict=True))
    editor = Editor(folded)
    instead: dict[Scope, Scope] = {}
    gone: set[Node] = set()
    for first, nodes in equal.items():
        kept = copies[first]
        if len(nodes) > 1:
            kept.attributes["micro_batches"] = len(nodes)
        for node in nodes[1:]:
            copy = copies[node]
            editor.stand_for(copy, (kept,), noted=kept)
            for value, replacement in zip(copy.outputs, kept.outputs, strict=True):
                editor.read_instead(value, replacement)
            scopes = zip(
                self_and_ancestors(node.scope), self_and_ancestors(first.scope), strict=True
            )
            instead.update((scope, other) for scope, other in scopes if scope is not other)
            if kept.flops is not None:
                kept.flops += node.flops or 0
            kept.allocated_bytes += node.allocated_bytes
            gone.add(copy)
            copies[node] = kept
    gone.update(unread_sources(folded, gone))
    editor.drop(gone)
    editor.apply()
    if not _sort(folded):
        return None
    outputs = {output.value: output for output in reversed(folded.outputs)}
    folded.outputs = [output for output in folded.outputs if outputs[output.value] is output]
    scope_of = MovedScopes(instead, _numbered_anew(equal))
    scope_of.apply(folded.nodes, folded.calls)
    calls = {(call.scope, call.number): call for call in reversed(folded.calls)}
    replace_calls(folded, list(calls.values())[::-1])
    copies |= {scope: scope_of(scope) for scope in graph.scopes()}
    return Folded(folded, [original_of[node] for node in folded.nodes], copies)


def _sort(graph: Graph) -> bool:
    """Put the nodes of a graph after all that they read; return whether this is possible.

    The first micro batch may be the last whose gradients are computed.
    """
    number = {node: at for at, node in enumerate(graph.nodes)}
    steps = [(number[source], at) for node, at in number.items() for source in sources_of(node)]
    if all(start < end for start, end in steps):
        return True
    order = in_order(len(number), steps)
    replace_nodes(graph, [graph.nodes[at] for at in order])
    return len(order) == len(number)


def _numbered_anew(equal: Mapping[Node, Sequence[Node]]) -> dict[Scope, ScopePart]:
    """Return the new part of each block that is drawn for several: a call, and its gradients."""
    block_of = InheritedProperty[Scope | None](_block_in, top=None)
    times: dict[Scope, int] = {}
    for first, nodes in equal.items():
        block = block_of(first.scope)
        if block is not None and len(nodes) > 1:
            times[block] = max(len(nodes), times.get(block, 0))
    numbers: Counter[Hashable] = Counter()
    named: dict[Hashable, ScopePart] = {}
    parts: dict[Scope, ScopePart] = {}
    for scope, count in times.items():
        part, outer = scope.part, scope.parent
        rank = outer.part if outer is not None and outer.kind == "rank" else None
        if (rank, part) not in named:
            label = f"{part.label} x {count}"
            key = rank, label, part.attribute
            named[rank, part] = ScopePart(label, part.attribute, numbers[key])
            numbers[key] += 1
        parts[scope] = named[rank, part]
    return parts
