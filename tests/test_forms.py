"""What is no graph, or holds what no graph holds, is refused by whoever takes a graph."""

import pytest
from build import chain

import tbscope
from tbscope.ir.forms import misshapen, require_graph

TAKERS = [
    tbscope.verify,
    tbscope.to_graph_def,
    tbscope.node_costs,
    tbscope.scope_costs,
    tbscope.graph_costs,
    tbscope.Summary,
]


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__name__)
def test_what_is_no_graph_is_refused_by_whoever_takes_one(taker):
    taker(chain(1))
    with pytest.raises(tbscope.ArgumentError) as caught:
        taker("Net")
    assert str(caught.value) == (
        f"{taker.__name__} takes a graph, and was given 'Net'\n"
        "  why: a graph is what tbscope.trace, tbscope.record and add_graph give\n"
        "  fix: graph = tbscope.trace(model, input)"
    )


BREAKS = {
    "name of the graph is None": lambda graph: setattr(graph, "name", None),
    "nodes of the graph is None": lambda graph: setattr(graph, "nodes", None),
    "nodes of the graph holds None": lambda graph: graph.nodes.append(None),
    "inputs of the graph holds 'x'": lambda graph: graph.inputs.append("x"),
    "outputs of the graph holds 3": lambda graph: graph.outputs.append(3),
    "calls of the graph holds {}": lambda graph: graph.calls.append({}),
    "notes of the graph holds 'note'": lambda graph: graph.notes.append("note"),
    "name of the node 3 is 3": lambda graph: setattr(graph.nodes[-1], "name", 3),
    "op of the node '1' is None": lambda graph: setattr(graph.find("1"), "op", None),
    "scope of the node '1' is 'Net'": lambda graph: setattr(graph.find("1"), "scope", "Net"),
    "inputs of the node '1' holds None": lambda graph: graph.find("1").inputs.append(None),
    "kernels of the node '1' holds 3": lambda graph: graph.find("1").kernels.append(3),
    "attributes of the node '1' is None": lambda graph: setattr(
        graph.find("1"), "attributes", None
    ),
    "value of the output 'out' is 'x'": lambda graph: graph.outputs.append(
        tbscope.Output("out", "x")
    ),
    "scope of a call is None": lambda graph: setattr(graph.calls[0], "scope", None),
}


@pytest.mark.parametrize("taker", TAKERS, ids=lambda taker: taker.__name__)
@pytest.mark.parametrize("fault", BREAKS)
def test_a_graph_that_holds_what_none_holds_is_refused_with_the_place(taker, fault):
    graph = chain(1)
    BREAKS[fault](graph)
    with pytest.raises(tbscope.ArgumentError) as caught:
        taker(graph)
    assert caught.value.what == f"{taker.__name__} takes a graph, and {fault}"


def test_a_graph_as_it_was_made_holds_nothing_else():
    assert list(misshapen(chain(3))) == []
    require_graph(chain(3))


def test_costs_are_those_of_the_same_graph():
    one, other = chain(1), chain(2)
    assert tbscope.graph_costs(one, tbscope.node_costs(one)).operations == 1
    for give in (tbscope.graph_costs, tbscope.scope_costs):
        with pytest.raises(tbscope.ArgumentError, match=f"^{give.__name__} was given .* as costs"):
            give(one, tbscope.node_costs(other))
