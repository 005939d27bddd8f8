"""Plumbing: views, casts and copies left out, and told where they were."""

import pytest
import torch
from build import GraphBuilder
from real_graphs import KINDS, operations, origins, real_graph
from torch import nn

import tbscope
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Constant, Note
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.passes.hide_views import check_patterns, hide_plumbing
from tbscope.pipeline import to_graph_def
from tbscope.rules.linter import lint


def net():
    """Give a builder, the scope of its called root, and its input."""
    build = GraphBuilder("Net")
    return build, build.call("Net"), build.input("x", (2, 8))


def hidden(build, **options):
    """Leave the plumbing out of a copy; give the copy."""
    copy = build.graph.copy()
    hide_plumbing(copy, **options)
    copy.verify()
    return copy


def ops(graph):
    return [node.op for node in operations(graph)]


def node_of(graph, op):
    (node,) = (node for node in graph.nodes if node.op == op)
    return node


def test_views_before_an_operation_are_told_by_what_reads_them():
    build, net_scope, x = net()
    y = build.op("view", x, 2, -1, scope=net_scope, shape=(2, 8), role="view")
    y = build.op("transpose", y, 0, 1, scope=net_scope, role="view")
    build.output("out", build.op("relu", y, scope=net_scope))
    graph = hidden(build)
    assert ops(graph) == ["relu"]
    relu = node_of(graph, "relu")
    assert [value.name for value in relu.inputs] == ["x"]
    assert relu.attributes == {"via": "view(2, -1) > transpose(0, 1)"}
    assert relu.arguments[0].nest is relu.inputs[0]


def test_a_view_of_what_nothing_else_reads_is_part_of_what_gives_it():
    build, net_scope, x = net()
    y = build.op("matmul", x, x, scope=net_scope, shape=(2, 8))
    y = build.op("view", y, (4, 4), scope=net_scope, shape=(4, 4), role="view")
    build.output("out", build.op("relu", y, scope=net_scope))
    graph = hidden(build)
    matmul, relu = operations(graph)
    assert matmul.attributes == {"then": "view(4, 4)"}
    assert relu.inputs == matmul.outputs
    assert matmul.outputs[0].shape == (4, 4)
    assert relu.attributes == {}


def test_a_view_of_what_others_read_too_is_not():
    build, net_scope, x = net()
    y = build.op("exp", x, scope=net_scope)
    z = build.op("view", y, -1, scope=net_scope, shape=(16,), role="view")
    build.output("out", build.op("add", z, y, scope=net_scope))
    graph = hidden(build)
    exp, add = operations(graph)
    assert exp.outputs[0].shape == (2, 8)
    assert add.inputs == exp.outputs * 2
    assert add.attributes == {"via": "arg0: view(-1)"}


def test_a_view_of_a_parameter_is_no_part_of_it():
    build, net_scope, x = net()
    weight = build.parameter("weight", (8, 2), scope=net_scope)
    view = build.op("t", weight, scope=net_scope, shape=(2, 8), role="view")
    build.output("out", build.op("add", x, view, scope=net_scope))
    graph = hidden(build)
    (parameter,) = (node for node in graph.nodes if node.kind == "parameter")
    assert parameter.outputs[0].shape == (8, 2)
    assert node_of(graph, "add").attributes == {"via": "arg1: t()"}


def test_a_view_of_what_another_module_gave_stays_out_of_it():
    build, net_scope, x = net()
    y = build.linear("Net/Linear[fc]", x, 4)
    y = build.op("view", y, -1, scope=net_scope, shape=(8,), role="view")
    build.output("out", build.op("relu", y, scope=net_scope))
    graph = hidden(build)
    assert node_of(graph, "linear").outputs[0].shape == (2, 4)
    assert node_of(graph, "relu").attributes == {"via": "view(-1)"}


def test_arguments_that_were_changed_are_told_by_name_and_place():
    build, net_scope, x = net()
    build.graph.signatures["cat"] = ("tensors", "dim")
    y = build.op("to", x, Constant("torch.float16"), scope=net_scope, role="cast")
    z = build.op("getitem", x, (Constant(":"), 0), scope=net_scope, role="view")
    cat = build.op("cat", [x, y], 0, scope=net_scope)
    build.output("out", build.op("add", cat, scope=net_scope, options={"other": z}))
    graph = hidden(build)
    assert node_of(graph, "cat").attributes == {"via": "tensors.1: to(torch.float16)"}
    assert node_of(graph, "add").attributes == {"via": "other: [:, 0]"}
    assert [value.name for value in node_of(graph, "cat").inputs] == ["x", "x"]


