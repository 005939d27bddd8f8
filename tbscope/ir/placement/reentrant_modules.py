"""Placement of work in modules that are never called, but whose other methods run repeatedly.

All work of such a module is in one box. If several such boxes feed each other, and their methods
run again afterwards (`book.encode(x)` of each codebook, then `book.decode(codes)` of each), the
boxes form a cycle. The later work is then placed in the parent's box, with the code that called it.
"""

from collections.abc import Iterator, Mapping

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.partition import Level, Partition, Unit
from tbscope.ir.scope_io import OWNED, self_and_ancestors
from tbscope.ir.scopes import Scope


def place_reentrant_work(graph: Graph, partition: Partition) -> None:
    """Move work out of never-called modules, so that their boxes form no cycle.

    Args:
        graph: A graph, as recorded or as drawn.
        partition: Its operations in boxes; changed in place.
    """
    working = _never_called_with_work(graph)
    if len(working) < 2:
        return

    def is_box(scope: Scope) -> bool:
        return scope.kind != "container" or scope in working

    for holder in dict.fromkeys(_holder(scope, working) for scope in working):
        if holder is not None:
            # Operations on other levels are units here, too, since a cycle may lead through them:
            # outside of all modules, they are drawn between the boxes.
            level = Level(partition, holder, is_box=is_box, deep=True, beyond=True)
            _place_late_work(graph, partition, level, working)


def _place_late_work(
    graph: Graph, partition: Partition, level: Level, working: Mapping[Scope, None]
) -> None:
    late = {
        unit: level.holder
        for box in _on_cycles(level, working)
        for unit in _late_units(graph, box, partition.boxes)
    }
    # If a cycle remains, it has another cause, and nothing is moved.
    level.settle({level: late}, lambda level: not _on_cycles(level, working))


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


def _on_cycles(level: Level, working: Mapping[Scope, None]) -> list[Scope]:
    """Return the never-called modules of this level that share a cycle with another such module.

    A single such module on a cycle is left out: its box takes in the operations between its parts.
    """
    modules: list[Scope] = []
    for cycle in level.cycles():
        boxes = [unit for unit in cycle if isinstance(unit, Scope) and unit in working]
        modules += boxes if len(boxes) > 1 else []
    return modules


def _late_units(graph: Graph, box: Scope, boxes: Mapping[Unit, Scope | None]) -> Iterator[Unit]:
    """Yield the operations and call boxes in a box that depend on the box's own earlier results."""
    # Nodes outside that depend on the box, and nodes inside that depend on those.
    led_to: set[Node] = set()
    late: set[Node] = set()
    inside: set[Node] = set()
    for node in graph.nodes:
        if node.kind in OWNED or node.phase != "forward":
            continue
        sources = sources_of(node)
        path = [] if node in boxes else self_and_ancestors(node.scope)
        if box not in path or not boxes.keys().isdisjoint(path[: path.index(box)]):
            if any(source in inside or source in led_to for source in sources):
                led_to.add(node)
            continue
        inside.add(node)
        if any(source in late or source in led_to for source in sources):
            late.add(node)
            calls = [scope for scope in path[: path.index(box)] if scope.kind != "container"]
            yield calls[-1] if calls else node
