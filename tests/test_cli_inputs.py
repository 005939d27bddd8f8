"""Inputs that a function makes (`--inputs`), and methods that run in place of forward."""

from pathlib import Path

import pytest
from build import chain
from cli_runs import enter, misused, refused, tbscope

from tbscope.cli.parameters import ModelSpec
from tbscope.cli.target import load_model
from tbscope.errors import ArgumentError

MAKERS = """
import torch
import nets
from nets import Net

def make_tensor():
    return torch.ones(2, 3)

def make_pair():
    return (torch.ones(5, 3),)

def make_named():
    return {"x": torch.ones(2, 3), "scale": torch.ones(())}

def fail():
    raise ValueError("no inputs today")

def make_loss(results):
    return results.square().mean()

x = torch.ones(7, 3)
"""
OWN = """
import torch
from torch import nn

class Pair:
    def __init__(self, x):
        self.x = x

class Part(nn.Module):
    def embed(self, x):
        return x * 2

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.part = Part()
        self.size = 3
    def forward(self, pair):
        assert isinstance(pair, Pair)
        return self.fc(pair.x)
    def encode(self, x):
        return self.fc(x).relu()

def make_inputs():
    return (Pair(torch.ones(2, 3)),)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "makers.py").write_text(MAKERS)
    (tmp_path / "own.py").write_text(OWN)
    return enter(tmp_path, monkeypatch)


def head(*words):
    result = tbscope("show", *words)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        ("makers.py:make_tensor", "graph(%x : Float(2, 3)):"),
        ("makers.py:make_pair", "graph(%x : Float(5, 3)):"),
        ("makers.py:make_named", "graph(%x : Float(2, 3), %scale : Float()):"),
        ("makers.py:x", "graph(%x : Float(7, 3)):"),
        ("makers:make_tensor", "graph(%x : Float(2, 3)):"),
    ],
)
def test_a_function_makes_the_inputs_or_a_name_holds_them(maker, told):
    assert head("nets.py:Net", "--inputs", maker) == told


def test_named_inputs_go_beside_those_that_are_made():
    words = ["nets.py:Net", "--inputs", "makers.py:make_tensor", "-i", "scale=scalar"]
    assert head(*words) == "graph(%x : Float(2, 3), %scale : Float()):"
    assert misused("show", *words[:3], "-i", "2x3") == (
        "Error: --inputs gives all positional inputs: beside it, --input needs names."
    )


def test_inputs_of_the_models_own_file_are_of_its_own_classes():
    assert head("own.py:Own", "--inputs", "own.py:make_inputs") == "graph(%pair.x : Float(2, 3)):"


def test_makers_are_found_in_a_folder_of_their_own(folder):
    (folder / "data").mkdir()
    (folder / "data" / "sizes.py").write_text("SIZE = (4, 3)\n")
    (folder / "data" / "give.py").write_text(
        "import torch\nfrom sizes import SIZE\ndef give():\n    return torch.ones(SIZE)\n"
    )
    assert head("nets.py:Net", "--inputs", "data/give.py:give") == "graph(%x : Float(4, 3)):"


@pytest.mark.parametrize("words", [(), ("--backward",)])
def test_a_loss_is_drawn_and_what_runs_back_from_it(words):
    result = tbscope("show", "nets.py:Net", "-i", "2x3", "--loss", "makers.py:make_loss", *words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].endswith(", loss=%5)")
    assert ("phase: backward" in result.stdout) == bool(words)


def test_what_is_no_loss_is_refused():
    words = ("nets.py:Net", "-i", "2x3", "--loss")
    assert refused("show", *words, "makers.py:x") == (
        "Error: 'x' in 'makers.py' makes no loss\n"
        "  why: it is a Tensor, and cannot be called\n"
        "  fix: name a function: def make_loss(results): return results.mean()\n"
    )
    assert misused("show", *words, "make_loss").endswith(
        "'make_loss' has not the form path/to/file.py:NAME or package.module:NAME"
    )


def test_a_maker_that_fails_is_told():
    assert refused("show", "nets.py:Net", "--inputs", "makers.py:fail") == (
        "Error: fail() in 'makers.py' raised\n"
        "  why: ValueError: no inputs today\n"
        "  fix: give what it needs as --arg NAME=VALUE, or add --debug to see where\n"
    )
    assert refused("show", "nets.py:Net", "--inputs", "makers.py:make_tenser") == (
        "Error: 'makers.py' has no 'make_tenser'\n"
        "  fix: did you mean 'make_tensor', 'make_named', 'make_pair'?\n"
    )
    assert misused("show", "nets.py:Net", "--inputs", "makers.py") == (
        "Error: Invalid value for '--inputs': 'makers.py' has not the form "
        "path/to/file.py:NAME or package.module:NAME"
    )


def test_a_method_runs_in_place_of_forward():
    result = tbscope("show", "own.py:Own", "-i", "2x3", "--method", "encode")
    assert result.stdout == (
        "graph(%x : Float(2, 3)):\n"
        "  %1 : Float(2, 4) = linear(%x, %fc.weight, %fc.bias), scope: Own/Linear[fc]\n"
        "  %2 : Float(2, 4) = relu(%1), scope: Own\n"
        "  return (%2)\n"
    )
    assert (
        "= mul(%x, 2)"
        in tbscope("show", "own.py:Own", "-i", "2x3", "--method", "part.embed").stdout
    )


def test_a_method_that_is_not_there_is_refused():
    words = ["show", "own.py:Own", "-i", "2x3", "--method"]
    assert refused(*words, "encodes") == (
        "Error: Own of 'own.py:Own' has no method 'encodes'\n  fix: did you mean 'encode'?\n"
    )
    assert refused(*words, "size") == (
        "Error: Own of 'own.py:Own' has no method 'size'\n"
        "  why: 'size' is 3\n"
        "  fix: give the name of one: --method encode\n"
    )


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--inputs", "makers.py:x"), "--inputs"),
        (("--method", "encode"), "--method"),
        (("--download",), "--download"),
        (("-i", "2x3"), "--input"),
    ],
)
def test_what_is_read_takes_none_of_them(words, flag):
    chain(1).save(Path("graph.json"))
    told = f"Error: {flag} is for a model that runs, and 'graph.json' is read."
    assert misused("show", "graph.json", *words) == told


def test_a_reader_of_a_table_that_has_seen_enough_is_no_failure(monkeypatch):
    def broken(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("click.echo", broken)
    result = tbscope("show", "torch.nn:ReLU", "-i", "2x3", "--summary")
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_file_that_cannot_be_imported_is_tried_again():
    spec = ModelSpec("broken.py", "Net")
    Path("broken.py").write_text("import torch\nNet = torch.nn.ReLU\nraise ValueError('no')\n")
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"cannot import 'broken\.py'"):
            load_model(spec, {})
