"""What the command tells of a graph: `stats` and `find`, on models, files and logs."""

import json
from pathlib import Path

import onnx
import pytest
import torch.utils.tensorboard
from build import GraphBuilder, chain
from cli_runs import enter, misused, refused, run_and_look_for_torch, tbscope
from click.testing import CliRunner
from onnx_build import FLOAT, info, model_of, node

import tbscope as library
from tbscope.cli import main
from tbscope.cli.commands.find import FIELDS

NET = ("nets.py:Net", "-i", "2x3")
LINEAR = (
    "%1 : Float(2, 4) = linear(%x, %fc.weight, %fc.bias), scope: Net/Linear[fc]"
    "  # nets.py:17 in forward\n"
)
RELU = "%3 : Float(2, 4) = relu(%2, inplace=False), scope: Net  # nets.py:18 in forward\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    chain(2).save(tmp_path / "graph.json")
    return enter(tmp_path, monkeypatch)


def told(*words):
    """Give what a command prints; what a model prints goes elsewhere."""
    result = tbscope(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


# -- stats ----------------------------------------------------------------------------------


def test_stats_counts_operations_and_classes():
    assert told("stats", *NET) == (
        "Graph        Net\n"
        "Nodes        6: 1 input, 2 parameters, 3 operations\n"
        "Calls        3, 2 deep\n"
        "Parameters   16 (64 B), all trainable\n"
        "FLOPs        48 forward, 48 backward\n"
        "Activations  64 B\n"
        "\n"
        "Op       Count  FLOPs  Activations\n"
        "Dropout      1      0          0 B\n"
        "linear       1     48         32 B\n"
        "relu         1      0         32 B\n"
        "\n"
        "Class    Modules  Calls  Own parameters\n"
        "Dropout        1      1               0\n"
        "Linear         1      1              16\n"
        "Net            1      1               0\n"
    )


def test_stats_are_plain_numbers_as_json():
    told_ = json.loads(told("stats", *NET, "--json"))
    assert (told_["version"], told_["graph"], told_["calls"], told_["depth"]) == (1, "Net", 3, 2)
    assert told_["nodes"] == {"input": 1, "parameter": 2, "op": 3}
    assert told_["totals"]["parameters"] == 16
    linear = {
        "op": "linear",
        "count": 1,
        "flops": 48,
        "backward_flops": 48,
        "activation_bytes": 32,
        "moved_bytes": 120,
        "saved_bytes": 0,
        "intensity": 0.4,
        "duration_us": None,
    }
    assert linear in told_["ops"]
    assert {"class": "Linear", "modules": 1, "calls": 1, "own_parameters": 16} in told_["classes"]


def test_stats_tell_times_where_they_were_measured():
    timed = told("stats", *NET, "--profile").splitlines()
    (head,) = (line for line in timed if line.startswith("Op "))
    assert head.split() == ["Op", "Count", "FLOPs", "Activations", "Time"]
    (linear,) = (line for line in timed if line.startswith("linear "))
    assert linear.endswith((" us", " ms"))
    assert any(line.startswith("Time  ") for line in timed)
    ops = json.loads(told("stats", *NET, "--profile", "--json"))["ops"]
    assert all(one["duration_us"] > 0 for one in ops if one["op"] != "Dropout")


def test_what_there_is_most_of_stands_first_and_leaf_modules_are_operations():
    build = GraphBuilder("Net")
    x = build.input("x", (1, 2))
    for op in ("add", "relu", "relu"):
        x = build.op(op, x)
    build.node("Linear", x, kind="module", outputs=((1, 2),))
    build.graph.save("three.json")
    told_ = json.loads(told("stats", "three.json", "--json"))
    assert told_["nodes"] == {"input": 1, "op": 4}
    counts = [(one["op"], one["count"]) for one in told_["ops"]]
    assert counts == [("relu", 2), ("Linear", 1), ("add", 1)]


def test_stats_add_up_the_modules_of_a_class():
    chain(3).save("chain.json")
    classes = json.loads(told("stats", "chain.json", "--json"))["classes"]
    (one,) = [row for row in classes if row["class"] == "Linear"]
    assert (one["modules"], one["calls"]) == (3, 3)
    rows = [row for row in library.load("chain.json").summary().rows if row["class"] == "Linear"]
    assert one["own_parameters"] == sum(row["own_parameters"] for row in rows) > 0


def test_stats_of_an_empty_graph():
    GraphBuilder("Nothing").graph.save("empty.json")
    assert told("stats", "empty.json") == (
        "Graph       Nothing\nNodes       0\nCalls       0, 0 deep\nParameters  0 (0 B)\n"
    )


# -- show -----------------------------------------------------------------------------------


def test_show_gives_the_graph_as_json_that_is_read_back():
    assert told("show", *NET, "--json", "-o", "again.json") == ""
    assert told("show", "again.json") == told("show", *NET)
    assert told("show", "graph.json", "--json") == Path("graph.json").read_text()


def test_show_gives_the_rows_of_the_table_as_json_and_the_table_as_a_file():
    rows = json.loads(told("show", *NET, "--summary", "--json"))["rows"]
    assert [(row["module"], row["parameters"], row["flops"]) for row in rows] == [
        *(("Net", 16, 48), ("fc", 16, 48), ("drop", 0, 0)),
    ]
    assert told("show", *NET, "--summary", "-o", "table.txt") == ""
    assert told("show", *NET, "--summary") == Path("table.txt").read_text()


def test_show_gives_the_definitions_as_json():
    functions = json.loads(told("show", *NET, "--functions", "--json"))["functions"]
    assert [one["name"] for one in functions] == ["Linear", "Dropout", "Net", "Net"]
    assert functions[2]["head"] == "Net(%x) -> (%out)"
    assert functions[2]["body"][-1] == "  return (%3)"
    assert [one["uses"] for one in functions[2:]] == [["Net"], [None]]


def test_show_lists_what_a_file_of_python_defines_and_runs_nothing_of_it(folder):
    (folder / "script.py").write_text("import gone\nnet = gone.Net()\n_no = 1\nclass A: x = 1\n")
    assert told("show", "script.py") == (
        "TARGET         Definition\nscript.py:net  net = gone.Net()\nscript.py:A    class A\n"
    )
    told("show", "script.py", "--json", "-o", "out.json")
    found = json.loads(Path("out.json").read_text())["definitions"]
    assert found == {"net": "net = gone.Net()", "A": "class A"}


def test_a_target_may_come_from_standard_input(folder):
    data = (folder / "graph.json").read_bytes()
    result = CliRunner().invoke(main, ["show", "-"], input=data)
    assert (result.exit_code, result.stdout) == (0, f"{chain(2)}\n")
    assert CliRunner().invoke(main, ["diff", "-", "graph.json"], input=data).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("show", "graph.pb"),
        ("show", "graph.json", "--summary"),
        ("diff", "graph.json", "graph.pb"),
        ("export", "graph.json", "-o", "graph.html"),
        ("show", "net.onnx"),
    ],
)
def test_a_file_is_read_without_torch(folder, words):
    data = library.to_graph_def(chain(2)).SerializeToString()
    (folder / "graph.pb").write_bytes(data)
    layer = node("Relu", ["x"], ["y"])
    onnx.save(model_of([layer], [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]), "net.onnx")
    done = run_and_look_for_torch(*words)
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr


