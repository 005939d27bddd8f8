"""The printed graph."""

import pytest
from build import GraphBuilder, chain
from hypothesis import given
from hypothesis import strategies as st

from tbscope.ir.graph import Constant, Note, Output, Parameter, Source, graph_to_text
from tbscope.ir.nodes import node_to_text, type_to_text


def text_of(*given, inputs=("x",), **fields):
    """Print one node that was given this; the name of an input stands for its value."""
    build = GraphBuilder()
    values = {name: build.input(name, (2,)) for name in inputs}
    nests = [values.get(nest, nest) if isinstance(nest, str) else nest for nest in given[1:]]
    return str(build.node(given[0], *nests, **fields))


def test_a_graph_prints_in_the_form_of_torchscript():
    build = GraphBuilder("Net")
    build.call("Net")
    build.call("Net/Sequential[layer1]")
    x = build.input("x", (1, 2))
    y = build.linear("Net/Sequential[layer1]/Linear[0]", x, 2)
    build.output("out", y)
    assert str(build.graph) == (
        "graph(%x : Float(1, 2)):\n"
        "  %1 : Float(1, 2) = linear(%x, %layer1.0.weight, %layer1.0.bias), "
        "scope: Net/Sequential[layer1]/Linear[0]\n"
        "  return (%1)"
    )


def test_an_empty_graph_prints():
    assert str(GraphBuilder().graph) == "graph():\n  return ()"


def test_short_inputs_share_a_line_and_long_ones_have_one_each():
    build = GraphBuilder()
    build.input("input_ids", (2, 128), dtype="int64")
    build.input("attention_mask", (2, 128), dtype="bool")
    assert str(build.graph).splitlines()[0] == (
        "graph(%input_ids : Long(2, 128), %attention_mask : Bool(2, 128)):"
    )
    build.input("past_key_values.0.key", (2, 12, 128, 64))
    assert str(build.graph).splitlines()[:3] == [
        "graph(%input_ids : Long(2, 128),",
        "      %attention_mask : Bool(2, 128),",
        "      %past_key_values.0.key : Float(2, 12, 128, 64)):",
    ]


def test_outputs_have_their_names_where_those_tell_more_than_a_place():
    build = GraphBuilder()
    x = build.input("x", (1,))
    for name in ("out", "out.0", "out.1.2", "logits", "out.0.key", "output"):
        build.output(name, x)
    assert str(build.graph).splitlines()[1] == (
        "  return (%x, %x, %x, logits=%x, out.0.key=%x, output=%x)"
    )


def test_an_output_tells_what_it_waits_for():
    build = GraphBuilder()
    x = build.input("x", (1,))
    writer = build.node("add_", x)
    build.graph.outputs.append(Output("out", x, (writer,)))
    assert str(build.graph).splitlines()[-1] == "  return (%x after %1)"


def test_constants_have_a_line_and_parameters_only_where_asked_for():
    build = GraphBuilder("Net")
    net = build.call("Net")
    mean = build.parameter("mean", (2,), net, kind="buffer")
    two = build.node("constant", name="2", kind="constant", scope=net, outputs=((),)).outputs[0]
    build.op("mul", mean, two, scope=net)
    assert str(build.graph).splitlines()[1:3] == [
        "  %2 : Float() = constant(), scope: Net",
        "  %1 : Float(2) = mul(%mean, %2), scope: Net",
    ]
    assert graph_to_text(build.graph, parameters=True).splitlines()[1] == (
        "  %mean : Float(2) = buffer(), scope: Net"
    )


def test_the_place_in_the_code_is_shown_where_asked_for():
    build = GraphBuilder()
    source = Source("net.py", 12, "forward")
    node = build.node("relu", build.input("x", (1,)), outputs=((1,),), source=source)
    assert node_to_text(node) == "%1 : Float(1) = relu(%x)"
    assert node_to_text(node, source=True) == "%1 : Float(1) = relu(%x)  # net.py:12 in forward"
    assert "# net.py:12" in graph_to_text(build.graph, sources=True)
    assert "# net.py:12" not in graph_to_text(build.graph)


