"""What no source makes yet, and every part takes: phases, functions, ranks, and calls run again."""

import pytest
from build import GraphBuilder
from real_graphs import operations

from tbscope.drawing.figures import Figure
from tbscope.drawing.naming import name_graph
from tbscope.ir.nodes import node_to_text
from tbscope.ir.scope_io import first_calls
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.passes.detail_level import set_level
from tbscope.pipeline import draw, to_graph_def


def step():
    """Give a training step: a block forward, run again backward, and an optimizer on two ranks."""
    build = GraphBuilder("Step")
    rank = build.scope("rank 0", "rank")
    x = build.input("x", (2,))
    block = build.call("rank 0/Block[block]", x)
    y = build.op("exp", build.op("neg", x, scope=block), scope=block)
    build.call("rank 0/Block[block]", y, number=1)
    grad = build.op("mul", y, y, scope=block, phase="backward")
    by_hand = build.scope("rank 0/update", "function")
    rank.phase, by_hand.phase = "forward", "optimizer"
    build.output("out", build.op("add_", grad, x, scope=by_hand, phase="optimizer"))
    build.output("other", build.op("abs", x, scope=build.scope("rank 1", "rank")))
    return build.graph


def test_a_node_prints_its_phase_unless_it_is_forward():
    graph = step()
    lines = [node_to_text(node) for node in operations(graph)]
    assert lines[2] == ("%3 : Float(2) = mul(%2, %2), scope: rank 0/Block[block], phase: backward")
    assert lines[3].endswith("scope: rank 0/update, phase: optimizer")
    assert not any("phase" in line for line in (*lines[:2], lines[4]))


def test_a_copy_keeps_phases_and_the_numbers_of_calls():
    graph = step()
    copy = graph.copy()
    assert [node.phase for node in copy.nodes] == [node.phase for node in graph.nodes]
    assert {node.phase for node in copy.nodes} == {"forward", "backward", "optimizer"}
    assert [call.number for call in copy.calls] == [0, 1]


@pytest.mark.parametrize("level", ["module", "op", "aten"])
@pytest.mark.parametrize("style", ["tf", "torch"])
def test_a_step_of_several_phases_and_ranks_is_drawn(level, style):
    graph = step()
    graph.verify()
    names = [node.name for node in to_graph_def(graph, level=level, style=style).node]
    assert len(names) == len(set(names))
    assert {name.partition("/")[0] for name in names} == {"x", "rank_0", "rank_1", "out", "other"}


@pytest.mark.parametrize("kind", ["hand", "function", "rank"])
def test_a_module_keeps_a_name_that_something_else_has_too(kind):
    build = GraphBuilder("Net")
    net = build.call("Net")
    scopes = [
        Scope(ScopePart("fc"), parent=net, kind=kind),
        Scope(ScopePart("Linear", "fc"), parent=net, qualified_name="fc"),
    ]
    for scope in scopes:
        build.output(
            f"out.{scope.kind}", build.op("relu", build.input(scope.kind, (2,)), scope=scope)
        )
    names = name_graph(build.graph, root=True).scopes
    assert names[scopes[1]] == "Net/fc"
    assert names[scopes[0]] not in ("Net/fc", "")


def test_what_runs_again_in_the_scope_of_a_call_has_one_card_and_its_figure_once():
    graph = step()
    block = graph.calls[0].scope
    drawn = draw(graph, (Figure("weight", {block: 7}, as_bytes=1),))
    cards = [node for node in drawn.graph_def.node if node.op == "NoOp" and "class" in node.attr]
    assert [(card.name, card.attr["weight"].i) for card in cards] == [("rank_0/block/Block", 7)]
    (device,) = drawn.stats.step_stats.dev_stats
    counted = [entry.node_name for entry in device.node_stats if entry.memory]
    assert counted == ["rank_0/block/Block"]


def test_the_call_of_a_scope_is_the_first_that_ran_there():
    graph = step()
    calls = first_calls(graph)
    block = graph.calls[0].scope
    assert calls[block] is graph.calls[0]
    assert graph.nodes[-1].scope not in calls


def test_a_module_drawn_as_one_node_keeps_its_phase():
    build = GraphBuilder("Step")
    x = build.input("x", (2,))
    scope = build.call("Block", x)
    y = build.op("exp", build.op("neg", x, scope=scope, phase="backward"), scope=scope)
    y.producer.phase = "backward"
    build.output("out", build.op("add", y, x))
    set_level(build.graph, "module")
    assert [(node.op, node.phase) for node in operations(build.graph)] == [
        ("Block", "backward"),
        ("add", "forward"),
    ]
