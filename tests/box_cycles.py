"""Cycles among the boxes of drawn graphs, and which of them another placement would avoid.

Only what the page is given is asked: the names, op types and inputs of a GraphDef, and which
names are those of modules that were called.
"""

from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.utils.components import find_cycles

_FEW = 50


def avoidable_cycles(graph, graph_def):
    """Give the cycles of a drawing that need not be, each as the names of what is on it."""
    lists = {scope.qualified_name for scope in graph.scopes() if scope.kind == "container"}
    working = {node.scope.qualified_name for node in graph.nodes if node.scope}
    hierarchy = Hierarchy.of(graph_def)
    found = []
    for box in (hierarchy.root, *hierarchy.boxes.values()):
        links = hierarchy.links(box)
        for cycle in find_cycles(links):
            held = [one for one in cycle if isinstance(one, Box) and _key(one) in lists - working]
            # Members that are single nodes stand beside each other, too, where they are few.
            few = sum(len(inside(one)) for one in held) <= _FEW
            partable = [one for one in held if few or any(isinstance(c, Box) for c in inside(one))]
            others = set(cycle) - set(held)
            # What joins the members of one list alone could stand in it.
            alone = len(held) == 1 and not any(isinstance(one, Box) for one in others)
            if held and (_bare(alone, others) or _helps(cycle, partable, held, hierarchy)):
                found.append(sorted(one.name for one in cycle))
    return found


def chunk_cycles(graph, graph_def):
    """Give the boxes on a cycle that are neither scopes nor boxes of inputs or outputs."""
    scopes = {scope.qualified_name for scope in graph.scopes() if scope.qualified_name}
    hierarchy = Hierarchy.of(graph_def)
    return [
        one.name
        for box in (hierarchy.root, *hierarchy.boxes.values())
        for cycle in find_cycles(hierarchy.links(box))
        for one in cycle
        if isinstance(one, Box) and one.label.startswith(("ops.", "parts."))
        if _key(one) not in scopes
    ]


def inside(box):
    """Give what stands right in a box."""
    return list(box.children.values())


def _key(box):
    return box.name.replace("/", ".")


def _bare(alone, others):
    return alone and not any(source.embedded for one in others for source in one.sources)


def _helps(cycle, partable, held, hierarchy):
    """Tell whether the cycle ends where all lists of boxes on it are parted."""
    if not partable or len(partable) < len(held):
        return False
    around = {one: one for one in cycle if one not in partable}
    for box in partable:
        around.update((part, part) for part in inside(box))
    links = set()
    for item in hierarchy.items.values():
        if item.embedded:
            continue
        end = _on_level(item, around)
        starts = [_on_level(source, around) for source in (*item.sources, *item.controls)]
        links.update((start, end) for start in starts if start and end and start is not end)
    return not find_cycles(links)


def _on_level(item, around):
    glyph = item
    while glyph is not None and glyph not in around:
        glyph = glyph.box if hasattr(glyph, "box") else glyph.parent
    return glyph
