"""GraphDefs of any origin become graphs, as far as they tell."""

import re

import pytest
import torch
from build import GraphBuilder, chain
from google.protobuf import text_format
from log_files import graph_def
from onnx_build import FLOAT, info, model_of, node
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef
from tensorboard.compat.proto.types_pb2 import DT_FLOAT, DT_INT32_REF
from torch import nn

import tbscope
from tbscope.cycles import in_order
from tbscope.graphdef.wire import delimited
from tbscope.ir.graph import Constant
from tbscope.sources.graphdef.ordering import back_edges


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
        "nodes read 3 names that no node has, which are left out: 'gone', 'also', 'b:9999'"
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
        "Merge": ["Enter"],
        "Switch": ["Merge"],
        "Add": ["Switch"],
        "NextIteration": ["Add"],
        "Exit": ["Switch"],
    }
    assert all(len(node.arguments) == len(node.inputs) for node in graph.nodes)
    assert [note.text for note in graph.notes] == ["left out, as they lead back: 2 steps of loops"]


def test_steps_back_are_none_without_a_loop():
    assert back_edges(4, [[1, 2], [3], [3], []]) == set()
    assert back_edges(4, [[1, 2], [3], [3], [1]]) == {(3, 1)}
    assert in_order(4, [(3, 0), (3, 1)]) == [2, 3, 0, 1]


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


# -- functions ------------------------------------------------------------------------------


def library(*bodies):
    """Give a GraphDef with functions: name, inputs, results as `name=node:out:0`, and nodes."""
    message = GraphDef()
    for name, inputs, results, nodes in bodies:
        function = message.library.function.add()
        function.signature.name = name
        for one in inputs:
            function.signature.input_arg.add(name=one)
        for one in results:
            own, _, told = one.partition("=")
            function.signature.output_arg.add(name=own)
            if told:
                function.ret[own] = told
        function.node_def.extend(graph_def(*nodes).node)
    return message


def test_the_body_of_a_function_stands_where_it_is_called():
    inner = ("inner", ["v"], ["r=relu:activations:0"], ["relu: Relu(v)"])
    outer = ("outer", ["a", "b"], ["s=call:r:0", "a2=a"], ["call: inner(b)"])
    message = library(inner, outer)
    nodes = ["x: Placeholder()", "y: Placeholder()", "f: PartitionedCall(x, y)"]
    message.node.extend(graph_def(*nodes, "z: Sub(f, f:1)").node)
    message.node[2].attr["f"].func.name = "outer"
    assert printed(message) == (
        "graph(%x : unknown(*), %y : unknown(*)):\n"
        "  %1 : unknown(*) = Relu(%y), scope: f/call\n"
        "  Sub(%1, %x)\n"
        "  return ()"
    )


