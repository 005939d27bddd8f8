"""ONNX models that torch did not write, or wrote long ago: read by names alone."""

import onnx
import pytest
from onnx import helper
from onnx_build import FLOAT, info, model_of, node, weight

import tbscope

INT8, UINT8 = onnx.TensorProto.INT8, onnx.TensorProto.UINT8
IMAGE = info("input", FLOAT, [1, 3, 8, 8])
OLD = {"": 11}


def scopes(graph):
    return [scope.path for scope in graph.scopes()]


def scope_of(graph, name):
    return next(n.scope.path for n in graph.nodes if n.attributes.get("onnx_name") == name)


def resnet_block(names):
    """Give two convolutions with a way around them, as an exporter of opset 11 wrote them."""
    first, second, add, relu = names
    held = [
        weight("layer1.0.conv1.weight", 3, 3, 3, 3),
        weight("layer1.0.conv2.weight", 3, 3, 3, 3),
        weight("fc.weight", 2, 192),
        weight("fc.bias", 2),
    ]
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["input", "layer1.0.conv1.weight"], ["1"], name=first, **pads),
        node("Relu", ["1"], ["2"], name=relu),
        node("Conv", ["2", "layer1.0.conv2.weight"], ["3"], name=second, **pads),
        node("Add", ["3", "input"], ["4"], name=add),
        node("Flatten", ["4"], ["5"], name=add.replace("layer1/layer1.0/Add", "Flatten")),
        node(
            "Gemm",
            ["5", "fc.weight", "fc.bias"],
            ["out"],
            name="/fc/Gemm" if "/" in add else "g",
            transB=1,
        ),
    ]
    return model_of(nodes, [IMAGE], [info("out", FLOAT, [1, 2])], held, **OLD)


SLASHED = [
    *("/layer1/layer1.0/conv1/Conv", "/layer1/layer1.0/conv2/Conv"),
    *("/layer1/layer1.0/Add", "/layer1/layer1.0/relu/Relu"),
]


@pytest.mark.parametrize("names", [SLASHED, ["a", "b", "c", "d"]])
def test_a_scope_that_is_known_by_name_holds_its_parameters(names):
    rows = {row["name"]: row for row in tbscope.from_onnx(resnet_block(names)).summary().rows}
    held = {name: row["parameters"] for name, row in rows.items() if row["parameters"]}
    assert held == {
        None: 548,
        "layer1": 162,
        "layer1.0": 162,
        "layer1.0.conv1": 81,
        "layer1.0.conv2": 81,
        "fc": 386,
    }


def test_what_no_scope_holds_is_held_by_the_model():
    nodes = [
        node("Add", ["input", "bias"], ["t"], name="/a/Add"),
        node("Mul", ["t", "b.scale"], ["out"], name="/a/Mul"),
    ]
    held = [weight("bias", 3, 8, 8), weight("b.scale", 1, 8)]
    graph = tbscope.from_onnx(model_of(nodes, [IMAGE], [info("out", FLOAT, [1, 3, 8, 8])], held))
    assert {row["name"]: row["parameters"] for row in graph.summary().rows} == {None: 200, "a": 0}
    assert [one.name for one in graph.modules[0].parameters] == ["bias", "b.scale"]
    held[1].name = nodes[1].input[1] = "a.scale"
    graph = tbscope.from_onnx(model_of(nodes, [IMAGE], [info("out", FLOAT, [1, 3, 8, 8])], held))
    assert {row["name"]: row["parameters"] for row in graph.summary().rows} == {None: 200, "a": 8}


def test_slashed_names_are_scopes():
    graph = tbscope.from_onnx(resnet_block(SLASHED))
    assert scopes(graph) == [
        *("layer1", "layer1/0", "layer1/0/conv1", "layer1/0/relu", "layer1/0/conv2", "fc"),
    ]
    assert graph.find("layer1.0.conv2.weight").scope.path == "layer1/0/conv2"
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


def test_without_slashes_the_names_of_parameters_are():
    graph = tbscope.from_onnx(resnet_block(["Conv_0", "Conv_2", "Add_3", "Relu_1"]))
    assert scopes(graph) == ["layer1", "layer1/0", "layer1/0/conv1", "layer1/0/conv2", "fc"]
    # What stands between two parts of a block stands in the block; what comes behind it does not.
    assert scope_of(graph, "Relu_1") == "layer1/0"
    assert next(node for node in graph.nodes if node.op == "Add").scope is None
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


def test_parameters_with_names_of_numbers_are_no_scopes():
    nodes = [node("Conv", ["input", "12"], ["1"], name="Conv_0")]
    model = model_of(
        nodes, [IMAGE], [info("1", FLOAT, [1, 4, 6, 6])], [weight("12", 4, 3, 3, 3)], **OLD
    )
    graph = tbscope.from_onnx(model)
    assert (scopes(graph), graph.name) == ([], "built")
    assert [(each.kind, each.name) for each in graph.nodes][1] == ("constant", "12")


