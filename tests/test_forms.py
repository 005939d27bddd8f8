"""What is no graph is refused by whoever takes a graph."""

import pytest
from build import chain

import tbscope
from tbscope.analysis.summary import Summary

TAKERS = [
    tbscope.to_graph_def,
    tbscope.costs,
    Summary,
]


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__name__)
def test_what_is_no_graph_is_refused_by_whoever_takes_one(taker):
    taker(chain(1))
    with pytest.raises(tbscope.ArgumentError) as caught:
        taker("Net")
    assert str(caught.value) == (
        f"{taker.__name__} takes a graph, and was given 'Net'\n"
        "  why: tbscope.trace, tbscope.record and add_graph return graphs\n"
        "  fix: graph = tbscope.trace(model, input)"
    )
