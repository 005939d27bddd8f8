"""Folding of micro batches: parts of a training step that differ in their data alone, drawn once.

Accumulated gradients and pipelines run the same modules on several parts of a batch. The data flow
shows what belongs to one of them: module calls, their gradients, and operations that only these
read or feed. Two are equal if the same modules run the same operations, on the same parameters and
on data of the same source. An operation that one of them runs beyond that (the all-reduce of the
accumulated gradients) is drawn beside the others.
"""

from collections import Counter
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tbscope.ir.call_blocks import (
    Block,
    CallBlocks,
    block_property,
    path_of_call,
    values_of_state,
)
from tbscope.ir.editing import Editor, drop_repeated_outputs, replace_calls, sort_nodes
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, SOURCES, sources_of
from tbscope.ir.scope_io import read_only_by
from tbscope.ir.scopes import (
    InheritedProperty,
    MovedScopes,
    Scope,
    ScopePart,
    self_and_ancestors,
)

_GRADIENT = "gradient_of"
# A row of an operation, and the number of equal ones before it in its micro batch.
_Row: TypeAlias = tuple[int, int]


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
    block_of = block_property()
    if len({block_of(node.scope) for node in graph.nodes if node.phase == "backward"}) < 2:
        return None
    blocks = CallBlocks(graph)
    batches = _micro_batches(blocks)
    apart = len(batches) > 1 and not _joined_outside(graph, batches)
    equal = _equal_batches(graph, batches, blocks.of_state) if apart else []
    return _folded(graph, equal, blocks.of_state) if equal else None


def _micro_batches(blocks: CallBlocks) -> list[list[Node]]:
    """Return the operations of each micro batch; operations of several are in none of them."""
    for source, node, before, after in blocks.edges():
        # Memory for gradients, and weights that ranks gather for all, have no data of a batch.
        has_data = source.inputs and source not in blocks.of_state
        in_calls = before is not source and after is not node
        if node.phase == "backward" and in_calls and has_data:
            blocks.join(before, after)
    differentiated = {blocks.joined(block) for block in blocks.backward}
    blocks.attach(differentiated)
    nodes: dict[Block, list[Node]] = {}
    for node in blocks.operations:
        if (batch := blocks.of(node)) in differentiated:
            nodes.setdefault(batch, []).append(node)
    # The gradients of a micro batch are added to those of the others.
    return [batch for batch in nodes.values() if any(_GRADIENT in one.attributes for one in batch)]


def _joined_outside(graph: Graph, batches: Sequence[Sequence[Node]]) -> bool:
    """Whether an operation outside of micro batches reads one of them and feeds another.

    Clipping after each micro batch would be on a cycle with the box of all gradients.
    """
    inside = {node for batch in batches for node in batch}
    behind: set[Node] = set()
    for node in graph.nodes:
        sources = sources_of(node)
        if node in inside:
            if not behind.isdisjoint(sources):
                return True
        elif any(source in inside or source in behind for source in sources):
            behind.add(node)
    return False


# -- equal micro batches --------------------------------------------------------------------


