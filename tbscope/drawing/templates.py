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
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tbscope.drawing.unique import UniqueNames
from tbscope.page.constants import COLOURED_LIMIT, CROWD_SIZE, HUES, LIBRARY, LIBRARY_ENDING
from tbscope.page.edges import read_through
from tbscope.page.glyphs import Box, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.scenes import read_scene
from tbscope.page.structures import Structure, Structures

__all__ = ["Seed", "seeds"]

_ALL, _OTHERS = "Classes", "Others"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
_ORDINAL = re.compile(r"\.[0-9]+(st|nd|rd|th)?\Z")
_LETTER = re.compile("[A-Za-z]")

# What only completes the legend may take so many nodes, or this part of the graph's.
_LEGEND = 300
_LEGEND_PART = 20
_ENDS = ("Input", "Output")
# How many of the most frequent structures are tried for one place among the hues.
_TRIED = 32


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


def seeds(hierarchy: Hierarchy, classes: Mapping[str, str]) -> list[Seed]:
    """Make the nodes that have the page colour equal boxes equally.

    Args:
        hierarchy: The nodes of a GraphDef that has no seeds.
        classes: The class of the module that a box stands for (`GPT2Block`), by the name
            of the box. A box that is none is called by its label.
    Returns:
        Copies of one box of each structure that several boxes have, flat ones first,
        without what is embedded and without edges from outside; none of what occurs once.
        They are never more than the nodes of the graph, nor so many that the page would
        no longer colour it.
    """
    structures = Structures(hierarchy)
    chosen = _by_hue(_chosen(hierarchy, structures, classes), structures)
    alone = _alone(hierarchy, len(chosen))
    if alone is None:
        return []
    ops = {item.op for item in hierarchy.items.values()}
    titles = _titles(chosen, classes, ops)
    frequent = set(sorted(chosen, key=lambda structure: -structure.count)[:alone])
    bundle = f"{LIBRARY}{_OTHERS if alone else _ALL}{LIBRARY_ENDING}/"
    return [
        seed
        for structure in chosen
        for seed in _copy(
            structure.box,
            titles[structure] if structure in frequent else bundle + titles[structure],
            structures,
        )
    ]


def _chosen(
    hierarchy: Hierarchy, structures: Structures, classes: Mapping[str, str]
) -> list[Structure]:
    """Choose the structures to seed, flat ones first.

    Those in repeated boxes must be: else the boxes around them do not match. Other modules
    that occur several times complete the legend.
    """
    needed: dict[Structure, None] = {}
    for structure in structures.all:
        if structure.count > 1:
            needed |= {child: None for child in structure.children if not _is_nest(child.box)}
    size = sum(not item.embedded for item in hierarchy.items.values())
    # Seeds must not make a graph with colours one that has none.
    room = min(size, COLOURED_LIMIT - size) if size <= COLOURED_LIMIT else size
    taken: list[Structure] = []
    used = 0
    for structure in sorted(needed, key=_depth):
        if used + structure.size > room:
            break
        used += structure.size
        taken.append(structure)
    room = min(room, used + max(_LEGEND, size // _LEGEND_PART))
    for structure in sorted(structures.all, key=_depth):
        if structure.count < 2 or structure in needed or structure.box.name not in classes:
            continue
        if used + structure.size <= room:
            used += structure.size
            taken.append(structure)
    return sorted(taken, key=_depth)


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


def _by_hue(chosen: list[Structure], structures: Structures) -> list[Structure]:
    """Order structures of one depth so that those seen together have different hues.

    The page gives hues in the order of templates. The most frequent structures take the
    hues that are least used, and parents, children and neighbours take different ones.
    """
    if len(chosen) <= HUES:
        return chosen
    families = _families(structures)
    seen: dict[Structure, Counter[int]] = defaultdict(Counter)
    load = [0] * HUES
    ordered: list[Structure] = []
    levels: dict[int, list[Structure]] = defaultdict(list)
    for structure in chosen:
        levels[structure.depth].append(structure)
    for level in levels.values():
        left = sorted(level, key=lambda structure: -structure.count)
        first = len(ordered)
        places = sorted(range(first, first + len(left)), key=lambda at: load[at % HUES])
        placed: dict[int, Structure] = {}
        for place in places:
            hue = place % HUES
            clashes = [
                sum(seen[family][hue] for family in families[structure])
                for structure in left[:_TRIED]
            ]
            structure = left.pop(clashes.index(min(clashes)))
            placed[place] = structure
            load[hue] += structure.count
            for family in families[structure]:
                seen[family][hue] += 1
        ordered += [placed[place] for place in sorted(placed)]
    return ordered


def _families(structures: Structures) -> dict[Structure, list[Structure]]:
    """For each structure, itself and the structures right around it."""
    families = {structure: [structure] for structure in structures.all}
    for structure in structures.all:
        for child in structure.children:
            families[child].append(structure)
    return families


def _titles(
    chosen: list[Structure], classes: Mapping[str, str], ops: set[str]
) -> dict[Structure, str]:
    """Name a scope for each structure after its class.

    The most frequent structure of a class has its plain name. Another is told apart by its
    label (`T5Attention_EncDecAttention`), by a box that it has and the first has not
    (`BertLayer_crossattention`), or by a number.
    """
    plain: dict[str, Structure] = {}
    titles: dict[Structure, str] = {}
    # The page takes each node for a call whose op type is the name of a function.
    taken = (op.removesuffix(LIBRARY_ENDING) for op in ops if op.endswith(LIBRARY_ENDING))
    unique = UniqueNames(taken, numbered=lambda title, number: f"{title}_{number}")
    for structure in sorted(chosen, key=lambda structure: -structure.count):
        title = _class_of(structure.box, classes)
        if title in plain:
            word = _difference(structure.box, plain[title].box)
            title = f"{title}_{word}" if word else title
        else:
            plain[title] = structure
        titles[structure] = f"{LIBRARY}{unique.claim(title)}{LIBRARY_ENDING}"
    return titles


def _class_of(box: Box, classes: Mapping[str, str]) -> str:
    """The class of a box in letters that the page shows whole."""
    around: Box | None = box
    parts = ""
    while around is not None and around.name:
        wish = classes.get(around.name) or _ORDINAL.sub("", around.label)
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


def _alone(hierarchy: Hierarchy, count: int) -> int | None:
    """How many of the seeds have a function of their own; None for no seeds at all.

    Functions count as shapes of the first level when the page looks there for shapes with
    many lines, to put them aside. Where that would hit what else stayed in the flow, the most
    frequent ones have their own, and all others share one.
    """
    if not count:
        return None
    if len(hierarchy.root.children) + count < CROWD_SIZE:
        return count
    unseeded = _put_aside(hierarchy, 0)
    # One more for what all others share.
    for alone, functions in ((count, count), (HUES, HUES + 1), (0, 1)):
        if functions <= count and _put_aside(hierarchy, functions) == unseeded:
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