def test_an_output_keeps_its_own_type():
    build, _, x = net()
    y = build.linear("Net/Linear[fc]", x, 4)
    y = build.op("view", y, -1, scope=build.scope("Net"), shape=(8,), role="view")
    build.output("out", y)
    graph = hidden(build)
    (output,) = graph.outputs
    assert output.value is node_of(graph, "linear").outputs[0]
    assert (output.given.shape, output.given.dtype, output.via) == ((8,), "float32", "view(-1)")
    assert graph.copy().outputs[0].given is output.given


def test_calls_were_given_what_stands_before_the_plumbing():
    build, net_scope, x = net()
    y = build.op("view", x, -1, scope=net_scope, shape=(16,), role="view")
    inner = build.call("Net/Block[b]", {"a": [y]}, y)
    z = build.op("relu", y, scope=inner)
    z = build.op("exp", z, scope=inner)
    build.returns(inner, (z, y))
    build.output("out", z)
    graph = hidden(build)
    for seen in (graph, graph.copy()):
        call = seen.find("b")
        first, second = (argument.nest for argument in call.arguments)
        result, handed_on = call.results
        assert result is node_of(seen, "exp").outputs[0]
        for value in (first["a"][0], second, handed_on):
            # Its type is the one that the call saw.
            assert (value.producer, value.index, value.shape) == (seen.inputs[0], 0, (16,))


def test_a_call_names_the_very_value_before_a_view_that_tells_the_same_type():
    build, net_scope, x = net()
    y = build.op("contiguous", x, scope=net_scope, role="copy")
    inner = build.call("Net/Block[b]", y)
    z = build.op("relu", y, scope=inner)
    build.returns(inner, z)
    build.output("out", build.op("exp", z, scope=inner))
    graph = hidden(build)
    assert graph.find("b").arguments[0].nest is graph.inputs[0].outputs[0]


@pytest.mark.parametrize("beside", [False, True])
def test_the_card_of_a_call_tells_the_shape_that_came_out_whether_a_view_is_folded_or_skipped(
    beside,
):
    build, _, x = net()
    scope = build.call("Net/Block[block]", x)
    y = build.op("exp", build.op("relu", x, scope=scope), scope=scope)
    flat = build.op("view", y, -1, scope=scope, shape=(16,), role="view")
    # What is read by another one, too, cannot give the view instead.
    other = build.op("neg", y, scope=scope) if beside else flat
    build.returns(scope, flat)
    build.output("out", flat)
    build.output("other", other)
    (card,) = (node for node in to_graph_def(build.graph).node if node.name.endswith("block/Block"))
    assert card.attr["results"].s.decode() == "Float(16)"


@pytest.mark.parametrize(
    ("fields", "stays"),
    [
        ({"role": "view"}, False),
        ({"role": "cast"}, False),
        ({"role": "copy"}, False),
        ({"role": None}, True),
        ({"role": "maker"}, True),
        ({"role": None, "kernels": ["aten::view"]}, True),
        ({"role": "view", "attributes": {"read_by_python": "item"}}, True),
        ({"role": "view", "attributes": {"error": "boom"}}, True),
    ],
)
def test_only_what_describes_a_tensor_anew_is_plumbing(fields, stays):
    build, net_scope, x = net()
    y = build.op("step", x, scope=net_scope, **fields)
    build.output("out", build.op("relu", y, scope=net_scope))
    assert ops(hidden(build)) == ["step", "relu"][not stays :]


@pytest.mark.parametrize(
    ("reads", "stays"), [("x", False), ("xx", False), ("xz", True), ("", True)]
)
def test_a_cast_is_plumbing_where_it_reads_one_thing_be_it_twice(reads, stays):
    build, net_scope, x = net()
    given = {"x": x, "z": build.input("z", (2, 8))}
    y = build.op(
        "cast", *(given[name] for name in reads), scope=net_scope, shape=(2, 8), role="cast"
    )
    build.output("out", build.op("add", x, y, scope=net_scope))
    assert ops(hidden(build)) == ["cast", "add"][not stays :]


