"""The proof: TensorBoard's page colours a graph by what was measured, and sums it up."""

import re

import pytest
import torch
from browser import TensorBoard
from browser_data import read_figures
from torch import nn

import tbscope
from tests.sweeps import sampled


class Block(nn.Module):
    """Calls its layers by turns, so that their operations are not one after the other."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(64, 16), nn.Linear(16, 64)
        self.norm = nn.Sequential(nn.LayerNorm(64), nn.GELU())

    def forward(self, x):
        for _ in range(2):
            x = self.norm(self.up(self.down(x).relu()) + x).view(-1, 64)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x))


@pytest.fixture(scope="module")
def graph():
    return tbscope.trace(Net(), torch.rand(32, 64), profile=2)


@pytest.fixture(scope="module")
def page(browser, graph, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    numbered = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)))
    with tbscope.SummaryWriter(logdir) as writer:
        writer.add_graph(graph)
        writer.add_graph(graph, tag="net")
        writer.add_graph(graph, tag="leaves", leaves="box", keep=["view"])
        writer.add_graph(graph, tag="modules", level="module")
        writer.add_graph(graph, tag="root", root=True)
        writer.add_graph(numbered, torch.rand(2, 8), profile=1, run_name="numbered")
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


WAYS = [
    *((".", tag) for tag in ("profile", "net", "leaves", "modules", "root")),
    ("numbered", "profile"),
]


def largest(figures):
    """Give the largest memory and time of what stands at the top level."""
    top = [figures[name] for name in figures[""].children]
    return max(one.size or 0 for one in top), max(one.time or 0 for one in top)


@pytest.mark.parametrize(("run", "tag"), sampled(WAYS, WAYS[::3]))
def test_a_box_takes_as_long_and_as_much_as_all_that_stands_in_it(page, run, tag):
    figures = read_figures(page.show(run, tag, profile=True))
    boxes = {name: one for name, one in figures.items() if one.box and one.size is not None}
    assert len(boxes) > 3
    for name, box in boxes.items():
        assert (box.size, box.time or 0) == box.sum_of(figures), name
    assert page.errors == []


@pytest.mark.parametrize("tag", ["profile", "net", "leaves", "modules", "root"])
def test_the_page_has_in_all_what_was_measured(page, graph, tag):
    figures = read_figures(page.show(".", tag, profile=True))
    # The boxes of the panel have one byte each, without which the page would hatch them.
    top = [figures[name] for name in figures[""].children if "__function_library__" not in name]
    size, time = sum(one.size or 0 for one in top), sum(one.time or 0 for one in top)
    measured = [node for node in graph.nodes if node.duration_us is not None]
    assert size == sum(node.allocated_bytes for node in measured)
    assert abs(time - sum(node.duration_us for node in measured)) <= 1


@pytest.mark.parametrize(("run", "tag"), sampled(WAYS, WAYS[2::3]))
def test_the_legends_go_up_to_the_largest_box(page, run, tag):
    size, time = largest(read_figures(page.show(run, tag, profile=True)))
    assert page.color_by("memory")["maxValue"] == size > 0
    assert page.color_by("compute_time")["maxValue"] == time > 0


def colour(text):
    return tuple(map(int, re.findall("[0-9]+", text)))


def test_boxes_are_coloured_by_their_time(page):
    figures = read_figures(page.show(".", "profile", profile=True))
    page.color_by("compute_time")
    found = {name: page.fills[name][0] for name in ("first", "second")}
    longest = max(found, key=lambda name: figures[name].time)
    assert colour(found[longest]) == (251, 106, 74)
    # The page's own line from white to red.
    (other,) = found.keys() - {longest}
    share = figures[other].time / figures[longest].time
    expected = [
        round(a + (b - a) * share) for a, b in zip((255, 245, 240), (251, 106, 74), strict=True)
    ]
    assert all(abs(a - b) <= 1 for a, b in zip(colour(found[other]), expected, strict=True))


def test_a_single_box_around_everything_is_left_out_for_its_colour(page):
    figures = read_figures(page.show("numbered", "profile", profile=True))
    assert {"0", "1", "2", "3"} <= set(figures[""].children)
    page.color_by("memory")
    assert colour(page.fills["2"][0]) == (251, 106, 74)


def test_cards_tell_what_was_measured(page, graph):
    page.show(".", "net", profile=True).expand_all()
    node = next(node for node in graph.nodes if node.op == "relu")
    card = page.info_card("first/relu")
    assert float(re.search(r"duration_us [^0-9]*([0-9.]+)", card)[1]) == node.duration_us
    assert f'peak_bytes {{"i":{node.peak_bytes}}}' in card
    assert f'allocated_bytes {{"i":{node.allocated_bytes}}}' in card
    assert "Node Stats Memory 2 KB Compute Time" in card


def test_the_card_of_a_module_tells_the_sum_and_the_peak(page, graph):
    page.show(".", "net", profile=True).expand_all()
    inside = [
        node
        for node in graph.nodes
        if node.duration_us is not None and str(node.scope or "").startswith("Net/Block[first]")
    ]
    card = page.info_card("first/Block")
    assert f"({sum(node.allocated_bytes for node in inside):,})" in card
    assert f"({max(node.peak_bytes for node in inside):,})" in card
    assert "NaN" not in card
    shown = float(re.search(r"duration_us [^0-9]*([0-9.]+)", card)[1])
    assert abs(shown - sum(node.duration_us for node in inside)) < 1e-3


def test_the_graph_of_the_run_is_drawn_without_its_figures_too(page):
    page.show(".").expand_all()
    assert {"first", "second"} <= page.boxes
    assert page.listed["."][:2] == ["Default", "leaves"]
    assert page.errors == []
