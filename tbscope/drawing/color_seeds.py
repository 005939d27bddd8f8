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
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tbscope.drawing.class_prefixes import shown_whole
from tbscope.drawing.naming import UniqueNames
from tbscope.page.constants import (
    COLOURED_LIMIT,
    CROWD_SIZE,
    HUES,
    LIBRARY,
    LIBRARY_ENDING,
)
from tbscope.page.edges import read_through
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.label_widths import blanks_to_fit
from tbscope.page.level_graph import word_of_end
from tbscope.page.scenes import read_scene
from tbscope.page.templates import Structure, Structures

__all__ = ["NodeHead", "seeds"]

_ALL, _OTHERS = "Classes", "Others"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
_ORDINAL = re.compile(r"\.[0-9]+(st|nd|rd|th)?\Z")
_LETTER = re.compile("[A-Za-z]")
# Names of boxes with a range of numbers: `step.0-11`, `ops.5-17`.
_SPAN = re.compile(r"(.*?[A-Za-z])s?[._]?[0-9]+-[0-9]+\Z")

# Names of chunks that only count: they name a place of a split, and no kind of block.
_CHUNK = re.compile(r"(ops|parts)\.[0-9]+-[0-9]+(\.[0-9]+(st|nd|rd|th))?")

# The number of the most frequent structures that are tried for one position among the hues.
_TRIED = 32
# Seeds that only complete the legend have at most this number of nodes, or this fraction
# (1 / 20) of the graph's nodes.
_LEGEND = 300
_LEGEND_PART = 20


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
    hierarchy: Hierarchy, classes: Mapping[str, str], stages: Mapping[str, str] | None = None
) -> list[NodeHead]:
    """Return the nodes that make the page colour equal boxes equally.

    Args:
        hierarchy: The nodes of a GraphDef without seeds.
        classes: The class of the module that a box represents (`GPT2Block`), by the name of
            the box. A box without a class is titled by its label.
        stages: The title of each box of gradients or of an optimizer, by its name. If there are
            any, the legend has one entry for each class, and no other entries.
    Returns:
        Copies of one box of each structure that several boxes have, flat structures first,
        without embedded nodes and edges from outside. Structures that occur once have no copy.
        Seeds are at most as many as the nodes of the graph, and do not take it beyond the size
        up to which the page colours graphs.
    """
    structures = Structures(hierarchy)
    chosen = _chosen(hierarchy, structures, classes)
    ops = {item.op for item in hierarchy.items.values()}
    titles, plain = _titles(chosen, {**(stages or {}), **classes}, ops)
    kinds = [
        structure
        for structure in chosen
        if not _CHUNK.fullmatch(structure.box.label)
        and (not stages or (structure in plain and structure.box.name in classes))
    ]
    alone = _alone(hierarchy, len(kinds), shares=len(kinds) < len(chosen))
    if alone is None:
        return []
    frequent = set(sorted(kinds, key=lambda structure: -structure.count)[:alone])
    bundle = f"{LIBRARY}{_ALL if kinds and not alone else _OTHERS}{LIBRARY_ENDING}/"
    heads: list[NodeHead] = []
    for structure in _order_apart(chosen, structures):
        title = titles[structure]
        # The page hides the ending only after a name of letters, digits and underscores.
        ending = "" if _ILLEGAL.search(title) else LIBRARY_ENDING
        own = f"{LIBRARY}{title}{ending}"
        scope = own if structure in frequent else bundle + title.rstrip()
        heads += _copy(structure.box, scope, structures)
    return heads


