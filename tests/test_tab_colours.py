"""The colours of the tab in a real TensorBoard: words, numbers, and the overlays of its log."""

import json
from collections import OrderedDict

import pytest
import torch
from browser import TensorBoard
from playwright.sync_api import expect
from tab import THINGS, Tab, answer, at
from torch import nn

import tbscope


def net():
    return nn.Sequential(
        nn.Linear(8, 32), nn.Sequential(nn.Linear(32, 32), nn.ReLU()), nn.Linear(32, 4)
    )


class Frozen(nn.Module):
    """A model of which an embedding and the weight of a layer are frozen."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.part = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.act = nn.ReLU()
        self.embed.requires_grad_(False)
        self.part.weight.requires_grad_(False)

    def forward(self, x):
        return self.head(self.act(self.part(self.embed(x))))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("colours")
    with tbscope.SummaryWriter(logdir / "over") as writer:
        graph = writer.add_graph(net(), torch.ones(16, 8))
        writer.add_overlay("flops", graph)
        for step in range(2):
            writer.add_overlay(
                "norm", graph, {"0.weight": 0.25 + step, "1.0.weight": 1e-9, "2": 2}, step=step
            )
        other = tbscope.trace(nn.Sequential(OrderedDict(only=nn.Tanh())), torch.ones(1, 2))
        writer.add_overlay("elsewhere", other, {"only": 1})
        writer.add_graph(net(), torch.ones(16, 8), tag="again", profile=True)
    with tbscope.SummaryWriter(logdir / "measured") as writer:
        writer.add_graph(net(), torch.ones(16, 8), profile=True)
    with tbscope.SummaryWriter(logdir / "frozen") as writer:
        writer.add_graph(Frozen(), torch.zeros(2, 3, dtype=torch.long))
    with tbscope.SummaryWriter(logdir / "step") as writer:
        model, loss = net(), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tbscope.record(model) as recording:
            optimizer.zero_grad()
            loss(model(torch.ones(16, 8)), torch.ones(16, 4)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        writer.add_graph(recording.graph)
    return logdir


def colour(tab, title):
    """Choose a way to colour by what the list calls it."""
    tab.frame.locator("#mode").select_option(label=title)


def groups(tab):
    """Return the options of the list by their groups."""
    return tab.frame.locator("#mode").evaluate(
        "(list) => Object.fromEntries([...list.querySelectorAll('optgroup')].map((group) => "
        "[group.label, [...group.children].map((one) => one.textContent)]))"
    )


def written(tab):
    """Return the second line of each thing by its label."""
    return tab.frame.locator(THINGS).evaluate_all(
        "(all) => Object.fromEntries(all.map((one) => [one.querySelector(':scope > .label')"
        ".textContent, (one.querySelector(':scope > .second') || {}).textContent || '']))"
    )


def heats(tab):
    """Return how far along the scale each thing is, by its label."""
    return tab.frame.locator(THINGS).evaluate_all(
        r"(all) => Object.fromEntries(all.map((one) => [one.querySelector(':scope > .label')"
        r".textContent, (/([\d.]+)%/.exec(one.style.getPropertyValue('--fill')) || [])[1] || '']))"
    )


def legend(tab):
    return tab.frame.locator("#legend")


# -- overlays ---------------------------------------------------------------------------------


def test_each_overlay_of_the_run_is_a_colour_and_is_read_when_it_is_chosen(show):
    tab = show(at(run="over"))
    tab.press("e")
    tab.wait_for("0", "1", "2", "Sequential", "input", "out")
    assert groups(tab)["Overlays"] == ["again", "elsewhere", "flops", "norm"]
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    colour(tab, "flops")
    expect(legend(tab).locator("h2")).to_have_text("flops")
    assert [one.partition("?")[0] for one in asked] == ["figures"]
    assert written(tab) == {
        "input": "",
        "Sequential": "",
        "0": "Linear · 8.19 k",
        "1": "Sequential · 32.8 k · 2 nodes",
        "2": "Linear · 4.10 k",
        "out": "Output",
    }
    assert tab.frame.locator(".beside").all_text_contents() == ["45.1 k"]
    # The square roots of shares of the whole.
    assert {label: number for label, number in heats(tab).items() if number} == {
        "Sequential": "100",
        "0": "43",
        "1": "85",
        "2": "30",
    }


def test_the_numbers_of_an_overlay_are_exact_and_those_of_its_latest_step(show, server):
    told = answer(server, "figures", run="over", tag="", overlay="norm ")[2]
    (figure,) = json.loads(told)["figures"]
    assert figure["title"] == "norm"
    # Those of three nodes, of the box around one, of the model, and of the whole.
    assert sorted(figure["numbers"]) == [1e-9, 1e-9, 1.25, 2, 3.250000001, 3.250000001]
    tab = show(at(run="over"))
    tab.press("e")
    colour(tab, "norm")
    expect(legend(tab).locator(".scale span")).to_have_text(["0", "0.36", "1.4", "3.25"])
    assert written(tab)["1"] == "Sequential · 1e-9 · 2 nodes"


def test_an_overlay_with_several_figures_is_as_many_colours(show):
    tab = show(at(run="over"))
    colour(tab, "again")
    expect(legend(tab).locator("h2")).to_have_text("again: time")
    assert groups(tab)["Overlays"][:3] == ["again: time", "again: memory", "again: peak memory"]
    colour(tab, "again: memory")
    expect(legend(tab).locator("h2")).to_have_text("again: memory")
    assert written(tab)["Sequential"] == "6.25 KiB · 4 nodes"


def test_an_overlay_of_another_graph_is_refused_with_one_message(show):
    tab = show(at(run="over"))
    colour(tab, "elsewhere")
    expect(tab.frame.locator("#message")).to_contain_text(
        "the overlay 'elsewhere' has no number for this graph"
    )
    assert tab.frame.locator("#mode").input_value() == "class"
    # Chromium reports each answer that refuses.
    assert "400 (BAD REQUEST)" in tab.errors.pop()


def test_times_that_the_cards_tell_are_no_overlay(show):
    tab = show(at(run="measured"))
    found = groups(tab)
    assert {"time", "memory", "peak memory", "activations"} < {*found["Numbers"]}
    assert "Overlays" not in found


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ({"overlay": "none"}, "the log has no graph of the run 'over' under the tag 'none'"),
        ({"key": "none"}, "a picture has no figure 'none'"),
        ({}, "a picture has no figure ''"),
    ],
)
def test_figures_that_are_not_there_are_refused(server, query, what):
    status, _, data = answer(server, "figures", run="over", tag="", **query)
    assert status == 400
    assert what in json.loads(data)["error"]


def test_an_overlay_that_is_written_later_is_listed(browser, tmp_path):
    with tbscope.SummaryWriter(tmp_path / "run") as writer:
        graph = writer.add_graph(net(), torch.ones(1, 8))
        with TensorBoard(tmp_path) as server:
            tab = Tab(browser, server.url)
            assert "Overlays" not in groups(tab)
            writer.add_overlay("later", graph, {"0": 1})
            option = tab.frame.locator("#mode optgroup[label=Overlays] option")
            expect(option).to_have_text(["later"], timeout=60_000)
            tab.put_away()


# -- words and numbers ------------------------------------------------------------------------


def test_what_is_frozen_is_told_by_colour_and_words(show):
    tab = show(at(run="frozen"))
    colour(tab, "trainable")
    assert written(tab) == {
        "x": "Input",
        "embed": "Embedding · frozen",
        "part": "Linear · partly trainable",
        "act": "ReLU",
        "head": "Linear · trainable",
        "out": "Output",
    }


def test_a_training_step_is_coloured_by_its_stages(show):
    tab = show(at(run="step"))
    colour(tab, "stage of the step")
    expect(legend(tab).locator("button > span")).to_have_text(
        ["forward", "loss", "backward", "optimizer"]
    )
    found = written(tab)
    assert found["Sequential"].startswith("forward · ")
    assert found["MSELoss"] == "loss"
    assert found["gradients"].startswith("backward · ")
    assert found["clip_grad_norm_"].startswith("optimizer · ")
    assert found["optimizer"].endswith(" nodes")


def test_no_step_has_no_stages_and_no_run_of_one_rank_has_ranks(show):
    tab = show(at(run="over"))
    assert not {"stage of the step", "rank"} & {*groups(tab)["Words"]}


def test_words_stand_within_the_things_that_they_tell_of(show):
    tab = show(at(run="step"))
    for title in ("stage of the step", "FLOPs", "activations", "class"):
        colour(tab, title)
        expect(legend(tab).locator("h2")).to_have_text(title)
        too_wide = tab.frame.locator(THINGS).evaluate_all(
            "(all) => all.filter((one) => { const box = one.querySelector(':scope > .body')"
            ".getBoundingClientRect(); return [...one.querySelectorAll(':scope > text')].some("
            "(text) => { const {left, right} = text.getBoundingClientRect();"
            " return left < box.left || right > box.right; }); }).map((one) => one.textContent)"
        )
        assert too_wide == []


def test_the_colour_is_chosen_and_the_legend_used_by_keys(show):
    tab = show(at(run="over"))
    tab.press("k")
    focused = "document.activeElement.id || document.activeElement.textContent"
    frame = next(one for one in tab.page.frames if "plugin_entry" in one.url)
    assert frame.evaluate(focused) == "mode"
    tab.page.keyboard.press("ArrowDown")
    expect(legend(tab).locator("h2")).to_have_text("kind of operation")
    tab.press("l")
    pressed = legend(tab).locator("[aria-pressed=true] > span")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    expect(pressed).to_have_text("activation")
    expect(tab.frame.locator("#canvas")).to_have_class("picking")
    tab.page.keyboard.press("Escape")
    expect(pressed).to_have_count(0)
    expect(tab.frame.locator("#canvas")).not_to_have_class("picking")
