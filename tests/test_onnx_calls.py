"""Calls of modules in ONNX models whose nodes have names alone, or that other tools have edited."""

import io

import onnx
import pytest
import torch
from onnx_build import FLOAT, info, model_of, node, weight
from torch import nn

import tbscope

X, OUT = info("x", FLOAT, [2, 3]), info("out", FLOAT, [2, 3])


def chained(*steps, held=(), **options):
    """Give a model of nodes that each read the one before: (operation, name) or (…, parameter)."""
    nodes, value = [], "x"
    for number, (op, name, *read) in enumerate(steps):
        result = "out" if number == len(steps) - 1 else f"v{number}"
        nodes.append(node(op, [value, *read], [result], name=name))
        value = result
    return model_of(nodes, [X], [OUT], held, **options)


def scopes(model):
    """Give the scope of each operation; the drawing keeps every rule."""
    graph = tbscope.from_onnx(model)
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    return [str(one.scope and one.scope.path) for one in graph.nodes if one.kind == "op"]


# -- torch's earlier exporter ---------------------------------------------------------------


class Twice(nn.Module):
    """Calls a container twice, with another module between, and then twice in a row."""

    def __init__(self):
        super().__init__()
        self.b = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.c = nn.Linear(3, 3)
        self.layers = nn.ModuleList([Residual()])

    def forward(self, x):
        x = self.b(self.c(self.b(x))) * 2
        return self.layers[0](self.layers[0](x))


