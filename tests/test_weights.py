"""Files of weights: modules and tensors by their names, and nothing of the file runs."""

import argparse
import collections
import enum
import functools
import json
import os
import pickle
import sys
import zipfile

import pytest
import torch
from cli_runs import run_and_look_for_torch, tbscope
from torch import nn

import tbscope as library


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(11))
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.layers[0].weight


def write_safetensors(path, tensors, **others):
    """Write a header and as many zeros as the tensors need: no library is needed for it."""
    header, end = {"__metadata__": {"format": "pt"}, **others}, 0
    for name, (dtype, shape, size_bytes) in tensors.items():
        offsets = [end, end := end + size_bytes]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path


def tensors_in(graph):
    """Give the shape and the type of each tensor by its name, in the order of the nodes."""
    return {node.name: (node.outputs[0].shape, node.outputs[0].dtype) for node in graph.nodes}


def expected(state):
    return {key: (tuple(one.shape), str(one.dtype)[6:]) for key, one in state.items()}


@pytest.mark.parametrize("new", [True, False])
def test_a_state_dict_is_a_tree_of_modules_with_its_tensors(tmp_path, new):
    state = Net().state_dict()
    torch.save(state, tmp_path / "net.pt", _use_new_zipfile_serialization=new)
    graph = library.load(tmp_path / "net.pt")
    assert tensors_in(graph) == expected(state)
    assert [*tensors_in(graph)] == [*state]
    assert graph.find("layers.10").scope.path == "Module/ModuleList[layers]/Module[10]"
    totals = graph.summary().totals
    assert totals["tied"] == [("layers.0.weight", "head.weight")]
    assert totals["buffers"] == 1, "integers are no parameters"


def test_the_tensors_of_safetensors_are_in_the_order_of_numbers(tmp_path):
    types = {"BF16": 2, "F8_E4M3": 1, "I64": 8, "U8": 1, "BOOL": 1, "C64": 8, "X": 3}
    tensors = {f"h.{at}.w": (code, [1], size) for at, (code, size) in enumerate(types.items())}
    tensors |= {"h.10.w": ("F16", [2, 3], 12), "scale": ("F32", [], 4)}
    graph = library.load(write_safetensors(tmp_path / "net.bin", dict(sorted(tensors.items()))))
    assert [*tensors_in(graph).values()] == [
        ((), "float32"),
        *(((1,), dtype) for dtype in ("bfloat16", "float8_e4m3fn", "int64", "uint8", "bool")),
        *[((1,), "complex64"), ((1,), "x"), ((2, 3), "float16")],
    ]
    assert graph.name == "net"
    assert [str(note) for note in graph.notes] == [
        "the file has no operations, and each parameter in it counts as trainable"
    ]


def test_several_files_are_read_by_their_index(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"x.w": ("F32", [2], 8)})
    files = {"x.w": "a.safetensors", "x.b": "gone.safetensors", "y": "../a.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    graph = library.load(index)
    unknown = (None, "unknown")
    assert tensors_in(graph) == {"x.b": unknown, "x.w": ((2,), "float32"), "y": unknown}
    missing = f"sizes are unknown: there is no file {str(tmp_path / 'gone.safetensors')!r}"
    assert str(graph.notes[1]) == missing
    # Storages of two files have equal names, and are different ones.
    for at in range(2):
        torch.save({f"{at}.w": torch.ones(3)}, tmp_path / f"{at}.bin")
    index.write_text(json.dumps({"weight_map": {f"{at}.w": f"{at}.bin" for at in range(2)}}))
    assert library.load(index).summary().totals["parameters"] == 6


def test_a_checkpoint_has_the_keys_of_all_its_mappings_and_lists(tmp_path):
    w = nn.Parameter(torch.ones(2, dtype=torch.float8_e5m2))
    content = {"model": {"a.w": w}, "opt": [{0: {"avg": torch.ones(4)}}], "epoch": 3}
    content["itself"] = content
    torch.save(content, tmp_path / "checkpoint.tar")
    assert tensors_in(library.load(tmp_path / "checkpoint.tar")) == {
        "model.a.w": ((2,), "float8_e5m2"),
        "opt.0.0.avg": ((4,), "float32"),
    }


def test_a_pickled_model_has_its_classes_and_is_not_imported(tmp_path, monkeypatch):
    torch.save(Net(), tmp_path / "net.pt")
    monkeypatch.setattr(sys.modules[__name__], "Net", None)
    graph = library.load(tmp_path / "net.pt")
    assert tensors_in(graph) == expected(STATE)
    assert graph.name == "Net"
    assert graph.find("norm").class_name == "torch.nn.modules.batchnorm.BatchNorm1d"


STATE = Net().state_dict()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_nothing_of_a_pickle_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(1), "evil": Evil()}, "net.pt")
    assert [*tensors_in(library.load("net.pt"))] == ["w"]
    assert not os.path.exists("made")
    torch.load("net.pt", weights_only=False)
    assert os.path.exists("made"), "the pickle would have run code"


