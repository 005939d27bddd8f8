"""Hues: in which order structures are seeded, so that colours tell what they should.

The page gives hues in the order in which it meets structures, every tenth the same one.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from tbscope.page.constants import HUES
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.structures import Structure, Structures

__all__ = ["order_alike", "order_apart"]

# How many of the most frequent structures are tried for one place among the hues.
_TRIED = 32

_Families = Mapping[Structure, Sequence[Structure]]


def order_apart(chosen: list[Structure], structures: Structures) -> list[Structure]:
    """Order structures of one depth so that those seen together have different hues.

    The most frequent structures take the hues that are least used, and parents, children and
    neighbours take different ones.

    Args:
        chosen: Structures, flat ones first.
        structures: All of them.
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


def order_alike(
    chosen: list[Structure],
    structures: Structures,
    hierarchy: Hierarchy,
    *,
    like: Mapping[Structure, Structure],
) -> list[Structure | None]:
    """Order structures so that some have the hue of others.

    Args:
        chosen: Structures, flat ones first.
        structures: All of them.
        hierarchy: Where they stand.
        like: Of some, the structure whose hue they have.
    Returns:
        The structures, flat ones first; None where the page must meet one more that is none of
        them, for the next to have its hue.
    """
    runs: dict[Hashable, list[Structure]] = defaultdict(list)
    glances: dict[Structure, Hashable] = {}
    seeded = dict.fromkeys(chosen)
    for structure in seeded | dict.fromkeys(structures.all):
        glance = glances[structure] = _glance(structure, structures, hierarchy)
        runs[glance].append(structure)
    hues: dict[Structure, int] = {}
    ordered: list[Structure | None] = []
    place = 0
    levels: dict[int, dict[Hashable, None]] = defaultdict(dict)
    for structure in chosen:
        levels[structure.depth][glances[structure]] = None
    for level in levels.values():
        left = list(level)
        while left:
            wanted = {each: _begin(runs[each], hues, like) for each in left}
            fitting = [each for each in left if wanted[each] == place % HUES]
            free = [each for each in left if wanted[each] is None]
            if not fitting and not free:
                ordered.append(None)
                place += 1
                continue
            each = (fitting or free)[0]
            left.remove(each)
            for at, structure in enumerate(runs[each], place):
                hues.setdefault(like.get(structure, structure), at % HUES)
            place += len(runs[each])
            ordered += [structure for structure in runs[each] if structure in seeded]
    return ordered


def _glance(structure: Structure, structures: Structures, hierarchy: Hierarchy) -> Hashable:
    """Return what the page looks at first: structures with the same have numbers in a row.

    Source: tensorboard/plugins/graph/tf_graph_common/template.ts (`getSignature`)
    """
    box = structure.box
    ops = Counter(item.op for item in structures.items_below(box))
    return structure.depth, len(box.children), len(hierarchy.links(box)), tuple(ops.items())


def _begin(
    run: Sequence[Structure], hues: Mapping[Structure, int], like: Mapping[Structure, Structure]
) -> int | None:
    """Return the hue at which structures must begin that are met together; None for any.

    The most frequent one decides of those whose hue is known.
    """
    known = [
        (-each.count, at, hues[like.get(each, each)])
        for at, each in enumerate(run)
        if like.get(each, each) in hues
    ]
    if not known:
        return None
    _, place, hue = min(known)
    return (hue - place) % HUES


def _families(structures: Structures) -> _Families:
    """For each structure, itself and the structures right around it."""
    families = {structure: [structure] for structure in structures.all}
    for structure in structures.all:
        for child in structure.children:
            families[child].append(structure)
    return families
