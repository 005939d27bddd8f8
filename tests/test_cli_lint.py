"""`tbscope lint`: what it finds in models, files and logs, and the logs that it repairs."""

import json
from pathlib import Path

import pytest
import torch
import torch.utils.tensorboard
from build import GraphBuilder, chain
from cli_runs import enter, events_in, graphs_in, misused, refused, tbscope
from google.protobuf import text_format
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import Summary

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


def test_a_log_of_torchs_is_repaired_beside_it_and_all_else_in_it_stays():
    write_torchs("runs/old")
    before = [event.SerializeToString() for event in events_in("runs/old")]
    result = tbscope("lint", "runs/old", "--fix")
    assert (result.exit_code, result.stdout) == (
        0,
        "0 errors, 0 warnings in 1 graph\nwritten: runs/old-fixed\n",
    )
    assert [event.SerializeToString() for event in events_in("runs/old")] == before
    after = [event.SerializeToString() for event in events_in("runs/old-fixed")]
    # TensorBoard's loader gives the graph of a run twice.
    assert [one == other for one, other in zip(before, after, strict=True)].count(False) == 2
    (graph,) = graphs_in("runs/old-fixed")
    assert library.lint(graph) == []
    shapes = {node.name: node.attr["_output_shapes"].list.shape for node in graph.node}
    (weight,) = (shape for name, shape in shapes.items() if name.endswith("/weight/weight"))
    assert [dim.size for dim in weight[0].dim] == [4, 3]
    assert tbscope("show", "runs/old-fixed").stdout == tbscope("show", "runs/old").stdout


def test_a_tag_and_its_numbers_are_renamed_together():
    message = text_format.Parse(BROKEN, GraphDef())
    metadata = RunMetadata()
    metadata.function_graphs.add().pre_optimization_graph.CopyFrom(message)
    metadata.step_stats.dev_stats.add().node_stats.add(node_name="a b", all_end_rel_micros=3)
    with torch.utils.tensorboard.SummaryWriter("runs/tagged") as writer:
        value = {"tag": "t", "metadata": {"plugin_data": {"plugin_name": "graph_run_metadata"}}}
        value["tensor"] = {"dtype": 7, "string_val": [metadata.SerializeToString()]}
        writer.file_writer.add_summary(Summary(value=[value]), 5)
    result = tbscope("lint", "runs/tagged:t@5", "--fix", "--into", "better")
    assert result.stdout.endswith("0 errors, 1 warning in 1 graph\nwritten: better\n")
    (value,) = (value for event in events_in("better") for value in event.summary.value)
    told = RunMetadata.FromString(value.tensor.string_val[0])
    assert told.step_stats.dev_stats[0].node_stats[0].node_name == "a_b"
    (graph,) = (one.pre_optimization_graph for one in told.function_graphs)
    assert [(node.name, [*node.input]) for node in graph.node] == [("a_b", []), ("y", ["a_b"])]


def test_a_file_is_repaired_in_its_form_and_what_is_left_is_told():
    result = tbscope("lint", "broken.pbtxt", "--fix")
    assert result.exit_code == 1
    assert result.stdout == (
        "warning missing-shape: a_b: output 0 is read and has no shape, and its edges have neither "
        "label nor width\n"
        "  fix: list a shape for each output in the attribute '_output_shapes'\n"
        "0 errors, 1 warning in 1 graph\nwritten: broken-fixed.pbtxt\n"
    )
    fixed = text_format.Parse(Path("broken-fixed.pbtxt").read_text(), GraphDef())
    assert [(node.name, [*node.input]) for node in fixed.node] == [("a_b", []), ("y", ["a_b"])]
    Path("broken.pb").write_bytes(text_format.Parse(BROKEN, GraphDef()).SerializeToString())
    tbscope("lint", "broken.pb", "--fix", "--into", "out.pb")
    assert GraphDef.FromString(Path("out.pb").read_bytes()) == fixed


def test_one_event_file_is_repaired_alone():
    write_torchs("runs/old")
    (file,) = Path("runs/old").iterdir()
    result = tbscope("lint", str(file), "--fix")
    assert result.stdout.splitlines()[-1] == f"written: {file}-fixed"
    assert len(list(Path("runs/old").iterdir())) == 2
    file.unlink()
    assert library.lint(graphs_in("runs/old")[0]) == []


def test_a_damaged_file_is_told_and_copied_as_far_as_it_can_be_read():
    write_torchs("runs/old")
    (file,) = Path("runs/old").iterdir()
    (file.parent / "tfevents.2").write_bytes(file.read_bytes()[:-1])
    result = tbscope("lint", "runs/old", "--fix", "--into", "new")
    assert result.stderr.startswith("note: no graphs can be read from 'runs/old/tfevents.2': ")
    assert len(graphs_in("new")) == 2
    assert len(events_in("new")) == len(events_in("runs/old"))


def test_what_cannot_be_repaired_is_refused_and_nothing_is_overwritten(folder):
    write_torchs("runs/old")
    assert tbscope("lint", "runs/old", "--fix").exit_code == 0
    assert refused("lint", "runs/old", "--fix") == (
        "Error: nothing is written to 'runs/old-fixed'\n  why: it is there already\n"
        "  fix: remove it, or give another path\n"
    )
    assert "it is there already" in refused("lint", "broken.pbtxt", "--fix", "--into", "runs")
    assert "TARGET is no log and no GraphDef" in refused(
        "lint", "nets.py:Net", "-i", "2x3", "--fix"
    )
    chain(1).save("graph.json")
    assert "TARGET is no log and no GraphDef" in refused("lint", "graph.json", "--fix")
    assert misused("lint", "runs/old", "--into", "x").endswith("give --fix, too.")
    assert misused("lint", "runs/old", "--fake").startswith("Error: --fake is for a model")
    assert not [path for path in (folder / "runs").iterdir() if path.name.startswith(".")]


def test_a_graph_that_is_saved_as_json_is_drawn_first():
    build = GraphBuilder("Net")
    build.output("out", build.op("relu", build.input("x", (1, 2))))
    build.graph.save("graph.json")
    assert tbscope("lint", "graph.json").stdout == "0 errors, 0 warnings in 1 graph\n"
