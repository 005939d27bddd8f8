"""Calls of tbscope's own functions for each node: a cost of graphs that does not vary as times."""

import pytest

from benchmarks.calls import calls_per_node, calls_table

# The calls for each node: of `trace`, of the drawing, and of writing both.
MOST = {
    "chain of 100": (28.2, 22.5, 4.3),
    "RNN of 10 steps": (104.3, 108.7, 18.9),
    "TransformerEncoder, 6": (34.8, 47.6, 5.8),
}
SLACK = 1.1


@pytest.mark.parametrize("name", MOST)
def test_a_node_costs_no_more_calls_than_it_did(name):
    counts = calls_per_node(name)
    most = dict(zip(("trace", "draw", "write"), MOST[name], strict=True))
    assert {key: counts[key] for key in most if counts[key] > most[key] * SLACK} == {}


def test_calls_are_a_row_for_each_model():
    counts = {"name": "chain", "nodes": 301, "trace": 29.94, "draw": 25, "write": 3.06}
    assert calls_table([counts]) == [
        "model  nodes  trace  draw  write",
        "chain    301   29.9  25.0    3.1",
    ]
