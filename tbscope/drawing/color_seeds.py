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
from tbscope.page.glyphs import Box, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.label_widths import blanks_to_fit
from tbscope.page.scenes import read_scene
from tbscope.page.templates import Structure, Structures

__all__ = ["NodeHead", "seeds"]

_ALL, _OTHERS = "Classes", "Others"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
_ORDINAL = re.compile(r"\.[0-9]+(st|nd|rd|th)?\Z")
_LETTER = re.compile("[A-Za-z]")
# What a box of several that follow one another is called by: `step.0-11`, `ops.5-17`.
_SPAN = re.compile(r"(.*?[A-Za-z])s?[._]?[0-9]+-[0-9]+\Z")

# What a level that is cut has: they tell where it was cut, and no kind of block.
_CHUNK = re.compile(r"(ops|parts)\.[0-9]+-[0-9]+(\.[0-9]+(st|nd|rd|th))?")

# How many of the most frequent structures are tried for one place among the hues.
_TRIED = 32
# What only completes the legend may take so many nodes, or this part of the graph's.
_LEGEND = 300
_LEGEND_PART = 20
_ENDS = ("Input", "Output")


class NodeHead(NamedTuple):
    """What the page reads of one NodeDef before its attributes.

    Attributes:
        name: Its name; that of a seed, in a scope of the library.
        op: Its op type.
        inputs: What it reads, as in `NodeDef.input`; a seed, among the others of its scope.
    """

    name: str
    op: str
    inputs: Sequence[str]


def seeds(hierarchy: Hierarchy, classes: Mapping[str, str]) -> list[NodeHead]:
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
    chosen = _chosen(hierarchy, structures, classes)
    kinds = [structure for structure in chosen if not _CHUNK.fullmatch(structure.box.label)]
    alone = _alone(hierarchy, len(kinds), shares=len(kinds) < len(chosen))
    if alone is None:
        return []
    titles = _titles(chosen, classes, {item.op for item in hierarchy.items.values()})
    frequent = set(sorted(kinds, key=lambda structure: -structure.count)[:alone])
    bundle = f"{LIBRARY}{_ALL if kinds and not alone else _OTHERS}{LIBRARY_ENDING}/"
    made: list[NodeHead] = []
    for structure in _order_apart(chosen, structures):
        title = titles[structure]
        # The page leaves out the ending, where nothing but letters stand before it.
        ending = "" if _ILLEGAL.search(title) else LIBRARY_ENDING
        own = f"{LIBRARY}{title}{ending}"
        scope = own if structure in frequent else bundle + title.rstrip()
        made += _copy(structure.box, scope, structures)
    return made


def _chosen(
    hierarchy: Hierarchy, structures: Structures, classes: Mapping[str, str]
) -> list[Structure]:
    """Choose the structures to seed, flat ones first.

    Those in repeated boxes must be: else the boxes around them do not match. Other modules that
    occur several times complete the legend.
    """
    depth = attrgetter("depth")
    needed = {
        child: None
        for structure in structures.all
        if structure.count > 1
        for child in structure.children
        if not _is_nest(child.box)
    }
    size = [item.embedded for item in hierarchy.items.values()].count(False)
    # Seeds must not make a graph with colours one that has none.
    room = min(size, COLOURED_LIMIT - size) if size <= COLOURED_LIMIT else size
    taken: list[Structure] = []
    used = 0
    for structure in sorted(needed, key=depth):
        if used + structure.size > room:
            break
        used += structure.size
        taken.append(structure)
    room = min(room, used + max(_LEGEND, size // _LEGEND_PART))
    for structure in sorted(structures.all, key=depth):
        if structure.count < 2 or structure in needed or structure.box.name not in classes:
            continue
        if used + structure.size <= room:
            used += structure.size
            taken.append(structure)
    return sorted(taken, key=depth)


def _order_apart(chosen: list[Structure], structures: Structures) -> list[Structure]:
    """Order structures of one depth so that those seen together have different hues.

    The page gives hues in the order in which it meets structures, every tenth the same one. The
    most frequent structures take the hues that are least used, and parents, children and
    neighbours take different ones.

    Args:
        chosen: Structures, flat ones first.
        structures: All of them.
    """
    if len(chosen) <= HUES:
        return chosen
    # Each structure, and those right around it.
    families = {structure: [structure] for structure in structures.all}
    for structure in structures.all:
        for child in structure.children:
            families[child].append(structure)
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


def _is_nest(box: Box) -> bool:
    """Tell whether a box holds inputs or outputs, which no legend need tell."""
    child: Box | Item = box
    while isinstance(child, Box) and child.children:
        child = next(iter(child.children.values()))
    return isinstance(child, Item) and child.op.partition("[")[0] in _ENDS


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
    return titles


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
    inner = (label for label, child in box.children.items() if isinstance(child, Box))
    for word in (box.label, *inner):
        if word != other.label and word not in other.children and _LETTER.search(word):
            return _ILLEGAL.sub("_", _ORDINAL.sub("", word))
    return ""


def _copy(box: Box, scope: str, structures: Structures) -> Iterator[NodeHead]:
    """Yield copies of the nodes that the page compares in a box."""
    inside = f"{box.name}/"
    cut = len(box.name)
    for item in structures.items_below(box):
        read = [(source, False) for source in item.sources]
        read += [(source, True) for source in item.controls]
        inputs: dict[str, str] = {}
        for one, waits in read:
            # What is embedded reads others.
            for source, control in read_through(one, waits) if one.embedded else [(one, waits)]:
                if source.name.startswith(inside) and not source.embedded:
                    name = scope + source.name[cut:]
                    inputs.setdefault(name, f"^{name}" if control else name)
        yield NodeHead(scope + item.name[cut:], item.op, tuple(inputs.values()))


def _alone(hierarchy: Hierarchy, count: int, *, shares: bool) -> int | None:
    """How many of these seeds have a function of their own; None for no seeds at all.

    Where others share one in any case, that is one more. Functions count as shapes of the first
    level when the page looks there for shapes with many lines, to put them aside. Where that would
    hit what else stayed in the flow, the most frequent ones have their own, and all others share
    one.
    """
    root, most = hierarchy.root, count + shares
    if not most:
        return None
    if len(root.children) + most < CROWD_SIZE:
        return count

    def put_aside(functions: int) -> set[str]:
        """Return what the page puts aside at the root with so many functions in it."""
        added = [f"{LIBRARY}{number}" for number in range(functions)]
        root.children.update((name, Box(name, name, root)) for name in added)
        aside = {shape.name for shape in read_scene(hierarchy, root).aside}
        for name in added:
            del root.children[name]
        return aside

    unseeded = put_aside(0)
    # One more for what all others share.
    for alone, functions in ((count, most), (HUES, HUES + 1), (0, 1)):
        if functions <= most and put_aside(functions) == unseeded:
            return alone
    return None
