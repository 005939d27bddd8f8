"""The tab over real models, a training step and two ranks, in a real TensorBoard and browser."""

import pytest
import torch
from browser import TensorBoard
from playwright.sync_api import expect
from real_graphs import KINDS, real_graph
from saved import nested
from sweeps import sampled
from tab import THINGS, Tab, at
from test_tab_steps import ranks
from torch import nn

import tbscope

MODELS = sampled(KINDS, KINDS[::5])
# Of a crowded level, the first that are drawn.
MOST = 8


def step():
    """Give the graph of a training step."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.record(model) as recording:
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
    return recording.graph


@pytest.fixture(scope="module")
def runs():
    return {name: real_graph(name) for name in MODELS} | {
        "small": nested(),
        "step": step(),
        "ranks": ranks(2),
    }


@pytest.fixture(scope="module")
def tab(browser, tmp_path_factory, runs):
    logdir = tmp_path_factory.mktemp("runs")
    for run, graph in runs.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(graph)
    with TensorBoard(logdir) as server:
        yield Tab(browser, server.url, at(run="small"))


@pytest.mark.parametrize("run", [*MODELS, "step", "ranks"])
def test_each_level_opens_and_each_thing_has_its_card(tab, run):
    # The next graph would have the same node and boxes, as far as it has them.
    tab.press("Escape", "c")
    tab.choose("Run", run)
    expect(tab.frame.locator("#title")).to_have_text(run)
    expect(tab.frame.locator("#card h2")).to_have_text(run)
    things = tab.frame.locator(THINGS)
    selected = tab.frame.locator("#world .thing.selected")
    before = 0
    for _ in range(3):
        count = things.count()
        assert count > before
        before = count
        for _ in range(min(count, MOST)):
            tab.press("PageDown")
            name = selected.get_attribute("aria-label").partition(", ")[0]
            expect(tab.frame.locator("#card h2")).to_have_text(name.removeprefix("box "))
        tab.press("e")
        if tab.frame.locator("#message").is_visible():
            break
        expect(things).not_to_have_count(count)
    assert [error for error in tab.errors if "Three.js" not in error] == []


def test_stages_and_ranks_are_side_by_side(tab):
    tab.choose("Run", "step")
    for stage in ("Forward", "Backward", "Update"):
        tab.frame.locator("#world text").get_by_text(stage, exact=True).first.wait_for()
    tab.choose("Run", "ranks")
    tab.frame.locator(f"{THINGS} > .label", has_text="rank_1").first.wait_for()
    boxes = [
        tab.frame.locator(THINGS).filter(has_text=f"rank_{rank}").first.bounding_box()
        for rank in range(2)
    ]
    assert boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"] + boxes[1]["width"]
