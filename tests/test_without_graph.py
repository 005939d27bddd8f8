"""Files that hold no graph: one error names the kinds that are read."""

import pickle
import zipfile

import pytest
import torch
from torch import nn

import tbscope
from tbscope.cli import main
from tbscope.messages import shown
from tbscope.sources.files import kind_of_content

RUN = "a model is run to learn its graph: tbscope.trace(model, input)"
KINDS = (
    "a graph that is made already, the graphs of torch.compile, the path of a file that graph.save "
    "wrote, that of an event file, or of a log directory, a GraphDef, or the path of one, "
    "a program that torch.export made, the path of a .pt2 file, what torch.jit traced or "
    "scripted, the path of a file of torch.jit.save, that of a file of weights, an ONNX model, or "
    "the path of one, a graph module of torch.fx"
)


def zipped(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")


def flatbuffer(form):
    return b"\x18\0\0\0" + form + b"\0" * 40


WITHOUT = {
    "gguf": lambda path: path.write_bytes(b"GGUF\3\0\0\0"),
    "hdf5": lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"),
    "npz": lambda path: zipped(path, "a.npy"),
    "npy": lambda path: path.write_bytes(b"\x93NUMPY\1\0"),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "keras": lambda path: zipped(path, "metadata.json", "config.json", "model.weights.h5"),
    "compiled": lambda path: zipped(path, "a/data/aotinductor/model/a.so", "a/archive_format"),
    "ort": lambda path: path.write_bytes(flatbuffer(b"ORTM")),
    "pte": lambda path: path.write_bytes(flatbuffer(b"ET12")),
    "tflite": lambda path: path.write_bytes(flatbuffer(b"TFL3")),
    "ptl": lambda path: path.write_bytes(flatbuffer(b"PTMF")),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_the_error_of_a_file_without_a_graph_names_all_kinds_that_are_read(tmp_path, name):
    path = tmp_path / "model.bin"
    WITHOUT[name](path)
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(path)
    assert str(raised.value) == (
        f"{shown(path)} contains no graph\n  why: it takes {KINDS}\n  fix: {RUN}"
    )


def test_the_command_tells_the_kinds_of_files_that_are_read(tmp_path, capsys):
    path = tmp_path / "model.gguf"
    WITHOUT["gguf"](path)
    with pytest.raises(SystemExit):
        main(["show", str(path)])
    told = capsys.readouterr().err
    assert "why: it takes a graph that is made already" in " ".join(told.split())


def test_a_model_is_told_to_have_yet_to_run():
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(nn.Linear(2, 2))
    assert raised.value.why == "it is a model, or a function, that has yet to run"
    assert raised.value.fix == RUN


def test_a_node_named_as_a_form_of_flatbuffers_is_one_of_a_graph_def():
    assert kind_of_content(flatbuffer(b"ORTM"), 48) is None
    assert kind_of_content(b"\x0a\x0a\x0a\x08ORTM" + b"x" * 40, 48) == "graph_def"


REMOTE = "s3://bucket/file"


@pytest.mark.parametrize("read", [tbscope.from_export, tbscope.from_torchscript, tbscope.from_onnx])
def test_a_file_on_another_machine_is_to_be_copied(read):
    with pytest.raises(tbscope.ArgumentError) as raised:
        read(REMOTE)
    assert raised.value.why.startswith("it is on another machine")
    assert raised.value.fix == "copy it to this machine, and give the path of the copy"


def test_a_program_on_another_machine_is_told_from_one_that_is_not_there(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "a.pt2")
    fsspec.filesystem("memory").pipe("/a.pt2", (tmp_path / "a.pt2").read_bytes())
    with pytest.raises(tbscope.ArgumentError, match="it is on another machine"):
        tbscope.load("memory://a.pt2")
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load("memory://gone.pt2")
    assert "another machine" not in raised.value.why
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.read_log("unknown://runs")
    assert "no record with a checksum" not in raised.value.why


def program(path):
    torch.export.save(torch.export.export(nn.Linear(9, 9), (torch.ones(1, 9),)), path)


def script(path):
    torch.jit.trace(nn.Linear(9, 9), torch.ones(1, 9)).save(path)


@pytest.mark.parametrize("part", [0.02, 0.5, 0.99])
@pytest.mark.parametrize(
    ("write", "read"), [(program, tbscope.from_export), (script, tbscope.from_torchscript)]
)
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_is_cut_off_has_one_error_at_all_doors(tmp_path, write, read, part):
    whole, cut = tmp_path / "whole.pt2", str(tmp_path / "cut.bin")
    write(str(whole))
    content = whole.read_bytes()
    with open(cut, "wb") as file:
        file.write(content[: int(len(content) * part)])

    texts = []
    for door in (read, tbscope.load, lambda path: tbscope.diff(path, path)):
        with pytest.raises(tbscope.ArgumentError) as raised:
            door(cut)
        texts.append(str(raised.value))

    assert len(set(texts)) == 1
    assert texts[0].endswith("fix: it is cut off or damaged: copy or write it again")


def test_an_empty_file_is_told(tmp_path):
    (tmp_path / "net.pt2").touch()
    with pytest.raises(tbscope.ArgumentError, match="why: it is empty"):
        tbscope.load(tmp_path / "net.pt2")


def test_a_saved_model_of_tensorflow_is_told(tmp_path):
    path = tmp_path / "saved_model.pb"
    path.write_bytes(b"\x08\x01\x12\x80\x01\x0a\x05" + b"x" * 140)
    for given in (tmp_path, str(path)):
        with pytest.raises(tbscope.ArgumentError, match="it is a SavedModel of TensorFlow"):
            tbscope.load(given)
    assert kind_of_content(b"\x08\x01\x12\x07pytorch:", 200) == "onnx"
