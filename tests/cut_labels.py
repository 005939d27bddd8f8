"""Which labels of first looks the page cuts, and whose part of the label is too long.

`PYTHONPATH=tests python -m cut_labels` prints how many labels of each kind there are, how many of
them are cut, and how many only for what tbscope adds to the name: of the gallery and of
`real_graphs.py`.
"""

import re
from collections import Counter
from typing import NamedTuple

from label_truth import box_is_whole, node_is_whole
from scenes import read_scene

import tbscope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy

_TITLE = re.compile(r"__function_library__(.*?)(_template(_[0-9]+)?)?")
_OUR_BOX = re.compile(r"((ops|parts|step[0-9]*)[.][0-9-]+|inputs|outputs|ends)")
# What makes a name differ from others: `add.2nd`, `rotate.1`, `Block_2`, `attention_mask.in`.
_ADDED = re.compile(r"([.]([0-9]+|[0-9]+(st|nd|rd|th)|in|out)|_[0-9]+)\Z")
_KINDS = {"Input": "input", "Output": "output", "NoOp": "card"}


class Label(NamedTuple):
    """A label of a first look.

    Attributes:
        kind: What it names.
        text: The label.
        is_cut: Whether the page shows only its beginning.
        for_us: Whether it would be shown whole without what tbscope adds.
    """

    kind: str
    text: str
    is_cut: bool
    for_us: bool


def first_look(graph, **options):
    """Give the labels of the first look at a graph."""
    hierarchy = Hierarchy.of(tbscope.to_graph_def(graph, **options))
    held = {scope.qualified_name for scope in graph.scopes() if scope.qualified_name}
    labels = []
    for glyph in read_scene(hierarchy, hierarchy.root).glyphs:
        is_box, text = isinstance(glyph, Box), glyph.name
        title = _TITLE.fullmatch(text)
        if title:
            kind, text = "legend", title[1]
            # No class but a private one has this in its name.
            bare = text if text.islower() else text.partition("_")[0] or text
        else:
            kind = _kind_of(glyph, is_box, held)
            bare = "" if is_box and _OUR_BOX.fullmatch(text) else text
        fits = box_is_whole if is_box else node_is_whole
        bare = _ADDED.sub("", bare)
        labels.append(Label(kind, text, not fits(text), not fits(text) and fits(bare)))
    return labels


def _kind_of(glyph, is_box, held):
    """Tell what a glyph stands for."""
    if _ADDED.sub("", glyph.name) in held or glyph.name in held:
        return "box of a module" if is_box else "module"
    if is_box:
        inside = glyph
        while isinstance(inside, Box):
            inside = next(iter(inside.children.values()))
        return _KINDS.get(inside.op.partition("[")[0], "box of a function or a cut")
    return _KINDS.get(getattr(glyph, "op", "").partition("[")[0], "operation")


def graphs():
    """Give the graphs of the gallery and of real models, by name."""
    from gallery_models import SIGHTS
    from real_graphs import KINDS, real_graph

    for sight in SIGHTS:
        model, inputs, _ = sight.make()
        yield sight.name, tbscope.trace(model.eval(), kwargs=inputs)
    for name in KINDS:
        yield name, real_graph(name)


def main():
    """Print the shares."""
    counts, cut, ours = Counter(), Counter(), Counter()
    for _, graph in graphs():
        for label in first_look(graph):
            counts[label.kind] += 1
            cut[label.kind] += label.is_cut
            ours[label.kind] += label.for_us
            if label.for_us:
                print("  ", label.kind, label.text)
    for kind, count in counts.most_common():
        print(f"{kind:28} {count:5,} labels, {cut[kind]:4,} cut, {ours[kind]:3,} for what is added")


if __name__ == "__main__":
    main()
