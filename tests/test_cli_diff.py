"""`tbscope diff` and `tbscope check`: what they print, what they exit with, what they write."""

import json
import os
from pathlib import Path

import pytest
from build import chain
from cli_runs import enter, misused, refused, tbscope

import tbscope as library


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    chain(2).save(tmp_path / "two.json")
    chain(3).save(tmp_path / "three.json")
    return enter(tmp_path, monkeypatch)


def ran(*words):
    """Give the exit code and both outputs of a command."""
    result = tbscope(*words)
    return result.exit_code, result.stdout, result.stderr


THREE = """Chain: 1 added
+ Linear: 2 (bias=True, in_features=2, out_features=2, 6 parameters)
parameters: 12 -> 18 (+50.0%)
trainable parameters: 12 -> 18 (+50.0%)
parameter bytes: 48 -> 72 (+50.0%)
operations: 2 -> 3 (+50.0%)
module calls: 3 -> 4 (+33.3%)
"""


def test_diff_tells_what_differs_and_exits_with_1():
    assert ran("diff", "two.json", "three.json") == (1, THREE, "")


def test_diff_exits_with_0_where_nothing_differs():
    told = (0, "Chain: no difference in 2 operations\n", "")
    assert ran("diff", "two.json", "two.json") == told


def test_diff_runs_models_and_reads_files_alike():
    words = ("nets.py:Net", "-i", "2x3")
    assert tbscope("export", *words, "--logdir", "runs").exit_code == 0
    code, out, _ = ran("diff", "runs", *words)
    assert (code, out) == (0, "Net: no difference in 3 operations\n")
    code, out, _ = ran("diff", "runs", *words, "-a", "end=tanh")
    assert (code, out) == (
        1,
        "Net: 1 changed\n~ tanh in the model, op relu -> tanh\n",
    )


def test_diff_in_json_is_the_difference_as_plain_data():
    code, out, _ = ran("diff", "two.json", "three.json", "--json")
    assert code == 1
    assert json.loads(out) == library.diff("two.json", "three.json").to_dict()
    assert ran("diff", "two.json", "three.json", "-o", "out.txt") == (1, "", "")
    assert Path("out.txt").read_text() == THREE


def test_diff_draws_the_union_where_it_is_told_to():
    code, _, told = ran("diff", "two.json", "three.json", "--logdir", "runs/diff")
    assert (code, told) == (1, "look at it: tensorboard --logdir runs/diff\n")
    (logged,) = library.read_log("runs/diff")
    fates = {node.name: node.attributes["difference"] for node in logged.graph.nodes}
    assert fates["2.weight"] == "added"
    assert fates["1.weight"] == "same"


def test_diff_of_what_is_none_is_one_message():
    Path("four.json").write_text("{}")
    code, out, told = ran("diff", "two.json", "four.json")
    assert (code, out) == (1, "")
    assert told.startswith("Error: ")
    assert "four.json" in told
    code, out, told = ran("diff", "two.json", "five.json")
    assert (code, out) == (1, "")
    assert "'five.json' contains no graph\n  why: there is no such file" in told
    assert "Missing argument 'AFTER'" in misused("diff", "two.json")


def test_check_writes_a_pin_and_compares_with_it():
    assert ran("check", "two.json", "--pin", "pin.json", "--update") == (0, "wrote pin.json\n", "")
    assert ran("check", "two.json", "--pin", "pin.json") == (0, "as in pin.json\n", "")
    told = f"the architecture is no longer that of pin.json\n{THREE}"
    assert ran("check", "three.json", "--pin", "pin.json") == (1, told, "")
    told = f"wrote pin.json\n{THREE}"
    assert ran("check", "three.json", "--pin", "pin.json", "--update") == (0, told, "")
    assert sorted(os.listdir()) == ["nets.py", "pin.json", "three.json", "two.json"]


def test_check_holds_limits_and_patterns():
    words = ("--max-params", "12", "--max-flops", "1G", "--max-activation-bytes", "1KiB")
    assert ran("check", "two.json", *words, "--no-op", "relu") == (0, "within all limits\n", "")
    assert ran("check", "three.json", *words, "--no-op", "relu", "--no-op", "lin*") == (
        1,
        "too large: 18 parameters are more than 12 (12)\n"
        "not allowed: 'lin*' is in it 3 times: 0-2.linear()\n",
        "",
    )


def test_any_batch_size_is_the_same_on_request():
    assert tbscope("export", "nets.py:Net", "-i", "2x3", "--logdir", "runs").exit_code == 0
    words = ("nets.py:Net", "-i", "7x3", "--any-batch-size")
    assert ran("diff", "runs", *words[:3])[0] == 1
    assert ran("diff", "runs", *words)[:2] == (0, "Net: no difference in 3 operations\n")
    assert ran("check", *words[:1], "-i", "2x3", "--pin", "pin.json", "--update")[0] == 0
    assert ran("check", *words[:3], "--pin", "pin.json")[0] == 1
    assert ran("check", *words, "--pin", "pin.json")[:2] == (0, "as in pin.json\n")


def test_check_in_json_tells_whether_it_passed():
    code, out, _ = ran("check", "two.json", "--max-params", "1", "--json")
    told = json.loads(out)
    assert (code, told["passed"], told["totals"]["parameters"]) == (1, False, 12)
    assert told["failures"] == ["too large: 12 parameters are more than 1 (1)"]


def test_check_of_a_missing_pin_tells_the_option_that_writes_it():
    assert ran("check", "two.json", "--pin", "pin.json") == (
        1,
        "",
        "Error: there is no pin 'pin.json'\n"
        "  why: a pin is written once, and each later graph is compared with it\n"
        "  fix: write it with update=True, or with --update\n",
    )


def test_check_of_nothing_or_with_no_number_is_misuse():
    assert "There is nothing to check: add --pin FILE, a --max- or --no-op." in misused(
        "check", "two.json"
    )
    assert "--update writes a pin: add --pin FILE." in misused("check", "two.json", "--update")
    told = refused("check", "two.json", "--max-params", "many")
    assert told.startswith("Error: max_parameters cannot be 'many'")
    assert "it is a number from 0 up" in told