def test_a_name_with_a_slash_and_no_step_is_no_scope():
    nodes = [node("Relu", ["input"], ["1"], name="/Relu")]
    graph = tbscope.from_onnx(model_of(nodes, [IMAGE], [info("1", FLOAT, [1, 3, 8, 8])]))
    assert scopes(graph) == []


def test_a_class_in_a_name_is_that_of_a_module():
    around = "/nets.Net::/nets.Block::layer1/torch.nn.modules.activation.ReLU::act/Relu"
    nodes = [node("Relu", ["input"], ["1"], name=around)]
    graph = tbscope.from_onnx(model_of(nodes, [IMAGE], [info("1", FLOAT, [1, 3, 8, 8])]))
    assert scopes(graph) == ["Net", "Net/Block[layer1]", "Net/Block[layer1]/ReLU[act]"]


def keras():
    """Give a model as converters from Keras write it: slashed names, weights with a colon."""
    prefix = "StatefulPartitionedCall/model"
    kernel, bias = f"{prefix}/conv2d/Conv2D/ReadVariableOp:0", f"{prefix}/conv2d/BiasAdd:0"
    nodes = [
        node("Transpose", ["input"], ["t:0"], name="Transpose__12", perm=[0, 2, 3, 1]),
        node("Transpose", ["t:0"], ["u:0"], name="Transpose__13", perm=[0, 3, 1, 2]),
        node("Conv", ["u:0", kernel, bias], ["c:0"], name=f"{prefix}/conv2d/Conv2D"),
        node("Relu", ["c:0"], ["r:0"], name=f"{prefix}/conv2d/Relu"),
        node("GlobalAveragePool", ["r:0"], ["out"], name=f"{prefix}/pool/Mean"),
    ]
    held = [weight(kernel, 4, 3, 3, 3), weight(bias, 4)]
    return model_of(nodes, [IMAGE], [info("out", FLOAT, [1, 4, 1, 1])], held)


def test_a_model_of_keras_has_its_layers():
    graph = tbscope.from_onnx(keras())
    assert scopes(graph) == [
        "StatefulPartitionedCall",
        "StatefulPartitionedCall/model",
        "StatefulPartitionedCall/model/conv2d",
        "StatefulPartitionedCall/model/pool",
    ]
    held = [node for node in graph.nodes if node.kind == "parameter"]
    assert [node.scope.path.rpartition("/")[2] for node in held] == ["conv2d", "conv2d"]
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


def quantised():
    """Give a convolution between Quantize and Dequantize."""
    scale = onnx.numpy_helper.from_array(onnx.numpy_helper.np.float32(0.5), "scale")
    zero = helper.make_tensor("zero", INT8, [], [0])
    held = [weight("conv.weight_q", 4, 3, 3, 3, kind=INT8), scale, zero]
    nodes = [
        node("QuantizeLinear", ["input", "scale", "zero"], ["q"], name="/conv/QuantizeLinear"),
        node("DequantizeLinear", ["q", "scale", "zero"], ["x"], name="/conv/DequantizeLinear"),
        node("DequantizeLinear", ["conv.weight_q", "scale", "zero"], ["w"], name="/conv/w/Dequant"),
        node("Conv", ["x", "w"], ["out"], name="/conv/Conv"),
    ]
    return model_of(nodes, [IMAGE], [info("out", FLOAT, [1, 4, 6, 6])], held)


def test_a_quantised_model_has_its_small_integers_as_parameters():
    graph = tbscope.from_onnx(quantised())
    held = graph.find("conv.weight_q")
    assert (held.kind, held.outputs[0].dtype, held.scope.path) == ("parameter", "int8", "conv")
    quantise = next(node for node in graph.nodes if node.op == "QuantizeLinear")
    assert [argument.nest for argument in quantise.arguments][1:] == [0.5, 0]
    assert quantise.outputs[0].dtype == "int8"
    conv = next(node for node in graph.nodes if node.op == "Conv")
    assert conv.flops == 2 * (4 * 6 * 6) * (3 * 3 * 3)
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


@pytest.mark.parametrize("op", ["FusedMatMul", "Made_up"])
def test_operators_of_others_are_read_though_nothing_tells_their_shapes(op):
    nodes = [node(op, ["input", "input"], ["1"], domain="com.microsoft", name="/a/b")]
    model = model_of(
        nodes, [IMAGE], [info("1", FLOAT, None)], checked=False, **{"com.microsoft": 1}
    )
    graph = tbscope.from_onnx(model)
    (found,) = [node for node in graph.nodes if node.kind == "op"]
    assert (found.op, found.kernels, found.outputs[0].shape) == (op, [f"com.microsoft::{op}"], None)
    assert found.scope.path == "a"
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
