"""Short runs: a box around a few operations, where one has so many lines that it is put aside."""

import pytest
import torch
from scenes import read_scene
from torch import nn

import tbscope
from tbscope.drawing.placement.split_hubs import in_short_runs
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import LevelGraph


class Latent(nn.Module):
    """An autoencoder whose forward draws, and tells the divergence, too."""

    def __init__(self, after=8, losses=1):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Linear(4, 8)
        self.after, self.losses = after, losses

    def forward(self, x):
        total = 0
        for _ in range(self.losses):
            mean, logvar = self.encode(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * torch.exp(logvar * 0.5)
            total = total - 0.5 * (logvar + 1 - mean.pow(2) - logvar.exp()).sum(-1).mean()
            x = self.decode(z)
        for _ in range(self.after):
            x = x.sigmoid()
        return x, total


def scene(model, **options):
    """Give what stands on the first level of a model, and what the page puts aside of it."""
    graph = tbscope.trace(model, torch.rand(2, 8))
    hierarchy = Hierarchy.of(tbscope.to_graph_def(graph, cards=False, templates=False, **options))
    found = read_scene(hierarchy, hierarchy.root)
    boxes = {box.name: len(box.children) for box in hierarchy.boxes.values()}
    return boxes, sorted(glyph.name for glyph in found.aside)


def test_a_few_operations_stand_in_a_box_where_the_page_would_put_their_source_aside():
    boxes, aside = scene(Latent())
    assert boxes == {"add-exp": 4}
    assert aside == []


def test_a_level_that_needs_no_cut_has_no_such_box():
    # With fewer than fifteen shapes, nothing is put aside.
    boxes, aside = scene(Latent(after=0, losses=0))
    assert (boxes, aside) == ({}, [])


def test_each_source_with_too_many_lines_has_such_a_box():
    boxes, aside = scene(Latent(after=0, losses=2), helpers="none")
    assert len(boxes) == 2
    assert all(count < 10 for count in boxes.values())
    assert aside == []


@pytest.mark.parametrize(("after", "held"), [(27, 4), (32, 7)])
def test_such_a_box_holds_as_many_as_are_too_many_for_the_level(after, held):
    assert [*scene(Latent(after=after))[0].values()] == [held]


def test_a_level_of_which_too_many_would_be_left_is_cut_in_all_its_length():
    boxes, _ = scene(Latent(after=80))
    assert len(boxes) > 1
    assert sum(boxes.values()) > 60


def level(lines, count=20):
    """Give a level of operations, each of which reads these, in the order of running."""
    return LevelGraph(
        [f"op{at}x" for at in range(count)],
        ["op"] * count,
        dict.fromkeys(lines, True),
        fed={0},
        giving={count - 1},
    )


def chain(*more, count=20):
    return [(at, at + 1) for at in range(count - 1)] + list(more)


def test_runs_begin_at_a_neighbour_of_the_hub_and_the_ones_with_the_fewest_come_first():
    crowded = level(chain(*[(2, at) for at in (5, 6, 7, 8, 15)]))
    ways = list(in_short_runs(crowded, [list(range(20))], fewest=3, most=25))
    assert all(run[0] in {1, 2, 3, 5, 6, 7, 8, 15} for (run, *_) in ways if len(_) == 0)
    # Everything from one neighbour to the end has but one or two lines.
    assert ways[0][0][-1] == 19
    assert {len(run) for way in ways for run in way} <= set(range(3, 26))


def test_runs_stay_in_their_rows_and_apart_from_each_other():
    crowded = level(chain(*[(2, at) for at in (5, 6, 7, 8, 15)], *[(1, at) for at in range(9, 15)]))
    rows = [list(range(3, 10)), list(range(10, 20))]
    for way in in_short_runs(crowded, rows, fewest=3, most=5):
        places = [place for run in way for place in run]
        assert len(places) == len(set(places))
        assert all(set(run) <= set(rows[0]) or set(run) <= set(rows[1]) for run in way)


def test_a_level_without_a_hub_has_no_runs():
    assert list(in_short_runs(level(chain()), [list(range(20))], fewest=3, most=25)) == []
