"""`tbscope lint`: its findings in models, files and logs."""

import json
from pathlib import Path

import pytest
import torch
import torch.utils.tensorboard
from build import chain
from cli_runs import enter, misused, refused, tbscope

import tbscope as library

BROKEN = 'node { name: "a b" op: "In" } node { name: "y" op: "Op" input: "a b" input: "gone" }'
FOUND = (
    "warning odd-character: a b: the name has ' ', and colouring by device, cluster or "
    "compatibility fails\n"
    "  fix: use A-Z a-z 0-9 _ - . [ ] ( ) and ','\n"
    "error dangling-input: y: the input 'gone' names no node, and its edge is not drawn\n"
    "  fix: name a node, or leave the input out\n"
    "warning missing-shape: a b: output 0 is read and has no shape, and its edges have neither "
    "label nor width\n"
    "  fix: list a shape for each output in the attribute '_output_shapes'\n"
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "broken.pbtxt").write_text(BROKEN)
    return enter(tmp_path, monkeypatch)


def write_torchs(logdir):
    with torch.utils.tensorboard.SummaryWriter(logdir) as writer:
        writer.add_graph(torch.nn.Sequential(torch.nn.Linear(3, 4)), torch.ones(2, 3))
        writer.add_scalar("loss", 0.5, 7)


def test_a_model_is_drawn_and_keeps_every_rule():
    result = tbscope("lint", "nets.py:Net", "-i", "2x3")
    assert (result.exit_code, result.stdout) == (0, "0 errors, 0 warnings in 1 graph\n")


def test_what_a_file_breaks_is_told_and_ends_with_1():
    result = tbscope("lint", "broken.pbtxt")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == f"{FOUND}1 error, 2 warnings in 1 graph\n"


def test_findings_are_told_as_json():
    result = tbscope("lint", "broken.pbtxt", "--json")
    assert result.exit_code == 1
    (one,) = json.loads(result.stdout)["graphs"]
    assert one["target"] == "broken.pbtxt"
    assert one["findings"][1] == {
        "rule": "dangling-input",
        "severity": "error",
        "node": "y",
        "message": "the input 'gone' names no node, and its edge is not drawn",
        "fix": "name a node, or leave the input out",
    }


def test_of_a_rule_that_is_broken_often_the_first_are_told_and_json_tells_all():
    Path("many.pbtxt").write_text(
        "".join(f'node {{ name: "n{n}x" op: "Op" input: "gone{n}" }}' for n in range(7))
    )
    lines = tbscope("lint", "many.pbtxt").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *["error dangling-input"] * 5,
        *("  and 2 more", "  fix", "7 errors, 0 warnings in 1 graph"),
    ]
    (one,) = json.loads(tbscope("lint", "many.pbtxt", "--json").stdout)["graphs"]
    assert len(one["findings"]) == 7


def test_no_more_are_told_where_all_are():
    Path("five.pbtxt").write_text(
        "".join(f'node {{ name: "n{n}x" op: "Op" input: "gone{n}" }}' for n in range(5))
    )
    lines = tbscope("lint", "five.pbtxt").stdout.splitlines()
    assert [line.split(":")[0] for line in lines[5:]] == [
        *("  fix", "5 errors, 0 warnings in 1 graph"),
    ]


def test_every_graph_of_a_log_is_looked_at_or_the_one_that_is_named():
    write_torchs("runs/old")
    with library.SummaryWriter("runs/new") as writer:
        writer.add_graph(chain(2))
        writer.add_graph(chain(3), tag="large")
    result = tbscope("lint", "runs")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "runs/old:Default@0"
    assert result.stdout.endswith("in 3 graphs\n")
    assert "dangling-input: Sequential/Linear[0]/bias/bias" in result.stdout
    clean = tbscope("lint", "runs/new:large")
    assert (clean.exit_code, clean.stdout) == (0, "0 errors, 0 warnings in 1 graph\n")
    assert tbscope("lint", "runs/new:large@0").exit_code == 0
    assert refused("lint", "runs/new:larg") == (
        "Error: nothing can be checked in 'runs/new'\n  why: none is tagged 'larg'\n"
        "  fix: tbscope ls runs/new\n"
    )


def test_of_a_damaged_file_the_readable_part_is_checked():
    write_torchs("runs/old")
    (file,) = Path("runs/old").iterdir()
    (file.parent / "tfevents.2").write_bytes(file.read_bytes()[:-1])
    result = tbscope("lint", "runs/old")
    assert result.stderr.startswith("note: no graphs can be read from 'runs/old/tfevents.2': ")
    assert result.stdout.endswith("in 2 graphs\n")


def test_options_for_models_are_refused_for_logs():
    write_torchs("runs/old")
    assert misused("lint", "runs/old", "--fake").startswith("Error: --fake is for a model")
