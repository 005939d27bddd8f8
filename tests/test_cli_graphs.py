"""Commands take a graph that was written before in the place of a model."""

from pathlib import Path

import pytest
from build import chain
from cli_runs import graphs_in, misused, refused, tbscope

import tbscope as library


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chain(2).save("graph.json")
    with library.SummaryWriter("runs/old") as writer:
        writer.add_graph(chain(2))
    (tmp_path / "graph.pb").write_bytes(library.to_graph_def(chain(2)).SerializeToString())
    return tmp_path


@pytest.mark.parametrize("target", ["graph.json", "runs", "runs/old"])
def test_show_prints_the_graph_of_a_file_and_of_a_log(target):
    assert tbscope("show", target).stdout == f"{chain(2)}\n"
    table = tbscope("show", target, "--summary", "--depth", "1").stdout
    assert "Linear" in table


def test_export_draws_a_graph_anew():
    tbscope("export", "runs/old", "--logdir", "runs/new", "--style", "torch")
    (drawn,) = graphs_in("runs/new")
    assert drawn == library.to_graph_def(chain(2), style="torch")
    assert str(library.load("runs/new")) == str(chain(2))


def test_notes_of_a_graph_are_told():
    Path("cut.pbtxt").write_text('node { name: "a" op: "A" input: "gone" }')
    result = tbscope("show", "cut.pbtxt")
    assert result.stdout == "graph():\n  A()\n  return ()\n"
    assert "note: left out, as no node has these names: 'gone'" in result.stderr


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("-i", "1x3"), "--input"),
        (("-a", "n=1"), "--arg"),
        (("--training",), "--training"),
        (("--profile",), "--profile"),
        (("--fake",), "--fake"),
    ],
)
def test_options_of_a_run_are_refused_for_what_is_read(words, flag):
    told = f"Error: {flag} is for a model that runs, and 'runs/old' is read."
    assert misused("show", "runs/old", *words) == told


def test_a_file_without_a_graph_is_refused_in_one_message(folder):
    (folder / "notes.txt").write_text("no graph")
    assert "'notes.txt' contains no graph" in refused("show", "notes.txt")


def test_a_damaged_file_of_a_log_is_told_and_the_others_are_shown(folder):
    (folder / "runs" / "old" / "tfevents").write_bytes(b"no record")
    shown = tbscope("show", "runs")
    assert shown.stdout == f"{chain(2)}\n"
    assert shown.stderr == (
        "note: the log 'runs' is read without what is damaged in it\n  no graphs can be read from "
        "'runs/old/tfevents': the record at byte 0 is cut off: 9 bytes are left for its head\n"
    )
    next((folder / "runs" / "old").glob("events*")).unlink()
    assert "the record at byte 0 is cut off" in refused("show", "runs")