@pytest.mark.parametrize(
    ("nests", "printed"),
    [
        (("x", 2, -1), "%x, 2, -1"),
        ((1.5, 1e-05, True, None, 2j), "1.5, 1e-05, True, None, 2j"),
        ((["x", 1], ("x",), ()), "['x', 1], ('x',), ()"),
        (({"k": [1, (2, 3)], 1: None},), "{'k': [1, (2, 3)], 1: None}"),
        ((Constant("torch.float32"), "it's"), 'torch.float32, "it\'s"'),
        ((float("inf"), float("nan")), "inf, nan"),
    ],
)
def test_constant_arguments_print_as_literals(nests, printed):
    assert text_of("op", *nests) == f"op({printed})"


def test_values_print_by_name_wherever_they_stand_in_a_nest():
    build = GraphBuilder()
    x, y = build.input("x", (1,)), build.input("y", (1,))
    node = build.node("op", [x, [y]], (x,), {"k": (y, 1)})
    assert str(node) == "op([%x, [%y]], (%x,), {'k': (%y, 1)})"


def test_arguments_by_keyword_have_their_name():
    assert text_of("sum", "x", options={"dim": [0, 1], "keepdim": True}) == (
        "sum(%x, dim=[0, 1], keepdim=True)"
    )


def test_several_outputs_are_numbered():
    assert text_of("split", "x", 1, outputs=((1,), (1, 4))) == (
        "%1#0 : Float(1), %1#1 : Float(1, 4) = split(%x, 1)"
    )


def test_a_node_without_outputs_has_no_equals_sign():
    assert text_of("setitem", "x", 0, 1.0) == "setitem(%x, 0, 1.0)"


def test_a_node_without_arguments_shows_what_it_reads():
    build = GraphBuilder()
    node = build.node("Identity", build.input("x", (1,)), outputs=((1,),))
    node.arguments = []
    assert str(node) == "%1 : Float(1) = Identity(%x)"


def test_what_a_node_waits_for_stands_before_its_scope():
    build = GraphBuilder("Net")
    x = build.input("x", (4,))
    writers = [build.node("add_", x, 1), build.node("mul_", x, 2)]
    node = build.node("relu", x, scope=build.call("Net"), control_inputs=writers)
    assert str(node) == "relu(%x), after: %1, %2, scope: Net"


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "printed"),
    [
        ((), "float32", "cpu", "Float()"),
        ((1, 2), "float64", "cpu", "Double(1, 2)"),
        ((1,), "float16", "meta", "Half(1, device=meta)"),
        ((0, 3), "bfloat16", "cuda:0", "BFloat16(0, 3, device=cuda:0)"),
        ((), "bool", "cuda:1", "Bool(device=cuda:1)"),
        ((None, 8), "int64", "cpu", "Long(?, 8)"),
        (None, "int32", "cpu", "Int(*)"),
        ((1,), "int16", "cpu", "Short(1)"),
        ((1,), "int8", "cpu", "Char(1)"),
        ((1,), "uint8", "cpu", "Byte(1)"),
        ((1,), "complex64", "cpu", "ComplexFloat(1)"),
        ((1,), "complex128", "cpu", "ComplexDouble(1)"),
        ((1,), "float8_e4m3fn", "cpu", "float8_e4m3fn(1)"),
    ],
)
def test_a_type_is_a_word_with_sizes_and_a_device_that_is_not_the_cpu(
    shape, dtype, device, printed
):
    value = GraphBuilder().input("x", shape, dtype=dtype, device=device)
    assert type_to_text(value) == printed


def test_a_parameter_of_a_module_has_a_type_too():
    weight = Parameter("weight", "parameter", (3, 2), "float32", 24, True)
    assert type_to_text(weight) == "Float(3, 2)"


def test_notes_are_not_printed():
    graph = chain(1)
    before = str(graph)
    graph.notes.append(Note("a tensor was read"))
    assert str(graph) == before


@given(st.text(), st.text(), st.text())
def test_a_node_is_one_line_whatever_its_names_hold(name, op, argument):
    build = GraphBuilder()
    x = build.input(name, (1,))
    scope = build.hand("loss")
    node = build.node(op, x, argument, Constant(argument), scope=scope, outputs=((1,),))
    build.output(name, node.outputs[0])
    assert len(str(node).splitlines()) == 1
    # An input may be called "1" itself.
    start = f"  %{node.name} "
    assert len([line for line in str(build.graph).splitlines() if line.startswith(start)]) == 1