class Residual(nn.Module):
    """Calls one activation twice in each of its calls."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.act = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()

    def forward(self, x):
        return self.act(x + self.two(self.act(self.one(x))))


@pytest.mark.filterwarnings("ignore")
def test_calls_in_a_file_of_torchs_earlier_exporter_are_those_of_an_eager_call():
    model, x, file = Twice().eval(), torch.ones(2, 3), io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False)

    found = scopes(onnx.load_from_string(file.getvalue()))
    assert found == [
        *("b/0", "b/1", "c", "b.1/0", "b.1/1", "None"),
        *(f"ModuleList[layers]/0/{inner}" for inner in ("one", "act", "two")),
        *("ModuleList[layers]/0", "ModuleList[layers]/0/act.1"),
        *(f"ModuleList[layers]/0.1/{inner}" for inner in ("one", "act", "two")),
        *("ModuleList[layers]/0.1", "ModuleList[layers]/0.1/act.1"),
    ]


def test_a_number_in_the_name_of_another_module_is_no_call():
    held = [weight("a.w", 3), weight("a_1.w", 3)]
    steps = [("Mul", "/a/Mul", "a.w"), ("Mul", "/a_1/Mul", "a_1.w"), ("Relu", "/act_1/Relu")]
    assert scopes(chained(*steps, held=held)) == ["a", "a_1", "act_1"]


def test_names_of_other_tools_have_no_numbers_of_calls():
    steps = [("Relu", "model/conv/Relu"), ("Abs", "model/conv_1/Abs")]
    assert scopes(chained(*steps)) == ["model/conv", "model/conv_1"]


def test_calls_whose_numbers_do_not_divide_follow_the_order():
    names = ["/a/b", "/a", "/a/b_1", "/a", "/a/b_2", "/a_1"]
    found = scopes(chained(*(("Relu", f"{name}/Relu") for name in names)))
    assert found == ["a/b", "a", "a/b.1", "a", "a/b.2", "a.1"]


def test_equal_parameters_of_two_modules_are_two():
    nodes = [
        node("Identity", ["a.w"], ["b.w"], name="Identity_0"),
        node("Mul", ["x", "b.w"], ["y"], name="/b/Mul"),
        node("Mul", ["y", "a.w"], ["out"], name="/a/Mul"),
    ]
    model = model_of(nodes, [X], [OUT], [weight("a.w", 3)])
    graph = tbscope.from_onnx(model)
    assert scopes(model) == ["b", "a"]
    owned = [(one.name, one.scope.path) for one in graph.nodes if one.kind == "parameter"]
    assert owned == [("b.w", "b"), ("a.w", "a")]


# -- other tools ------------------------------------------------------------------------------


def test_a_module_that_is_read_outside_and_reads_that_is_called_again():
    steps = [("Relu", "m/a/Relu"), ("Abs", "m/b/Abs"), ("Neg", "m/a/Neg")]
    assert scopes(chained(*steps)) == ["m/a", "m/b", "m/a.1"]


def test_modules_that_wait_for_each_other_are_called_again():
    nodes = [
        node("Neg", ["x"], ["a"], name="m/one/Neg"),
        node("Abs", ["x"], ["b"], name="m/two/Abs"),
        node("Relu", ["a"], ["c"], name="m/two/Relu"),
        node("Exp", ["b"], ["d"], name="m/one/Exp"),
        node("Add", ["c", "d"], ["out"], name="m/Add"),
    ]
    assert scopes(model_of(nodes, [X], [OUT])) == ["m/one", "m/two", "m/two", "m/one.1", "m"]


def test_a_module_that_is_left_and_needs_nothing_of_the_outside_goes_on():
    nodes = [
        node("Neg", ["x"], ["a"], name="m/one/Neg"),
        node("Abs", ["x"], ["b"], name="m/two/Abs"),
        node("Exp", ["a"], ["c"], name="m/one/Exp"),
        node("Add", ["b", "c"], ["out"], name="m/Add"),
    ]
    assert scopes(model_of(nodes, [X], [OUT])) == ["m/one", "m/two", "m/one", "m"]


def test_names_that_a_tool_has_computed_are_no_modules():
    held = [weight("conv_1.w_0", 3), weight("p2o.pd_op.reshape.0.0", 3)]
    steps = [("Mul", "Conv.0", "conv_1.w_0"), ("Add", "Add.0", "p2o.pd_op.reshape.0.0")]
    assert scopes(chained(*steps, held=held)) == ["conv_1", "None"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("m/a/Relu;m/b/Relu1", "m/a"),
        ("F0::m/a/Relu", "F0::m/a"),
        ("fused /m/a/Relu", "m/a"),
        ("/m/a/Relu/MatMulAddFusion", "m/a"),
        ("/m/a/Relu/MatMulScaleFusion/", "m/a"),
    ],
)
def test_what_tools_add_to_a_name_is_no_module(name, path):
    assert scopes(chained(("Relu", name))) == [path]


def test_a_fused_node_without_modules_in_its_name_leaves_them_to_parameters():
    steps = [("Mul", "node_mul/MatMulAddFusion", "layer.w")]
    assert scopes(chained(*steps, held=[weight("layer.w", 3)])) == ["layer"]


NET, LAYER = ("", "nets.Net"), ("a", "nets.Layer")


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 3, 1, 2, 4], [3, 0, 1, 2, 4]])
def test_nodes_of_a_quantiser_are_in_the_modules_on_both_sides_of_them(order):
    scale = onnx.numpy_helper.from_array(onnx.numpy_helper.np.float32(0.5), "s")
    held = [scale, weight("a.q", 3, kind=onnx.TensorProto.INT8)]
    nodes = [
        node("Relu", ["x"], ["y"], levels=[NET, LAYER]),
        node("QuantizeLinear", ["y", "s"], ["yq"]),
        node("DequantizeLinear", ["yq", "s"], ["yd"]),
        node("DequantizeLinear", ["a.q", "s"], ["w"]),
        node("Mul", ["yd", "w"], ["m"], levels=[NET, LAYER]),
    ]
    outside = [
        node("QuantizeLinear", ["m", "s"], ["mq"]),
        node("DequantizeLinear", ["mq", "s"], ["md"]),
        node("Neg", ["md"], ["out"], levels=[NET, ("b", "nets.Layer")]),
    ]
    model = model_of([*(nodes[index] for index in order), *outside], [X], [OUT], held)
    found = scopes(model)
    assert found == [*["Net/Layer[a]"] * 5, "Net", "Net", "Net/Layer[b]"]


@pytest.mark.parametrize("op", ["If", "Loop"])
def test_modules_are_named_in_bodies_alone(op):
    inner = node("Relu", ["x"], ["y"], name="/a/Relu")
    result = info("y", FLOAT, [2, 3])
    if op == "If":
        made = onnx.helper.make_node(
            "If",
            ["is"],
            ["out"],
            name="If_0",
            then_branch=onnx.helper.make_graph([inner], "t", [], [result]),
            else_branch=onnx.helper.make_graph(
                [node("Abs", ["x"], ["z"], name="/b/Abs")], "e", [], [info("z", FLOAT, [2, 3])]
            ),
        )
        held = [onnx.helper.make_tensor("is", onnx.TensorProto.BOOL, [], [1])]
    else:
        body = onnx.helper.make_graph(
            [inner, node("Identity", ["go"], ["on"])],
            "body",
            [info("i", onnx.TensorProto.INT64, []), info("go", onnx.TensorProto.BOOL, []),
             info("before", FLOAT, [2, 3])],
            [info("on", onnx.TensorProto.BOOL, []), result],
        )  # fmt: skip
        made = onnx.helper.make_node("Loop", ["n", "is", "x"], ["out"], name="Loop_0", body=body)
        held = [
            onnx.helper.make_tensor("n", onnx.TensorProto.INT64, [], [3]),
            onnx.helper.make_tensor("is", onnx.TensorProto.BOOL, [], [1]),
        ]
    found = scopes(model_of([made], [X], [OUT], held))
    assert any(path.endswith("/a") for path in found)


def test_modules_are_named_in_the_body_of_a_scan():
    body = onnx.helper.make_graph(
        [
            node("Add", ["state", "row"], ["sum"], name="/cell/Add"),
            node("Tanh", ["sum"], ["next"], name="/cell/act/Tanh"),
            node("Identity", ["next"], ["y"]),
        ],
        "body",
        [info("state", FLOAT, [3]), info("row", FLOAT, [3])],
        [info("next", FLOAT, [3]), info("y", FLOAT, [3])],
    )
    scan = node("Scan", ["h", "x"], ["last", "out"], name="/Scan", num_scan_inputs=1, body=body)
    found = scopes(model_of([scan], [X, info("h", FLOAT, [3])], [OUT]))
    assert {"Scan/body/cell", "Scan/body/cell/act"} <= {*found}