class Colour(enum.Enum):
    RED = 1


class Own(torch.Tensor):
    """A tensor of a class of its own."""


# Later versions of torch warn of quantised tensors.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("new", [True, False])
def test_objects_of_any_class_are_passed_over_for_the_tensors_in_them(tmp_path, new):
    content = {
        "arguments": argparse.Namespace(rate=0.1, scale=torch.ones(2)),
        "numbers": torch.ones(3).numpy(),
        "colour": Colour.RED,
        "path": tmp_path,
        "dtype": torch.float16,
        "made": functools.partial(print, 1),
        "lists": collections.defaultdict(list, {Colour.RED: [torch.ones(1, dtype=torch.bool)]}),
        "bits": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "own": torch.ones(5).as_subclass(Own),
        "buffer": nn.Buffer(torch.ones(6, dtype=torch.complex64)),
    }
    torch.save(content, tmp_path / "all.ckpt", _use_new_zipfile_serialization=new)
    assert sorted(tensors_in(library.load(tmp_path / "all.ckpt")).values()) == [
        *[((1,), "bool"), ((2,), "float32"), ((3,), "qint8")],
        *[((5,), "float32"), ((6,), "complex64")],
    ]


@pytest.mark.parametrize("name", ["zip", "old", "safetensors"])
@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.99])
def test_a_damaged_file_is_one_error(tmp_path, name, part):
    path = tmp_path / name
    if name == "safetensors":
        write_safetensors(path, {"w": ("F32", [20], 80)})
    else:
        torch.save(nn.Linear(9, 9), path, _use_new_zipfile_serialization=name == "zip")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    if name == "old" and part == 0.99:
        # Only the data is cut off, which is not read.
        assert len(library.load(path).nodes) == 2
        return
    with pytest.raises(library.ArgumentError) as raised:
        library.load(path)
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "end at byte 4 of 0"),
        ({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}, "-1 is no size"),
        ({"w": 3}, "TypeError"),
        ({"w": {"dtype": "F32", "shape": "a", "data_offsets": [0, 0]}}, "ValueError"),
        ({}, "it contains no tensors"),
    ],
)
def test_a_header_that_fits_no_data_is_refused(tmp_path, header, why):
    path = write_safetensors(tmp_path / "a", {}, **header)
    with pytest.raises(library.ArgumentError, match=why):
        library.load(path)


def test_an_entry_that_claims_more_bytes_than_the_file_has_is_not_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "net.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data.pkl", pickle.dumps({"w": bytes(1_000_000)}))
    with pytest.raises(library.ArgumentError, match="claims more bytes than the file has"):
        library.load(tmp_path / "net.pt")


def test_any_key_is_drawn(tmp_path):
    keys = ["", ".", "a..b", "a", "a.b", "a.b.c", "/", "a/b.c", " ", "é\n", "0", ".".join("x" * 99)]
    torch.save({key: torch.ones(1) for key in keys}, tmp_path / "odd.pt")
    graph = library.load(tmp_path / "odd.pt")
    assert len(graph.nodes) == len(keys)
    assert library.lint(library.to_graph_def(graph)) == []
    graph.save(tmp_path / "odd.html")
    graph.save(tmp_path / "odd.json")
    assert str(library.load(tmp_path / "odd.json")) == str(graph)


def test_files_of_weights_are_compared_by_their_tensors(tmp_path):
    for name, count in (("a", 3), ("b", 3), ("c", 4)):
        write_safetensors(tmp_path / name, {"fc.w": ("F32", [count], 4 * count)})
    assert not library.diff(tmp_path / "a", tmp_path / "b")
    assert "Module: fc, w Float(3) -> Float(4)" in str(library.diff(tmp_path / "a", tmp_path / "c"))


def test_the_command_prints_a_tree_without_torch(tmp_path):
    path = write_safetensors(tmp_path / "net.safetensors", {"a.0.w": ("F32", [2, 3], 24)})
    done = run_and_look_for_torch("show", str(path))
    assert done.stdout.splitlines() == [
        "Module  Class       Tensors        Parameters  Bytes",
        "----------------------------------------------------",
        "Module                                      6   24 B",
        "  a     ModuleList                          6   24 B",
        "    0   Module      w Float(2, 3)           6   24 B",
        "----------------------------------------------------",
        "Parameters  6 (24 B), all trainable",
        "False",
    ]
    lines = tbscope("show", str(path), "--parameters").stdout.splitlines()
    assert lines[1] == "  %a.0.w : Float(2, 3) = parameter(), scope: Module/ModuleList[a]/Module[0]"