def test_what_has_several_outputs_waits_or_is_noted_stays():
    build, net_scope, x = net()
    fill = build.node("fill_", x, 1, scope=net_scope, outputs=((2, 8),), writes=(0,))
    split = build.node("split", x, 1, scope=net_scope, outputs=((1, 8),) * 2, role="view")
    late = build.op("late", x, scope=net_scope, role="view", control_inputs=[fill])
    noted = build.op("noted", x, scope=net_scope, role="view")
    build.graph.notes.append(Note("look", node=noted.producer))
    build.output("out", build.op("cat", [*split.outputs, late, noted], scope=net_scope))
    assert ops(hidden(build)) == ["fill_", "split", "late", "noted", "cat"]


def test_a_constant_that_a_call_was_given_stays_though_nothing_reads_it():
    build = with_view_of("constant", read=False)
    memory = next(node for node in build.graph.nodes if node.kind == "constant").outputs[0]
    build.call("Net/Table[table]", memory)
    assert "constant" in [node.kind for node in hidden(build).nodes]


@pytest.mark.parametrize(("read", "left"), [(True, ["late"]), (False, [])])
def test_a_view_that_waits_stays_where_something_reads_it(read, left):
    build, net_scope, x = net()
    memory = build.op("constant", scope=net_scope, shape=(2, 8), kind="constant")
    fill = build.node("fill_", memory, x, scope=net_scope, outputs=((2, 8),), writes=(0,))
    late = build.op("late", memory, scope=net_scope, role="view", control_inputs=[fill])
    build.op("later", late, scope=net_scope, role="view", control_inputs=[fill])
    build.output("out", build.op("add", *fill.outputs, late if read else x, scope=net_scope))
    graph = hidden(build)
    assert ops(graph) == ["fill_", *left, "add"]
    graph.verify()


def test_a_copy_that_is_written_into_stays():
    build, net_scope, x = net()
    y = build.op("clone", x, scope=net_scope, role="copy")
    z = build.op("clone", x, scope=net_scope, role="copy")
    y = build.op("add_", y, z, scope=net_scope, writes=(0,))
    build.output("out", y)
    graph = hidden(build)
    assert ops(graph) == ["clone", "add_"]
    assert node_of(graph, "add_").attributes == {"via": "arg1: clone()"}


def test_a_view_that_is_written_into_is_left_out_all_the_same():
    build, net_scope, x = net()
    y = build.op("view", x, -1, scope=net_scope, role="view")
    build.op("add_", y, 1, scope=net_scope, writes=(0,))
    build.output("out", build.op("add", x, build.op("clone", x, role="copy"), scope=net_scope))
    assert ops(hidden(build)) == ["add_", "add"]


def test_every_scope_that_had_a_node_keeps_one():
    build, _, x = net()
    scope = build.call("Net/Heads[h]", x)
    y = build.op("view", x, 2, 4, 2, scope=scope, shape=(2, 4, 2), role="view")
    y = build.op("permute", y, 1, 0, 2, scope=scope, role="view")
    build.returns(scope, y)
    y = build.op("view", y, -1, scope=build.hand("Net/flat"), shape=(16,), role="view")
    build.output("out", build.op("relu", y, scope=build.scope("Net")))
    graph = hidden(build)
    assert ops(graph) == ["permute", "view", "relu"]
    assert node_of(graph, "permute").attributes == {"via": "view(2, 4, 2)"}
    collapse_leaves(graph)
    assert ops(graph) == ["Heads", "view", "relu"]


def test_a_linear_layer_between_two_views_becomes_a_leaf_with_its_true_shapes():
    build, _, x = net()
    scope = build.call("Net/Conv1D[c]", x)
    weight = build.parameter("c.weight", (8, 3), scope)
    y = build.op("view", x, -1, 8, scope=scope, role="view")
    y = build.op("mm", y, weight, scope=scope, shape=(2, 3))
    y = build.op("view", y, (1, 2, 3), scope=scope, shape=(1, 2, 3), role="view")
    build.returns(scope, y)
    build.output("out", y)
    graph = hidden(build)
    collapse_leaves(graph)
    (node,) = operations(graph)
    assert (node.kind, node.op, node.outputs[0].shape) == ("module", "Conv1D", (1, 2, 3))
    assert (node.attributes["via"], node.attributes["then"]) == (
        "arg0: view(-1, 8)",
        "view(1, 2, 3)",
    )


