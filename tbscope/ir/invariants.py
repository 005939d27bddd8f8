"""Invariants of a graph, and `check_invariants`, which checks all of them.

Converters rely on every invariant, so they check none.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar, get_args

from tbscope.errors import GraphError
from tbscope.ir.graph import Graph, Node, NodeKind, Value
from tbscope.ir.metadata import CollectiveKind
from tbscope.ir.nodes import OPERATIONS
from tbscope.ir.scopes import Phase, Scope, ScopeKind

_SHOWN = 5
_MAX_SIZE = 2**63 - 1

_KINDS = frozenset(get_args(NodeKind))
_SCOPE_KINDS = frozenset(get_args(ScopeKind))
_PHASES = frozenset(get_args(Phase))
_COLLECTIVES = frozenset(get_args(CollectiveKind))

_Item = TypeVar("_Item", str, int, tuple[Scope, int])


class _GraphIndex(NamedTuple):
    """The collections of one graph that several checks use, computed once.

    Attributes:
        graph: The graph.
        nodes: Its nodes.
        values: The outputs of all nodes.
        scopes: Its scopes, parents first.
    """

    graph: Graph
    nodes: frozenset[Node]
    values: frozenset[Value]
    scopes: list[Scope]


def check_invariants(graph: Graph) -> None:
    """Check that a graph satisfies every invariant of `INVARIANTS`.

    Raises:
        GraphError: The graph violates an invariant.
    """
    nodes = graph.nodes
    values = frozenset(chain.from_iterable([node.outputs for node in nodes]))
    indexed = _GraphIndex(graph, frozenset(nodes), values, list(graph.scopes()))
    broken = [f"{name}: {text}" for name, check in INVARIANTS.items() for text in check(indexed)]
    if not broken:
        return
    shown = broken[:_SHOWN]
    if len(broken) > _SHOWN:
        shown.append(f"and {len(broken) - _SHOWN} more")
    places = "1 place" if len(broken) == 1 else f"{len(broken)} places"
    raise GraphError(
        f"the graph of {graph.name} breaks the invariants of a graph in {places}",
        why="\n       ".join(shown),
        fix="print(graph) shows its content; an unchanged graph of tbscope.trace or "
        "tbscope.record never breaks one: report it as a bug",
    )


# -- names ----------------------------------------------------------------------


def _names(indexed: _GraphIndex) -> Iterator[str]:
    """Every node has a name, and no two have the same."""
    nodes = indexed.graph.nodes
    names = [node.name for node in nodes]
    for name, count in _repeated(names):
        yield f"{count} nodes are named {name!r}"
    if "" in names:
        yield f"a node of op {nodes[names.index('')].op!r} has no name"


def _output_names(indexed: _GraphIndex) -> Iterator[str]:
    """No two outputs have the same name."""
    for name, count in _repeated([output.name for output in indexed.graph.outputs]):
        yield f"{count} outputs are named {name!r}"


# -- edges ----------------------------------------------------------------------


def _ownership(indexed: _GraphIndex) -> Iterator[str]:
    """Every value knows the node that gives it, and its place there."""
    for node in indexed.graph.nodes:
        outputs = node.outputs
        # Most nodes have one output, and are checked by this line alone.
        if len(outputs) == 1 and outputs[0].producer is node and outputs[0].index == 0:
            continue
        for index, value in enumerate(outputs):
            if value.producer is not node:
                yield f"output {index} of {_say(node)} names {_say(value.producer)} as its producer"
            elif value.index != index:
                yield f"output {index} of {_say(node)} has the index {value.index}"


def _edges(indexed: _GraphIndex) -> Iterator[str]:
    """Every edge, also to an output, begins at a node of the graph."""
    graph = indexed.graph
    nodes, values = indexed.nodes, indexed.values
    for node in graph.nodes:
        if node.inputs and not values.issuperset(node.inputs):
            for value in node.inputs:
                if value not in values:
                    yield f"{_say(node)} reads %{value.name}, which no node of the graph gives"
        for dep in node.control_inputs:
            if dep not in nodes:
                yield f"{_say(node)} waits for {_say(dep)}, which is not in the graph"
    for output in graph.outputs:
        if output.value not in values:
            yield (
                f"the output {output.name!r} is %{output.value.name}, "
                "which no node of the graph gives"
            )
        for dep in output.control_inputs:
            if dep not in nodes:
                yield (
                    f"the output {output.name!r} waits for {_say(dep)}, which is not in the graph"
                )


def _positions(indexed: _GraphIndex) -> Iterator[str]:
    """Every write, and every gradient, is of inputs that the node has."""
    for node in indexed.graph.nodes:
        count = len(node.inputs)
        if node.writes and not 0 <= min(node.writes) <= max(node.writes) < count:
            yield f"{_say(node)} writes into its inputs {node.writes}, of which it has {count}"
        for gradient in node.gradients:
            if gradient.inputs and not 0 <= min(gradient.inputs) <= max(gradient.inputs) < count:
                yield (
                    f"{_say(node)} has a gradient of its inputs {gradient.inputs}, of which it "
                    f"has {count}"
                )


def _order(indexed: _GraphIndex) -> Iterator[str]:
    """Every node comes after all that it reads and waits for: no cycles."""
    nodes, values = indexed.nodes, indexed.values
    before: set[Node] = set()
    produced: set[Value] = set()
    for node in indexed.graph.nodes:
        # A value that is not in the graph at all is reported by `_edges`.
        if node.inputs and not produced.issuperset(node.inputs):
            for value in node.inputs:
                if value in values and value not in produced:
                    yield f"{_say(node)} reads %{value.name} before it is given"
        for dep in node.control_inputs:
            if dep in nodes and dep not in before:
                yield f"{_say(node)} waits for {_say(dep)}, which does not come before it"
        before.add(node)
        produced.update(node.outputs)


# -- nodes and values -----------------------------------------------------------


def _kinds(indexed: _GraphIndex) -> Iterator[str]:
    """Every node is of a known kind, and only operations read values."""
    for node in indexed.graph.nodes:
        if node.kind not in _KINDS:
            yield f"{_say(node)} is of the kind {node.kind!r}, which is none"
        elif node.inputs and node.kind not in OPERATIONS:
            yield f"{_say(node)} is of the kind {node.kind!r} and reads values"


def _inputs(indexed: _GraphIndex) -> Iterator[str]:
    """The inputs are the nodes of that kind, at the top level."""
    graph = indexed.graph
    listed = set(graph.inputs)
    if len(listed) < len(graph.inputs):
        yield "a node is twice among the inputs"
    for node in graph.inputs:
        if node.kind != "input":
            yield f"{_say(node)} is among the inputs and of the kind {node.kind!r}"
        if node not in indexed.nodes:
            yield f"{_say(node)} is among the inputs and not among the nodes"
    for node in graph.nodes:
        if node.kind == "input":
            if node not in listed:
                yield f"{_say(node)} is of the kind 'input' and not among the inputs"
            if node.scope is not None:
                yield f"{_say(node)} is of the kind 'input' and not at the top level"


def _types(indexed: _GraphIndex) -> Iterator[str]:
    """Every value has a dtype, a device, and a shape or None for an unknown rank."""
    for node in indexed.graph.nodes:
        for value in node.outputs:
            shape: object = value.shape
            if isinstance(shape, tuple):
                for size in shape:
                    # A file has no form for another integer type (a SymInt), nor for a size of
                    # more than 63 bits.
                    if size is not None and (type(size) is not int or not 0 <= size <= _MAX_SIZE):
                        yield f"%{value.name} has the shape {shape!r}, where {size!r} is no size"
                        break
            elif shape is not None:
                yield f"%{value.name} has the shape {shape!r}, which is no tuple"
            if not value.dtype:
                yield f"%{value.name} has no dtype"
            if not value.device:
                yield f"%{value.name} has no device"


# -- scopes ---------------------------------------------------------------------


def _calls(indexed: _GraphIndex) -> Iterator[str]:
    """The scopes of modules, and no others, have calls, each with a number of its own."""
    graph = indexed.graph
    called = {call.scope for call in graph.calls}
    # A call may rerun in its scope, with another number.
    for (scope, number), count in _repeated([(call.scope, call.number) for call in graph.calls]):
        yield f"{count} calls have the scope {scope} and the number {number}"
    for scope in indexed.scopes:
        if scope.kind not in _SCOPE_KINDS:
            yield f"the scope {scope} is of the kind {scope.kind!r}, which is none"
        elif scope.kind == "module" and scope not in called:
            yield f"the scope {scope} is that of a module, and no call has it"
        elif scope.kind != "module" and scope in called:
            yield f"the scope {scope} is of the kind {scope.kind!r}, and a call has it"


def _phases(indexed: _GraphIndex) -> Iterator[str]:
    """Every node and every scope is of a known phase."""
    for node in indexed.graph.nodes:
        if node.phase not in _PHASES:
            yield f"{_say(node)} is of the phase {node.phase!r}, which is none"
    for scope in indexed.scopes:
        if scope.phase not in _PHASES:
            yield f"the scope {scope} is of the phase {scope.phase!r}, which is none"


def _collectives(indexed: _GraphIndex) -> Iterator[str]:
    """Every collective is of a known kind, and joins ranks of the run."""
    graph = indexed.graph
    for node in graph.nodes:
        joined = node.collective
        if joined is None:
            continue
        if joined.kind not in _COLLECTIVES:
            yield f"{_say(node)} is a collective of the kind {joined.kind!r}, which is none"
        peers = () if joined.peer is None else (joined.peer,)
        for rank in (*joined.ranks, *peers):
            if not 0 <= rank < graph.world_size:
                yield f"{_say(node)} joins rank {rank}, and the run has {graph.world_size}"
                break


def _shardings(indexed: _GraphIndex) -> Iterator[str]:
    """A shard has as many dimensions as its tensor, and is placed along each of a mesh."""
    for node in indexed.graph.nodes:
        for value in node.outputs:
            here = value.sharding
            if here is None:
                continue
            if len(here.placements) != len(here.mesh):
                yield (
                    f"%{value.name} has {len(here.placements)} placements along "
                    f"{len(here.mesh)} dimensions"
                )
            if value.shape is not None and len(here.shape) != len(value.shape):
                yield f"%{value.name} has the shape {value.shape!r}, and here {here.shape!r} of it"


def _paths(indexed: _GraphIndex) -> Iterator[str]:
    """No two scopes have the same path."""
    for path, count in _repeated([scope.path for scope in indexed.scopes]):
        yield f"{count} scopes have the path {path}"


INVARIANTS: dict[str, Callable[[_GraphIndex], Iterator[str]]] = {
    "names": _names,
    "output names": _output_names,
    "ownership": _ownership,
    "edges": _edges,
    "positions": _positions,
    "order": _order,
    "kinds": _kinds,
    "inputs": _inputs,
    "types": _types,
    "calls": _calls,
    "phases": _phases,
    "collectives": _collectives,
    "shardings": _shardings,
    "paths": _paths,
}
"""The invariants of a graph, in the order of their checks.

The docstring of a check is true of every graph; a check yields a sentence for each violation.
"""


def _repeated(items: Sequence[_Item]) -> list[tuple[_Item, int]]:
    """Return each item that occurs more than once, in order of first occurrence, with its count."""
    # Nearly always all items are distinct, and a set takes half the time of counting.
    if len(set(items)) == len(items):
        return []
    return [(item, count) for item, count in Counter(items).items() if count > 1]


def _say(node: Node) -> str:
    where = f", in {node.scope}" if node.scope else ""
    return f"%{node.name} ({node.op}{where})"
