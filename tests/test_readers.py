"""Who counts as a reader in a pass: nodes, and also outputs, those that wait, and calls."""

import pytest
from build import GraphBuilder
from real_graphs import operations

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Note, Output
from tbscope.passes.dead_code import mark_dead
from tbscope.passes.detail_level import set_level
from tbscope.passes.hide_views import hide_plumbing


def net():
    """Give a builder, the scope of its called root, and its input."""
    build = GraphBuilder("Net")
    return build, build.call("Net"), build.input("x", (2, 8))


def ops(graph):
    return [node.op for node in operations(graph)]


def hidden(build, **options):
    """Leave the plumbing out of a copy; give the copy."""
    copy = build.graph.copy()
    hide_plumbing(copy, **options)
    copy.verify()
    return copy


# -- what dead code alone has read --------------------------------------------------------------


@pytest.mark.parametrize(("kept", "names"), [(True, ["x", "w"]), (False, ["x"])])
def test_a_parameter_that_is_an_output_stays_when_dead_code_alone_has_read_it(kept, names):
    build, scope, x = net()
    weight = build.parameter("w", (2,), scope)
    build.op("neg", weight, scope=scope)
    build.output("out", build.op("relu", x, scope=scope))
    if kept:
        build.output("weight", weight)
    mark_dead(build.graph, "drop")
    build.graph.verify()
    assert [node.name for node in build.graph.nodes if node.kind != "op"] == names


@pytest.mark.parametrize("through", ["an output", "a node"])
def test_what_is_waited_for_is_not_dead(through):
    build = GraphBuilder("Net")
    y = build.op("zeros", 2, shape=(2,))
    fill = build.op("fill_", y, 1).producer
    build.op("exp", y)
    if through == "a node":
        build.output("out", build.op("neg", y, control_inputs=[fill]))
    else:
        build.graph.outputs.append(Output("out", y, (fill,)))
    mark_dead(build.graph, "drop")
    build.graph.verify()
    assert ops(build.graph)[:2] == ["zeros", "fill_"]
    assert "exp" not in ops(build.graph)


# -- hiding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
def test_an_operation_that_waits_for_a_write_cannot_be_hidden(waits):
    build, scope, x = net()
    y = build.op("clone", x, scope=scope)
    fill = build.op("fill_", y, 1, scope=scope).producer
    z = build.op("dropout", y, scope=scope, control_inputs=[fill] if waits else [])
    build.output("out", build.op("relu", z, scope=scope))
    if waits:
        with pytest.raises(ArgumentError, match="can be left out"):
            hidden(build, hide=["dropout"])
    else:
        assert ops(hidden(build, hide=["dropout"])) == ["clone", "fill_", "relu"]


@pytest.mark.parametrize("where", ["a node", "an output", "nowhere"])
def test_an_operation_that_is_waited_for_cannot_be_hidden(where):
    build, scope, x = net()
    y = build.op("dropout", x, scope=scope)
    waits = [y.producer]
    z = build.op("relu", y, scope=scope)
    z = build.op("exp", z, scope=scope, control_inputs=waits if where == "a node" else [])
    build.graph.outputs.append(Output("out", z, tuple(waits) if where == "an output" else ()))
    if where == "nowhere":
        assert ops(hidden(build, hide=["dropout"])) == ["relu", "exp"]
    else:
        with pytest.raises(ArgumentError, match="can be left out"):
            hidden(build, hide=["dropout"])


def test_the_last_operation_of_a_model_can_be_hidden():
    build, scope, x = net()
    y = build.op("relu", x, scope=scope)
    z = build.op("cast", y, scope=scope, shape=(16,))
    build.returns(scope, z)
    build.output("out", z)
    graph = hidden(build, hide=["cast"])
    (output,) = graph.outputs
    assert ops(graph) == ["relu"]
    assert (output.value.producer.op, output.given.shape, output.via) == ("relu", (16,), "cast()")
    result = graph.calls[0].results
    assert (result.producer, result.shape) == (output.value.producer, (16,))


def test_what_gives_one_value_to_a_reader_and_another_to_an_output_cannot_be_hidden():
    build, scope, x = net()
    first, second = build.node("dropout", x, scope=scope, outputs=((2, 8),) * 2).outputs
    build.output("out", build.op("relu", first, scope=scope))
    assert ops(hidden(build, hide=["dropout"])) == ["relu"]
    build.output("mask", second)
    with pytest.raises(ArgumentError, match="can be left out"):
        hidden(build, hide=["dropout"])


def test_a_parameter_that_is_an_output_stays_when_what_read_it_is_hidden():
    build, scope, x = net()
    own, given = build.parameter("own", (8,), scope), build.parameter("given", (8,), scope)
    y = build.op("dropout", x, own, given, scope=scope)
    build.output("out", build.op("relu", y, scope=scope))
    build.output("given", given)
    graph = hidden(build, hide=["dropout"])
    assert [node.name for node in graph.nodes if node.kind == "parameter"] == ["given"]


# -- plumbing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("read", "kind"), [("output", "constant"), (None, "op")])
def test_an_arange_that_is_itself_an_output_is_drawn_beside_it(read, kind):
    build, scope, x = net()
    made = build.op("arange", 8, scope=scope, shape=(8,), role="maker")
    build.output("out", build.op("relu", x, scope=scope))
    if read:
        build.output("places", made)
    graph = hidden(build)
    assert graph.nodes[1].kind == kind


