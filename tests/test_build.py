"""The GraphDef: op types, references, shapes, devices and attributes of its nodes."""

import re

import pytest
from build import GraphBuilder, chain
from card_facts import facts
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.graph_pb2 import GraphDef

import tbscope
from tbscope.drawing.graph_def import graph_def_bytes
from tbscope.drawing.layout import lay_out
from tbscope.ir.graph import Constant, Output, Parameter, Source
from tbscope.passes.collapse_leaves import collapse_leaves


def converted(graph, **options):
    """Give the GraphDef of a graph, with no more in it than its nodes and outputs."""
    options = {"root": True, "templates": False, "cards": False, **options}
    layout = lay_out(graph, **options)
    return GraphDef.FromString(graph_def_bytes(graph, layout))


def defs(build, **options):
    """Give the NodeDefs of a graph by name."""
    return {node.name: node for node in converted(build.graph, **options).node}


def texts(node):
    """Give the text attributes of a NodeDef."""
    return {key: value.s.decode() for key, value in facts(node).items() if value.HasField("s")}


def shapes(node):
    return [[dim.size for dim in shape.dim] for shape in node.attr["_output_shapes"].list.shape]


def linear_net():
    build = GraphBuilder("Net")
    build.call("Net")
    build.output("out", build.linear("Net/Linear[fc]", build.input("x", (1, 2)), 3))
    return build


def test_a_leaf_module_is_one_node_with_its_parameters_beside_it():
    build = linear_net()
    collapse_leaves(build.graph)
    nodes = defs(build, root=False)
    assert {name: (node.op, list(node.input)) for name, node in nodes.items()} == {
        "x": ("Input", []),
        "fc/weight": ("ParameterConst", []),
        "fc/bias": ("ParameterConst", []),
        "fc": ("Linear", ["x", "fc/weight", "fc/bias"]),
        "out": ("Output", ["fc"]),
    }
    assert nodes["fc"].attr["out_features"].i == 3


def test_without_circles_parameters_are_nodes_like_others():
    build = linear_net()
    build.parameter("fc.mean", (3,), build.scope("Net/Linear[fc]"), kind="buffer")
    ops = {name: node.op for name, node in defs(build, circles=False).items()}
    assert ops["Net/fc/weight"] == "Parameter"
    assert ops["Net/fc/mean"] == "Buffer"
    assert ops["Net/fc/linear"] == "linear"


def test_a_buffer_is_a_circle_beside_its_reader_and_a_node_where_nothing_reads_it():
    build = GraphBuilder("Net")
    build.call("Net")
    x, scope = build.input("x", (3,)), build.scope("Net")
    mean = build.parameter("mean", (3,), scope, kind="buffer")
    build.parameter("steps", (), scope, kind="buffer")
    centred = build.op("sub", x, mean, scope=scope)
    build.output("out", build.op("exp", centred, scope=scope))
    ops = {name.rpartition("/")[2]: node.op for name, node in defs(build).items()}
    assert ops["mean"] == "BufferConst"
    assert ops["steps"] == "Buffer"


def test_every_node_in_a_scope_tells_it():
    build = linear_net()
    build.op("relu", build.graph.outputs[0].value, scope=build.call("Net/ReLU[act].1"))
    nodes = defs(build)
    assert "scope" not in facts(nodes["x"]) | facts(nodes["out"])
    assert texts(nodes["Net/fc/weight"])["scope"] == "Net/Linear[fc]"
    assert texts(nodes["Net/act.2nd/relu"])["scope"] == "Net/ReLU[act].1"


@pytest.mark.parametrize(("name", "told"), [("3", None), ("body.scale", "body.scale")])
def test_a_constant_tells_its_name_unless_that_is_a_number(name, told):
    build = GraphBuilder("Net")
    scope = build.call("Net")
    two = build.op("constant", name=name, kind="constant", scope=scope, shape=())
    y = build.op("mul", build.input("x", (2,)), two, scope=scope)
    build.output("out", build.op("exp", y, scope=scope))
    (node,) = (node for node in defs(build).values() if node.op == "Const")
    assert texts(node).get("name") == told


def test_an_output_before_which_a_view_is_left_out_has_the_shape_that_it_had():
    build = GraphBuilder("Net")
    y = build.op("relu", build.input("x", (2, 8)))
    build.output("flat", build.op("view", y, -1, shape=(16,), role="view"))
    build.output("other", build.op("exp", y))
    nodes = {node.name: node for node in tbscope.to_graph_def(build.graph).node}
    assert list(nodes["flat"].input) == ["relu"]
    assert shapes(nodes["flat"]) == [[16]]