# -- find -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("op:linear", LINEAR),
        ("op:aten::relu", RELU),
        ("op:Linear", None),
        ("name:3", RELU),
        ("class:Linear", LINEAR),
        ("class:torch.nn.modules.linear.*", LINEAR),
        ("class:linear", None),
        ("name:Net/Linear[[]fc]", LINEAR),
        ("name:Net/Linear[fc]", LINEAR),
        ("source:nets.py:18", RELU),
        ("source:*:18", RELU),
        ("source:nets.py:1", None),
        ("shape:2x5", None),
        ("relu", RELU),
    ],
)
def test_find_prints_the_operations_that_match(pattern, found):
    words = ["find", *NET, pattern, "source:*"]
    if found is None:
        assert tbscope(*words).exit_code == 1
    else:
        assert told(*words) == found


def test_find_takes_the_names_of_the_page():
    Path("two.py").write_text(
        "from torch import nn\n"
        "from nets import Net\n"
        "model = nn.Sequential(nn.Sequential(Net()), nn.Linear(4, 1))\n"
    )
    words = ["find", "two.py:model", "-i", "2x3", "source:*"]
    relu = told(*words, "0/0/relu")
    assert relu.count("\n") == 1
    assert relu.endswith(
        " = relu(%2, inplace=False), scope: Sequential/Sequential[0]/Net[0]"
        "  # nets.py:18 in forward\n"
    )
    assert told(*words, "0/0/fc") == told(*words, "0.0.fc")


