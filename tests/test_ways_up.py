"""Ways up: each method of the graph that stands on a higher floor finds its home."""

from importlib import import_module

import pytest

from tbscope.analysis.summary import Summary
from tbscope.ir.graph import Graph
from tbscope.ir.imported_methods import WAYS_UP


@pytest.mark.parametrize("method", WAYS_UP)
def test_its_home_exists_and_the_graph_has_the_method(method):
    module, name = WAYS_UP[method]
    assert callable(getattr(import_module(module), name))
    owner, _, own = method.partition(".")
    assert owner == "Graph"
    assert own in vars(Graph)


def test_a_summary_is_that_of_the_public_name():
    assert isinstance(Graph("Net").summary(), Summary)
