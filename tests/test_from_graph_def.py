"""GraphDefs of any origin become graphs, as far as they tell."""

import re

import pytest
import torch
from build import GraphBuilder, chain
from google.protobuf import text_format
from log_files import graph_def
from onnx_build import FLOAT, info, model_of, node
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_INT32_REF
from torch import nn

import tbscope
from tbscope.ir.graph import Constant


def printed(message):
    return str(tbscope.from_graph_def(message))


def test_names_with_slashes_are_scopes_and_inputs_are_values():
    message = graph_def(
        "in/x: Placeholder()",
        "net/split: Split(in/x)",
        "net/add: Add(net/split:1, net/split, ^net/check)",
        "net/check: Assert(in/x)",
        shapes={"in/x": (4, -1)},
    )
    assert printed(message) == (
        "graph(%in.x : unknown(4, ?)):\n"
        "  %1#0 : unknown(*), %1#1 : unknown(*) = Split(%in.x), scope: net\n"
        "  Assert(%in.x), scope: net\n"
        "  Add(%1#1, %1#0), after: %2, scope: net\n"
        "  return ()"
    )


def test_variables_are_parameters_and_small_constants_are_arguments():
    message = graph_def(
        "dense/kernel: VarHandleOp()",
        "dense/axis: Const()",
        "dense/table: Const()",
        "dense/MatMul: MatMul(dense/kernel, dense/axis, dense/table)",
    )
    held = message.node[1].attr["value"].tensor
    held.int_val.append(-1)
    held.tensor_shape.SetInParent()
    message.node[2].attr["value"].tensor.tensor_content = bytes(4000)
    message.node[2].attr["dtype"].type = DT_FLOAT
    graph = tbscope.from_graph_def(message)
    assert [(node.kind, node.name) for node in graph.nodes[:2]] == [
        ("parameter", "dense.kernel"),
        ("constant", "1"),
    ]
    kernel, table = (node.outputs[0] for node in graph.nodes[:2])
    assert [one.nest for one in graph.nodes[2].arguments] == [kernel, -1, table]
    assert table.dtype == "float32"


def test_types_devices_and_attributes_are_told():
    message = graph_def("y: Conv()")
    node = message.node[0]
    node.device = "/job:worker/replica:0/task:0/device:GPU:1"
    node.attr["T"].type = DT_INT32_REF
    node.attr["strides"].list.i.extend([1, 2])
    node.attr["rate"].f = 0.1
    node.attr["body"].func.name = "f"
    node.attr["text"].s = b"\xff"
    node.attr["_output_shapes"].list.shape.add().unknown_rank = True
    graph = tbscope.from_graph_def(message)
    (value,) = graph.nodes[0].outputs
    assert (value.dtype, value.device, value.shape) == ("int32", "cuda:1", None)
    assert graph.nodes[0].attributes == {
        "T": "int32",
        "body": Constant("function f"),
        "rate": 0.1,
        "strides": [1, 2],
        "text": "\\xff",
        "name": "y",
    }


def test_dangling_inputs_are_left_out_and_told():
    graph = tbscope.from_graph_def(graph_def("a: A(gone, b:0, ^also)", "b: B()", "c: C(b:9999)"))
    assert [node.op for node in graph.nodes] == ["B", "A", "C"]
    assert [len(node.inputs) for node in graph.nodes] == [0, 1, 0]
    assert [note.text for note in graph.notes] == [
        "left out, as no node has these names: 'gone', 'also', 'b:9999'"
    ]


def test_a_loop_is_cut_where_it_leads_back():
    message = graph_def(
        *("x: Placeholder()", "loop/Enter: Enter(x)", "loop/Merge: Merge(loop/Enter, loop/Next)"),
        *("loop/Switch: Switch(loop/Merge)", "loop/Add: Add(loop/Switch:1, loop/Add)"),
        *("loop/Next: NextIteration(loop/Add)", "loop/Exit: Exit(loop/Switch)"),
    )
    graph = tbscope.from_graph_def(message)
    read = {node.op: [value.producer.op for value in node.inputs] for node in graph.nodes}
    assert read == {
        "input": [],
        "Enter": ["input"],
        "Merge": ["Enter", "NextIteration"],
        "Switch": [],
        "Add": ["Switch"],
        "NextIteration": ["Add"],
        "Exit": ["Switch"],
    }
    assert all(len(node.arguments) == len(node.inputs) for node in graph.nodes)
    assert [note.text for note in graph.notes] == ["left out, as they lead back: 2 steps of loops"]