def test_each_field_is_matched_by_its_own_words_alone():
    words = {"name": "fc", "op": "linear", "class": "Linear", "source": "forward", "shape": "2x4"}
    for field in FIELDS:
        for other, word in words.items():
            found = tbscope("find", *NET, f"{field}:{word}", "op:linear").exit_code == 0
            assert found == (field == other), (field, word)


def test_shapes_are_found_as_inputs_are_given():
    assert told("find", *NET, "2x3") == "%x : Float(2, 3) = input()\n"
    assert told("find", *NET, "shape:4x?") == told("find", *NET, "shape:4x*")
    words = ["nets.py:Net", "-i", "2x3", "-i", "scale=scalar"]
    assert told("find", *words, "shape:scalar") == "%scale : Float() = input()\n"


def test_what_is_found_is_told_as_json():
    answer = json.loads(told("find", *NET, "op:relu", "--json"))
    assert answer == {
        "version": 1,
        "graph": "Net",
        "nodes": [
            {
                "name": "3",
                "op": "relu",
                "kind": "op",
                "scope": "Net",
                "module": "",
                "inputs": ["2"],
                "outputs": [{"name": "3", "shape": [2, 4], "dtype": "float32", "device": "cpu"}],
                "source": {"file": "nets.py", "line": 18, "function": "forward"},
                "flops": 0,
                "duration_us": None,
            }
        ],
    }


def test_what_nothing_matches_is_told_with_what_is_near():
    assert refused("find", "graph.json", "op:linaer") == (
        "Error: no node of the graph of Chain matches 'op:linaer'\n  fix: did you mean 'linear'?\n"
    )
    assert refused("find", "graph.json", "zzz") == (
        "Error: no node of the graph of Chain matches 'zzz'\n"
        "  fix: *word* finds a part of a name, tbscope show prints all\n"
    )
    assert refused("find", "graph.json", "op:linear", "name:x") == (
        "Error: no node of the graph of Chain matches 'op:linear' and 'name:x'\n"
        "  why: each pattern matches some, but none matches all of them\n"
    )
    assert refused("find", "graph.json", "op:linear", "op:linaer") == (
        "Error: no node of the graph of Chain matches 'op:linear' and 'op:linaer'\n"
        "  fix: did you mean 'linear'?\n"
    )
    assert refused("find", "graph.json", "class:torch.nn.modules.linear.Linaer") == (
        "Error: no node of the graph of Chain matches 'class:torch.nn.modules.linear.Linaer'\n"
        "  fix: did you mean 'torch.nn.modules.linear.Linear'?\n"
    )
    result = tbscope("find", "graph.json", "zzz", "--json")
    assert (result.exit_code, json.loads(result.stdout)["nodes"]) == (1, [])


def test_an_empty_pattern_is_refused():
    told_ = "''op:'' matches nothing: give a word, e.g. op:linear".replace("''", "'")
    assert misused("find", "graph.json", "op:") == f"Error: Invalid value for 'PATTERN...': {told_}"


# -- files and logs of others ---------------------------------------------------------------


def test_queries_read_logs_of_torchs_and_of_ours():
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.ones(2, 3)
    for name, writer in (
        ("ours", library.SummaryWriter("ours")),
        ("torchs", torch.utils.tensorboard.SummaryWriter("torchs")),
    ):
        with writer:
            writer.add_graph(model, x)
        assert "linear  " in told("stats", name)
        assert " = relu(" in told("find", name, "op:relu", "shape:2x4")
