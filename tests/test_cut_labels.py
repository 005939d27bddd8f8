"""Labels: of what tbscope adds to names, the page cuts next to nothing at the first look."""

from collections import Counter

import pytest
import torch
from cut_labels import first_look, graphs
from torch import nn

import tbscope
from tbscope.page.constants import HUES

MOST = 0.05


@pytest.fixture(scope="module")
def looks():
    found = {}
    for name, graph in graphs():
        found.setdefault(name, first_look(graph))
    return found


def test_of_no_kind_of_labels_many_are_cut_for_what_is_added(looks):
    assert len(looks) >= 25
    labels = [label for look in looks.values() for label in look]
    counts = Counter(label.kind for label in labels)
    ours = Counter(label.kind for label in labels if label.for_us)
    assert len(counts) == 8
    assert {kind: count for kind, count in ours.items() if count > counts[kind] * MOST} == {}


def test_of_operations_few_are_cut_at_all(looks):
    labels = [label for look in looks.values() for label in look if label.kind == "operation"]
    # At most a dozen stand beside the boxes of a level.
    assert len(labels) > 50
    # `softplus.2nd` and its like, of models of one kind.
    cut = {label.text.partition(".")[0] for label in labels if label.is_cut}
    assert len(cut) <= len(labels) * MOST


def test_every_label_is_the_authors_name_and_the_legend_names_classes(looks):
    for look in looks.values():
        labels = [label for label in look if label.kind == "legend"]
        assert len(labels) <= HUES + 1
        assert not any(label.text.endswith(" ") or ".." in label.text for label in look)


def test_what_is_cut_is_told_apart_by_whose_part_is_too_long():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.projection, self.long_projection = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            for layer in (self.projection, self.projection, self.long_projection):
                x = layer(x).exp()
            return x

    look = {one.text: one for one in first_look(tbscope.trace(Net(), torch.rand(2, 2)))}
    told = {text: (one.is_cut, one.for_us) for text, one in look.items() if one.kind == "module"}
    assert told == {
        "projection": (False, False),
        "projection.2nd": (True, True),
        "long_projection": (True, False),
    }
