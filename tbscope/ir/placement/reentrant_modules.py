"""Returns: work of modules that are never called, on what followed from their earlier work.

Of a module whose other methods alone are called, all work stands in one box. Where several such
boxes feed each other, and are then asked for more (`book.encode(x)` of each codebook, and
`book.decode(codes)` of each), they point at each other. Their later work is better drawn with
who asked for it.
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.level_links import Unit, level_links
from tbscope.ir.scope_io import OWNED, upward
from tbscope.ir.scopes import Scope
from tbscope.utils.components import find_cycles

__all__ = ["find_returns"]


def find_returns(
    graph: Graph, hosts: Mapping[Scope, Scope], nodes: Mapping[Node, Scope]
) -> dict[Unit, Scope]:
    """Find what must stand in the box around a module that is never called, so that none circles.

    Args:
        graph: A graph, as it was recorded or as it is drawn.
        hosts: The scope in which a scope stands that is not the one around it.
        nodes: The scope in which a node stands that is not its own.
    Returns:
        For each operation or box of a call, the scope in which it stands.
    """
    working = _never_called_with_work(graph)
    found: dict[Unit, Scope] = {}
    if len(working) < 2:
        return found
    holders = dict.fromkeys(_holder(scope, working) for scope in working)
    for holder in holders:
        if holder is None:
            continue
        late: dict[Scope, dict[Unit, None]] = {}
        for box in _circling(graph, holder, working, (hosts, nodes)):
            late[box] = dict.fromkeys(_late_units(graph, box, (hosts, nodes)))
        if not late:
            continue
        moved = {unit: holder for units in late.values() for unit in units}
        inner = {unit: holder for unit in moved if isinstance(unit, Scope)}
        loose = {unit: holder for unit in moved if isinstance(unit, Node)}
        still = _circling(graph, holder, working, ({**hosts, **inner}, {**nodes, **loose}))
        if not still:
            # Else it would be in vain: something else leads back.
            found |= moved
    return found


_Places = tuple[Mapping[Scope, Scope], Mapping[Node, Scope]]


def _never_called_with_work(graph: Graph) -> dict[Scope, None]:
    """Return the modules that are never called, and in which operations run: no mere lists."""
    return {
        node.scope: None
        for node in graph.nodes
        if node.kind == "op" and node.phase == "forward"
        if node.scope is not None and node.scope.kind == "container"
    }


def _holder(scope: Scope, working: Mapping[Scope, None]) -> Scope | None:
    return next(
        (one for one in scope.ancestors() if one.kind != "container" or one in working), None
    )


def _circling(
    graph: Graph, holder: Scope, working: Mapping[Scope, None], places: _Places
) -> list[Scope]:
    """Return the modules that are on a cycle with others of their sort that stand on this level.

    One alone takes in what runs between its parts. What leads back may run on other levels: where
    it is in no module itself, it stands between these.
    """
    hosts, nodes = places
    links = level_links(graph, holder, hosts=hosts, nodes=nodes, boxes=working, beyond=True)
    found: list[Scope] = []
    for cycle in find_cycles(links):
        boxes = [unit for unit in cycle if isinstance(unit, Scope) and unit in working]
        found += boxes if len(boxes) > 1 else []
    return found


def _late_units(graph: Graph, box: Scope, places: _Places) -> Iterator[Unit]:
    """Yield the operations in a box, and the boxes of calls, that read what it has led to."""
    hosts, nodes = places
    # What is outside and follows from the box, and what is inside and follows from that.
    led_to: set[Node] = set()
    late: set[Node] = set()
    inside: set[Node] = set()
    for node in graph.nodes:
        if node.kind in OWNED or node.phase != "forward":
            continue
        sources = sources_of(node)
        way = [] if node in nodes else list(upward(node.scope))
        if box not in way or not hosts.keys().isdisjoint(way[: way.index(box)]):
            if any(source in inside or source in led_to for source in sources):
                led_to.add(node)
            continue
        inside.add(node)
        if any(source in late or source in led_to for source in sources):
            late.add(node)
            calls = [one for one in takewhile(lambda one: one is not box, way) if _is_box(one)]
            yield calls[-1] if calls else node


def _is_box(scope: Scope) -> bool:
    return scope.kind != "container"
