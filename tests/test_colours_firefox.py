"""Colours of equal boxes on the Graphs page in Firefox: no more than docs/page.md promises.

They run where Firefox is installed: apt-get install firefox-esr
"""

import pytest
import torch
from browser import SCRIPT, TensorBoard
from firefox import Firefox, find_firefox
from test_templates_page import TEMPLATES, blocks, unequal
from torch import nn

import tbscope

pytestmark = pytest.mark.skipif(
    find_firefox() is None, reason="there is no Firefox: apt-get install firefox-esr"
)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.fc(x).relu()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        return self.part(x).tanh() * x


MODELS = {
    "flat": nn.Sequential(Part(), Part(), Part()),
    "nested": nn.Sequential(Block(), Block()),
    # The inner structure occurs before the boxes around it.
    "before": nn.Sequential(Part(), Block(), Block()),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Give pairs of equal boxes with different templates, by model and `templates`."""
    logdir = tmp_path_factory.mktemp("runs")
    drawn = {}
    for name, model in MODELS.items():
        graph = tbscope.trace(model, torch.ones(1, 4))
        inside = blocks(tbscope.to_graph_def(graph, templates=False))
        for templates in (True, False):
            run = f"{name}_{templates}"
            with tbscope.SummaryWriter(logdir / run) as writer:
                writer.add_graph(graph, templates=templates)
            drawn[run] = name, templates, inside
    pairs = {}
    with TensorBoard(logdir) as server, Firefox() as firefox:
        firefox.open(f"{server.url}/#graphs")
        firefox.run(SCRIPT)
        ready = "return tbscope.isDrawn()"
        firefox.wait(ready)
        for run, (name, templates, inside) in drawn.items():
            firefox.run("tbscope.choose(arguments[0], null, 'op_graph')", run)
            firefox.wait(ready)
            pairs[name, templates] = unequal(inside, firefox.run(TEMPLATES))
    return pairs


@pytest.mark.parametrize("templates", [True, False])
def test_equal_boxes_without_boxes_in_them_have_one_colour(found, templates):
    assert found["flat", templates] == []


def test_with_copies_equal_boxes_with_boxes_in_them_have_different_colours(found):
    assert found["nested", True] == [("Sequential/0", "Sequential/1")]
    assert found["before", True] == [("Sequential/1", "Sequential/2")]


def test_without_copies_they_have_one_unless_the_inner_box_occurs_before(found):
    assert found["nested", False] == []
    assert found["before", False] == [("Sequential/1", "Sequential/2")]
