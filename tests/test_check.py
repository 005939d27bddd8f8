"""Checks: what a pin holds, what it is held against, limits, and what must not be in a model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tbscope
from tbscope.comparison.api import parse_limit
from tbscope.comparison.build_structure import OutlinedGraph
from tbscope.comparison.lock_file import outline_to_pin, pin_to_outline

X = torch.ones(1, 2)


def net(width=3, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(2, width), activation(), nn.Linear(width, 2))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


PIN = """{
"format": "tbscope architecture",
"version": 1,
"name": "Sequential",
"totals": {"activation_bytes": 24, "calls": 3, "flops": 12, "operations": 2, \
"parameter_bytes": 36, "parameters": 9, "trainable_parameters": 9},
"outputs": [["out", "Float(1, 3)"]],
"ties": [],
"uncalled": [],
"blocks": [
 {"block": "Linear", "label": "Linear", "class": "torch.nn.modules.linear.Linear",
  "settings": {"bias": "True", "in_features": "2", "out_features": "3", "training": "False"},
  "state": [["weight", "parameter", "Float(3, 2)", true, 6], \
["bias", "parameter", "Float(3)", true, 3]],
  "inputs": [["input", "argument", "Float(1, 2)"]],
  "steps": [
   {"step": "linear()", "op": "linear", "arguments": [["input", "%0"], ["weight", "%1"], \
["bias", "%2"]], "reads": [["in", "input"], ["state", "weight"], ["state", "bias"]], \
"takes": ["Float(1, 2)", "Float(3, 2)", "Float(3)"], "gives": ["Float(1, 3)"]}
  ],
"""


def test_a_pin_is_a_small_text_that_is_the_same_in_each_process():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    assert tbscope.check(model, X, pin="a.json", update=True)
    text = Path("a.json").read_text()
    assert text.startswith(PIN)
    assert (text.count("\n"), str(Path.cwd()) in text) == (40, False)
    code = (
        "import torch, tbscope; from torch import nn; torch.manual_seed(3); "
        "tbscope.check(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), torch.rand(1, 2), "
        "pin='b.json', update=True)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert Path("b.json").read_text() == text


def test_equal_layers_stand_in_a_pin_once():
    sizes = []
    for count in (2, 40):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))
        tbscope.check(model, X, pin=f"{count}.json", update=True)
        sizes.append(json.loads(Path(f"{count}.json").read_text()))
    assert [len(pin["blocks"]) for pin in sizes] == [3, 3]


def test_a_model_as_its_pin_tells_passes_and_another_one_does_not():
    written = tbscope.check(net(), X, pin="net.json", update=True)
    assert (bool(written), written.written, str(written)) == (True, True, "wrote net.json")
    again = tbscope.check(net(), X, pin="net.json")
    assert (bool(again), again.written, str(again)) == (True, False, "as in net.json")
    other = tbscope.check(net(activation=nn.GELU), X, pin="net.json")
    assert not other
    assert str(other) == (
        "the architecture is no longer that of net.json\n"
        "Sequential: 1 changed\n"
        "~ GELU: 1, class ReLU -> GELU"
    )
    assert other.difference.changed[0].name == "1"


def test_an_update_writes_what_differs_and_touches_nothing_else():
    tbscope.check(net(), X, pin="net.json", update=True)
    os.utime("net.json", (1, 1))
    assert not tbscope.check(net(), X, pin="net.json", update=True).written
    assert os.path.getmtime("net.json") == 1
    changed = tbscope.check(net(5), X, pin="net.json", update=True)
    assert (bool(changed), changed.written) == (True, True)
    assert str(changed).startswith("wrote net.json\nSequential: 2 changed\n~ Linear: 0, out_fea")
    assert os.listdir() == ["net.json"]
    assert tbscope.check(net(5), X, pin="net.json")


def test_a_check_without_update_writes_nothing():
    tbscope.check(net(), X, pin="net.json", update=True)
    text = Path("net.json").read_text()
    assert not tbscope.check(net(5), X, pin="net.json")
    assert Path("net.json").read_text() == text


def test_what_a_pin_cannot_see_does_not_move_it():
    one, other = net(), net()
    tbscope.check(one, X, pin="net.json", update=True)
    assert tbscope.check(other, torch.zeros(1, 2), pin="net.json")
    assert tbscope.check(other, X, pin="net.json", fake=True)
    # Its inputs are part of what it does.
    assert not tbscope.check(other, torch.zeros(7, 2), pin="net.json")
    assert not tbscope.check(other, X, pin="net.json", training=True)


@pytest.mark.parametrize(
    ("limit", "count", "words"),
    [
        ("max_parameters", 17, "parameters"),
        ("max_flops", 24, "FLOPs"),
        ("max_activation_bytes", 32, "activation bytes"),
    ],
)
def test_a_limit_is_the_most_that_is_allowed(limit, count, words):
    assert tbscope.check(net(), X, **{limit: count})
    assert str(tbscope.check(net(), X, **{limit: count})) == "within all limits"
    over = tbscope.check(net(), X, **{limit: count - 1})
    assert not over
    assert str(over) == f"too large: {count} {words} are more than {count - 1}"
    assert str(tbscope.check(net(), X, **{limit: "0k"})).endswith("are more than 0k (0)")


def test_operations_and_classes_that_are_not_allowed_are_told_with_their_places():
    assert tbscope.check(net(), X, no_op=["tanh", "Tanh", "linea"])
    assert str(tbscope.check(net(), X, no_op="linear")) == (
        "not allowed: 'linear' is in it 2 times: {0,2}.linear()"
    )
    assert str(tbscope.check(net(), X, no_op=["Li*", "Re??", "gelu"])) == (
        "not allowed: 'Li*' is in it 2 times: {0,2}\nnot allowed: 'Re??' is in it: 1"
    )


def test_all_failures_are_told_the_pin_first():
    tbscope.check(net(), X, pin="net.json", update=True)
    failed = tbscope.check(net(4), X, pin="net.json", max_parameters="20", no_op="relu")
    first, second, third = failed.failures
    assert first.startswith("the architecture is no longer that of net.json\n")
    assert second == "too large: 22 parameters are more than 20 (20)"
    assert third == "not allowed: 'relu' is in it: 1.relu()"
    told = failed.to_dict()
    assert (told["passed"], told["failures"]) == (False, [first, second, third])
    assert told["difference"] == failed.difference.to_dict()
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("0", 0), ("25M", 25_000_000), ("4G", 4 * 10**9), ("1.5k", 1500), ("1.5K", 1500)),
        *(("7B", 7 * 10**9), ("25_000", 25_000), ("1,234", 1234), ("2T", 2 * 10**12)),
        *(("1e3", 1000), ("2Ki", 2048), (" 3 M ", 3_000_000), (12, 12), ("0.1M", 100_000)),
    ],
)
def test_a_count_is_read_with_its_unit(text, count):
    assert parse_limit(text, "max_parameters") == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("1.5GiB", 3 * 2**29), ("512MB", 512 * 10**6), ("512M", 512 * 10**6), ("7B", 7)),
        *(("2KiB", 2048), ("2Ki", 2048), ("3 kB", 3000)),
    ],
)
def test_bytes_are_read_with_their_unit(text, count):
    assert parse_limit(text, "max_activation_bytes") == count


@pytest.mark.parametrize(
    "text",
    ["", "M", "-1", "25m", "25 Mega", "25MB", "1.5.5", "nan", "inf", "0x10", "_1", "1GiB", "٣", -1],
)
def test_what_is_no_count_is_refused(text):
    with pytest.raises(tbscope.ArgumentError) as error:
        tbscope.check(net(), X, max_parameters=text)
    assert str(error.value) == (
        f"max_parameters cannot be {text!r}\n"
        "  why: it is a number from 0 up with or without a unit, one of "
        "k, M, G, T, P, Ki, Mi, Gi, Ti, Pi, B\n"
        '  fix: max_parameters="25M"'
    )


def refused(**options):
    with pytest.raises(tbscope.ArgumentError) as error:
        tbscope.check(net(), X, **options)
    return str(error.value)


def test_a_check_of_nothing_is_refused():
    assert refused() == (
        "check was given nothing to check\n"
        "  why: it compares a model with a pin, or with limits\n"
        "  fix: pin='net.json', max_parameters='25M', max_flops='4G', or no_op=['view']"
    )
    assert refused(update=True, max_flops=3) == (
        "update=True was given without a pin\n"
        "  why: a pin is the file that is updated\n"
        "  fix: pin='net.json'"
    )


def test_a_pin_that_is_missing_or_none_is_told():
    assert refused(pin="net.json") == (
        "there is no pin 'net.json'\n"
        "  why: a pin is written once, and each later graph is compared with it\n"
        "  fix: write it with update=True, or with --update"
    )
    Path("net.json").write_text("{}")
    assert refused(pin="net.json") == (
        "the pin 'net.json' cannot be read\n"
        "  why: ValueError: it is no pin of an architecture: ValueError: it is (None, None), and "
        "this tbscope reads ('tbscope architecture', 1)\n"
        "  fix: take the file from version control, or remove it and write it with update=True"
    )
    assert refused(pin="net.json", update=True).startswith("the pin 'net.json' cannot be read")
    os.mkdir("folder")
    assert refused(pin="folder").startswith("the pin 'folder' cannot be read\n  why: IsADir")
    assert refused(pin="no/where.json", update=True).startswith(
        "the pin 'no/where.json' cannot be written\n  why: FileNotFoundError"
    )


def test_a_pin_of_a_later_version_is_refused():
    tbscope.check(net(), X, pin="net.json", update=True)
    text = Path("net.json").read_text().replace('"version": 1', '"version": 2')
    Path("net.json").write_text(text)
    assert "it is ('tbscope architecture', 2), and this tbscope reads" in refused(pin="net.json")


def test_a_model_of_another_batch_size_passes_if_it_may_and_leaves_its_pin():
    tbscope.check(net(), X, pin="net.json", update=True)
    text = Path("net.json").read_text()
    others = torch.ones(7, 2)
    assert not tbscope.check(net(), others, pin="net.json")
    assert tbscope.check(net(), others, pin="net.json", any_batch_size=True)
    updated = tbscope.check(net(), others, pin="net.json", any_batch_size=True, update=True)
    assert (bool(updated), updated.written, Path("net.json").read_text()) == (True, False, text)
    wide = tbscope.check(net(5), others, pin="net.json", any_batch_size=True)
    assert str(wide).splitlines()[1:3] == [
        "Sequential: 2 changed",
        "~ Linear: 0, out_features 3 -> 5",
    ]
    assert tbscope.check(net(5), others, pin="net.json", any_batch_size=True, update=True).written
    with pytest.raises(tbscope.ArgumentError, match="any_batch_size"):
        tbscope.check(net(), X, pin="net.json", any_batch_size="yes")


def test_a_damaged_pin_is_an_error_or_another_architecture_and_never_a_crash():
    text = outline_to_pin(OutlinedGraph(tbscope.trace(net(), X)).outline)
    taken = 0
    for start in range(0, len(text), 7):
        for damaged in (text[:start] + text[start + 1 :], text[:start] + "[" + text[start + 3 :]):
            try:
                outline = pin_to_outline(damaged)
            except ValueError:
                continue
            taken += 1
            assert outline.digest
            assert isinstance(str(outline.blocks()), str)
    assert taken


def test_a_pin_that_names_a_block_before_it_is_told_is_refused():
    outline = OutlinedGraph(tbscope.trace(net(), X)).outline
    data = json.loads(outline_to_pin(outline))
    data["blocks"].reverse()
    with pytest.raises(ValueError, match="it is no pin of an architecture"):
        pin_to_outline(json.dumps(data))


def test_a_difference_from_a_pin_is_not_drawn():
    tbscope.check(net(), X, pin="net.json", update=True)
    difference = tbscope.check(net(5), X, pin="net.json").difference
    with pytest.raises(tbscope.ArgumentError, match="a difference from a pin cannot be drawn"):
        _ = difference.graph


def test_a_graph_and_a_file_are_checked_as_their_model_is():
    graph = tbscope.trace(net(), X)
    graph.save("graph.json")
    tbscope.check(net(), X, pin="net.json", update=True)
    assert tbscope.check(graph, pin="net.json")
    assert tbscope.check("graph.json", pin="net.json")
    with pytest.raises(tbscope.ArgumentError, match="is given with the graph"):
        tbscope.check(graph, X, pin="net.json")


def test_the_parameters_of_a_drawing_are_not_counted():
    drawn = tbscope.from_graph_def(tbscope.to_graph_def(tbscope.trace(net(), X)))
    assert tbscope.check(drawn, max_activation_bytes="1k")
    with pytest.raises(tbscope.ArgumentError, match="parameters of 'Sequential' cannot be counted"):
        tbscope.check(drawn, max_parameters=1)
    nothing = tbscope.from_graph_def(tbscope.to_graph_def(tbscope.trace(nn.ReLU(), X)))
    assert tbscope.check(nothing, max_parameters=0)
