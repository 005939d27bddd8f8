"""Colour seeds: extra nodes that make equal boxes equal in colour on TensorBoard's page.

The page compares boxes in the order in which it meets them, a box before its contents, and
regards two boxes as equal only if it has already compared their contents: a sort by depth that
should ensure this has no effect in Chrome, Edge and Safari. A copy of each structure, flat
structures first, placed before all nodes, is the workaround. The copies are in scopes that the
page takes for functions: it keeps them out of the graph, and shows them in its Functions panel,
which so becomes a legend of module classes.

Source: tensorboard/plugins/graph/tf_graph_common/template.ts (`clusterSimilarSubgraphs`)
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from tbscope.drawing.class_prefixes import whole_part
from tbscope.drawing.naming import ORDINAL, UniqueNames
from tbscope.page.constants import (
    COLOURED_LIMIT,
    CROWD_SIZE,
    HUES,
    LIBRARY,
    LIBRARY_ENDING,
)
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy, read_through
from tbscope.page.level_graph import read_root, word_of_end
from tbscope.page.templates import Structure, Structures

_OTHERS = f"Others{LIBRARY_ENDING}"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")

# The number of the most frequent structures that are tried for one position among the hues.
_TRIED = 32


class NodeHead(NamedTuple):
    """The fields of a NodeDef before its attributes.

    Attributes:
        name: The name; a seed's name is in a scope of the function library.
        op: The op type.
        inputs: The inputs, as in `NodeDef.input`; a seed reads only seeds of its own scope.
    """

    name: str
    op: str
    inputs: Sequence[str]


def seeds(
    hierarchy: Hierarchy,
    classes: Mapping[str, str],
    parameters: Mapping[str, int] | None = None,
    *,
    is_step: bool = False,
) -> list[NodeHead]:
    """Return the nodes that make the page colour equal boxes equally.

    Args:
        hierarchy: The nodes of a GraphDef without seeds.
        classes: The class of the module that a box represents (`GPT2Block`), by the name of
            the box.
        parameters: The number of parameters of that module, by the name of the box.
        is_step: Whether the legend has one entry for each class, as for a training step.
    Returns:
        Copies of one box of each structure that several boxes have, flat structures first,
        without embedded nodes and edges from outside. Structures that occur once have no copy.
        The classes with most parameters have an entry of their own in the legend, as many as
        there are hues; the copies that only other copies need share an entry. Seeds are at most
        as many as the nodes of the graph, and do not take it beyond the size up to which the
        page colours graphs.
    """
    structures = Structures(hierarchy)
    kinds = [each for each in structures.all if each.count > 1 and each.box.name in classes]
    kinds.sort(key=lambda kind: (parameters or {}).get(kind.box.name, 0) * kind.count, reverse=True)
    entries: dict[object, Structure] = {}
    for kind in kinds:
        entries.setdefault(classes[kind.box.name] if is_step else kind, kind)
    chosen = _chosen(hierarchy, structures, [*entries.values()][:HUES])
    kinds = [kind for kind in entries.values() if kind in chosen][:HUES]
    alone = _alone(hierarchy, len(kinds), len(chosen))
    if alone is None:
        return []
    listed = set(kinds[:alone])
    # The entries come first: they have the plain names of their classes.
    titles = _titles(
        sorted(chosen, key=lambda structure: structure not in listed),
        classes,
        {item.op for item in hierarchy.items.values()},
    )
    heads: list[NodeHead] = []
    for structure in _order_apart(chosen, structures, listed):
        title = titles[structure]
        scope = LIBRARY + (title if structure in listed else f"{_OTHERS}/{title}")
        heads += _copy(structure.box, scope, structures)
    return heads


def _chosen(
    hierarchy: Hierarchy, structures: Structures, kinds: list[Structure]
) -> list[Structure]:
    """Return the structures to seed, flat structures first.

    Structures inside of repeated boxes are needed: without them, the enclosing boxes do not
    match. The others complete the legend, as far as there is room.

    Args:
        hierarchy: The nodes of a GraphDef without seeds.
        structures: All structures of the graph.
        kinds: The structures of the legend.
    """
    by_depth = attrgetter("depth")
    needed = {
        child: None
        for structure in structures.all
        if structure.count > 1
        for child in structure.children
        # Boxes of inputs and outputs need no seed.
        if not word_of_end(child.box)
    }
    size = [item.embedded for item in hierarchy.items.values()].count(False)
    # A graph must not lose its colours by the number of its seeds.
    room = min(size, COLOURED_LIMIT - size) if size <= COLOURED_LIMIT else size
    taken: list[Structure] = []
    for structure in sorted(needed, key=by_depth):
        room -= structure.size
        if room < 0:
            break
        taken.append(structure)
    for structure in kinds:
        if structure not in needed and structure.size <= room:
            room -= structure.size
            taken.append(structure)
    return sorted(taken, key=by_depth)


def _order_apart(
    chosen: list[Structure], structures: Structures, listed: Set[Structure]
) -> list[Structure]:
    """Order structures, inner ones first, so that those seen together have different hues.

    The page assigns hues in the order in which it meets structures, and repeats them after ten.
    The structures of the legend above all, then parents, children and neighbours get different
    hues.

    Args:
        chosen: The structures to seed, flat structures first.
        structures: All structures of the graph.
        listed: The structures of the legend.
    """
    # Each structure with its direct parents.
    families = {structure: [structure] for structure in structures.all}
    for structure in structures.all:
        for child in structure.children:
            families[child].append(structure)
    seen: dict[Structure, Counter[int]] = defaultdict(Counter)
    # The hues of the legend.
    taken: set[int] = set()
    remaining = dict.fromkeys(sorted(chosen, key=lambda structure: -structure.count))
    ordered: list[Structure] = []
    shared = False
    while remaining:
        ready = (each for each in remaining if remaining.keys().isdisjoint(each.children))
        ranked: list[tuple[bool, int, int]] = []
        tried = [*islice(ready, _TRIED)]
        for at, structure in enumerate(tried):
            # The shared entry takes the hue before its first structure.
            hue = (len(ordered) + (shared or structure not in listed)) % HUES
            clashes = sum(seen[family][hue] for family in families[structure])
            # The legend comes last, where a structure takes a hue that no other of it has.
            later = len(remaining) > HUES or hue in taken
            ranked.append(((structure in listed) is later, clashes, at))
        structure = tried[min(ranked)[2]]
        shared |= structure not in listed
        hue = (len(ordered) + shared) % HUES
        taken.update({hue} if structure in listed else ())
        for family in families[structure]:
            seen[family][hue] += 1
        ordered.append(structure)
        del remaining[structure]
    return ordered


def _titles(
    chosen: list[Structure], classes: Mapping[str, str], ops: set[str]
) -> dict[Structure, str]:
    """Return a unique title for each structure, from its class, or from the name of a function.

    Titles end in `LIBRARY_ENDING`, and in a number if another structure has that class: the page
    shows neither.
    """
    # The page regards a node whose op type is the name of a function as a call of it.
    unique = UniqueNames([*ops, _OTHERS], numbered=lambda title, number: f"{title}_{number}")
    names = (classes.get(structure.box.name, structure.box.label) for structure in chosen)
    legal = (_ILLEGAL.sub("_", ORDINAL.sub("", name)).lstrip("_") or "Box" for name in names)
    wishes = [f"{whole_part(name, classes.values())}{LIBRARY_ENDING}" for name in legal]
    return dict(zip(chosen, unique.claim_each(wishes), strict=True))


def _copy(box: Box, scope: str, structures: Structures) -> Iterator[NodeHead]:
    """Yield copies of the nodes in a box that the page compares, with their edges in the box."""
    inside, cut = f"{box.name}/", len(box.name)
    for item in structures.items_below(box):
        inputs: dict[str, str] = {}
        for nodes, waits in ((item.sources, False), (item.controls, True)):
            for node in nodes:
                # Embedded nodes are not copied; their sources count as sources of the reader.
                through = read_through(node, waits) if node.embedded else [(node, waits)]
                for source, control in through:
                    if source.name.startswith(inside) and not source.embedded:
                        name = scope + source.name[cut:]
                        inputs.setdefault(name, f"^{name}" if control else name)
        yield NodeHead(scope + item.name[cut:], item.op, tuple(inputs.values()))


def _alone(hierarchy: Hierarchy, count: int, most: int) -> int | None:
    """Return the number of entries of the legend, or None for no seeds at all.

    Functions count as glyphs of the top level when the page looks there for glyphs with many
    lines to put aside, and must not change which glyphs these are.

    Args:
        hierarchy: The nodes without seeds.
        count: The number of structures that may have an entry of their own.
        most: The number of all structures to seed; some may share a further entry.
    """
    if not most:
        return None
    if len(hierarchy.root.children) + count + 1 < CROWD_SIZE:
        return count
    level = read_root(hierarchy)
    unseeded = level.folded().put_aside()
    for alone in range(count, -1, -1):
        # Boxes of the panel come last, so that all others keep their indices.
        if level.with_boxes(alone + (alone < most)).folded().put_aside() == unseeded:
            return alone
    return None
