"""Definitions on the page: uses of one definition have one colour, and one entry in the legend."""

import warnings
from itertools import chain

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from real_graphs import KINDS, real_graph
from sweeps import counted
from test_functions import Stack
from test_random_models import WIDTH, models
from torch import nn

import tbscope
from tbscope.drawing.layout import lay_out
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.templates import Structures
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.passes.dead_code import mark_dead
from tbscope.passes.detail_level import set_level
from tbscope.passes.hide_views import hide_plumbing

X = torch.ones(2, 4)


def drawn(graph, *, level="op", dead="keep", keep=()):
    """Give for each definition with boxes on the page how many boxes, and which structures."""
    copy = graph.copy()
    set_level(copy, level)
    mark_dead(copy, dead)
    hide_plumbing(copy, keep=keep)
    collapse_leaves(copy)
    layout = lay_out(copy)
    hierarchy = Hierarchy(chain(layout.nodes, layout.outputs, layout.cards))
    structures = Structures(hierarchy)
    found = {}
    for definition in graph.functions():
        names = [layout.boxes.get(use.scope) for use in definition.uses]
        boxes = [hierarchy.boxes[name] for name in names if name in hierarchy.boxes]
        if boxes:
            found[definition.name] = len(boxes), {structures.of[box] for box in boxes}
    return found


def counts(graph, **options):
    """Give how many boxes and how many colours each definition has."""
    return {name: (boxes, len(of)) for name, (boxes, of) in drawn(graph, **options).items()}


@pytest.mark.parametrize("name", KINDS)
def test_uses_of_one_definition_have_one_colour_on_the_page(name):
    found = counts(real_graph(name))
    assert {colours for _, colours in found.values()} == {1}
    assert any(boxes > 1 for boxes, _ in found.values())


@settings(
    max_examples=counted(40, 16),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models)
def test_uses_of_one_definition_of_a_random_model_have_one_colour(model):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = tbscope.trace(model, (torch.randn(4, WIDTH),))
    assert {colours for _, colours in counts(graph).values()} <= {1}


def drop(rate):
    return nn.Sequential(nn.ReLU(), nn.Dropout(rate))


@pytest.mark.parametrize(("rate", "definitions"), [(0.1, 1), (0.2, 2)])
def test_definitions_that_differ_in_what_the_page_does_not_see_have_one_colour(rate, definitions):
    graph = tbscope.trace(Stack(drop(0.1), drop(rate)), X)
    of_boxes = [of for name, (_, of) in drawn(graph).items() if name.startswith("Sequential")]
    assert len(of_boxes) == definitions
    assert len(set().union(*of_boxes)) == 1
    assert ("0-1" in str(graph.summary(depth=2))) == (definitions == 1)


@pytest.mark.parametrize("name", ["SwinForImageClassification", "SegformerForSemanticSegmentation"])
def test_layers_of_growing_rates_have_one_colour_and_definitions_by_their_rates(name):
    graph = real_graph(name)
    rates = {
        one.name: dict(one.hyperparameters) for one in graph.functions() if "DropPath" in one.name
    }
    assert len(rates) == len({str(told) for told in rates.values()}) > 2
    layers = [
        of for name, (_, of) in drawn(graph).items() if "Layer" in name and "Norm" not in name
    ]
    assert len(set().union(*layers)) < len(layers)


class Spare(nn.Module):
    """Gives a second result, which not everybody reads."""

    def forward(self, x):
        return x.relu().tanh(), x.sin().cos()


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Spare(), Spare()

    def forward(self, x):
        y, more = self.first(x)
        return self.second(y)[0] + more


class Flat(nn.Module):
    def forward(self, x):
        return x.view(-1).relu().view(2, 4).sin()


@pytest.mark.parametrize(
    ("model", "options"),
    [(Reads(), {"dead": "drop"}), (Stack(Flat(), Flat()), {"keep": ["layers.0"]})],
)
def test_what_is_drawn_of_one_use_alone_gives_it_a_colour_of_its_own(model, options):
    graph = tbscope.trace(model, X)
    name = "Spare" if "dead" in options else "Flat"
    assert counts(graph)[name] == (2, 1)
    assert counts(graph, **options)[name] == (2, 2)


def test_kernels_may_differ_where_uses_do_not():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x).relu())

    layer = Twice()
    graph = tbscope.trace(lambda x: layer(layer(x)[None].mT.mT), X, kernels=True)
    assert counts(graph)["Twice"] == (2, 1)
    assert counts(graph, level="aten")["Twice"] == (2, 2)