class Block(nn.Module):
    """A module of two operations."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x).relu() + x


def test_what_our_drawings_have_in_no_scope_is_in_none_though_its_name_has_steps():
    with tbscope.record() as recording:
        torch.ones(1).relu().tanh()
    graph = recording.graph
    text = str(tbscope.to_graph_def(graph)).replace('"relu"', '"activation/relu"')
    assert "activation/relu" in text
    again = tbscope.from_graph_def(text_format.Parse(text, GraphDef()))
    assert {node.scope for node in again.nodes} == {None}
    assert [node.kernels for node in again.nodes[1:]] == [["aten::relu"], ["aten::tanh"]]


def test_functions_that_call_themselves_are_not_opened_for_ever():
    message = library(("f", ["a"], ["r=g"], ["g: f(a)", "h: f(a)"]))
    message.node.extend(graph_def("x: Placeholder()", "y: f(x)").node)
    graph = tbscope.from_graph_def(message)
    assert [node.op for node in graph.nodes] == ["input", "f", "f"]
    assert "functions that call themselves, or are too many, are not opened: 'f'" in str(
        graph.notes[0]
    )


BRANCH = ("less", ["a"], ["r=l:z:0"], ["l: Less(a, a)"])
OTHER = ("twice", ["a"], ["r=m:z:0"], ["m: Mul(a, a)"])


def decides(op, *bodies):
    """Give a graph of a node that is told functions, by the words of its attributes."""
    message = library(BRANCH, OTHER)
    nodes = ["p: Placeholder()", "x: Placeholder()", f"i: {op}(p, x)", "y: Relu(i)"]
    message.node.extend(graph_def(*nodes).node)
    for word, name in bodies:
        if word == "branches":
            message.node[2].attr[word].list.func.add(name=name)
        else:
            message.node[2].attr[word].func.name = name
    return message


@pytest.mark.parametrize("form", ["", "Stateless"])
@pytest.mark.parametrize(
    ("op", "bodies", "places"),
    [
        ("If", [("then_branch", "less"), ("else_branch", "twice")], ["then_branch", "else_branch"]),
        ("Case", [("branches", "less"), ("branches", "twice")], ["branches_0", "branches_1"]),
        ("While", [("cond", "less"), ("body", "twice")], ["cond", "body"]),
    ],
)
def test_the_branches_and_loops_of_tensorflow_are_opened(form, op, bodies, places):
    graph = tbscope.from_graph_def(decides(form + op, *bodies))
    found = [(node.op, node.scope.path) for node in graph.nodes if node.scope is not None]
    assert found == [("Less", f"i/{places[0]}"), ("Mul", f"i/{places[1]}")]
    (node,) = [node for node in graph.nodes if node.op == form + op]
    assert [value.producer.op for value in node.inputs] == ["input", "input", "Less", "Mul"]
    # What decides comes before what is given to a branch.
    given = {value.name for one in graph.nodes[2:4] for value in one.inputs}
    assert given == ({"p"} if op == "While" else {"x"})


@pytest.mark.parametrize("op", ["If", "Where"])
def test_functions_that_nobody_runs_or_has_are_not_opened(op):
    message = decides(op, ("then_branch", "less" if op == "Where" else "nobody"))
    assert "Less" not in [node.op for node in tbscope.from_graph_def(message).nodes]


def test_a_loop_that_runs_itself_is_not_opened_for_ever():
    message = decides("While", ("body", "loop"))
    inner = library(("loop", ["a"], ["r=w:z:0"], ["w: While(a)"])).library.function[0]
    inner.node_def[0].attr["body"].func.name = "loop"
    message.library.function.add().CopyFrom(inner)
    graph = tbscope.from_graph_def(message)
    assert [node.op for node in graph.nodes].count("While") == 2
    assert "not opened: 'loop'" in str(graph.notes[0])


def test_functions_that_stand_for_too_many_nodes_are_not_opened():
    bodies = [
        (f"f{n}", ["a"], ["r=c0"], [f"c{m}: f{n + 1}(a)" for m in range(40)]) for n in range(20)
    ]
    message = library(*bodies)
    message.node.extend(graph_def("y: f0()").node)
    graph = tbscope.from_graph_def(message)
    assert len(graph.nodes) < 110_000
    assert "too many" in graph.notes[-1].text


# -- files ------------------------------------------------------------------------------------


def of_file(tmp_path, data):
    (tmp_path / "file.txt").write_bytes(data)
    return tbscope.from_graph_def(tmp_path / "file.txt"), tbscope.load(tmp_path / "file.txt")


def test_files_are_known_by_what_they_hold(tmp_path):
    message = tbscope.to_graph_def(chain(1))
    text = text_format.MessageToString(message).encode()
    saved = MetaGraphDef(graph_def=message).SerializeToString()
    forms = [
        *(message.SerializeToString(), text, b"# by hand\n\n" + text, b"\n" + text),
        b"\x08\x01\x12" + delimited(saved),
    ]
    for form in forms:
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
    "cut": (b"\x0a\x09\x0a\x01a", "at byte 0 a field claims 9 bytes, and 3 are left"),
    "second": (b"\x0a\x03\x0a\x01a\x0a\x03\x0a\x01\xff", "at byte 5, in node 1: DecodeError"),
    "UTF-8": (b"node { name: '\xff' }", "at byte 14 it is no text in UTF-8"),
    "word": (b"node { nam: 'a' }", "ParseError: 1:8"),
    "deep": (
        b"node { attr { value { " + b"func { attr { value { " * 9000,
        "its messages stand in each other too deep",
    ),
    "empty": (b"", "it is empty"),
    "json": (b'{"format": "tbscope.Graph"}', "it is a graph as JSON"),
    "other": (b"hello", "its first bytes are those of none"),
    "saved": (b"\x08\x01\x12\x00", "no graph"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_none_is_refused_with_its_place(name, tmp_path):
    data, why = BAD[name]
    (tmp_path / "x.pb").write_bytes(data)
    if name == "saved":
        assert tbscope.from_graph_def(tmp_path / "x.pb").nodes == []
        return
    with pytest.raises(tbscope.ArgumentError, match=re.escape(why)) as caught:
        tbscope.from_graph_def(tmp_path / "x.pb")
    assert "x.pb" in caught.value.what


def test_names_of_any_depth_take_few_scopes():
    message = graph_def("/".join("a[a]" for _ in range(5000)) + ": A()")
    graph = tbscope.from_graph_def(message)
    assert len(graph.nodes[0].scope.parts) == 64


@pytest.mark.parametrize(("lists", "drawn"), [(6, 0), (40, 34)])
def test_lists_of_lists_stand_in_arguments_until_they_are_too_many(lists, drawn):
    nodes = [f"n{i}: prim::ListConstruct(n{i - 1}, n{i - 1})" for i in range(1, lists + 1)]
    graph = tbscope.from_graph_def(graph_def("n0: A()", *nodes, f"z: B(n{lists})"))
    assert sum(node.op == "ListConstruct" for node in graph.nodes) in range(drawn > 0, drawn + 1)
    assert all(len(node.inputs) <= 500 for node in graph.nodes)


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
    assert sum("/" in node.name for node in drawn.node if node.op in ("Input", "Output")) == 4
    read = tbscope.from_graph_def(drawn)
    assert [node.name for node in read.inputs] == [node.name for node in graph.inputs]
    assert [output.name for output in read.outputs] == [output.name for output in graph.outputs]
    # What is drawn of it is the same again.
    assert {node.name for node in tbscope.to_graph_def(read).node if "/" in node.name} >= {
        node.name for node in drawn.node if node.op in ("Input", "Output")
    }
