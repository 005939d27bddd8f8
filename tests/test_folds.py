"""Folds: which blocks of a figure are drawn as one, and the lines between what is drawn."""

import pytest
import torch
from nasty_models import NASTY
from saved import net
from torch import nn

from tbscope.saving.box_tree import picture_of
from tbscope.saving.depth_limit import Cut
from tbscope.saving.repeats import Folds


class Block(nn.Module):
    """A block with a way around it."""

    def __init__(self, width=4):
        super().__init__()
        self.up = nn.Linear(width, 8)
        self.down = nn.Linear(8, width)

    def forward(self, x, mask=None):
        y = self.up(x).relu()
        return x + self.down(y if mask is None else y * mask)


class Blocks(nn.Module):
    """Some blocks, joined by a function."""

    def __init__(self, join, count=5, make=Block):
        super().__init__()
        self.join = join
        self.blocks = nn.ModuleList(make() for _ in range(count))
        self.aux = nn.Linear(4, 1)

    def forward(self, *given):
        return self.join(self, *given)


def in_a_row(model, x):
    for block in model.blocks:
        x = block(x)
    return model.aux(x)


def with_a_mask(model, x, mask):
    mask = mask.abs()
    for block in model.blocks:
        x = block(x, mask)
    return x


def side_by_side(model, x):
    return torch.cat([block(x) for block in model.blocks])


def all_kept(model, x):
    kept = []
    for block in model.blocks:
        x = block(x)
        kept.append(x)
    return torch.stack(kept)


def second_to_aux(model, x):
    found = None
    for at, block in enumerate(model.blocks):
        x = block(x)
        found = model.aux(x) if at == 1 else found
    return x, found


def each_with_a_mask_of_its_own(model, x, mask):
    for block in model.blocks:
        x = block(x, mask.abs())
    return x


def two_masks(model, x, mask):
    first, second = mask.abs(), mask.exp()
    for at, block in enumerate(model.blocks):
        x = block(x, first if at < 2 else second)
    return x


def each_reads_all_before(model, x):
    kept = [x]
    for block in model.blocks:
        kept.append(block(sum(kept)))
    return kept[-1]


def figure(model, *given, depth=None):
    picture = picture_of(net(model, *given))
    folds = Folds(picture)
    return Cut(picture, depth, folds)


def titles(cut):
    return {cut.title(glyph) for glyph in cut.walk() if "×" in cut.title(glyph)[1]}


def ends(cut):
    return {(line.start.name, line.end.name): line.text for line in cut.lines}


X = torch.ones(2, 4)


def test_equal_blocks_in_a_row_are_one():
    cut = figure(Blocks(in_a_row), X)
    assert titles(cut) == {("0-4", "Block × 5")}
    drawn = {glyph.name for glyph in cut.walk()}
    assert {name for name in drawn if name.startswith("blocks/")} == {
        *("blocks/0", "blocks/0/up", "blocks/0/relu", "blocks/0/down", "blocks/0/add")
    }
    # In from what the first one reads, out to what reads the last one.
    lines = ends(cut)
    assert lines["given.0", "blocks/0/up"] == lines["blocks/0/add", "aux"] == "2×4"
    assert ("given.0", "blocks/0/add") in lines
    assert len(lines) == 7


def test_a_closed_box_of_equal_blocks_has_their_number():
    cut = figure(Blocks(in_a_row), X, depth=1)
    assert titles(cut) == {("0-4", "Block × 5")}
    assert {*ends(cut)} >= {("given.0", "blocks/0"), ("blocks/0", "aux")}


def test_what_all_blocks_read_leads_to_the_one_that_is_drawn():
    cut = figure(Blocks(with_a_mask), X, torch.ones(2, 8))
    assert titles(cut) == {("0-4", "Block × 5")}
    assert ends(cut)["abs", "blocks/0/mul"] == "2×8"


def test_a_run_ends_where_the_next_block_reads_something_else():
    cut = figure(Blocks(two_masks), X, torch.ones(2, 8))
    assert titles(cut) == {("0-1", "Block × 2"), ("2-4", "Block × 3")}


def test_each_block_may_read_one_of_several_of_a_name_beside_the_box():
    cut = figure(Blocks(each_with_a_mask_of_its_own), X, torch.ones(2, 8))
    assert titles(cut) == {("0-4", "Block × 5")}