def test_nodes_come_behind_what_they_read_and_else_as_they_were():
    nodes = ["d: D(c, a)", "a: A()", "b: B(a)", "c: C(b, ^e)", "e: E()", "f: F(a)"]
    graph = tbscope.from_graph_def(graph_def(*nodes))
    assert [node.op for node in graph.nodes] == ["A", "B", "E", "C", "D", "F"]
    assert graph.notes == []


def test_nodes_that_wait_for_each_other_are_both_there():
    graph = tbscope.from_graph_def(graph_def("a: A(^b)", "b: B(^a)"))
    assert [[one.op for one in node.control_inputs] for node in graph.nodes] == [[], ["B"]]
    assert [note.text for note in graph.notes] == ["left out, as they lead back: 1 steps of loops"]


def test_a_way_to_a_module_is_no_parameter_and_a_block_no_module():
    message = graph_def("Net/fc: prim::GetAttr()", "Net/w: prim::GetAttr()", "Net/a/y: A(Net/w)")
    for way, name in zip(message.node, ("fc", "weight"), strict=False):
        way.attr["attr"].s = f"{{ name : {name}}}".encode()
    graph = tbscope.from_graph_def(message)
    assert [one.name for one in graph.nodes if one.kind == "parameter"] == ["weight"]
    assert [scope.qualified_name for scope in graph.scopes()] == ["", None]


def test_what_stands_in_the_library_is_no_node():
    message = graph_def("x: Placeholder()", "__function_library__/seed: A()")
    assert [node.op for node in tbscope.from_graph_def(message).nodes] == ["input"]


def test_two_nodes_of_one_name_are_both_there():
    graph = tbscope.from_graph_def(graph_def("a: A()", "a: B()", "c: C(a)"))
    assert [node.op for node in graph.nodes] == ["A", "B", "C"]
    assert graph.nodes[2].inputs[0].producer.op == "A"


def test_a_drawing_of_ours_keeps_its_scopes_and_parameters():
    drawn = tbscope.to_graph_def(chain(2))
    graph = tbscope.from_graph_def(drawn)
    assert [call.scope.path for call in graph.calls] == ["Chain/Linear[0]", "Chain/Linear[1]"] or [
        call.scope.path for call in graph.calls
    ] == ["Chain", "Chain/Linear[0]", "Chain/Linear[1]"]
    owned = [node.name for node in graph.nodes if node.kind == "parameter"]
    assert owned == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [output.name for output in graph.outputs] == ["out"]
    assert graph.nodes[0].outputs[0].dtype == "float32"