def test_what_is_made_of_nothing_becomes_a_constant():
    build, net_scope, x = net()
    made = build.op("arange", 8, scope=net_scope, shape=(8,), role="maker")
    made = build.op("unsqueeze", made, 0, scope=net_scope, role="view")
    noise = build.op("rand", 8, scope=net_scope, shape=(8,), random=True)
    build.op("zeros", 8, scope=net_scope, shape=(8,), role="maker")
    build.output("out", build.op("add", x, made, noise, scope=net_scope))
    graph = hidden(build)
    assert ops(graph) == ["rand", "zeros", "add"]
    arange = node_of(graph, "arange")
    assert arange.kind == "constant"
    assert arange.attributes == {"operation": "arange", "then": "unsqueeze(0)"}


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_made_of_nothing_stays_an_operation_where_it_is_alone_in_its_scope(alone):
    build, net_scope, x = net()
    mask = build.hand("Net/mask")
    made = build.op("arange", 8, scope=mask, shape=(8,), role="maker")
    if not alone:
        made = build.op("exp", made, scope=mask)
    build.output("out", build.op("add", x, made, scope=net_scope))
    assert ops(hidden(build)) == (["arange", "add"] if alone else ["exp", "add"])


@pytest.mark.parametrize(("first", "told"), [((), "via"), (("exp",), "then")])
def test_a_long_chain_of_views_is_told_by_its_ends_and_its_length(first, told):
    build, net_scope, y = net()
    for op in first:
        y = build.op(op, y, scope=net_scope)
    for index in range(10_000):
        y = build.op("view", y, index, scope=net_scope, role="view")
    build.output("out", build.op("relu", y, scope=net_scope))
    teller = operations(hidden(build))[0]
    assert teller.attributes == {
        told: "view(0) > view(1) > view(2) > view(3) > (9995 more) > view(9999)"
    }


# -- patterns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ((), ["dropout", "relu"]),
        (("view",), ["view", "dropout", "view", "relu"]),
        (("trans*",), ["transpose", "dropout", "relu"]),
        (("block",), ["transpose", "dropout", "relu"]),
        (("Block",), ["transpose", "dropout", "relu"]),
        (("*",), ["view", "transpose", "dropout", "view", "relu"]),
    ],
)
def test_what_matches_keep_stays(keep, left):
    assert ops(hidden(block(), keep=keep)) == left


def block():
    """Give a net with views inside and outside of a block that drops out."""
    build, net_scope, x = net()
    y = build.op("view", x, -1, scope=net_scope, shape=(16,), role="view")
    inner = build.call("Net/Block[block]", y)
    y = build.op("transpose", y, 0, scope=inner, role="view")
    mask = build.parameter("block.mask", (16,), inner, kind="buffer")
    y = build.op("dropout", y, mask, 0.1, scope=inner)
    build.returns(inner, y)
    y = build.op("view", y, 2, 8, scope=net_scope, shape=(2, 8), role="view")
    build.output("out", build.op("relu", y, scope=net_scope))
    return build


@pytest.mark.parametrize(
    ("hide", "left", "via"),
    [
        ("dropout", ["transpose", "relu"], "dropout(0.1) > view(2, 8)"),
        ("block", ["relu"], "view(-1) > Block[block] > view(2, 8)"),
        ("Bl*", ["relu"], "view(-1) > Block[block] > view(2, 8)"),
    ],
)
def test_what_matches_hide_is_left_out_with_its_parameters(hide, left, via):
    graph = hidden(block(), hide=[hide])
    assert ops(graph) == left
    assert node_of(graph, "relu").attributes == {"via": via}
    assert [node.kind for node in graph.nodes] == ["input", *["op" for _ in left]]
    assert graph.find("block").results.producer is graph.nodes[-2]


@pytest.mark.parametrize("reads", [True, False])
def test_a_parameter_of_what_is_left_out_stays_where_something_else_reads_it(reads):
    build, net_scope, x = net()
    mask = build.parameter("mask", (2, 8), net_scope, kind="buffer")
    y = build.op("dropout", x, mask, scope=net_scope)
    build.output("out", build.op("mul", y, mask if reads else 2, scope=net_scope))
    kinds = [node.kind for node in hidden(build, hide=["dropout"]).nodes]
    assert kinds == ["input", *(["buffer"] if reads else []), "op"]


def test_what_joins_two_tensors_cannot_be_hidden():
    build, net_scope, x = net()
    y = build.op("add", x, build.op("exp", x, scope=net_scope), scope=net_scope)
    build.output("out", y)
    assert ops(hidden(build, hide=["[ae]*"])) == ["add"]
    with pytest.raises(ArgumentError) as caught:
        hidden(build, hide=["add"])
    assert str(caught.value) == (
        "hide='add' matches nothing in the graph of Net that can be left out\n"
        "  why: an edge can replace only a node that reads one tensor beside its parameters, "
        "returns one, and writes into none; add (%2) is another node\n"
        "  fix: leave this pattern out, or name a part of it"
    )