def test_a_parameter_has_as_many_bytes_as_its_module_tells():
    build = GraphBuilder("Net")
    packed = Parameter("weight", "parameter", (2,), "float32", 5, requires_grad=True)
    scope = build.call("Net", parameters=(packed,))
    weight, bias = (build.parameter(name, (2,), scope) for name in ("weight", "bias"))
    build.output("out", build.op("mul", build.input("x", (2,)), weight, bias, scope=scope))
    nodes = defs(build)
    assert [facts(nodes[f"Net/{name}"])["bytes"].i for name in ("weight", "bias")] == [5, 8]


def test_every_output_has_a_shape_and_a_dtype():
    build = GraphBuilder()
    build.node("split", name="1", outputs=((2, None), (), None), dtype="int64")
    node = defs(build)["split"]
    assert shapes(node) == [[2, -1], [], []]
    assert [shape.unknown_rank for shape in node.attr["_output_shapes"].list.shape] == [
        False,
        False,
        True,
    ]
    assert list(node.attr["dtype"].list.s) == [b"int64"] * 3


@pytest.mark.parametrize(
    ("count", "told"), [(113, None), (114, "float32 x114"), (3000, "float32 x3000")]
)
def test_of_very_many_outputs_each_dtype_is_told_with_their_number(count, told):
    build = GraphBuilder()
    build.node("split", name="1", outputs=((2,),) * count)
    graph_def = tbscope.to_graph_def(build.graph)
    held = {node.name: node for node in graph_def.node}["split"].attr["dtype"]
    assert (held.s.decode() or None) == told
    assert list(held.list.s) == ([] if told else [b"float32"] * count)
    assert "large-attribute" not in {one.rule for one in tbscope.lint(graph_def)}
    (split,) = [node for node in tbscope.from_graph_def(graph_def).nodes if node.op == "split"]
    assert {value.dtype for value in split.outputs} == {"float32"}


def test_of_very_many_outputs_of_several_types_each_is_read_with_its_own():
    build = GraphBuilder()
    split = build.node("split", name="1", outputs=((2,),) * 300)
    for value in split.outputs[100:103]:
        value.dtype = "int64"
    graph_def = tbscope.to_graph_def(build.graph)
    (read,) = [node for node in tbscope.from_graph_def(graph_def).nodes if node.op == "split"]
    assert [value.dtype for value in read.outputs] == [value.dtype for value in split.outputs]


def test_a_node_that_gives_nothing_has_no_list_of_shapes():
    build = GraphBuilder()
    build.node("print", build.input("x", (1,), device="cuda:1"))
    node = defs(build)["print"]
    assert "_output_shapes" not in node.attr
    assert "dtype" not in node.attr


def test_a_node_stands_on_the_device_of_its_first_output():
    build = GraphBuilder()
    x = build.input("x", (1,), device="cuda:1")
    build.output("out", build.op("cpu", x, device="cpu"))
    build.node("print", x)
    devices = {name: node.device for name, node in defs(build).items()}
    assert devices == {
        "x": "/device:GPU:1",
        "cpu": "/device:CPU:0",
        "print": "/device:GPU:1",
        "out": "/device:CPU:0",
    }


def test_inputs_from_one_node_are_kept_apart():
    build = GraphBuilder()
    x = build.input("x", (4,))
    split = build.node("split", x, outputs=((2,), (2,)))
    first, second = split.outputs
    build.op("cat", [first, second, x, first])
    build.op("add", x, x)
    nodes = defs(build)
    assert list(nodes["cat"].input) == ["split", "", "split:1", "x", "split"]
    assert list(nodes["add"].input) == ["x", "", "x"]


def test_control_inputs_come_last_and_never_beside_data_of_the_same_node():
    build = GraphBuilder()
    x = build.input("x", (4,))
    fill = build.node("fill_", x, outputs=((4,),))
    relu = build.node("relu_", x, outputs=((4,),))
    build.op("add", x, fill.outputs[0], control_inputs=[fill, relu])
    assert list(defs(build)["add"].input) == ["x", "fill_", "", "^fill_", "^relu_"]


def test_an_output_waits_for_those_that_wrote_into_it():
    build = GraphBuilder()
    x = build.input("x", (4,))
    fill = build.node("fill_", x, outputs=((4,),))
    build.graph.outputs.append(Output("y", x, (fill,)))
    assert list(defs(build)["y"].input) == ["x", "^fill_"]


