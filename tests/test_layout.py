"""The layout: names, op types and inputs of all that is drawn, before any attribute."""

import pytest
from build import GraphBuilder, chain

import tbscope
from tbscope.drawing.layout import lay_out
from tbscope.ir.graph import Output
from tbscope.passes.collapse_leaves import collapse_leaves


def laid_out(graph, *, leaves=True, **options):
    copy = graph.copy()
    if leaves:
        collapse_leaves(copy)
    return lay_out(copy, templates=False, **options)


def net():
    """Give a builder with a called root, and an operation of it with two outputs."""
    build = GraphBuilder("Net")
    scope = build.call("Net")
    x = build.input("x", (4,))
    node = build.node("split", x, scope=scope, outputs=((2,), (2,)))
    return build, scope, node


def test_there_is_one_head_for_each_node_each_output_and_each_card():
    layout = laid_out(chain(2))
    assert [head.op for head in layout.nodes] == [
        "Input",
        *["ParameterConst", "ParameterConst", "Linear"] * 2,
    ]
    assert [(head.name, head.op, head.inputs) for head in layout.outputs] == [
        ("out", "Output", ["1"])
    ]
    assert [(head.op, head.inputs) for head in layout.cards] == [("NoOp", ())]


def test_parameters_are_circles_only_where_they_are_asked_for():
    ops = {head.op for head in laid_out(chain(1), circles=False).nodes}
    assert ops == {"Input", "Parameter", "Linear"}


def test_outputs_after_the_first_are_told_by_their_number():
    build, scope, node = net()
    build.op("add", node.outputs[1], node.outputs[0], scope=scope)
    layout = laid_out(build.graph)
    # An empty reference keeps the page from dropping the second.
    assert layout.nodes[-1].inputs == ["split:1", "", "split"]


@pytest.mark.parametrize(
    ("waits", "expected"), [(True, ["split", "", "^split"]), (False, ["split"])]
)
def test_what_only_waits_has_a_caret(waits, expected):
    build, scope, node = net()
    control_inputs = [node] if waits else []
    build.op("relu", node.outputs[0], scope=scope, control_inputs=control_inputs)
    assert laid_out(build.graph).nodes[-1].inputs == expected


def test_an_output_waits_for_what_wrote_into_it_later():
    build, scope, node = net()
    write = build.node("add_", node.outputs[0], scope=scope, outputs=((2,),))
    build.graph.outputs.append(Output("out", node.outputs[0], (write,)))
    assert laid_out(build.graph).outputs[0].inputs == ["split", "^add_"]


def test_a_box_has_a_card_unless_there_are_none_and_then_where_one_is_needed():
    graph = chain(1)
    root = graph.calls[0].scope
    assert [card.scope for card in laid_out(graph).told] == [root]
    assert laid_out(graph, cards=False).cards == []
    (card,) = laid_out(graph, cards=False, also=[root]).told
    assert (card.scope, card.facts) == (root, {})
    assert len(laid_out(graph, also=[root]).told) == 1


def test_facts_are_told_of_nodes_that_stand_for_modules_and_of_no_others():
    layout = laid_out(chain(2))
    assert {(node.kind, facts["module"]) for node, facts in layout.facts.items()} == {
        ("module", "0"),
        ("module", "1"),
    }
    assert laid_out(chain(2), leaves=False).facts == {}


def test_no_two_names_are_equal():
    build, scope, _ = net()
    for name in ("x", "Net", "split"):
        build.op(name, build.graph.nodes[0].outputs[0], scope=scope)
    build.output("x", build.graph.nodes[-1].outputs[0])
    layout = laid_out(build.graph, cards=True)
    names = [head.name for head in (*layout.nodes, *layout.outputs, *layout.cards)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("count", "boxed"), [(10, True), (150, False)])
def test_a_long_named_input_has_a_box_only_where_its_level_needs_no_cut(count, boxed):
    build = GraphBuilder("Net")
    x = build.input("last_hidden_state_of_all", (1,))
    for _ in range(count):
        x = build.op("exp", x)
    build.output("out", x)
    drawn = tbscope.to_graph_def(build.graph)
    (name,) = (node.name for node in drawn.node if node.op == "Input")
    assert name == ("last_hidden_state_of_all/" if boxed else "") + "last_hidden_state_of_all"