@pytest.mark.parametrize("why", ["noted", "waits", "is waited for", "gave Python a number"])
def test_what_is_more_than_an_edge_cannot_be_hidden(why):
    build, net_scope, x = net()
    fill = build.node("fill_", x, scope=net_scope, outputs=((2, 8),))
    y = build.op("relu", x, scope=net_scope)
    late = build.op("exp", y, scope=net_scope)
    build.output("out", late)
    relu = y.producer
    if why == "noted":
        build.graph.notes.append(Note("look", node=relu))
    elif why == "waits":
        relu.control_inputs.append(fill)
    elif why == "is waited for":
        late.producer.control_inputs.append(relu)
    else:
        relu.attributes["read_by_python"] = "item"
    with pytest.raises(ArgumentError, match="that can be left out"):
        hidden(build, hide=["relu"])


def test_a_module_that_reads_only_what_was_computed_from_its_result_cannot_be_hidden():
    build, net_scope, _ = net()
    block = build.call("Net/Block[block]")
    y = build.op("rand", scope=block, shape=(2, 8))
    z = build.op("exp", y, scope=net_scope)
    build.node("print", z, scope=block)
    build.output("out", z)
    with pytest.raises(ArgumentError, match="that can be left out"):
        hidden(build, hide=["block"])


class Layer(nn.Module):
    """Reads two tensors and gives two, so that no edge can replace it."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc, self.drop = nn.LayerNorm(4), nn.Linear(4, 4), nn.Dropout(0.1)

    def forward(self, x, y):
        return self.drop(self.fc(self.norm(x))) + y, y.relu()


class Layers(nn.Module):
    """Calls layers in a list that is never called, and works in a scope by hand."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.tail = nn.ModuleList([nn.Tanh(), nn.Sigmoid()])

    def forward(self, x):
        y = x.exp()
        for layer in self.layers:
            x, y = layer(x, y)
        with tbscope.scope("Last"):
            x = x * 2
        for layer in self.tail:
            x = layer(x)
        return x, y


TAIL = ["mul", "tanh", "sigmoid"]
LAYER = ["layer_norm", "linear", "dropout", "add", "relu"]
SOURCES = {
    "trace": lambda: tbscope.trace(Layers(), torch.ones(2, 4)),
    "export": lambda: tbscope.from_export(torch.export.export(Layers(), (torch.ones(2, 4),))),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("hide", "left"),
    [
        (["Layer*"], ["exp", *["linear", "dropout", "add", "relu"] * 2, "mul", "tanh", "sigmoid"]),
        (["layers.*"], ["exp", *["add", "relu"] * 2, "mul", "tanh", "sigmoid"]),
        (
            ["*.drop"],
            ["exp", *["layer_norm", "linear", "add", "relu"] * 2, "mul", "tanh", "sigmoid"],
        ),
        (["Layer", "relu"], None),
        (["layers.0"], None),
        (["layers"], None),
        (["tail"], ["exp", *LAYER * 2, "mul"]),
        (["*"], ["add", "add"]),
        (["L*"], ["exp", *["dropout", "add", "relu"] * 2, *TAIL]),
    ],
)
def test_what_matches_in_a_module_that_cannot_go_goes_by_itself(source, hide, left):
    graph = SOURCES[source]()
    if left is None:
        with pytest.raises(ArgumentError, match="can be left out"):
            hide_plumbing(graph, hide=hide)
        return
    before = [output.name for output in graph.outputs]
    hide_plumbing(graph, hide=hide)
    graph.verify()
    # In evaluation mode a dropout runs no operation: it is drawn as its module.
    assert [node.op.lower() for node in operations(graph)] == left
    assert [output.name for output in graph.outputs] == before


def test_what_reads_what_is_hidden_in_a_module_that_stays_reads_what_that_has_read():
    graph = tbscope.trace(Layers(), torch.ones(2, 4))
    hide_plumbing(graph, hide=["l*"])
    first, second = (node for node in operations(graph) if node.op == "add")
    x, exp = graph.inputs[0], operations(graph)[0]
    assert [value.producer for value in first.inputs] == [x, exp]
    assert [value.producer.op for value in second.inputs] == ["add", "relu"]
    assert first.attributes["via"] == "input: LayerNorm[norm] > Linear[fc] > Dropout[drop]"