class Views(nn.Module):
    """Returns the result of one layer through views, and the results of two operations."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        scores = self.head(self.table(ids))
        best, index = scores.topk(2)
        return scores.view(-1, 10).t(), scores[:, 0].half(), best, index


def conv_net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))


READ_BACK = {
    "conv": (conv_net(), torch.ones(1, 3, 16, 16)),
    "views": (Views(), torch.zeros(4, 5, dtype=torch.long)),
    "lstm": (nn.LSTM(3, 4, 2), torch.ones(5, 2, 3)),
    "attention": (nn.TransformerEncoderLayer(8, 2, batch_first=True), torch.ones(2, 3, 8)),
}


@pytest.mark.parametrize("drawing", [{}, {"leaves": "box"}, {"keep": ["*"]}, {"level": "module"}])
@pytest.mark.parametrize("name", READ_BACK)
def test_the_reader_reads_what_the_cards_of_a_drawing_write(name, drawing):
    graph = tbscope.trace(*READ_BACK[name])

    read = tbscope.from_graph_def(tbscope.to_graph_def(graph, **drawing))

    def totals(graph):
        whole, *others = [row for row in graph.summary().rows if row["flops"]]
        flops = {row["name"]: row["flops"] for row in others}
        return whole["parameters"], whole["trainable_parameters"], whole["flops"], flops

    assert totals(read) == totals(graph)
    assert [typed(output) for output in read.outputs] == [typed(one) for one in graph.outputs]
    assert all(value.dtype != "unknown" for node in read.nodes for value in node.outputs)
    assert {kernel for node in read.nodes for kernel in node.kernels} <= {
        kernel for node in graph.nodes for kernel in node.kernels
    }
    assert dict.fromkeys(read.uncounted) == dict.fromkeys(graph.uncounted)


def test_a_drawn_training_step_has_the_phases_and_the_flops_of_the_step():
    graph = tbscope.trace(nn.Linear(40, 40), torch.ones(4, 40), backward=True, loss=torch.sum)

    read = tbscope.from_graph_def(tbscope.to_graph_def(graph))

    assert read.summary().rows[0]["flops"] == graph.summary().rows[0]["flops"] == 12_800
    assert {node.phase for node in read.nodes if node.flops} == {"forward", "backward"}
    assert len(read.calls) == len(graph.calls) == 1


def typed(output):
    """Give the name and the type of an output."""
    return output.name, output.value.shape, output.value.dtype


# -- functions ------------------------------------------------------------------------------


def test_a_call_of_a_function_is_one_node():
    message = graph_def("x: Placeholder()", "f: twice(x)", "z: Sub(f, f:1)")
    message.library.function.add().signature.name = "twice"
    assert printed(message) == (
        "graph(%x : unknown(*)):\n"
        "  %1#0 : unknown(*), %1#1 : unknown(*) = twice(%x)\n"
        "  Sub(%1#0, %1#1)\n"
        "  return ()"
    )


def test_what_our_drawings_have_in_no_scope_is_in_none_though_its_name_has_steps():
    with tbscope.record() as recording:
        torch.ones(1).relu().tanh()
    graph = recording.graph
    text = str(tbscope.to_graph_def(graph)).replace('"relu"', '"activation/relu"')
    assert "activation/relu" in text
    again = tbscope.from_graph_def(text_format.Parse(text, GraphDef()))
    assert {node.scope for node in again.nodes} == {None}
    assert [node.kernels for node in again.nodes[1:]] == [["aten::relu"], ["aten::tanh"]]


# -- files ------------------------------------------------------------------------------------


def of_file(tmp_path, data):
    (tmp_path / "file.txt").write_bytes(data)
    return tbscope.from_graph_def(tmp_path / "file.txt"), tbscope.load(tmp_path / "file.txt")


def test_files_are_known_by_what_they_hold(tmp_path):
    message = tbscope.to_graph_def(chain(1))
    text = text_format.MessageToString(message).encode()
    binary = message.SerializeToString()
    for form in (binary, text, b"# by hand\n\n" + text, b"\n" + text):
        one, other = of_file(tmp_path, form)
        assert str(one) == str(other)
        assert len(one.calls) >= 1


@pytest.mark.parametrize("kind", ["binary", "text"])
def test_a_file_is_refused_wherever_it_is_cut(kind, tmp_path):
    message = graph_def("a: A()", "b: B(a)")
    text = text_format.MessageToString(message).encode()
    data = text if kind == "text" else message.SerializeToString()
    # Between two nodes it is whole.
    first = len(text_format.MessageToString(graph_def("a: A()"))) if kind == "text" else 8
    for size in range(len(data) - (kind == "text")):
        (tmp_path / "x.pb").write_bytes(data[:size])
        if size == first or (size == first - 1 and kind == "text"):
            continue
        with pytest.raises(tbscope.ArgumentError, match="no GraphDef can be read from"):
            tbscope.from_graph_def(tmp_path / "x.pb")


BAD = {
    "cut": (b"\x0a\x09\x0a\x01a", "DecodeError"),
    "second": (b"\x0a\x03\x0a\x01a\x0a\x03\x0a\x01\xff", "DecodeError"),
    "UTF-8": (b"node { name: '\xff' }", "at byte 14 it is no text in UTF-8"),
    "word": (b"node { nam: 'a' }", "ParseError: 1:8"),
    "deep": (
        b"node { attr { value { " + b"func { attr { value { " * 9000,
        "its messages are nested too deep",
    ),
    "empty": (b"", "it is empty"),
    "json": (b'{"format": "tbscope.Graph"}', "it is a graph as JSON"),
    "other": (b"hello", "its first bytes are those of none"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_none_is_refused_with_its_place(name, tmp_path):
    data, why = BAD[name]
    (tmp_path / "x.pb").write_bytes(data)
    with pytest.raises(tbscope.ArgumentError, match=re.escape(why)) as caught:
        tbscope.from_graph_def(tmp_path / "x.pb")
    assert "x.pb" in caught.value.what


def test_names_of_any_depth_take_few_scopes():
    message = graph_def("/".join("a[a]" for _ in range(5000)) + ": A()")
    graph = tbscope.from_graph_def(message)
    assert len(graph.nodes[0].scope.parts) == 64


def test_lists_of_lists_stand_in_arguments():
    nodes = ["n1: prim::ListConstruct(n0, n0)", "n2: prim::TupleConstruct(n1, n0)"]
    graph = tbscope.from_graph_def(graph_def("n0: A()", *nodes, "z: B(n2)"))
    (value,) = graph.nodes[0].outputs
    assert [argument.nest for argument in graph.nodes[1].arguments] == [([value, value], value)]


def test_many_nodes_of_one_name_have_names_of_their_own():
    graph = tbscope.from_graph_def(graph_def(*["a: Placeholder()"] * 3, *["o: Output(a)"] * 3))
    assert [node.name for node in graph.nodes] == ["a", "a~2", "a~3"]
    assert [output.name for output in graph.outputs] == ["o", "o~2", "o~3"]


def test_an_onnx_model_is_known_by_what_it_holds(tmp_path):
    model = model_of([node("Relu", ["x"], ["y"])], [info("x", FLOAT, [2])], [info("y", FLOAT, [2])])
    (tmp_path / "model.bin").write_bytes(model.SerializeToString())
    assert [one.op for one in tbscope.load(tmp_path / "model.bin").nodes] == ["input", "Relu"]


def test_what_a_call_is_given_stands_in_the_order_in_which_it_was_made():
    build = GraphBuilder("Net")
    one, two = build.input("one", (1,)), build.input("two", (1,))
    build.call("Net")
    part = build.call("Net/Part[part]")
    out = build.op("add", build.op("neg", two, scope=part), one, scope=part)
    build.output("out", build.op("relu", out, scope=build.scope("Net")))
    graph = tbscope.from_graph_def(tbscope.to_graph_def(build.graph))
    (call,) = [call for call in graph.calls if call.scope.part.label == "Part"]
    assert [value.producer.name for _, value in call.arguments] == ["one", "two"]


def test_inputs_and_outputs_in_boxes_of_their_own_are_read_by_their_names():
    class Encoder(nn.Module):
        def forward(self, attention_mask, pixel_values):
            state = pixel_values * attention_mask
            return {"last_hidden_state": state, "encoder_last_hidden_state": state + 1}

    graph = tbscope.trace(Encoder(), (torch.rand(2), torch.rand(2)))
    drawn = tbscope.to_graph_def(graph)
    ends = [node for node in drawn.node if node.op.startswith(("Input[", "Output["))]
    assert sum("/" in node.name for node in ends) == 4
    read = tbscope.from_graph_def(drawn)
    assert [node.name for node in read.inputs] == [node.name for node in graph.inputs]
    assert [output.name for output in read.outputs] == [output.name for output in graph.outputs]
    # What is drawn of it is the same again.
    assert {node.name for node in tbscope.to_graph_def(read).node if "/" in node.name} >= {
        node.name for node in ends
    }
