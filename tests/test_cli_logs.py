"""What the command tells of logs: `ls`, and targets that name one graph of several."""

import json
import os

import pytest
import torch.utils.tensorboard
from build import chain
from cli_runs import misused, refused, run_process, tbscope

import tbscope as library
from tbscope.cli.parameters import GraphPath, ModelSpec, parse_target


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with library.SummaryWriter("runs/net") as writer:
        writer.add_graph(chain(1))
        writer.add_graph(chain(2), tag="large", step=3)
        writer.add_graph(chain(3), tag="large", step=7)
        writer.add_graph(chain(4), tag="large@7", step=8)
        writer.add_graph(chain(6), tag="odd@2", step=0)
    with library.SummaryWriter("runs/other") as writer:
        writer.add_graph(chain(5), tag="large", step=1)
    return tmp_path


def text_of(target):
    result = tbscope("show", target)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_graph_is_listed_with_its_run_tag_step_nodes_and_bytes():
    drawn = [library.to_graph_def(chain(length)) for length in (1, 2, 3, 4, 6, 5)]
    lines = tbscope("ls", "runs").stdout.splitlines()
    assert lines[0] == "Run    Tag      Step  Nodes  Bytes"
    cells = [line.split() for line in lines[1:]]
    rows = [("net", "Default", 0), ("net", "large", 3), ("net", "large", 7)]
    rows += [("net", "large@7", 8), ("net", "odd@2", 0), ("other", "large", 1)]
    assert cells == [
        [run, tag, str(step), str(len(message.node)), f"{message.ByteSize():,}"]
        for (run, tag, step), message in zip(rows, drawn, strict=True)
    ]


def test_graphs_of_one_tag_and_step_are_told_apart_by_their_times():
    chain(2).save("graph.json")
    # Another process begins with step 0 again.
    assert run_process("export", "graph.json", "--logdir", "runs/net").returncode == 0
    head, first, *_, second, _ = tbscope("ls", "runs").stdout.splitlines()
    assert head.split() == ["Run", "Tag", "Written", "Step", "Nodes", "Bytes"]
    assert first.split()[:2] == second.split()[:2] == ["net", "Default"]
    assert first.split()[2:4] < second.split()[2:4]
    assert text_of("runs/net:Default@0") == f"{chain(2)}\n"


def test_the_list_as_json_names_each_graph_as_a_target():
    told = json.loads(tbscope("ls", "runs/", "--json").stdout)
    assert (told["version"], told["logdir"], told["damaged"]) == (1, "runs/", [])
    for one, length in zip(told["graphs"], (1, 2, 3, 4, 6, 5), strict=True):
        assert text_of(one["target"]) == f"{chain(length)}\n", one["target"]
        assert one["whole"]
        assert os.path.exists(one["file"])
    assert set(told["graphs"][0]) == {
        *("run", "tag", "step", "nodes", "bytes", "whole", "wall_time", "file", "target")
    }


def test_graphs_of_others_are_listed():
    with torch.utils.tensorboard.SummaryWriter("torchs") as writer:
        writer.add_graph(torch.nn.Linear(3, 4), torch.ones(2, 3))
    told = json.loads(tbscope("ls", "torchs", "--json").stdout)["graphs"]
    assert [(one["run"], one["tag"], one["whole"]) for one in told] == [(".", None, False)]
    lines = tbscope("ls", "torchs").stdout.splitlines()
    assert lines[1].split()[:3] == [".", "Default", "0"]


def test_a_log_without_graphs_lists_none():
    with torch.utils.tensorboard.SummaryWriter("empty") as writer:
        writer.add_scalar("loss", 1)
    assert tbscope("ls", "empty").stdout == "no graphs\n"
    assert json.loads(tbscope("ls", "empty", "--json").stdout)["graphs"] == []


def test_damaged_files_are_told_behind_what_can_be_read(folder):
    whole = next((folder / "runs" / "other").iterdir())
    (folder / "runs" / "other" / "tfevents.9").write_bytes(whole.read_bytes()[:-1])
    (folder / "runs" / "other" / "tfevents.8").write_bytes(b"")
    result = tbscope("ls", "runs")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 7
    assert result.stderr.count("Error: no graphs can be read from") == 1
    assert "tfevents.9'\n  why: the record at byte " in result.stderr
    (folder / "runs" / "other" / "tfevents.7").write_bytes(whole.read_bytes()[:-2])
    assert len(json.loads(tbscope("ls", "runs", "--json").stdout)["damaged"]) == 2
    assert tbscope("ls", "runs").stderr.count("Error: no graphs can be read from") == 2


