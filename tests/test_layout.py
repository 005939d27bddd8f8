"""The layout: names, op types and inputs of all that is drawn, before any attribute."""

import pytest
from build import GraphBuilder, chain

import tbscope
from tbscope.drawing.layout import lay_out
from tbscope.ir.graph import Output, Parameter
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
    assert [card.scope for card in laid_out(graph).info_cards] == [root]
    assert laid_out(graph, cards=False).cards == []
    (card,) = laid_out(graph, cards=False, also=[root]).info_cards
    assert (card.scope, card.facts) == (root, {})
    assert len(laid_out(graph, also=[root]).info_cards) == 1


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


@pytest.mark.parametrize("box", ["block", "block1"])
def test_modules_with_numbers_in_their_names_are_kept_apart_in_any_box(box):
    build = GraphBuilder("Net")
    build.call("Net")
    build.call(f"Net/Block[{box}]")
    x = build.input("x", (1, 2))
    for at in range(5):
        build.linear(f"Net/Block[{box}]/Linear[conv{at}]", x, 2)
    layout = laid_out(build.graph, cards=False)
    ops = [head.op for head in layout.nodes if head.name.count("/") == 1 and "." not in head.name]
    assert ops == [f"Linear[conv{at}]" for at in range(5)]


@pytest.mark.parametrize(
    ("stem", "ops"), [("x", [f"Input[x{at}]" for at in range(5)]), ("x.", ["Input[x]"] * 5)]
)
def test_arguments_with_numbers_in_their_names_are_kept_apart_and_those_of_one_list_are_not(
    stem, ops
):
    build = GraphBuilder("Net")
    values = [build.input(f"{stem}{at}", (2,)) for at in range(5)]
    build.op("cat", values, scope=build.call("Net"), shape=(10,))
    assert [head.op for head in laid_out(build.graph, cards=False).nodes[:5]] == ops


@pytest.mark.parametrize("frozen", [None, 2])
def test_parameters_of_one_list_are_kept_apart_where_some_are_frozen(frozen):
    build = GraphBuilder("Net")
    build.call("Net")
    told = tuple(
        Parameter(str(at), "parameter", (2,), "float32", 8, requires_grad=at != frozen)
        for at in range(5)
    )
    scope = build.call("Net/Scales[scales]", parameters=told)
    values = [build.parameter(f"scales.{at}", (2,), scope) for at in range(5)]
    build.op("cat", values, scope=scope, shape=(10,))
    heads = laid_out(build.graph, cards=False, circles=False).nodes[:5]
    apart = [f"Parameter[scales.{at}]" for at in range(5)]
    assert [head.op for head in heads] == (["Parameter"] * 5 if frozen is None else apart)


def test_of_equal_layers_in_a_row_that_follow_others_no_two_runs_are_folded_beside_each_other():
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1, 2))
    for at in range(15):
        build.linear(f"Net/Linear[{at}]", x, 3 if 5 <= at < 10 else 2)
    ops = {head.name: head.op for head in laid_out(build.graph, cards=False).nodes}
    # The page would join both to one stack.
    between = [f"Linear[{at}]" for at in range(5, 10)]
    assert [ops[str(at)] for at in range(15)] == ["Linear"] * 5 + between + ["Linear"] * 5


@pytest.mark.parametrize(("count", "boxed"), [(10, True), (150, False)])
def test_a_long_named_input_has_a_box_only_where_its_level_needs_no_cut(count, boxed):
    build = GraphBuilder("Net")
    x = build.input("last_hidden_state_of_all", (1,))
    for _ in range(count):
        x = build.op("exp", x)
    build.output("out", x)
    drawn = tbscope.to_graph_def(build.graph)
    (name,) = (node.name for node in drawn.node if node.op.startswith("Input"))
    assert name == ("last_hidden_state_of_all/" if boxed else "") + "last_hidden_state_of_all"
