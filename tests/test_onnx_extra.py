"""The packages of the extra are asked for when they are needed, and not before."""

import inspect
import subprocess
import sys

import pytest
import torch
import torch.utils.tensorboard
from onnx_build import FLOAT, info, model_of, node
from test_writer import graph_events

import tbscope
from tbscope.sources.registry import SOURCES, graph_of

CODE = """
import sys
import torch, tbscope
tbscope.from_onnx, tbscope.modules_to_functions, tbscope.export_onnx
from tbscope import SummaryWriter
tbscope.to_graph_def(tbscope.trace(torch.nn.ReLU(), torch.ones(1)))
print([name for name in ("onnx", "onnx_ir", "onnxscript") if name in sys.modules])
"""


def small():
    relu = node("Relu", ["x"], ["y"], levels=[("", "nets.Net"), ("act", "torch.nn.ReLU")])
    return model_of([relu], [info("x", FLOAT, [2])], [info("y", FLOAT, [2])])


def test_nothing_is_imported_before_it_is_needed():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("onnx", lambda: tbscope.from_onnx("model.onnx")),
        ("onnx_ir", lambda: tbscope.modules_to_functions("model.onnx")),
        ("onnx_ir", lambda: tbscope.export_onnx(torch.nn.ReLU(), torch.ones(1))),
        ("onnxscript", lambda: tbscope.export_onnx(torch.nn.ReLU(), torch.ones(1))),
    ],
)
def test_what_is_missing_is_named_with_the_extra(monkeypatch, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(tbscope.ArgumentError) as raised:
        call()
    assert str(raised.value) == (
        f"ONNX models need the package {package!r}, which is not installed\n"
        "  why: it comes with an extra of tbscope, as most models never become ONNX\n"
        "  fix: pip install 'tbscope[onnx]'"
    )


def test_a_writer_draws_a_model_with_its_groups(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = writer.add_onnx_graph(small())
    assert [str(scope) for scope in graph.scopes()] == ["Net", "Net/ReLU[act]"]
    assert graph_events(tmp_path) == [tbscope.to_graph_def(graph)]


def test_the_method_of_the_writer_has_the_signature_of_torchs():
    ours, torchs = (
        list(inspect.signature(kind.add_onnx_graph).parameters)
        for kind in (tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter)
    )
    assert ours == torchs


def test_add_graph_takes_a_model_and_the_path_of_one(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(small().SerializeToString())
    graphs = [graph_of(given, None, {"kwargs": None}) for given in (path, str(path), small())]
    assert len({str(graph) for graph in graphs}) == 1
    with pytest.raises(tbscope.ArgumentError, match="is given with the graph of Net"):
        graph_of(path, torch.ones(2), {"kwargs": None})


def test_a_path_that_is_none_of_a_model_is_no_model():
    kinds = [next(kind for kind in SOURCES if kind.takes(each)) for each in ("a.onnx", "a.onn", 3)]
    assert [str(kind) for kind in kinds] == [
        "an ONNX model, or the path of one",
        *["a module or another callable, which is run"] * 2,
    ]