def _chosen(
    hierarchy: Hierarchy, structures: Structures, classes: Mapping[str, str]
) -> list[Structure]:
    """Return the structures to seed, flat structures first.

    Structures inside of repeated boxes are needed: without them, the enclosing boxes do not
    match. Other modules that occur several times complete the legend, as far as there is room.
    """
    by_depth = attrgetter("depth")
    needed = {
        child: None
        for structure in structures.all
        if structure.count > 1
        for child in structure.children
        # Boxes of inputs and outputs need no entry in the legend.
        if not word_of_end(child.box)
    }
    size = [item.embedded for item in hierarchy.items.values()].count(False)
    # A graph must not lose its colours by the number of its seeds.
    room = min(size, COLOURED_LIMIT - size) if size <= COLOURED_LIMIT else size
    taken: list[Structure] = []
    used = 0
    for structure in sorted(needed, key=by_depth):
        if used + structure.size > room:
            break
        used += structure.size
        taken.append(structure)
    room = min(room, used + max(_LEGEND, size // _LEGEND_PART))
    for structure in sorted(structures.all, key=by_depth):
        if structure.count < 2 or structure in needed or structure.box.name not in classes:
            continue
        if used + structure.size <= room:
            used += structure.size
            taken.append(structure)
    return sorted(taken, key=by_depth)


def _order_apart(chosen: list[Structure], structures: Structures) -> list[Structure]:
    """Order structures of one depth so that structures seen together have different hues.

    The page assigns hues in the order in which it meets structures, and repeats them after ten.
    The most frequent structures get the least used hues, and parents, children and neighbours
    get different hues.

    Args:
        chosen: The structures to seed, flat structures first.
        structures: All structures of the graph.
    """
    if len(chosen) <= HUES:
        return chosen
    # Each structure with its direct parents.
    families = {structure: [structure] for structure in structures.all}
    for structure in structures.all:
        for child in structure.children:
            families[child].append(structure)
    seen: dict[Structure, Counter[int]] = defaultdict(Counter)
    load = [0] * HUES
    ordered: list[Structure] = []
    for _, level in groupby(chosen, attrgetter("depth")):
        remaining = sorted(level, key=lambda structure: -structure.count)
        first = len(ordered)
        places = sorted(range(first, first + len(remaining)), key=lambda at: load[at % HUES])
        placed: dict[int, Structure] = {}
        for index in places:
            hue = index % HUES
            clashes = [
                sum(seen[family][hue] for family in families[structure])
                for structure in remaining[:_TRIED]
            ]
            structure = remaining.pop(clashes.index(min(clashes)))
            placed[index] = structure
            load[hue] += structure.count
            for family in families[structure]:
                seen[family][hue] += 1
        ordered += [placed[index] for index in sorted(placed)]
    return ordered


def _titles(
    chosen: list[Structure], classes: Mapping[str, str], ops: set[str]
) -> tuple[dict[Structure, str], set[Structure]]:
    """Return a unique title for each structure, from its class, and those with plain names.

    The most frequent structure of a class has the plain name of the class. Another structure
    is distinguished by its label (`Block_cross`), by a box that only it contains (`Layer_attn`),
    or by a number if the page would cut that. A title that the page would still cut loses its
    first words (`..EncoderLayer`), or gets trailing blanks, for which the page chooses a smaller
    font.
    """
    plain: dict[str, Structure] = {}
    titles: dict[Structure, str] = {}
    # The page regards a node whose op type is the name of a function as a call of it, so titles
    # must differ from op types.
    taken = (op.removesuffix(LIBRARY_ENDING) for op in ops if op.endswith(LIBRARY_ENDING))
    unique = UniqueNames(
        [*taken, _ALL, _OTHERS],
        numbered=lambda title, number: shown_whole(f"{title.rstrip()}_{number}"),
    )
    for structure in sorted(chosen, key=lambda structure: -structure.count):
        title = _class_of(structure.box, classes)
        if title in plain:
            word = _difference(structure.box, plain[title].box)
            longer = f"{title}_{word}"
            fits = blanks_to_fit(longer) is not None
            title = longer if fits and word not in ("", title) else title
        else:
            plain[title] = structure
        titles[structure] = unique.claim(shown_whole(title))
    return titles, {*plain.values()}


def _class_of(box: Box, classes: Mapping[str, str]) -> str:
    """Return the class of a box in legal characters: `steps` for `step.0-11`.

    A box that is named by a number alone has the class of its parent and `_part`.
    """
    ancestor: Box | None = box
    parts = ""
    while ancestor is not None and ancestor.name:
        name = classes.get(ancestor.name) or _ORDINAL.sub("", _SPAN.sub(r"\1s", ancestor.label))
        title = _ILLEGAL.sub("_", name).lstrip("_")
        # A number alone is no title: the parent names this box.
        if _LETTER.search(title):
            return title + parts
        parts = "_part"
        ancestor = ancestor.parent
    return "Box"


def _difference(box: Box, other: Box) -> str:
    """Return a word that distinguishes a box from another of its class, or an empty text."""
    inner = (label for label, child in box.children.items() if isinstance(child, Box))
    for word in (box.label, *inner):
        if word != other.label and word not in other.children and _LETTER.search(word):
            return _ILLEGAL.sub("_", _ORDINAL.sub("", word))
    return ""


def _copy(box: Box, scope: str, structures: Structures) -> Iterator[NodeHead]:
    """Yield copies of the nodes in a box that the page compares, with their edges in the box."""
    inside = f"{box.name}/"
    cut = len(box.name)
    for item in structures.items_below(box):
        sources = [(source, False) for source in item.sources]
        sources += [(source, True) for source in item.controls]
        inputs: dict[str, str] = {}
        for node, only_control in sources:
            # Embedded nodes are not copied; their sources count as sources of the reader.
            for source, control in (
                read_through(node, only_control) if node.embedded else [(node, only_control)]
            ):
                if source.name.startswith(inside) and not source.embedded:
                    name = scope + source.name[cut:]
                    inputs.setdefault(name, f"^{name}" if control else name)
        yield NodeHead(scope + item.name[cut:], item.op, tuple(inputs.values()))


def _alone(hierarchy: Hierarchy, count: int, *, shares: bool) -> int | None:
    """Return the number of seeds that get a function of their own, or None for no seeds at all.

    Functions count as glyphs of the top level when the page looks there for glyphs with many
    lines to put aside. If that changed which glyphs are put aside, only the most frequent seeds
    get their own function, and the others share one.

    Args:
        hierarchy: The nodes without seeds.
        count: The number of seeds that may have a function of their own.
        shares: Whether further seeds share one function in any case.
    """
    root, most = hierarchy.root, count + shares
    if not most:
        return None
    if len(root.children) + most < CROWD_SIZE:
        return count

    def put_aside(functions: int) -> set[str]:
        """Return the glyphs that the page puts aside at the root, with that many functions."""
        added = [f"{LIBRARY}{number}" for number in range(functions)]
        root.children.update((name, Box(name, name, root)) for name in added)
        aside = {shape.name for shape in read_scene(hierarchy, root).aside}
        for name in added:
            del root.children[name]
        return aside

    unseeded = put_aside(0)
    # The shared function counts, too.
    for alone, functions in ((count, most), (HUES, HUES + 1), (0, 1)):
        if functions <= most and put_aside(functions) == unseeded:
            return alone
    return None
