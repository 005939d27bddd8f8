"""Layout: names, op types and inputs, as the page will read them."""

import pytest
from build import GraphBuilder, chain

from tbscope.analysis.costs import Costs
from tbscope.drawing.layout import lay_out
from tbscope.ir.graph import Output


def inputs_of(layout, name):
    (entry,) = (entry for entry in (*layout.nodes, *layout.outputs) if entry.name == name)
    return list(entry.inputs)


def types(layout):
    return {entry.name: entry.op for entry in layout.nodes}


def test_an_empty_input_stands_between_two_of_one_node():
    build = GraphBuilder()
    x = build.input("x", (2,))
    parts = build.node("chunk", x, outputs=((1,), (1,), (1,)))
    first, second, third = parts.outputs
    build.op("add", first, second, name="a")
    build.op("add", first, x, third, name="b")
    layout = lay_out(build.graph)
    assert inputs_of(layout, "add") == ["chunk", "", "chunk:1"]
    assert inputs_of(layout, "add.2nd") == ["chunk", "x", "chunk:2"]


def test_what_is_waited_for_comes_after_the_data():
    build = GraphBuilder()
    x = build.input("x", (2,))
    writer = build.node("copy_", x, outputs=((2,),))
    build.op("relu", x, control_inputs=[writer])
    y = build.op("tanh", writer.outputs[0], control_inputs=[writer])
    build.output("y", y)
    layout = lay_out(build.graph)
    assert inputs_of(layout, "relu") == ["x", "^copy_"]
    assert inputs_of(layout, "tanh") == ["copy_", "", "^copy_"]
    assert inputs_of(layout, "y") == ["tanh"]


def held(*, neighbour=True):
    """Give an operation that reads one of each thing that is held."""
    build = GraphBuilder()
    scope = build.call("Net")
    x = build.input("x", (2,))
    weight = build.parameter("weight", (2,), scope)
    count = build.parameter("count", (2,), scope, kind="buffer")
    one = build.parameter("one", (2,), scope, kind="constant")
    inner = build.call("Net/Norm[norm]")
    y = build.op("norm", x, weight, count, one, scope=inner)
    if neighbour:
        y = build.op("relu", y, scope=inner)
    build.output("out", y)
    return build.graph


@pytest.mark.parametrize(
    ("circles", "neighbour", "expected"),
    [
        (True, True, ["ParameterConst", "BufferConst", "Const"]),
        (False, True, ["Parameter", "Buffer", "Const"]),
        (True, False, ["Parameter", "Buffer", "Tensor"]),
        (False, False, ["Parameter", "Buffer", "Tensor"]),
    ],
)
def test_parameters_are_circles_where_they_may_be_and_can_be(circles, neighbour, expected):
    drawn = types(lay_out(held(neighbour=neighbour), circles=circles))
    assert [drawn[name] for name in ("weight", "count", "one")] == expected
    assert drawn["x"] == "Input"


def leaves(taken=()):
    """Give leaf modules, the first of which has no neighbour, and outputs of these names."""
    build = GraphBuilder()
    x = build.input("x", (2,))
    for path in ("Net/ModuleList[list]/Linear[0]", "Net/Linear[last]"):
        scope = build.call(path)
        weight = build.parameter(f"{scope.qualified_name}.weight", (2,), scope)
        x = build.op("Linear", x, weight, scope=scope, kind="module")
        x = build.op("relu", x, scope=build.scope("Net"))
    for name in taken:
        build.output(name, x)
    return build.graph


def test_a_parameter_that_is_a_node_stands_beside_its_leaf():
    drawn = types(lay_out(leaves()))
    assert (drawn["list/0.weight"], drawn["list/0"]) == ("Parameter", "Linear")
    assert drawn["last/weight"] == "ParameterConst"


def test_a_parameter_that_moves_takes_no_name_of_another():
    build = GraphBuilder()
    x = build.input("x", (2,))
    scope = build.call("Net/ModuleList[list]/Linear[0]")
    weight = build.parameter(f"{scope.qualified_name}.weight", (2,), scope)
    build.op("Linear", x, weight, scope=scope, kind="module")
    build.op("0.weight", x, scope=scope.parent)
    drawn = types(lay_out(build.graph))
    assert (drawn["list/0.weight_"], drawn["list/0.weight"]) == ("Parameter", "0.weight")


def test_two_parameters_that_move_have_names_of_their_own():
    build = GraphBuilder()
    x = build.input("x", (2,))
    scope = build.call("Net/ModuleList[list]/Linear[0]")
    held = [build.parameter(f"list.0.{name}", (2,), scope) for name in ("weight", "weight_")]
    build.op("Linear", x, *held, scope=scope, kind="module")
    build.op("0.weight", x, scope=scope.parent)
    drawn = types(lay_out(build.graph))
    moved = [name for name, op in drawn.items() if op == "Parameter"]
    assert moved == ["list/0.weight_", "list/0.weight__"]