def test_constant_arguments_are_told_by_name_or_by_place():
    build = GraphBuilder()
    x = build.input("x", (4,))
    build.op("sum", x, -1, options={"keepdim": True, "dtype": Constant("torch.float64")})
    build.op("cat", [x, x], 0)
    build.op("getitem", x, (Constant(":"), x), shape=())
    nodes = defs(build)
    assert nodes["sum"].attr["arg1"].i == -1
    assert nodes["sum"].attr["keepdim"].b
    assert texts(nodes["sum"])["dtype_"] == "torch.float64"
    assert "arg0" not in nodes["cat"].attr
    assert nodes["cat"].attr["arg1"].i == 0
    assert texts(nodes["getitem"])["arg1"] == "(:, %x)"


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((2, 4), {"size": "list { i: 2 i: 4 }"}),
        ((2,), {"size": "i: 2"}),
        ((2, 0.5), {"size": "i: 2", "arg2": "f: 0.5"}),
    ],
)
def test_sizes_given_one_by_one_are_told_under_one_name(sizes, told):
    build = GraphBuilder()
    build.graph.signatures["expand"] = ("input", "size")
    build.op("expand", build.input("x", (4,)), *sizes)
    attributes = defs(build)["expand"].attr
    found = {name: " ".join(str(value).split()) for name, value in attributes.items()}
    assert {name: found[name] for name in ("size", "arg2") if name in found} == told


def test_a_nest_is_told_where_it_holds_a_constant_or_nothing():
    build = GraphBuilder()
    x = build.input("x", (4,))
    plain = {"sizes": {"a": 1}, "none": {}, "more": {"x": x, "a": 1}, "at": [x, [1]]}
    edges = {"x": x, "named": {"x": x}, "listed": [x, [x]]}
    build.op("f", x, options={**plain, **edges})
    found = texts(defs(build)["f"])
    assert {name: found[name] for name in plain} == {
        "sizes": "{'a': 1}",
        "none": "{}",
        "more": "{'x': %x, 'a': 1}",
        "at": "[%x, [1]]",
    }
    assert not edges.keys() & found.keys()


def test_a_hyper_parameter_goes_before_an_argument_of_the_same_name():
    build = GraphBuilder()
    x = build.input("x", (4,))
    build.op("dropout", x, options={"p": 0.0}, attributes={"p": 0.5})
    assert defs(build)["dropout"].attr["p"].f == 0.5


def test_a_node_tells_its_source_and_its_kernels():
    build = GraphBuilder()
    source = Source("models/net.py", 12, "forward")
    build.node("linear", source=source, kernels=["aten::t", "aten::addmm", "aten::t"])
    found = texts(defs(build)["linear"])
    assert found["source"] == "models/net.py:12 in forward"
    assert found["kernels"] == "aten::t x2, aten::addmm"


def test_a_parameter_tells_what_it_is():
    build = linear_net()
    node = defs(build)["Net/fc/weight"]
    assert texts(node)["name"] == "fc.weight"
    assert list(node.attr["shape"].list.i) == [3, 2]
    assert facts(node)["bytes"].i == 24
    assert node.attr["requires_grad"].b


def test_a_parameter_that_no_call_tells_of_is_measured():
    build = GraphBuilder()
    table = build.scope("Net/ParameterList[table]")
    build.parameter("table.0", (3, 4), table, dtype="bfloat16")
    build.parameter("table.1", (3, None), table)
    nodes = defs(build)
    assert facts(nodes["Net/table/0"])["bytes"].i == 24
    assert "bytes" not in nodes["Net/table/1"].attr


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (4, 3)},
        {"dtype": "bfloat16"},
        {"attributes": {"seen": True}},
        {"attributes": {"seen": 1.0}},
        {"attributes": {"seen": "w" * 2000}},
        {"attributes": {"seen": 1, "module": "m"}},
        {"kind": "buffer", "shape": (3, None)},
        {"prefix": "w" * 2000},
    ],
)
def test_a_parameter_among_others_tells_what_it_tells_alone(other):
    plain = {"shape": (3, 4), "attributes": {"seen": 1}}
    other = {**plain, **other}
    prefix = other.pop("prefix", "")
    given = [{"name": "a", **plain}, {"name": f"{prefix}b", **other}]
    given += [{"name": "c", **plain}, {"name": f"{prefix}d", **other}]
    together, alone = GraphBuilder(), [GraphBuilder() for _ in given]
    for build, fields in zip(alone, given, strict=True):
        for each in (build, together):
            each.parameter(**fields)
    nodes = [[*defs(build).values()] for build in (together, *alone)]
    assert [node.attr for node in nodes[0]] == [node.attr for (node,) in nodes[1:]]


@pytest.mark.parametrize("learnt", [True, False])
def test_whether_a_parameter_is_learnt_is_told_of_each(learnt):
    build = GraphBuilder("Net")
    build.call("Net")
    for at, each in enumerate((True, learnt, True)):
        build.linear(f"Net/Linear[{at}]", build.input(f"x{at}", (1, 2)), 3)
        owned = build.graph.calls[-1]
        owned.parameters = tuple(one._replace(requires_grad=each) for one in owned.parameters)
    nodes = defs(build)
    told = [nodes[f"Net/{at}/weight"].attr["requires_grad"].b for at in range(3)]
    assert told == [True, learnt, True]


