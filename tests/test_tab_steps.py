"""A training step in the viewer: its stages side by side, and what belongs together; loops."""

import re
from itertools import pairwise

import pytest
import torch
from nasty_models import NASTY
from saved import drawn, net
from saved_page import SavedPage
from torch import nn

import tbscope
from tbscope.saving.box_tree import picture_of
from tbscope.saving.color_words import Stages
from tbscope.saving.levels import Levels


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.blocks(x))


def training():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with tbscope.record(model) as recording:
        loss = model(torch.ones(5, 4)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recording.output(loss=loss)
    return recording.graph


def gan():
    generator, critic = nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Linear(3, 1)
    first = torch.optim.SGD(critic.parameters(), lr=0.1)
    second = torch.optim.Adam(generator.parameters())
    with tbscope.record(generator=generator, critic=critic) as recording:
        fakes = generator(torch.ones(4, 2))
        loss = critic(fakes.detach()).mean()
        loss.backward()
        first.step()
        fooled = -critic(fakes).mean()
        fooled.backward()
        second.step()
        recording.output(loss=loss, fooled=fooled)
    return recording.graph


def penalty():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.ones(5, 3, requires_grad=True)
    with tbscope.record(model) as recording:
        result = model(x).sum()
        (gradient,) = torch.autograd.grad(result, x, create_graph=True)
        (result + gradient.norm()).backward()
    return recording.graph


def accumulated():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbscope.record(model) as recording:
        for part in torch.ones(4, 3).split(1):
            with tbscope.scope("step"):
                model(part).mean().backward()
        optimizer.step()
    return recording.graph


def staged(graph):
    picture = picture_of(graph)
    Levels(picture)
    return picture, Stages(picture)


def counterparts(graph):
    """Return what each box of a stage belongs to, by names."""
    picture, stages = staged(graph)
    found = {}
    for box in picture.boxes:
        for title, others in stages.links.get(box, {}).items():
            if title in ("Backward of", "Updates"):
                (other,) = others
                found[box.name] = other.name
    return found


def lanes(graph, name=""):
    """Return the lane of each child of a box, by labels."""
    picture, stages = staged(graph)
    box = next(one for one in [picture.root, *picture.boxes] if one.name == name)
    found = stages.lanes(box)
    children = picture.children(box)
    return {one.label: lane for one, lane in zip(children, found, strict=bool(found))}


# -- names ------------------------------------------------------------------------------------


def test_each_box_of_gradients_belongs_to_the_module_of_its_name():
    found = counterparts(training())
    for place in ("Net", "Net/blocks", "Net/blocks/2", "Net/blocks/2/down", "Net/head"):
        assert found[f"gradients/{place}"] == place
        assert found[f"optimizer/AdamW/{place}"] == place
    assert found["optimizer/AdamW/Net/head/bias"] == "Net/head/bias"
    assert "gradients" not in found
    assert "optimizer/AdamW" not in found


def test_a_gradient_of_a_gradient_belongs_to_that():
    found = counterparts(penalty())
    assert found["gradients/Sequential/1"] == "Sequential/1"
    assert found["gradients.2nd/Sequential/1"] == "Sequential/1"
    assert found["gradients.2nd/gradients/Sequential/1"] == "gradients/Sequential/1"


def test_gradients_of_micro_batches_belong_to_their_own():
    found = counterparts(accumulated())
    assert found["step.2nd/gradients/Sequential/0"] == "step.2nd/Sequential/0"
    assert found["optimizer/SGD/step/Sequential/0"] == "step/Sequential/0"


def test_where_names_do_not_fit_nothing_is_claimed():
    picture, stages = staged(gan())
    kinds = {"Backward of": "gradients", "Updates": "optimizer"}
    for box in picture.boxes:
        for title, others in stages.links.get(box, {}).items():
            if title in kinds:
                assert kinds[title] in box.name
                names = [re.sub(r"\.(weight|bias)$", r"/\1", other.name) for other in others]
                assert all(box.name.endswith(f"/{name}") for name in names)


@pytest.mark.parametrize("label", ["gradients", "optimizer"])
def test_a_module_of_such_a_name_is_no_stage(label):
    class Learnt(nn.Module):
        def __init__(self):
            super().__init__()
            setattr(self, label, nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
            self.head = nn.Linear(2, 2)

        def forward(self, x):
            return self.head(getattr(self, label)(x))

    graph = net(Learnt(), torch.ones(1, 2))
    assert lanes(graph) == {}
    assert counterparts(graph) == {}


@pytest.mark.parametrize("name", NASTY)
def test_a_model_alone_has_no_stages(name):
    model, given = NASTY[name]
    picture, stages = staged(net(model(), *given))
    assert not any(stages.lanes(box) for box in [picture.root, *picture.boxes])


# -- lanes ------------------------------------------------------------------------------------


def test_the_stages_of_a_step_are_lanes_and_its_outputs_run_forward():
    found = lanes(training())
    forward, backward, last = (0, 0), (0, 1), (0, 2)
    assert found["Net"] == found["mean"] == found["loss"] == forward
    assert found["gradients"] == backward
    assert found["clip_grad_norm_"] == found["optimizer"] == last


def test_each_pass_of_a_gan_begins_a_round():
    found = lanes(gan())
    assert found["generator"] == (0, 0)
    assert (found["gradients"], found["optimizer"]) == ((0, 1), (0, 2))
    assert (found["gradients.2nd"], found["optimizer.2nd"]) == ((1, 1), (1, 2))
    assert (found["loss"], found["fooled"]) == ((0, 0), (1, 0))


def test_micro_batches_have_stages_of_their_own():
    assert {column for _, column in lanes(accumulated()).values()} == {0, 2}
    assert lanes(accumulated(), "step")["gradients"] == (0, 1)


# -- the page ---------------------------------------------------------------------------------


@pytest.fixture
def show(browser, tmp_path):
    """Save a graph and open its page; at the end, see that nothing went wrong in it."""
    opened = []

    def open_page(graph):
        path = tmp_path / "graph.html"
        graph.save(path)
        opened.append(SavedPage(browser, path))
        return opened[-1]

    yield open_page
    for page in opened:
        assert page.errors == []
        page.put_away()


def middle(thing):
    return thing["y"] + thing["height"] / 2


def marked(page):
    """Return the names of what is marked as counterparts of what is selected."""
    names = page.page.locator("#world .counterpart > title").all_text_contents()
    return {name.partition("\n")[0] for name in names}


def test_forward_backward_and_optimizer_are_side_by_side(show):
    page = show(training())
    things = page.drawn.things
    rights = [things[one]["x"] + things[one]["width"] for one in ("Net", "gradients")]
    assert rights[0] < things["gradients"]["x"]
    assert rights[1] < things["optimizer"]["x"]
    assert abs(middle(things["gradients"]) - middle(things["Net"])) < 1
    assert things["clip_grad_norm_"]["y"] < things["optimizer"]["y"]
    assert page.page.locator("#world .lane").count() == 3
    texts = page.page.locator("#world .lane + text").all_text_contents()
    assert texts == ["Forward", "Backward", "Update"]


@pytest.mark.parametrize("up", [False, True])
def test_the_gradients_of_a_module_are_level_with_it(show, up):
    page = show(training())
    if up:
        page.press("u")
    for _ in range(4):
        page.press("e")
    page.press("f")
    things = page.drawn.things
    found = 0
    for name, thing in things.items():
        twin = things.get(f"gradients/{name}")
        if twin is not None and name.startswith("Net/") and not name.endswith("norm"):
            assert abs(middle(thing) - middle(twin)) < 2, name
            assert twin["x"] > thing["x"]
            found += 1
    assert found >= 10
    first, last = things["gradients/Net/blocks/0"], things["gradients/Net/blocks/2"]
    assert (middle(first) < middle(last)) is not up


def test_nothing_overlaps_when_gradients_are_level(show):
    page = show(training())
    for _ in range(4):
        page.press("e")
    page.press("f")
    things = page.drawn.things
    leaves = [one for one in things.values() if not one["open"]]
    for at, one in enumerate(leaves):
        for other in leaves[at + 1 :]:
            apart = (
                one["x"] + one["width"] <= other["x"] + 0.5
                or other["x"] + other["width"] <= one["x"] + 0.5
                or one["y"] + one["height"] <= other["y"] + 0.5
                or other["y"] + other["height"] <= one["y"] + 0.5
            )
            assert apart, (one["name"], other["name"])


def test_what_is_closed_again_leaves_no_room(show):
    page = show(training())
    for name in ("Net", "gradients"):
        page.open(name)
    page.press("f")
    before = page.drawn.things["Net"]["height"] / page.zoom
    page.open("gradients/Net")
    page.open("gradients/Net")
    assert page.drawn.things["Net"]["height"] / page.zoom == pytest.approx(before, abs=1)


def test_what_is_saved_for_the_backward_pass_is_drawn_softly(show):
    page = show(training())
    soft = page.page.locator("#world .line.soft")
    ends = {(one["start"], one["end"]) for one in page.drawn.lines}
    assert ("mean", "gradients") in ends
    assert ("Net", "optimizer") not in ends
    assert soft.count() >= 1
    page.open("Net")
    # Inside of the model, nothing leads to what only its gradients read.
    drawn = page.drawn
    assert not any(
        "gradients" in one["end"] for one in drawn.lines if one["start"].startswith("Net/")
    )


def test_what_is_selected_marks_its_counterparts(show):
    page = show(training())
    for name in ("Net", "gradients"):
        page.open(name)
    page.press("f")
    page.click("Net/head")
    assert marked(page) == {"gradients/Net", "optimizer"}
    page.open("gradients/Net")
    page.press("f")
    page.click("Net/head")
    assert marked(page) == {"gradients/Net/head", "optimizer"}
    page.click("gradients/Net/head")
    assert marked(page) == {"Net/head", "optimizer"}


def test_the_cards_of_counterparts_lead_to_each_other(show):
    page = show(training())
    page.open("Net")
    page.click("Net/head")
    assert "GRADIENTS (1)\ngradients/Net/head" in page.card
    assert "UPDATED BY (1)\noptimizer/AdamW/Net/head" in page.card
    page.page.locator("#card a", has_text="gradients/Net/head").click()
    page.page.wait_for_selector("#card h2:text-is('head')")
    assert page.selected == ["gradients/Net/head"]
    assert "backward of Linear" in page.card
    assert "BACKWARD OF (1)\nNet/head" in page.card


def test_a_box_of_gradients_has_the_colour_of_its_module(show):
    page = show(training())
    page.page.select_option("#mode", "class")
    for _ in range(3):
        page.press("e")
    things = page.drawn.things
    for name in ("Net", "Net/blocks", "Net/blocks/0", "Net/head"):
        assert things[f"gradients/{name}"]["fill"] == things[name]["fill"]
    texts = page.page.locator("#world .second").all_text_contents()
    assert sum("backward of Block" in text for text in texts) == 3


@pytest.mark.parametrize("make", [gan, penalty, accumulated])
def test_rounds_stand_below_each_other_and_all_opens(show, make):
    page = show(make())
    for _ in range(6):
        page.press("e")
    page.press("u", "f", "u", "c")
    things = page.drawn.things
    if make is gan:
        assert things["gradients"]["y"] < things["gradients.2nd"]["y"]
        assert things["gradients"]["x"] == pytest.approx(things["gradients.2nd"]["x"], abs=30)


# -- loops ------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.h = nn.Linear(4, 8), nn.Linear(8, 8)

    def forward(self, x, h):
        return torch.tanh(self.i(x) + self.h(h))


class Loop(nn.Module):
    """One cell, called again and again, with an operation of its own beside each call."""

    def __init__(self, times, after):
        super().__init__()
        self.cell, self.times, self.after = Own(), times, after

    def forward(self, x, h):
        for _ in range(self.times):
            h = self.after(self.cell(x, h))
        return h


def folded(graph):
    picture = picture_of(graph)
    Levels(picture)
    return [(one.name, picture.second_line(one)) for one in picture.boxes if picture.repeats(one)]


def called(times, after):
    return net(Loop(times, after), torch.ones(1, 4), torch.ones(1, 8))


def test_a_cell_that_is_called_again_and_again_is_one_box_with_its_first_call():
    found = folded(called(24, lambda h: h))
    assert [text for _, text in found] == ["Own × 24"]
    assert found[0][0].endswith("cell-cell.24th")


def test_steps_with_operations_between_them_are_one_box():
    assert folded(called(12, torch.sigmoid))[0][1].endswith("× 12")
    # As another library draws it, without boxes for the rounds of a loop.
    nodes = [f"{op}{'' if not at else f'_{at}'}:{op}" for at in range(6) for op in "abcdefghijkl"]
    picture = drawn(" ".join(nodes))
    Levels(picture)
    (box,) = [one for one in picture.boxes if picture.repeats(one)]
    assert picture.repeats(box) == 6


# -- ranks ------------------------------------------------------------------------------------


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 18), nn.Linear(18, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


def ranks(count):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    def parallelize(model, mesh):
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

    given = {"mesh": {"tp": count}, "parallelize": parallelize, "fake": True}
    graphs = [
        tbscope.trace(Parallel(), torch.ones(4, 8), rank=rank, **given) for rank in range(count)
    ]
    return tbscope.merge_ranks(graphs, unfolded=True)


def test_ranks_are_columns_in_their_order_and_collectives_join_them_below(show):
    page = show(ranks(3))
    things = page.drawn.things
    columns = [things[f"rank_{rank}"] for rank in range(3)]
    assert all(one["x"] + one["width"] < other["x"] for one, other in pairwise(columns))
    assert len({one["y"] for one in columns}) == 1
    bar = things["all_reduce"]
    assert bar["y"] > columns[0]["y"] + columns[0]["height"]
    assert bar["x"] <= columns[0]["x"] + 1
    assert bar["x"] + bar["width"] >= columns[2]["x"] + columns[2]["width"] - 1
    # Lines between a rank and what joins it go straight down, and each rank's are in its column.
    lines = [one for one in page.drawn.lines if "all_reduce" in (one["start"], one["end"])]
    assert len(lines) == 6
    assert all(abs(one["ends"][0][0] - one["ends"][1][0]) < 1 for one in lines)
    assert things["rank_1.x"]["y"] < things["rank_1"]["y"] < things["rank_1.out"]["y"]
    page.press("e", "e", "u", "f")
    things = page.drawn.things
    assert things["all_reduce"]["y"] < things["rank_0"]["y"]


def test_a_module_called_rank_is_no_rank(show):
    class Ranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.rank_0, self.rank_1 = (nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in "ab")

        def forward(self, x):
            return self.rank_1(self.rank_0(x))

    page = show(net(Ranker(), torch.ones(1, 2)))
    for _ in range(2):
        page.press("e")
    things = page.drawn.things
    names = [name for name in things if name.endswith(("rank_0", "rank_1"))]
    first, second = (things[name] for name in sorted(names))
    assert first["y"] + first["height"] < second["y"]