def test_what_is_no_log_is_refused():
    chain(1).save("graph.json")
    assert refused("ls", "graph.json") == (
        "Error: no graphs can be read from 'graph.json'\n"
        "  why: it is a file of another kind: tbscope.load(path) reads it\n"
        "  fix: tbscope ls runs/x\n"
    )
    assert "there is no such file or directory" in refused("ls", "nowhere")
    assert "is no name of a folder" in misused("ls", " ")


# -- targets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "length"),
    [
        ("runs/net:Default", 1),
        ("runs/net:large", 3),
        ("runs/net:large@3", 2),
        # Rather than the tag of that name, which its own step tells.
        ("runs/net:large@7", 3),
        ("runs/net:large@7@8", 4),
        ("runs/net:odd@2", 6),
        ("runs/other", 5),
        ("runs:large@1", 5),
    ],
)
def test_a_graph_of_a_log_is_named_by_its_tag_and_its_step(target, length):
    assert text_of(target) == f"{chain(length)}\n"
    assert str(library.load(target)) == str(chain(length))


def test_where_one_run_has_a_graph_of_its_own_that_one_is_meant():
    result = tbscope("show", "runs/net")
    assert (result.exit_code, result.stdout) == (0, f"{chain(1)}\n")
    assert result.stderr == (
        "note: 'runs/net': this is the graph of the run; 3 beside it: 'large', 'large@7', 'odd@2'\n"
    )
    with library.SummaryWriter("runs/net") as writer:
        writer.add_graph(chain(7), step=9)
    assert text_of("runs/net") == f"{chain(7)}\n", "the latest of them"
    with library.SummaryWriter("tagged") as writer:
        writer.add_graph(chain(1), tag="a")
        writer.add_graph(chain(2), tag="b")
    assert "it has 2 of them: .: 'a', .: 'b'" in refused("show", "tagged")


def test_every_command_takes_the_first_log_that_a_newcomer_writes():
    assert tbscope("demo").exit_code == 0
    for name, *words in (["stats"], ["show", "--summary"], ["find", "op:relu"]):
        result = tbscope(name, "runs/demo", *words)
        assert result.exit_code == 0, result.output
        assert "note: 'runs/demo': this is the graph of the run; " in result.stderr


def test_an_event_file_has_tags_and_no_other_file(folder):
    (file,) = (folder / "runs" / "other").iterdir()
    assert text_of(f"{file}:large") == f"{chain(5)}\n"
    chain(1).save("graph.json")
    assert "cannot import 'graph.json'" in refused("show", "graph.json:large")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (
            "runs/net:lage",
            "Error: no graph is tagged 'lage' in 'runs/net'\n"
            "  fix: did you mean 'large', 'large@7'?\n",
        ),
        (
            "runs/net:zz",
            "Error: no graph is tagged 'zz' in 'runs/net'\n  fix: tbscope ls runs/net lists all\n",
        ),
        (
            "runs/net:large@9",
            "Error: the tag 'large' has no graph of step 9 in 'runs/net'\n"
            "  why: its steps are 3, 7\n  fix: tbscope ls runs/net lists them\n",
        ),
        (
            "runs:large",
            "Error: several runs of 'runs' have a graph 'large'\n  why: net, other have one\n"
            "  fix: give the directory of one: runs/other:large\n",
        ),
        (
            "runs",
            "Error: no one graph can be read from 'runs'\n"
            "  why: it has 5 of them: net: Default, net: 'large', net: 'large@7', net: 'odd@2', "
            "other: 'large'\n"
            "  fix: tbscope ls lists them; name one as LOGDIR:TAG, with the directory of its run\n",
        ),
    ],
)
def test_what_names_no_graph_or_several_is_refused(target, told):
    assert refused("show", target) == told


def test_a_colon_after_a_package_or_a_file_of_python_is_none_before_a_tag(folder):
    (folder / "nets.py").write_text("")
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "odd:name").mkdir()
    assert parse_target("nets.py:Net") == ModelSpec("nets.py", "Net")
    assert parse_target("pack:Net") == ModelSpec("pack", "Net")
    assert parse_target("runs:Net") == GraphPath("runs", "Net")
    assert parse_target("odd:name") == GraphPath("odd:name")
    assert parse_target("odd:name:a:b") == GraphPath("odd:name", "a:b")
    assert parse_target("hdfs://machine:8020/runs") == GraphPath("hdfs://machine:8020/runs")
    assert parse_target("hdfs://m:80/runs:7") == GraphPath("hdfs://m:80/runs", "7")