def test_what_had_to_be_renamed_keeps_its_own_name_as_an_attribute():
    build = GraphBuilder()
    x = build.input("ids[0]", (4,))
    build.output("a/b", build.op("my::ConstantPad", x))
    nodes = defs(build)
    assert texts(nodes["ids_0_"])["name"] == "ids[0]"
    assert nodes["my__ConstantPad"].op == "my::constantPad"
    assert texts(nodes["my__ConstantPad"])["op"] == "my::ConstantPad"
    assert texts(nodes["a_b"])["name"] == "a/b"


def test_what_kept_its_name_has_no_such_attribute():
    build = linear_net()
    collapse_leaves(build.graph)
    nodes = defs(build)
    for name in ("x", "Net/fc", "out"):
        assert not {"name", "op"} & set(nodes[name].attr)


def test_an_attribute_that_is_too_large_is_left_out_and_named():
    build = GraphBuilder()
    large = {"table": list(range(2000)), "dtype": "a" * 2000, "größe": "a" * 2000}
    build.node("op", attributes={**large, "n": 1})
    node = defs(build)["op"]
    assert list(node.attr["_too_large_attrs"].list.s) == [b"table", b"dtype_", b"gr\\xf6\\xdfe"]
    assert set(facts(node)) == {"n", "_too_large_attrs"}


def test_kernels_that_are_too_many_to_be_told_are_named_among_the_rest():
    build = GraphBuilder()
    build.node("few", kernels=["aten::add"])
    build.node("many", kernels=[f"aten::kernel_{at}" for at in range(200)])
    nodes = defs(build)
    assert "_too_large_attrs" not in nodes["few"].attr
    assert list(nodes["many"].attr["_too_large_attrs"].list.s) == [b"kernels"]
    assert "kernels" not in nodes["many"].attr


def test_the_message_says_which_form_of_graph_it_has():
    assert converted(chain(1)).versions.producer == 22


def test_the_same_graph_gives_the_same_bytes():
    first, second, other = (
        graph_def_bytes(graph, lay_out(graph)) for graph in (chain(20), chain(20), chain(21))
    )
    assert first == second != other


@st.composite
def graphs(draw):
    """Give acyclic graphs with every kind of edge."""
    build = GraphBuilder("Net")
    scopes = [None, build.call("Net"), build.call("Net/Block[a]"), build.hand("Net/b")]
    values = [build.input("x", (1, 2))]
    for number in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(["relu", "add", "a", "b", "x", "ConstantPad", "y"]))
        given = draw(st.lists(st.sampled_from(values), max_size=4))
        earlier = [value.producer for value in values]
        node = build.node(
            op,
            *given,
            name=str(number),
            scope=draw(st.sampled_from(scopes)),
            outputs=((1, 2),) * draw(st.integers(0, 3)),
            control_inputs=draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)),
        )
        values += node.outputs
    build.output("y", draw(st.sampled_from(values)))
    build.output("x", draw(st.sampled_from(values)))
    return build.graph


def edges_of(graph, names):
    """Give the edges of a graph, under the names of its GraphDef."""
    for node in graph.nodes:
        yield from ((names[value.producer], value.index, names[node]) for value in node.inputs)
        yield from ((names[other], "control", names[node]) for other in node.control_inputs)


def edges_in(nodes):
    """Give the edges that TensorBoard reads, in its own way, those of outputs left out."""
    for node in nodes:
        last = None
        for reference in node.input:
            name, _, index = reference.removeprefix("^").partition(":")
            assert name != last, "TensorBoard drops the second of two from one node"
            last = name
            if name and node.op != "Output":
                yield name, "control" if reference[0] == "^" else int(index or 0), node.name


@given(graphs())
def test_the_edges_are_those_of_the_graph(graph):
    message = converted(graph)
    assert len(message.node) == len(graph.nodes) + len(graph.outputs)
    names = {node: made.name for node, made in zip(graph.nodes, message.node, strict=False)}
    assert len({made.name for made in message.node}) == len(message.node)
    assert sorted(map(str, edges_in(message.node))) == sorted(map(str, edges_of(graph, names)))


@given(graphs())
def test_every_node_can_be_drawn(graph):
    for node in converted(graph).node:
        assert re.match(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$", node.name)
        assert ("Const" in node.op) == (node.op in ("Const", "ParameterConst", "BufferConst"))
        assert all(value.s or value.WhichOneof("value") != "s" for value in node.attr.values())
        assert all(value.ByteSize() <= 1100 for value in node.attr.values())