def test_cards_stand_in_their_boxes_and_tell_what_ran():
    graph = chain(2)
    scope = graph.calls[0].scope
    layout = lay_out(graph, root=True, work={scope: Costs(7)})
    assert [(entry.name, entry.op, entry.inputs) for entry in layout.cards][:1] == [
        ("Chain/Chain", "NoOp", ())
    ]
    assert layout.info_cards[0].facts["flops"] == 7
    assert "flops" not in lay_out(graph).info_cards[0].facts
    assert lay_out(graph, cards=False).cards == []


def test_further_scopes_have_blank_cards_once():
    build = GraphBuilder()
    build.call("Net")
    block = build.hand("Net/loss")
    build.op("relu", build.input("x", (2,)), scope=block)
    layout = lay_out(build.graph, root=True, also=[block, block, block.parent])
    assert [entry.name for entry in layout.cards] == ["Net/Net", "Net/loss/loss"]
    assert layout.info_cards[1].facts == {}
    assert lay_out(build.graph, cards=False, also=[block]).info_cards == layout.info_cards[1:]


def test_a_very_wide_graph_is_chunked_with_cards_and_outputs():
    graph = chain(1000)
    layout = lay_out(graph, root=False)
    names = [entry.name for entry in layout.nodes]
    firsts = {name.partition("/")[0] for name in names}
    assert len(firsts) == 11
    assert {"x", "0-99", "100-199", "900-999"} <= firsts
    assert inputs_of(layout, "out") == ["900-999/990-999/999/linear"]
    assert inputs_of(layout, "0-99/50-59/50/linear")[0] == "0-99/40-49/49/linear"
    assert [entry.name.partition("/")[0] for entry in layout.cards[1:]].count("100-199") == 100
    assert len({*names, *(entry.name for entry in layout.cards)}) == len(names) + 1001


def test_a_graph_of_forty_blocks_is_not():
    names = {entry.name.partition("/")[0] for entry in lay_out(chain(38), root=False).nodes}
    assert names == {"x", *map(str, range(38))}


def test_outputs_of_one_name_stand_in_a_chunk_of_a_crowded_level():
    graph = chain(38)
    value = graph.outputs.pop().value
    graph.outputs += [Output(f"past{at}", value) for at in range(5)]
    names = [entry.name for entry in lay_out(graph, root=False).outputs]
    assert names == [f"past/past{at}" for at in range(5)]


def equal_boxes(open_scope, attributes=("first", "second")):
    """Give boxes of equal inside, one after the other."""
    build = GraphBuilder()
    x = build.input("x", (2,))
    for attribute in attributes:
        scope = getattr(build, open_scope)(f"Net/Block[{attribute}]")
        x = build.op("tanh", build.op("relu", x, scope=scope), scope=scope)
    build.output("out", x)
    return build.graph


def test_seeds_complete_the_legend_of_modules_and_of_nothing_else():
    seeds = {seed.name for seed in lay_out(equal_boxes("call")).seeds}
    assert seeds == {f"__function_library__Block_template/{op}" for op in ("relu", "tanh")} | {
        "__function_library__Block_template/Block"
    }
    assert lay_out(equal_boxes("hand")).seeds == []


def test_boxes_in_chunks_are_still_called_by_their_class():
    layout = lay_out(equal_boxes("call", range(1000)), root=False)
    assert layout.nodes[-1].name == "900-999/990-999/999/tanh"
    # The boxes of ten in those of a hundred are no class.
    assert {seed.name.partition("/")[0] for seed in layout.seeds} == {
        "__function_library__Block_template",
        "__function_library__Others_template",
    }


def test_equal_boxes_have_seeds_unless_nobody_asks_for_them():
    graph = chain(3)
    layout = lay_out(graph, root=True)
    assert {seed.name.partition("/")[0] for seed in layout.seeds} == {
        "__function_library__Linear_template"
    }
    assert lay_out(graph, templates=False).seeds == []


def ends_beside(operations):
    """Give the names of an input and of an output beside so many operations that it feeds."""
    build = GraphBuilder()
    x = build.input("pixel_values", (2,))
    for number in range(operations):
        build.output("last_hidden_state" if number == 0 else f"y{number}", build.op("relu", x))
    layout = lay_out(build.graph)
    return layout.nodes[0].name, layout.outputs[0].name


def test_ends_with_long_names_have_boxes_but_on_a_level_that_is_cut():
    assert ends_beside(3) == ("pixel_values/pixel_values", "last_hidden_state/last_hidden_state")
    assert ends_beside(120) == ("pixel_values", "outputs/last_hidden_state")