class _Rows:
    """The rows of operations: equal rows mean equal operations, in whatever micro batch.

    Args:
        graph: The graph.
        of_state: The operations that compute from parameters and buffers alone.
    """

    def __init__(self, graph: Graph, of_state: Set[Node]) -> None:
        self._graph, self._computed = graph, of_state
        self._contents: dict[Node, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._rows: dict[Node, int] = {}
        self._of_state = values_of_state(graph)
        self._path = InheritedProperty[int](self._path_in, top=-1)
        self._block_of = block_property()

    def of(self, batches: Sequence[Sequence[Node]]) -> list[dict[_Row, Node]]:
        """Return the operations of each micro batch by their row; equal rows are numbered."""
        batch_of = {node: number for number, batch in enumerate(batches) for node in batch}
        times: Counter[Hashable] = Counter()
        found: list[dict[_Row, Node]] = [{} for _ in batches]
        for node in self._graph.nodes:
            if node in batch_of:
                batch = batch_of[node]
                row = self._rows[node] = self._row(node)
                found[batch][row, times[batch, row]] = node
                times[batch, row] += 1
        return found

    def _number(self, row: Hashable) -> int:
        return self._numbers.setdefault(row, len(self._numbers))

    def _path_in(self, scope: Scope, above: int) -> int:
        block = self._block_of(scope)
        # Later calls of the outermost module, and later passes, have other numbers.
        index = 0 if block is None or block is scope else scope.part.index
        return self._number((above, scope.part.label, scope.part.attribute, index))

    def _row(self, node: Node) -> int:
        inputs, run = node.inputs, (node.op, *node.kernels)
        if _GRADIENT in node.attributes:
            # The first gradient is set, and later ones are added to it.
            inputs = [value for value in inputs if _GRADIENT not in value.producer.attributes]
            run = (node.attributes[_GRADIENT],)
        reads = tuple(map(self._source, inputs))
        types = tuple([(value.shape, value.dtype, value.device) for value in node.outputs])
        return self._number((run, node.phase, self._path(node.scope), reads, types))

    def _source(self, value: Value) -> Hashable:
        producer, state = value.producer, self._of_state.get(value)
        if state is not None:
            # Buffers change from call to call; changed parameters begin another step.
            return state if state.producer.kind == "buffer" else value
        if producer in self._computed:
            # Equal computations of equal weights have equal results: ranks gather them anew.
            if producer not in self._contents:
                reads = tuple(map(self._source, producer.inputs))
                self._contents[producer] = self._number((producer.op, reads))
            return self._contents[producer], value.index
        if producer in self._rows:
            return self._rows[producer], value.index
        # Parts of a batch come from one operation, or from nowhere in the graph.
        source = producer if producer.kind in OPERATIONS else None
        return source, value.shape, value.dtype, value.device


@dataclass(slots=True)
class _Equal:
    """Equal micro batches, of which the first is drawn.

    Attributes:
        rows: The operations of the first by their row.
        alike: For each of them the equal operations of all.
        count: The number of the micro batches.
    """

    rows: dict[_Row, Node]
    alike: dict[Node, list[Node]]
    count: int = 1


def _equal_batches(
    graph: Graph, batches: Sequence[Sequence[Node]], of_state: Set[Node]
) -> list[_Equal]:
    """Return those of the micro batches that are equal to another one."""
    found: list[_Equal] = []
    for batch, rows in zip(batches, _Rows(graph, of_state).of(batches), strict=True):
        # A micro batch may gather weights that another one finds gathered.
        forward = {
            row
            for row, node in rows.items()
            if node.phase == "forward" and node.inputs and node not in of_state
        }
        equal = next((each for each in found if forward and forward <= each.rows.keys()), None)
        if equal is None:
            found.append(_Equal(rows, {node: [node] for node in batch}))
            continue
        equal.count += 1
        for row, node in rows.items():
            if row in equal.rows:
                equal.alike[equal.rows[row]].append(node)
    return [equal for equal in found if equal.count > 1]


# -- the folded graph -----------------------------------------------------------------------


def _folded(graph: Graph, batches: Sequence[_Equal], of_state: Set[Node]) -> Folded | None:
    """Return the folded copy of a graph; None if its operations would be in a cycle.

    Args:
        graph: The graph.
        batches: The equal micro batches.
        of_state: The operations that compute from parameters and buffers alone.
    """
    folded = graph.copy()
    copies: dict[Node | Scope, Any] = dict(zip(graph.nodes, folded.nodes, strict=True))
    original_of = dict(zip(folded.nodes, graph.nodes, strict=True))
    editor = Editor(folded)
    instead: dict[Scope, Scope] = {}
    gone: set[Node] = set()
    equal = {first: nodes for batch in batches for first, nodes in batch.alike.items()}
    for first, nodes in equal.items():
        kept = copies[first]
        if len(nodes) > 1:
            kept.attributes["micro_batches"] = len(nodes)
        for node in nodes[1:]:
            copy = copies[node]
            editor.merge(copy, kept)
            scopes = zip(
                self_and_ancestors(node.scope), self_and_ancestors(first.scope), strict=True
            )
            instead.update((scope, other) for scope, other in scopes if scope is not other)
            if kept.flops is not None:
                kept.flops += node.flops or 0
            kept.allocated_bytes += node.allocated_bytes
            gone.add(copy)
            copies[node] = kept
    # Weights that only later micro batches gather, or free, are those of the first.
    read: set[Node] = set()
    for node, copy in zip(reversed(graph.nodes), reversed(folded.nodes), strict=True):
        moves = not instead.keys().isdisjoint(self_and_ancestors(node.scope))
        if node in of_state and node not in equal and copy not in read and moves:
            gone.add(copy)
        if copy not in gone:
            read.update(sources_of(copy))
    gone |= read_only_by(folded, gone, SOURCES)
    editor.drop(gone)
    editor.apply()
    # The first micro batch may be the last whose gradients are computed.
    if not sort_nodes(folded):
        return None
    drop_repeated_outputs(folded)
    moved = MovedScopes(instead, _numbered_anew(batches))
    moved.apply(folded.nodes, folded.calls)
    calls = {(call.scope, call.number): call for call in reversed(folded.calls)}
    replace_calls(folded, list(calls.values())[::-1])
    copies |= {scope: moved.new_scope(scope) for scope in graph.scopes()}
    return Folded(folded, [original_of[node] for node in folded.nodes], copies)


def _numbered_anew(batches: Sequence[_Equal]) -> dict[Scope, ScopePart]:
    """Return the new part of each block that is drawn for several: a call, and its gradients."""
    block_of = block_property()
    times = {
        block: batch.count
        for batch in batches
        for first in batch.alike
        if (block := block_of(first.scope)) is not None
    }
    numbers: Counter[Hashable] = Counter()
    named: dict[Hashable, ScopePart] = {}
    parts: dict[Scope, ScopePart] = {}
    for scope, count in times.items():
        path = path_of_call(scope)
        if path not in named:
            *outer, part = path
            # A module has the name of its attribute.
            label, attribute = part.label, part.attribute
            if attribute is None:
                label += f" x {count}"
            else:
                attribute += f" x {count}"
            key = (*outer, label, attribute)
            named[path] = ScopePart(label, attribute, numbers[key])
            numbers[key] += 1
        parts[scope] = named[path]
    return parts
