"""Files that hold no graph: an error tells what each holds, and what to give in its place."""

import pickle
import zipfile

import pytest
import torch
from torch import nn

import tbscope
from tbscope.cli import main
from tbscope.sources.files import kind_of_content

RUN = "a model is run to learn its graph: tbscope.trace(model, input)"
FILL = f"build the model, load them into it, and run it: {RUN}"


def zipped(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")


def flatbuffer(form):
    return b"\x18\0\0\0" + form + b"\0" * 40


def safetensors(path):
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, path)


STRANGERS = {
    "weights": (lambda path: torch.save(nn.Linear(2, 2).state_dict(), path), "torch.save wrote it"),
    "model": (lambda path: torch.save(nn.Linear(2, 2), path), "torch.save wrote it"),
    "old weights": (
        lambda path: torch.save({"w": 1}, path, _use_new_zipfile_serialization=False),
        "torch.save wrote it",
    ),
    "safetensors": (safetensors, "it holds safetensors: weights"),
    "gguf": (lambda path: path.write_bytes(b"GGUF\3\0\0\0"), "it is a GGUF file: weights"),
    "hdf5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n"), "it is an HDF5 file"),
    "npz": (lambda path: zipped(path, "a.npy"), "arrays of NumPy"),
    "npy": (lambda path: path.write_bytes(b"\x93NUMPY\1\0"), "arrays of NumPy"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "it is a pickle"),
    "keras": (
        lambda path: zipped(path, "metadata.json", "config.json", "model.weights.h5"),
        "a model of Keras",
    ),
    "compiled": (
        lambda path: zipped(path, "a/data/aotinductor/model/a.wrapper.so", "a/archive_format"),
        "code that torch has compiled",
    ),
    "ort": (lambda path: path.write_bytes(flatbuffer(b"ORTM")), "the form of ONNX Runtime"),
    "pte": (lambda path: path.write_bytes(flatbuffer(b"ET12")), "a program of ExecuTorch"),
    "tflite": (lambda path: path.write_bytes(flatbuffer(b"TFL3")), "a model of LiteRT"),
    "ptl": (lambda path: path.write_bytes(flatbuffer(b"PTMF")), "TorchScript as a flatbuffer"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_file_without_a_graph_is_told_by_what_it_holds(tmp_path, name):
    if name == "safetensors":
        pytest.importorskip("safetensors")
    write, told = STRANGERS[name]
    path = tmp_path / "model.bin"
    write(path)
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(path)
    assert raised.value.what.endswith("which holds no graph")
    assert told in raised.value.why
    assert raised.value.fix


def test_the_error_of_weights_tells_to_build_the_model(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(str(path))
    assert str(raised.value) == (
        f"load was given '{path}', which holds no graph\n"
        "  why: torch.save wrote it: weights or pickled objects, and no graph\n"
        f"  fix: {FILL}"
    )


def test_the_command_tells_how_a_model_is_named(tmp_path, capsys):
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(SystemExit):
        main(["show", str(path)])
    told = capsys.readouterr().err
    assert "torch.save wrote it" in told
    assert "a model is named in its file, or in its module: path/to/file.py:NAME" in told


def test_a_model_is_told_to_have_yet_to_run():
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(nn.Linear(2, 2))
    assert raised.value.why == "it is a model, or a function, that has yet to run"
    assert raised.value.fix == RUN


def test_a_state_dict_is_told_to_be_weights():
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(nn.Linear(2, 2).state_dict())
    assert raised.value.why == "it holds weights by name, and no graph"
    assert raised.value.fix == FILL
    with pytest.raises(tbscope.ArgumentError, match="it takes a graph"):
        tbscope.load({"a": 1})


def test_a_node_named_as_a_form_of_flatbuffers_is_one_of_a_graph_def():
    assert kind_of_content(flatbuffer(b"ORTM"), 48) is None
    assert kind_of_content(b"\x0a\x0a\x0a\x08ORTM" + b"x" * 40, 48) == "graph_def"


def test_compiled_code_is_told_by_the_reader_of_programs_too(tmp_path):
    path = tmp_path / "compiled.pt2"
    zipped(path, "a/data/aotinductor/model/a.wrapper.so", "a/archive_format")
    for trusted in (False, True):
        with pytest.raises(tbscope.ArgumentError, match="has compiled \\(AOTInductor\\)"):
            tbscope.from_export(path, trusted=trusted)


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
