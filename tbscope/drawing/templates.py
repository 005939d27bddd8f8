"""Template seeds: nodes that have TensorBoard's page give equal boxes equal colours.

The page compares boxes in the order in which it meets them, a box before what is in it,
and takes two boxes for equal only if it has compared what is in them already: a sort by
depth that should see to that does nothing in Chrome, Edge and Safari. One copy of each
structure, the flat ones first, placed before all nodes, puts that right. The copies stand
in scopes that the page takes for functions: it keeps them out of the graph, and shows
them in its Functions panel, which so becomes a legend of module classes.

Source: tensorboard/plugins/graph/tf_graph_common/template.ts (`clusterSimilarSubgraphs`)
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from tbscope.drawing.families import shown_whole
from tbscope.drawing.hues import order_alike, order_apart
from tbscope.drawing.unique import UniqueNames
from tbscope.page.constants import (
    COLOURED_LIMIT,
    CROWD_SIZE,
    HUES,
    LIBRARY,
    LIBRARY_ENDING,
)
from tbscope.page.edges import read_through
from tbscope.page.glyphs import Box, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.label_widths import blanks_to_fit
from tbscope.page.scenes import read_scene
from tbscope.page.structures import Structure, Structures

__all__ = ["Seed", "seeds"]

_ALL, _OTHERS, _HUES, _HUE = "Classes", "Others", "Hues", "hue"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
_ORDINAL = re.compile(r"\.[0-9]+(st|nd|rd|th)?\Z")
_LETTER = re.compile("[A-Za-z]")
# What a box of several that follow one another is called by: `step.0-11`, `ops.5-17`.
_SPAN = re.compile(r"(.*?[A-Za-z])s?[._]?[0-9]+-[0-9]+\Z")

# What a level that is cut has: they tell where it was cut, and no kind of block.
_CHUNK = re.compile(r"(ops|parts)\.[0-9]+-[0-9]+(\.[0-9]+(st|nd|rd|th))?")

# What only completes the colours may take so many nodes, or this part of the graph's.
_LEGEND = 300
_LEGEND_PART = 20
_ENDS = ("Input", "Output")


class Seed(NamedTuple):
    """A NodeDef to come before all others.

    Attributes:
        name: Its name, in a scope of the library.
        op: Its op type.
        inputs: What it reads among the other seeds of its scope.
    """

    name: str
    op: str
    inputs: tuple[str, ...]


def seeds(
    hierarchy: Hierarchy, classes: Mapping[str, str], mirrored: Mapping[str, str] | None = None
) -> list[Seed]:
    """Make the nodes that have the page colour equal boxes equally.

    Args:
        hierarchy: The nodes of a GraphDef that has no seeds.
        classes: The class of the module that a box stands for (`GPT2Block`), by the name
            of the box. A box that is none is called by its label.
        mirrored: The name of the box whose hue a box shall have, by the name of the latter: that
            of a module, for the box of its gradients.
    Returns:
        Copies of one box of each structure that several boxes have, flat ones first,
        without what is embedded and without edges from outside; none of what occurs once.
        They are never more than the nodes of the graph, nor so many that the page would
        no longer colour it.
    """
    structures = Structures(hierarchy)
    like = _like(hierarchy, structures, mirrored or {})
    chosen = _chosen(hierarchy, structures, classes, like)
    kinds = [structure for structure in chosen if not _CHUNK.fullmatch(structure.box.label)]
    has_chunks = len(kinds) < len(chosen)
    alone = _alone(hierarchy, len(kinds) + bool(like), shares=has_chunks)
    if alone is None:
        return []
    bundled = has_chunks or alone < len(kinds)
    ordered = _ordered(chosen, structures, hierarchy, like)
    ops = {item.op for item in hierarchy.items.values()}
    titles = _titles(chosen, classes, ops)
    frequent = set(sorted(kinds, key=lambda structure: -structure.count)[:alone])
    bundle = f"{LIBRARY}{_ALL if kinds and not alone else _OTHERS}{LIBRARY_ENDING}/"
    passing = _passing(bundle if bundled else f"{LIBRARY}{_HUES}{LIBRARY_ENDING}/")
    # The page counts the box of all others as one more structure: it comes before them.
    made = list(next(passing)) if bundled and like else []
    for structure in ordered:
        if structure is None:
            made += next(passing)
        else:
            title = titles[structure]
            # The page leaves out the ending, where nothing but letters stand before it.
            ending = "" if _ILLEGAL.search(title) else LIBRARY_ENDING
            own = f"{LIBRARY}{title}{ending}"
            scope = own if structure in frequent else bundle + title.rstrip()
            made += _copy(structure.box, scope, structures)
    return made


def _passing(box: str) -> Iterator[list[Seed]]:
    """Yield nodes in a box of the library that take a hue which nothing else shall have.

    The first make the box, which has one, the others two equal boxes in it.
    """
    yield [Seed(f"{box}{_HUE}", "Hue", ())]
    for number in count(1):
        yield [Seed(f"{box}{_HUE}.{number}{letter}/hue", f"Hue{number}", ()) for letter in "ab"]


def _like(
    hierarchy: Hierarchy, structures: Structures, mirrored: Mapping[str, str]
) -> dict[Structure, Structure]:
    """Find for structures of boxes the structure that most of those have which they mirror.

    What occurs once has no colour that others could have.
    """
    found: dict[Structure, Counter[Structure]] = defaultdict(Counter)
    for name, other in mirrored.items():
        if name in hierarchy.boxes and other in hierarchy.boxes:
            shown = structures.of[hierarchy.boxes[other]]
            if shown.count > 1:
                found[structures.of[hierarchy.boxes[name]]][shown] += 1
    return {structure: counts.most_common(1)[0][0] for structure, counts in found.items()}


def _ordered(
    chosen: list[Structure],
    structures: Structures,
    hierarchy: Hierarchy,
    like: Mapping[Structure, Structure],
) -> Sequence[Structure | None]:
    """Order what is seeded by hues; None for a hue that is passed over."""
    if like:
        ordered = order_alike(chosen, structures, hierarchy, like=like)
        size, added = _size(hierarchy), 2 * ordered.count(None)
        seeded = sum(structure.size for structure in chosen)
        fits = size > COLOURED_LIMIT or size + seeded + added <= COLOURED_LIMIT
        if fits and added <= _legend(size):
            return ordered
    return order_apart(chosen, structures)


def _chosen(
    hierarchy: Hierarchy,
    structures: Structures,
    classes: Mapping[str, str],
    like: Mapping[Structure, Structure],
) -> list[Structure]:
    """Choose the structures to seed, flat ones first.

    Those in repeated boxes must be: else the boxes around them do not match. So must those of
    one hue, and what is in them. Other modules that occur several times complete the legend.
    """
    needed: dict[Structure, None] = {}
    pending = [*like, *like.values()]
    while pending:
        structure = pending.pop()
        if structure not in needed and not _is_nest(structure.box):
            needed[structure] = None
            pending += structure.children
    for structure in structures.all:
        if structure.count > 1:
            needed |= {child: None for child in structure.children if not _is_nest(child.box)}
    size = _size(hierarchy)
    # Seeds must not make a graph with colours one that has none.
    room = min(size, COLOURED_LIMIT - size) if size <= COLOURED_LIMIT else size
    taken: list[Structure] = []
    used = 0
    for structure in sorted(needed, key=_depth):
        if used + structure.size > room:
            break
        used += structure.size
        taken.append(structure)
    room = min(room, used + _legend(size))
    for structure in sorted(structures.all, key=_depth):
        if structure.count < 2 or structure in needed or structure.box.name not in classes:
            continue
        if used + structure.size <= room:
            used += structure.size
            taken.append(structure)
    return sorted(taken, key=_depth)


def _size(hierarchy: Hierarchy) -> int:
    return [item.embedded for item in hierarchy.items.values()].count(False)


def _legend(size: int) -> int:
    """Return how many nodes what only completes the colours may take in a graph of this size."""
    return max(_LEGEND, size // _LEGEND_PART)


def _is_nest(box: Box) -> bool:
    """Tell whether a box holds inputs or outputs, which no legend need tell."""
    child: Box | Item = box
    while isinstance(child, Box):
        if not child.children:
            return False
        child = next(iter(child.children.values()))
    return child.op.partition("[")[0] in _ENDS


def _depth(structure: Structure) -> int:
    return structure.depth


def _titles(
    chosen: list[Structure], classes: Mapping[str, str], ops: set[str]
) -> dict[Structure, str]:
    """Name each structure after its class.

    The most frequent structure of a class has its plain name. Another is told apart by its
    label (`Block_cross`), by a box that it has and the first has not (`Layer_attn`), or by a
    number where the page would cut that. What the page would cut all the same loses the words
    at its beginning (`..EncoderLayer`), or has blanks behind it for which the page writes smaller.
    """
    plain: dict[str, Structure] = {}
    titles: dict[Structure, str] = {}
    # The page takes each node for a call whose op type is the name of a function.
    taken = (op.removesuffix(LIBRARY_ENDING) for op in ops if op.endswith(LIBRARY_ENDING))
    unique = UniqueNames([*taken, _ALL, _OTHERS, _HUES, _HUE], numbered=_numbered)
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
    return titles


def _numbered(title: str, number: int) -> str:
    return shown_whole(f"{title.rstrip()}_{number}")


def _class_of(box: Box, classes: Mapping[str, str]) -> str:
    """The class of a box in letters that the page shows whole: `steps` for `step.0-11`."""
    around: Box | None = box
    parts = ""
    while around is not None and around.name:
        wish = classes.get(around.name) or _ORDINAL.sub("", _SPAN.sub(r"\1s", around.label))
        title = _ILLEGAL.sub("_", wish).lstrip("_")
        # Numbers alone are a part of something.
        if _LETTER.search(title):
            return title + parts
        parts = "_part"
        around = around.parent
    return "Box"


def _difference(box: Box, other: Box) -> str:
    """A word that tells a box from another of its class; empty where there is none."""
    for word in (box.label, *_boxes_in(box)):
        if word != other.label and word not in other.children and _LETTER.search(word):
            return _ILLEGAL.sub("_", _ORDINAL.sub("", word))
    return ""


def _boxes_in(box: Box) -> list[str]:
    return [label for label, child in box.children.items() if isinstance(child, Box)]


def _copy(box: Box, scope: str, structures: Structures) -> Iterator[Seed]:
    """Yield copies of the nodes that the page compares in a box."""
    inside = f"{box.name}/"
    cut = len(box.name)
    for item in structures.items_below(box):
        inputs: dict[str, str] = {}
        for source, control in _read_by(item):
            if source.name.startswith(inside) and not source.embedded:
                name = scope + source.name[cut:]
                inputs.setdefault(name, f"^{name}" if control else name)
        yield Seed(scope + item.name[cut:], item.op, tuple(inputs.values()))


def _read_by(item: Item) -> Iterator[tuple[Item, bool]]:
    """Find the nodes that one reads, through embedded ones too, and whether it only waits."""
    for sources, control in ((item.sources, False), (item.controls, True)):
        for source in sources:
            if source.embedded:
                yield from read_through(source, control)
            else:
                yield source, control


def _alone(hierarchy: Hierarchy, count: int, *, shares: bool) -> int | None:
    """How many of these seeds have a function of their own; None for no seeds at all.

    Where others share one in any case, that is one more. Functions count as shapes of the first
    level when the page looks there for shapes with many lines, to put them aside. Where that would
    hit what else stayed in the flow, the most frequent ones have their own, and all others share
    one.
    """
    most = count + shares
    if not most:
        return None
    if len(hierarchy.root.children) + most < CROWD_SIZE:
        return count
    unseeded = _put_aside(hierarchy, 0)
    # One more for what all others share.
    for alone, functions in ((count, most), (HUES, HUES + 1), (0, 1)):
        if functions <= most and _put_aside(hierarchy, functions) == unseeded:
            return alone
    return None


def _put_aside(hierarchy: Hierarchy, functions: int) -> set[str]:
    """The glyphs that the page puts aside at the root with so many functions in it."""
    root = hierarchy.root
    added = [f"{LIBRARY}{number}" for number in range(functions)]
    root.children.update((name, Box(name, name, root)) for name in added)
    try:
        return {shape.name for shape in read_scene(hierarchy, root).aside}
    finally:
        for name in added:
            del root.children[name]
