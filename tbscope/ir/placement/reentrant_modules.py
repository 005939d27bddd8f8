"""Placement of work in modules that are never called, but whose other methods run repeatedly.

All work of such a module is in one box. If several such boxes feed each other, and their methods
run again afterwards (`book.encode(x)` of each codebook, then `book.decode(codes)` of each), the
boxes form a cycle. The later work is then placed in the parent's box, with the code that called it.
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.level_links import Unit, level_links
from tbscope.ir.scope_io import OWNED, self_and_ancestors
from tbscope.ir.scopes import Scope
from tbscope.utils.components import find_cycles

__all__ = ["place_reentrant_work"]


def place_reentrant_work(
    graph: Graph, hosts: Mapping[Scope, Scope], nodes: Mapping[Node, Scope]
) -> dict[Unit, Scope]:
    """Return the units to move out of never-called modules, so that their boxes form no cycle.

    Args:
        graph: A graph, as recorded or as drawn.
        hosts: The placement of scopes that are drawn outside of their parent.
        nodes: The placement of nodes that are drawn outside of their own scope.
    Returns:
        The new scope of each moved operation and of each moved box of a call.
    """
    working = _never_called_with_work(graph)
    placement: dict[Unit, Scope] = {}
    if len(working) < 2:
        return placement
    holders = dict.fromkeys(_holder(scope, working) for scope in working)
    for holder in holders:
        if holder is None:
            continue
        late_units: dict[Scope, dict[Unit, None]] = {}
        for box in _units_on_cycles(graph, holder, working, (hosts, nodes)):
            late_units[box] = dict.fromkeys(_late_units(graph, box, (hosts, nodes)))
        if not late_units:
            continue
        moved = {unit: holder for units in late_units.values() for unit in units}
        inner = {unit: holder for unit in moved if isinstance(unit, Scope)}
        loose = {unit: holder for unit in moved if isinstance(unit, Node)}
        remaining = _units_on_cycles(
            graph, holder, working, ({**hosts, **inner}, {**nodes, **loose})
        )
        if not remaining:
            # If a cycle remains, it has another cause, and nothing is moved.
            placement |= moved
    return placement


_Places = tuple[Mapping[Scope, Scope], Mapping[Node, Scope]]


def _never_called_with_work(graph: Graph) -> dict[Scope, None]:
    """Return the modules that contain operations but are never called: not plain module lists."""
    return {
        node.scope: None
        for node in graph.nodes
        if node.kind == "op" and node.phase == "forward"
        if node.scope is not None and node.scope.kind == "container"
    }


def _holder(scope: Scope, working: Mapping[Scope, None]) -> Scope | None:
    return next(
        (outer for outer in scope.ancestors() if outer.kind != "container" or outer in working),
        None,
    )


def _units_on_cycles(
    graph: Graph, holder: Scope, working: Mapping[Scope, None], places: _Places
) -> list[Scope]:
    """Return the never-called modules of this level that share a cycle with another such module.

    A single such module on a cycle is left out: its box takes in the operations between its parts.
    Operations on other levels are units here, too, since a cycle may lead through them: outside of
    all modules, they are drawn between the boxes.
    """
    hosts, nodes = places
    links = level_links(graph, holder, hosts=hosts, nodes=nodes, boxes=working, beyond=True)
    modules: list[Scope] = []
    for cycle in find_cycles(links):
        boxes = [unit for unit in cycle if isinstance(unit, Scope) and unit in working]
        modules += boxes if len(boxes) > 1 else []
    return modules


def _late_units(graph: Graph, box: Scope, places: _Places) -> Iterator[Unit]:
    """Yield the operations and call boxes in a box that depend on the box's own earlier results."""
    hosts, nodes = places
    # Nodes outside that depend on the box, and nodes inside that depend on those.
    led_to: set[Node] = set()
    late: set[Node] = set()
    inside: set[Node] = set()
    for node in graph.nodes:
        if node.kind in OWNED or node.phase != "forward":
            continue
        sources = sources_of(node)
        path = [] if node in nodes else self_and_ancestors(node.scope)
        if box not in path or not hosts.keys().isdisjoint(path[: path.index(box)]):
            if any(source in inside or source in led_to for source in sources):
                led_to.add(node)
            continue
        inside.add(node)
        if any(source in late or source in led_to for source in sources):
            late.add(node)
            calls = [
                scope for scope in takewhile(lambda scope: scope is not box, path) if _is_box(scope)
            ]
            yield calls[-1] if calls else node


def _is_box(scope: Scope) -> bool:
    return scope.kind != "container"