def test_blocks_that_do_not_read_each_other_are_side_by_side():
    cut = figure(Blocks(side_by_side), X)
    assert titles(cut) == {("0-4", "Block × 5 side by side")}
    assert ends(cut)["blocks/0/add", "cat"] == "5 of 2×4"


def test_what_reads_all_blocks_reads_the_one_that_is_drawn():
    cut = figure(Blocks(all_kept), X)
    assert titles(cut) == {("0-4", "Block × 5")}
    assert ends(cut)["blocks/0/add", "stack"] == "5 of 2×4"


def test_a_run_ends_where_only_one_block_gives_something_away():
    cut = figure(Blocks(second_to_aux), X)
    assert titles(cut) == {("0-1", "Block × 2"), ("2-4", "Block × 3")}
    lines = ends(cut)
    assert {("blocks/0/add", "aux"), ("blocks/0/add", "blocks/2/up")} <= {*lines}
    assert ("blocks/2/add", "aux") not in lines


def test_blocks_that_read_several_before_them_are_drawn_as_they_are():
    assert titles(figure(Blocks(each_reads_all_before), X)) == set()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 16), nn.Linear(16, 32), nn.Linear(32, 64)),
        nn.Sequential(*[Block() for _ in range(1)]),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
    ],
)
def test_other_sizes_and_few_nodes_are_drawn_as_they_are(model):
    assert titles(figure(model, X)) == set()


def test_layers_by_turns_are_one_box():
    layers = [layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.ReLU())]
    cut = figure(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), *layers), X)
    assert titles(cut) == {("2-13", "Linear, ReLU × 6")}
    assert {("1", "2"), ("2", "3"), ("3", "out")} <= {*ends(cut)}
    closed = figure(nn.Sequential(*layers), X, depth=0)
    assert [*ends(closed)] == [("input", "0-11"), ("0-11", "out")]


def test_runs_are_in_runs():
    inner = [nn.Sequential(*[Block() for _ in range(3)]) for _ in range(2)]
    cut = figure(nn.Sequential(*inner), X)
    assert titles(cut) == {("0-1", "Sequential × 2"), ("0-2", "Block × 3")}
    assert {("input", "Sequential/0/0/up"), ("Sequential/0/0/add", "out")} <= {*ends(cut)}


MODELS = {
    **{name: (make(), given) for name, (make, given) in NASTY.items()},
    **{
        join.__name__: (Blocks(join), (X,))
        for join in (in_a_row, side_by_side, all_kept, second_to_aux, each_reads_all_before)
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_no_line_is_lost_and_none_is_invented(name):
    model, given = MODELS[name]
    graph = net(model, *given)
    whole, picture = Cut(picture_of(graph)), picture_of(graph)
    folds = Folds(picture)
    items = {item.name: item for item in picture.items}
    drawn = {(line.start, line.end) for line in Cut(picture, None, folds).lines}
    reached = set()
    for line in whole.lines:
        source, reader = items[line.start.name], items[line.end.name]
        both = folds.ends(source, reader)
        if both is not None:
            assert both in drawn or both[0] is both[1]
            reached.add(both)
        else:
            # It is within equal blocks: a line like it is drawn, or it leads to the next one.
            start, end = (folds.ends(item, item) or (None,) for item in (source, reader))
            assert None in start or None in end
    assert drawn <= reached
    shown = {*Cut(picture, None, folds).walk()}
    assert all(start in shown and end in shown for start, end in drawn)


@pytest.mark.parametrize("last", [nn.LeakyReLU(0.0001), nn.LeakyReLU(0.01, inplace=True)])
def test_blocks_with_other_hyperparameters_are_drawn_as_they_are(last):
    def row(*activations):
        parts = (part for activation in activations for part in (nn.Linear(4, 4), activation))
        return figure(nn.Sequential(*parts), X)

    assert titles(row(*(nn.LeakyReLU() for _ in range(4)))) == {("0-7", "Linear, LeakyReLU × 4")}
    assert titles(row(*(nn.LeakyReLU() for _ in range(3)), last)) == {
        ("0-5", "Linear, LeakyReLU × 3")
    }


def test_boxes_of_modules_that_were_made_otherwise_are_drawn_as_they_are():
    class Told(Block):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def extra_repr(self):
            return f"rate={self.rate}"

    def row(*rates):
        made = iter(rates)
        return figure(Blocks(in_a_row, len(rates), lambda: Told(next(made))), X)

    assert titles(row(1, 1, 1)) == {("0-2", "Told × 3")}
    assert titles(row(1, 1, 2)) == {("0-1", "Told × 2")}
