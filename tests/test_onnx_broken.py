"""What is no ONNX model, or a broken one, is refused in one clear error."""

import random

import onnx
import pytest
from onnx import helper
from onnx_build import FLOAT, info, model_of, node, weight

import tbscope

VECTOR = [2]


def plain(nodes, *, held=(), **facts):
    end = nodes[-1].output[0]
    return model_of(nodes, [info("x", FLOAT, VECTOR)], [info(end, FLOAT, VECTOR)], held, **facts)


def refused(given):
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.from_onnx(given)
    assert raised.value.why != ""
    assert raised.value.fix != ""
    return str(raised.value)


@pytest.mark.parametrize("version", [2**31 - 1, 2**31, 2**63 - 1, -1, -(2**31) - 1])
def test_a_version_that_no_schema_can_have_is_read_as_the_nearest_one(version):
    model = plain([node("Relu", ["x"], ["y"])])
    model.opset_import[0].version = version

    graph = tbscope.from_onnx(model)

    assert [one.op for one in graph.nodes if one.kind == "op"] == ["Relu"]


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07", b"PK\x03\x04zip"])
def test_a_file_that_holds_no_model_is_refused(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "model.onnx" in refused(path)


def test_a_file_that_is_cut_is_refused_and_the_whole_one_is_read(tmp_path):
    path = tmp_path / "model.onnx"
    whole = plain([node("Relu", ["x"], ["y"])]).SerializeToString()
    path.write_bytes(whole[:-3])
    assert "DecodeError" in refused(path)
    path.write_bytes(whole)
    assert len(tbscope.from_onnx(path).nodes) == 2


def test_a_path_where_nothing_is_is_refused(tmp_path):
    assert refused(f"{tmp_path}/gone.onnx") == (
        f"no ONNX model can be read of '{tmp_path}/gone.onnx'\n"
        f"  why: FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/gone.onnx'\n"
        "  fix: give the path of an ONNX file, or the result of onnx.load"
    )
    assert "IsADirectoryError" in refused(tmp_path)


def test_what_is_no_model_is_refused():
    assert refused(3).startswith("no ONNX model can be read of 3\n")
    assert "a model without a graph" in refused(onnx.ModelProto(ir_version=10))


def test_a_value_that_nothing_gives_is_told_by_its_name():
    model = plain([node("Add", ["x", "gone"], ["y"])], checked=False)
    assert "'gone' is read, and no earlier node computes it" in refused(model)
    assert tbscope.from_onnx(plain([node("Add", ["x", "here"], ["y"])], held=[weight("here", 2)]))


def test_nodes_out_of_order_are_refused():
    nodes = [node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"])]
    model = plain(nodes, checked=False)
    model.graph.output[0].name = "y"
    assert "'a' is read, and no earlier node computes it" in refused(model)
    model.graph.node.reverse()
    assert len(tbscope.from_onnx(model).nodes) == 3


def doubling(depth):
    """Give functions of which each calls the next one twice."""
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    found = [helper.make_function("f", "f0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], versions)]
    for number in range(1, depth):
        calls = [
            node(f"f{number - 1}", ["a"], ["t"], domain="f"),
            node(f"f{number - 1}", ["t"], ["b"], domain="f"),
        ]
        found.append(helper.make_function("f", f"f{number}", ["a"], ["b"], calls, versions))
    return found


def test_each_call_of_a_function_is_drawn():
    call = [node("f4", ["x"], ["y"], domain="f")]
    few = tbscope.from_onnx(plain(call, functions=doubling(5)))
    assert sum(each.op == "Neg" for each in few.nodes) == 16


def test_a_function_that_calls_itself_is_refused():
    (function,) = doubling(1)
    function.node[0].CopyFrom(node("f0", ["a"], ["b"], domain="f"))
    model = plain([node("f0", ["x"], ["y"], domain="f")], functions=[function], checked=False)
    assert "its function 'f0' calls itself" in refused(model)


def test_a_function_that_calls_itself_in_a_body_is_refused():
    (function,) = doubling(1)
    call = node("f0", ["a"], ["t"], domain="f")
    branch = helper.make_graph([call], "branch", [], [info("t", FLOAT, VECTOR)])
    choose = node("If", ["a"], ["b"], then_branch=branch, else_branch=branch)
    function.node[0].CopyFrom(choose)
    model = plain([node("f0", ["x"], ["y"], domain="f")], functions=[function], checked=False)
    assert "its function 'f0' calls itself" in refused(model)


@pytest.mark.parametrize("text", [b"relu_of_mine", b"nets.Net", b"pkg.torch.onnx.name_scopes"])
def test_a_text_that_is_none_is_refused(tmp_path, text):
    relu = node("Relu", ["x"], ["y"], levels=[("", "nets.Net"), ("fc", "L")], name="relu_of_mine")
    whole = plain([relu]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole.replace(text, text.upper()))
    assert tbscope.from_onnx(path).nodes
    path.write_bytes(whole.replace(text, text[:-4] + b"\xff\xfe\xfd\xfc"))
    assert "no text in UTF-8" in refused(path)


def test_the_name_of_a_size_that_is_no_text_is_refused(tmp_path):
    relu, x = node("Relu", ["x"], ["y"]), info("x", FLOAT, ["batch"])
    whole = model_of([relu], [x], [info("y", FLOAT, ["batch"])]).SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole)
    assert tbscope.from_onnx(path).nodes[0].attributes["symbolic_shape"] == "(batch)"
    path.write_bytes(whole.replace(b"batch", b"bat\xff\xfe"))
    assert "no text in UTF-8" in refused(path)


def test_a_shape_that_cannot_be_is_no_shape_and_the_graph_is_read():
    model = plain([node("Reshape", ["x", "sizes"], ["y"])], held=[weight("sizes", 9, kind=7)],
                  checked=False)  # fmt: skip
    graph = tbscope.from_onnx(model)
    assert graph.nodes[-1].op == "Reshape"
    model.graph.input[0].type.tensor_type.elem_type = 99
    assert tbscope.from_onnx(model).inputs[0].outputs[0].dtype == "unknown"


def test_metadata_that_is_none_is_left_aside():
    relu = node("Relu", ["x"], ["y"], levels=[("", "nets.Net"), ("a", "nets.A")])
    relu.metadata_props[0].value = "['', 'a', __import__('os')]"
    assert list(tbscope.from_onnx(plain([relu])).scopes()) == []
    relu.metadata_props[0].value = "['', 'a', 'relu']"
    assert [str(scope) for scope in tbscope.from_onnx(plain([relu])).scopes()] == [
        "Net",
        "Net/A[a]",
    ]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_bytes_change_there_is_a_graph_or_one_error(tmp_path, seed):
    draw = random.Random(seed)
    levels = [("", "nets.Net"), ("fc", "nets.Linear")]
    nodes = [
        node("Mul", ["x", "fc.weight"], ["a"], levels=levels, name="/fc/Mul"),
        node("Cast", ["a"], ["b"], to=1),
    ]
    whole = plain(nodes, held=[weight("fc.weight", 2)]).SerializeToString()
    path = tmp_path / "model.onnx"
    read = 0
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(draw.choice([1, 2, 8])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            tbscope.to_graph_def(tbscope.from_onnx(path))
        except tbscope.ArgumentError:
            continue
        read += 1
    assert read > 0
