"""Two graphs of a log compared in the tab, in a real TensorBoard and a real browser."""

import json

import pytest
import torch
from playwright.sync_api import expect
from tab import THINGS, answer, at
from torch import nn

import tbscope


class Block(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(rate)

    def forward(self, x):
        return x + self.drop(self.fc(x))


def make(blocks, rate=0.1):
    return nn.Sequential(*(Block(rate) for _ in range(blocks)), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    x = torch.rand(1, 8)
    for run, model in {"four": make(4), "six": make(6, rate=0.0), "twin": make(4)}.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(model, x)
    with tbscope.SummaryWriter(logdir / "grown") as writer:
        for step in (1, 2):
            writer.add_graph(make(step), x, tag="net", step=step)
    for run, blocks in {"torchs": 1, "torchs_too": 2}.items():
        with torch.utils.tensorboard.SummaryWriter(logdir / run) as writer:
            writer.add_graph(make(blocks), x)
    return logdir


def differences(tab):
    """Return the lines of the difference in the card of the whole."""
    return tab.frame.locator("#card .differences li")


def test_another_graph_is_chosen_in_the_bar_and_both_are_one_picture(show):
    tab = show(at(run="six"))
    assert not tab.frame.get_by_label("Run to compare with").is_visible()
    tab.frame.get_by_role("checkbox", name="Compare with").check()
    expect(differences(tab).nth(1)).to_have_text("+ 2 x Block: 4-5 (72 parameters each)")
    assert differences(tab).all_text_contents()[:4] == [
        "Sequential: 2 added, 5 changed",
        "+ 2 x Block: 4-5 (72 parameters each)",
        "~ Linear: 4 -> 6, renamed",
        "~ 4 x Dropout: 0-3.drop, p 0.1 -> 0.0",
    ]
    legend = tab.frame.locator("#legend li span").all_text_contents()
    assert legend == ["added", "changed", "same"]
    assert tab.entries("Run to compare with") == [
        *("four", "grown", "six", "torchs", "torchs_too", "twin")
    ]


def test_the_words_in_the_boxes_say_the_same_as_their_colours(show):
    tab = show(at(run="six", before_run="four"))
    tab.press("e")
    expect(tab.frame.locator(f"{THINGS} > .label", has_text="6")).to_have_count(1)
    words = tab.frame.locator(f"{THINGS} > .second").all_text_contents()
    assert sum(one.startswith("1 changed · Block") for one in words) == 4
    assert sum(one.startswith("added · Block") for one in words) == 2
    assert sum(one.startswith("changed · Linear") for one in words) == 1


def test_a_line_of_the_difference_leads_to_the_part_that_it_names(show):
    tab = show(at(run="six", before_run="four"))
    differences(tab).nth(3).locator("a").click()
    expect(tab.frame.locator("#card h2")).to_have_text("drop")
    assert "Sequential" in tab.frame.locator("#card .path").inner_text()
    expect(tab.frame.locator("#card")).to_contain_text("p 0.1 -> 0.0")


def test_what_is_removed_is_drawn_where_it_was(show):
    tab = show(at(run="four", before_run="six"))
    expect(differences(tab).nth(1)).to_have_text("- 2 x Block: 4-5 (72 parameters each)")
    tab.press("e")
    expect(tab.frame.locator(f"{THINGS} > .second", has_text="removed · Block")).to_have_count(2)


def test_equal_graphs_are_said_to_be_the_same(show):
    tab = show(at(run="four", before_run="twin"))
    expect(differences(tab)).to_have_text(["Sequential: no difference in 13 operations"])
    assert tab.frame.locator("#legend li span").all_text_contents() == ["same"]


def test_steps_of_a_tag_are_compared_and_the_address_contains_both(show):
    tab = show(at(run="grown"))
    tab.frame.get_by_role("checkbox", name="Compare with").check()
    tab.choose("Run to compare with", "grown")
    expect(differences(tab)).to_have_text(["Sequential: no difference in 7 operations"])
    tab.choose("Step to compare with", "1")
    expect(differences(tab).nth(1)).to_have_text("+ Block: 1 (72 parameters)")
    address = tab.page.evaluate("location.hash").removeprefix("#tbscope")
    again = show(address)
    expect(differences(again).nth(1)).to_have_text("+ Block: 1 (72 parameters)")
    again.frame.get_by_role("checkbox", name="Compare with").uncheck()
    expect(differences(again)).to_have_count(0)
    assert "before" not in again.page.evaluate("location.hash")


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ({"before_run": "none"}, "the log has no graph of the run 'none' under the tag ''"),
        ({"before_run": "four", "before_step": "x"}, "'x' is no number"),
        ({"before_run": "torchs"}, "why: the log has its drawing alone"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_one_message(server, query, what):
    status, _, data = answer(server, "head", run="four", **query)
    assert status == 400
    assert what in json.loads(data)["error"]
