"""ONNX files are told by what they hold: whatever they are called, in each form, however large."""

import shutil

import numpy as np
import onnx
import pytest
import torch
from cli_runs import misused, refused
from cli_runs import tbscope as command
from onnx_build import FLOAT, info, model_of, node, weight

import tbscope
from tbscope.errors import ArgumentError
from tbscope.sources.files import kind_of_content

GB = 2**30


def small(held=()):
    """Give a model of one addition."""
    pair = [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]
    return model_of([node("Add", ["x", "bias"], ["y"])], *pair, held or [weight("bias", 2)])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["model.onnx", "model.bin", "model.json", "model.py", "model"])
def test_a_model_is_read_whatever_its_file_is_called(name):
    onnx.save(small(), name, format="protobuf")
    for read in (tbscope.load, tbscope.from_onnx):
        assert [each.op for each in read(name).nodes] == ["input", "parameter", "Add"]


def field(number, content):
    """Give a field of a message in the binary form, of a number or of bytes."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


GRAPH = field(7, b"")


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (field(1, 10) + GRAPH, "onnx"),
        (field(1, 10) + field(2, b"me") + field(8, b"") + GRAPH, "onnx"),
        (GRAPH, None),
        (field(1, 10) + field(9, b"") + GRAPH, None),
        (field(1, b"node") + GRAPH, None),
        (field(1, 10) + field(7, 1), None),
        # It is one that is cut off, as its reader says.
        (field(1, 10) + b"\x12\x7fcut off" + GRAPH, "onnx"),
        (b"\xff" * 40, None),
        (b"", None),
        (b"ir_version: 10\n", None),
    ],
)
def test_what_a_file_holds_is_told_by_its_first_bytes(content, form):
    assert kind_of_content(content, len(content)) == form


def test_a_file_of_another_kind_is_read_as_that_whatever_its_name_says():
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    torch.export.save(program, "program.pt2")
    shutil.copy("program.pt2", "program.onnx")
    assert str(tbscope.load("program.onnx")) == str(tbscope.load("program.pt2"))


def test_where_nothing_can_be_told_of_a_file_its_name_tells_what_was_meant(folder):
    for name, what in (
        ("it.onnx", "no ONNX model can be read of 'it.onnx'"),
        ("it.bin", "'it.bin' contains no graph"),
    ):
        (folder / name).write_bytes(b"junk")
        with pytest.raises(ArgumentError, match=what):
            tbscope.load(name)


@pytest.mark.parametrize("there", [True, False])
def test_the_data_of_a_model_of_many_gigabytes_is_not_read(folder, there):
    table = onnx.TensorProto(name="table", dims=[GB, 3], data_type=FLOAT, data_location=1)
    table.external_data.add(key="location", value="table.bin")
    if there:
        with open("table.bin", "wb") as file:
            file.truncate(12 * GB)
    ids = onnx.numpy_helper.from_array(np.array([5, 6]), "ids")
    nodes = [node("Gather", ["table", "ids"], ["y"])]
    model = model_of(nodes, [], [info("y", FLOAT, [2, 3])], [table, ids], checked=False)
    (folder / "huge.model").write_bytes(model.SerializeToString())
    graph = tbscope.load("huge.model")
    (told,) = (each for each in graph.nodes if each.name == "table")
    assert told.outputs[0].shape == (GB, 3)
    assert graph.summary().totals["parameter_bytes"] == 12 * GB


@pytest.mark.parametrize("option", [["-i", "2"], ["-a", "x=1"], ["--training"], ["--profile"]])
def test_the_command_refuses_what_is_for_models_that_run(option):
    onnx.save(small(), "net.mdl")
    flag = {"-i": "--input", "-a": "--arg"}.get(option[0], option[0])
    told = misused("show", "net.mdl", *option)
    assert told == f"Error: {flag} is for a model that runs, and 'net.mdl' is read."


def test_the_command_shows_and_exports_a_file(folder):
    onnx.save(small(), "net.mdl")
    assert "= Add(%x, %bias)" in command("show", "net.mdl").stdout
    assert "\nParameters   2 (8 B)" in command("show", "net.mdl", "--summary").stdout
    assert command("show", "net.mdl", "--functions").stdout.startswith("graph(%x")
    for level in ("module", "aten"):
        result = command("export", "net.mdl", "-o", "net.pbtxt", "--level", level)
        assert (result.exit_code, result.output) == (0, "")
        assert 'name: "Add"' in (folder / "net.pbtxt").read_text()


def test_the_command_refuses_a_file_that_holds_no_graph(folder):
    (folder / "notes.txt").write_text("no graph")
    told = refused("show", "notes.txt")
    assert told.startswith("Error: 'notes.txt' contains no graph\n")
    assert "  why: it takes a graph that is made already" in told