@pytest.mark.parametrize("keep", [["parts"], ["ModuleList"], []])
def test_the_pattern_of_a_list_that_is_never_called_keeps_what_is_in_its_members(keep):
    class Turned(nn.Linear):
        def forward(self, x):
            return super().forward(x.t())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Turned(4, 4), Turned(4, 4)])

        def forward(self, x):
            return self.parts[1](self.parts[0](x.t()))

    graph = tbscope.trace(Net(), torch.ones(4, 4))
    hide_plumbing(graph, keep=keep)
    assert ops(graph) == (["t", "linear"] if keep else ["linear"]) * 2


@pytest.mark.parametrize("option", ["keep", "hide"])
def test_a_pattern_that_matches_nothing_is_told_with_what_is_near(option):
    with pytest.raises(ArgumentError) as caught:
        hidden(block(), **{option: ["dropuot"]})
    assert str(caught.value) == (
        f"{option}='dropuot' matches nothing in the graph of Net\n"
        "  why: no operation, no class of a module and no qualified name is like it\n"
        "  fix: did you mean 'dropout'?"
    )


@pytest.mark.parametrize("given", ["view", [1]])
def test_patterns_are_a_list_of_texts(given):
    with pytest.raises(ArgumentError) as caught:
        check_patterns("keep", given)
    assert str(caught.value) == (
        f"keep={given!r} is no list of patterns\n"
        "  why: each pattern is a text, and there may be several\n"
        "  fix: keep=['view', 'encoder.layer.0.*'], or keep=() for none"
    )


# -- real models ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_plumbing_is_under_a_twentieth_of_what_is_drawn(name):
    graph = real_graph(name).copy()
    hide_plumbing(graph)
    collapse_leaves(graph)
    graph.verify()
    drawn = operations(graph)
    plumbing = [
        node for node in drawn if node.kind == "op" and node.role in ("view", "cast", "copy")
    ]
    assert len(plumbing) < 0.05 * len(drawn)


@pytest.mark.parametrize("name", KINDS)
def test_outputs_depend_on_what_they_depended_on_and_keep_their_types(name):
    before = real_graph(name)
    graph = before.copy()
    hide_plumbing(graph)
    graph.verify()
    assert origins(graph) == origins(before)
    typed = [output.given or output.value for output in graph.outputs]
    assert [(value.shape, value.dtype) for value in typed] == [
        (output.value.shape, output.value.dtype) for output in before.outputs
    ]


@pytest.mark.parametrize("name", KINDS)
def test_every_scope_of_a_model_stays_visible(name):
    graph = real_graph(name).copy()
    before = {node.scope for node in operations(graph)}
    hide_plumbing(graph)
    shown = set()
    for node in operations(graph):
        if node.scope is not None:
            shown.update((node.scope, *node.scope.ancestors()))
    assert before - {None} <= shown


def test_views_that_python_decided_on_stay():
    graph = real_graph("EncodecModel").copy()
    noted = {note.node for note in graph.notes if note.node is not None}
    assert noted
    hide_plumbing(graph)
    assert noted <= set(graph.nodes)


# -- circles ----------------------------------------------------------------------------------


def with_view_of(kind, *, read):
    """Give a graph with a view, read or not: of a parameter, a constant or a maker's result."""
    build, net_scope, x = net()
    if kind == "parameter":
        held = build.parameter("weight", (8,), net_scope)
    elif kind == "constant":
        held = build.op("constant", scope=net_scope, shape=(8,), kind="constant")
    else:
        held = build.op("arange", 8, scope=net_scope, shape=(8,), role="maker")
    view = build.op("unsqueeze", held, 0, scope=net_scope, role="view")
    view = build.op("t", view, scope=net_scope, role="view")
    build.output("out", build.op("add", x, view if read else 1, scope=net_scope))
    return build


@pytest.mark.parametrize(
    ("kind", "read", "left"),
    [
        ("parameter", True, ["add"]),
        ("parameter", False, ["unsqueeze", "add"]),
        ("constant", True, ["add"]),
        ("constant", False, ["add"]),
        ("maker", True, ["add"]),
        ("maker", False, ["arange", "add"]),
    ],
)
def test_a_circle_that_only_unread_views_read_stays_beside_an_operation(kind, read, left):
    build = with_view_of(kind, read=read)
    graph = hidden(build)
    assert ops(graph) == left
    assert ("constant" in [node.kind for node in graph.nodes]) == (kind != "parameter" and read)
    assert lint(to_graph_def(build.graph)) == []