@pytest.mark.parametrize(("same", "told"), [(True, {"then": "view(-1)"}), (False, {})])
def test_a_view_in_another_scope_is_no_part_of_what_it_views(same, told):
    build, scope, x = net()
    y = build.op("exp", x, scope=scope)
    inner = scope if same else build.hand("Net/flat")
    z = build.op("view", y, -1, scope=inner, shape=(16,), role="view")
    z = build.op("relu", z, scope=inner)
    build.output("out", z)
    exp = operations(hidden(build))[0]
    assert exp.attributes == told
    assert exp.outputs[0].shape == ((16,) if same else (2, 8))


@pytest.mark.parametrize("reader", ["an output", "a result", "an argument", None])
def test_an_output_and_a_call_read_what_a_view_would_take_over(reader):
    build, scope, x = net()
    y = build.op("exp", x, scope=scope)
    z = build.op("view", y, -1, scope=scope, shape=(16,), role="view")
    inner = build.call("Net/Inner[i]", [y] if reader == "an argument" else 3)
    build.returns(scope, {"y": y} if reader == "a result" else None)
    build.output("out", build.op("relu", z, scope=inner))
    if reader == "an output":
        build.output("before", y)
    exp = operations(hidden(build))[0]
    assert exp.outputs[0].shape == ((2, 8) if reader else (16,))
    assert ("then" in exp.attributes) == (reader is None)


# -- modules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", ["an output", "an argument", "a result", None])
def test_a_folded_module_gives_what_is_named_outside_of_it(outside):
    build, scope, x = net()
    inner = build.call("Net/Pair[p]", x)
    hid = build.op("exp", x, scope=inner)
    y = build.op("relu", hid, scope=inner)
    build.returns(inner, y)
    other = build.call("Net/Other[o]", hid if outside == "an argument" else x)
    z = build.op("tanh", build.op("abs", y, scope=other), scope=other)
    build.returns(scope, [hid] if outside == "a result" else None)
    build.output("out", z)
    if outside == "an output":
        build.output("hidden", hid)
    set_level(build.graph, "module")
    build.graph.verify()
    pair = operations(build.graph)[0]
    assert (pair.op, len(pair.outputs)) == ("Pair", 2 if outside else 1)
    assert (hid.producer is pair) == (outside is not None)


def test_a_folded_module_that_waits_for_itself_and_reads_its_own_waits_for_nothing():
    build, scope, x = net()
    y = build.op("clone", x, scope=scope)
    inner = build.call("Net/Fill[f]", y)
    fill = build.op("fill_", build.op("exp", y, scope=inner), 1, scope=inner).producer
    last = build.op("add", fill.outputs[0], y, scope=inner, control_inputs=[fill])
    build.returns(inner, last)
    build.graph.outputs.append(Output("out", build.op("neg", last, scope=scope), (fill,)))
    set_level(build.graph, "module")
    build.graph.verify()
    module = operations(build.graph)[1]
    assert (module.op, module.control_inputs, module.inputs) == ("Fill", [], [y])
    assert build.graph.outputs[0].control_inputs == (module,)


@pytest.mark.parametrize("bound", ["a note", "Python", None])
def test_what_a_note_is_about_or_python_read_cannot_be_hidden(bound):
    build, scope, x = net()
    y = build.op("dropout", x, scope=scope)
    build.output("out", build.op("relu", y, scope=scope))
    if bound == "a note":
        build.graph.notes.append(Note("it is random", node=y.producer))
    if bound == "Python":
        y.producer.attributes["read_by_python"] = "item"
    if bound is None:
        assert ops(hidden(build, hide=["dropout"])) == ["relu"]
    else:
        with pytest.raises(ArgumentError, match="can be left out"):
            hidden(build, hide=["dropout"])


def test_an_output_keeps_its_own_type_through_several_passes():
    build, scope, x = net()
    y = build.op("relu", x, scope=scope)
    y = build.op("cast", y, scope=scope, shape=(2, 8, 1))
    build.output("out", build.op("dropout", y, scope=scope, shape=(16,)))
    graph = hidden(build, hide=["dropout"])
    hide_plumbing(graph, hide=["cast"])
    assert graph.outputs[0].given.shape == (16,)


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_made_of_nothing_stays_where_nothing_else_of_its_scope_is_drawn(alone):
    build, scope, x = net()
    inner = build.hand("Net/places")
    made = build.op("arange", 8, scope=inner, shape=(8,), role="maker")
    y = build.op("add", x, made, scope=scope if alone else inner)
    build.output("out", y)
    assert hidden(build).nodes[1].kind == ("op" if alone else "constant")


@pytest.mark.parametrize("made_of_it", [True, False])
def test_a_module_that_gives_what_it_made_before_it_read_cannot_be_hidden(made_of_it):
    build, scope, x = net()
    inner = build.call("Net/Noise[n]", x)
    noise = build.op("rand", 8, scope=inner, shape=(2, 8))
    y = build.op("exp", x, scope=scope)
    late = build.op("abs", y, scope=inner)
    build.output("out", build.op("neg", late if made_of_it else noise, scope=scope))
    if made_of_it:
        assert ops(hidden(build, hide=["n"])) == ["exp", "neg"]
    else:
        with pytest.raises(ArgumentError, match="can be left out"):
            hidden(build, hide=["n"])


def test_what_is_hidden_by_several_patterns_is_told_by_the_outermost_module_that_matches():
    build, scope, x = net()
    build.call("Net/Body[body]", x)
    y = build.op("exp", x, scope=build.call("Net/Body[body]/Leaf[leaf]", x))
    build.output("out", build.op("relu", y, scope=scope))
    graph = hidden(build, hide=["Leaf", "Body"])
    assert [node.attributes["via"] for node in operations(graph)] == ["Body[body]"]
