"""The command, run as its users run it: what it writes and prints."""

import importlib.metadata
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tensorboard.version
import torch
from cli_runs import (
    ROOT,
    enter,
    events_in,
    graphs_in,
    misused,
    run_process,
    tags_in,
    tbscope,
)
from click.testing import CliRunner
from google.protobuf import text_format
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.cli import main
from tbscope.cli.command_line import COMMANDS
from tbscope.cli.parameters import DTYPES, InputSpec, parse_input
from tbscope.cli.target import make_inputs
from tests.warm import run_warm

TWINS = """
from torch import nn

def block():
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU())

model = nn.Sequential(block(), block())
"""


def names_in(text):
    return {node.name for node in text_format.Parse(text, GraphDef()).node}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    return enter(tmp_path, monkeypatch)


def test_show_prints_the_graph():
    result = tbscope("show", "nets.py:make_model", "-i", "2x3")
    assert result.exit_code == 0
    first, *middle, last = result.stdout.splitlines()
    assert first == "graph(%x : Float(2, 3)):"
    assert any(
        "= linear(%x, %fc.weight, %fc.bias), scope: Net/Linear[fc]" in line for line in middle
    )
    assert last.startswith("  return (")


def test_show_tells_sources_and_parameters_where_asked():
    result = tbscope("show", "nets.py:Net", "-i", "2x3", "--sources", "--parameters")
    assert "  %fc.bias : Float(4) = parameter(), scope: Net/Linear[fc]\n" in result.stdout
    assert "scope: Net/Linear[fc]  # nets.py:17 in forward\n" in result.stdout


def test_what_the_model_prints_does_not_mix_with_the_graph():
    result = tbscope("export", "nets.py:make_model", "-i", "2x3", "-o", "-")
    assert result.stderr == "a word of the model's own\n"
    assert text_format.Parse(result.stdout, GraphDef()).node


def test_text_binary_form_and_log_hold_the_same_graph(folder):
    words = ["-o", "graph.pbtxt", "-o", "graph.pb", "--logdir", "runs/it"]
    result = tbscope("export", "nets.py:make_model", "-i", "2x3", *words)
    assert (result.exit_code, result.stdout) == (0, "tensorboard --logdir runs/it\n")
    from_text = text_format.Parse((folder / "graph.pbtxt").read_text(), GraphDef())
    assert from_text == GraphDef.FromString((folder / "graph.pb").read_bytes())
    assert graphs_in("runs/it") == [from_text]


def test_with_the_graph_on_standard_output_the_opening_line_goes_elsewhere():
    words = ["-o", "-", "--logdir", "my runs"]
    result = tbscope("export", "torch.nn:ReLU", "-i", "2x3", *words)
    assert result.stderr == "tensorboard --logdir 'my runs'\n"
    assert text_format.Parse(result.stdout, GraphDef()) == graphs_in("my runs")[0]


def test_a_file_that_was_there_is_replaced_whole_and_nothing_stays_beside_it(folder):
    graph = folder / "graph.pbtxt"
    graph.write_text("old")
    assert tbscope("export", "nets.py:model", "-i", "2x3", "-o", "graph.pbtxt").exit_code == 0
    assert "fc" in graph.read_text()
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "graph.pbtxt",
        "nets.py",
    ]


def test_a_link_stays_a_link_to_the_file_written(folder):
    (folder / "link.pb").symlink_to("real.pb")
    assert tbscope("export", "nets.py:model", "-i", "2x3", "-o", "link.pb").exit_code == 0
    assert (folder / "link.pb").is_symlink()
    assert GraphDef.FromString((folder / "real.pb").read_bytes()).node


@pytest.mark.parametrize(
    "target", ["nets.py:model", "./nets.py:Net", "nets.py:Holder.make", "nets:make_model"]
)
def test_a_target_is_a_model_a_class_a_name_inside_a_class_or_a_function(target):
    result = tbscope("show", target, "-i", "2x3")
    assert result.exit_code == 0, result.output
    assert "Net/Linear[fc]" in result.stdout


def test_arguments_are_python_literals_or_else_texts():
    result = tbscope("show", "nets.py:Net", "-i", "2x3", "-a", "width=7", "--arg", "end=tanh")
    assert "Float(2, 7) = tanh(" in result.stdout


def test_named_inputs_are_keyword_arguments():
    result = tbscope("show", "nets.py:Net", "-i", "2x3", "--input", "scale=scalar:float64")
    assert result.stdout.startswith("graph(%x : Float(2, 3), %scale : Double()):\n")


def test_a_named_input_may_be_the_only_one():
    result = tbscope("show", "torch.nn:ReLU", "-i", "input=2:float16")
    assert result.stdout.startswith("graph(%input : Half(2)):\n")


def test_a_model_without_inputs_runs_without(folder):
    (folder / "none.py").write_text(
        "import torch\n"
        "class Table(torch.nn.Embedding):\n"
        "    def forward(self):\n"
        "        return self.weight * 2\n"
    )
    result = tbscope("show", "none.py:Table", "-a", "num_embeddings=2", "-a", "embedding_dim=3")
    assert "Float(2, 3) = mul(%weight, 2)" in result.stdout, result.output


def test_the_mode_is_evaluation_or_as_asked():
    def drops(*words):
        return "dropout(" in tbscope("show", "nets.py:Net", "-i", "2x3", *words).stdout

    assert [drops(), drops("--eval")] == [False, False]
    # A model is in training mode when it is made.
    assert [drops("--training"), drops("--as-is")] == [True, True]


def test_a_partial_graph_goes_up_to_where_the_model_raised():
    words = ["show", "nets.py:Holder.Tired", "-i", "2x3"]
    assert tbscope(*words).exit_code == 1
    result = tbscope(*words, "--partial")
    assert result.exit_code == 0
    assert "= relu(" in result.stdout
    assert result.stderr == "note: the run ended here: RuntimeError: tired\n"


def test_a_fake_run_takes_no_memory():
    words = ["torch.nn:ReLU", "-i", "input=4:float32", "-a", "inplace=False"]
    result = tbscope("show", *words, "--fake")
    assert result.stdout == tbscope("show", *words).stdout


def test_what_python_decided_on_is_noted_once_for_each_line():
    result = tbscope("show", "nets.py:Decider", "-i", "20")
    assert result.exit_code == 0, result.output
    assert result.stderr == (
        "note: Python decided on the value of %2 (gt) and of 19 more by bool() "
        "(nets.py:40 in <genexpr>)\n"
    )


def test_notes_are_told_up_to_a_few(folder):
    lines = "".join(f"        x = x * 2 if x[{place}] > 0 else x\n" for place in range(20))
    (folder / "many.py").write_text(
        "import torch\n"
        "class Many(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"{lines}"
        "        return x\n"
    )
    result = tbscope("show", "many.py:Many", "-i", "20")
    assert result.exit_code == 0, result.output
    *notes, last = result.stderr.splitlines()
    assert len(notes) == 10
    assert notes[0].startswith("note: Python decided on the value of %")
    assert last == "note: and 10 more, in graph.notes"


def test_the_summary_is_a_table_of_the_modules():
    words = ["show", "nets.py:Net", "-i", "2x3", "--summary"]
    table = tbscope(*words)
    assert (table.exit_code, table.stderr) == (0, "a word of the model's own\n")
    head, _, net, fc, drop, _, *footer = table.stdout.splitlines()
    assert head.split()[:4] == ["Module", "Class", "Input", "Output"]
    assert fc.split()[:3] == ["fc", "Linear", "(2,"]
    assert [line[:6].rstrip() for line in (net, fc, drop)] == ["Net", "  fc", "  drop"]
    assert footer[0].startswith("Parameters   16 (64 B), all trainable")
    assert "  fc" not in tbscope(*words, "--depth", "0").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--depth", "1"), "--depth is for the table: give --summary, too."),
        (
            ("--summary", "--sources"),
            "--sources and --parameters are for lines, not for --summary.",
        ),
        (
            ("--functions", "--parameters"),
            "--sources and --parameters are for lines, not for --functions.",
        ),
        (
            ("--functions", "--summary"),
            "--summary and --functions are two ways to print: give one.",
        ),
    ],
)
def test_what_is_for_lines_is_not_for_the_table(words, message):
    result = tbscope("show", "nets.py:Net", "-i", "2x3", *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_definitions_are_printed_once_each_before_the_graph_of_their_uses():
    result = tbscope("show", "nets.py:Net", "-i", "2x3", "--functions")
    assert (result.exit_code, result.stderr) == (0, "a word of the model's own\n")
    parts = result.stdout.split("\n\n")
    assert [part.partition("(")[0] for part in parts] == ["Linear", "Dropout", "Net", "graph"]
    assert "  %1 : Float(2, 4) = Linear(%x), scope: Linear[fc]" in parts[2]


def test_what_is_measured_is_written_with_the_graph(folder):
    words = ["-i", "2x3", "--profile", "--logdir", "runs/it", "-o", "graph.pbtxt"]
    result = tbscope("export", "torch.nn:ReLU", *words)
    assert result.exit_code == 0, result.output
    (graph,) = graphs_in("runs/it")
    assert text_format.Parse((folder / "graph.pbtxt").read_text(), GraphDef()) == graph
    (relu,) = (node for node in graph.node if node.op == "ReLU")
    assert "duration_us" in relu.attr
    assert relu.attr["peak_bytes"].i == 2 * 3 * 4


def test_style_and_leaves_reach_the_names():
    words = ["export", "nets.py:Net", "-i", "2x3", "-o", "-"]
    assert 'name: "fc"\n' in tbscope(*words).stdout
    torch_style = tbscope(*words, "--style", "torch", "--leaves", "box").stdout
    assert 'name: "Net/Linear[fc]/linear"\n' in torch_style


def test_cards_and_templates_may_be_left_out():
    words = ["export", "nets.py:Net", "-i", "2x3", "-o", "-"]
    names = names_in(tbscope(*words).stdout)
    assert names - names_in(tbscope(*words, "--no-cards").stdout) == {"Net"}
    assert tbscope(*words, "--cards", "--templates").stdout == tbscope(*words).stdout
    words[1:2] = ["twins.py:model"]
    Path("twins.py").write_text(TWINS)
    seeded = names_in(tbscope(*words).stdout)
    assert {name for name in seeded if name.startswith("__function_library__")}
    plain = names_in(tbscope(*words, "--no-templates").stdout)
    assert plain == {name for name in seeded if not name.startswith("__function_library__")}


def test_a_tag_a_step_and_a_run_of_its_own_reach_the_log():
    words = ["export", "nets.py:Net", "-i", "2x3", "--logdir", "runs"]
    result = tbscope(*words, "--tag", "net", "--step", "7", "--run-name", "eval/large")
    assert (result.exit_code, result.stdout) == (0, "tensorboard --logdir runs\n")
    (event,) = (event for event in events_in("runs/eval/large") if event.HasField("summary"))
    assert [value.tag for value in event.summary.value] == ["net "]
    assert event.step == 7
    assert tags_in("runs") == set()


def test_overlays_are_drawn_as_the_graph_is_each_under_its_name():
    words = ["export", "nets.py:Net", "-i", "2x3", "--logdir", "runs", "--style", "torch"]
    overlays = ["--overlay", "flops", "--overlay", "calls", "--overlay", "flops"]
    result = tbscope(*words, *overlays, "--tag", "net", "--run-name", "eval")
    assert (result.exit_code, tags_in("runs/eval")) == (0, {"net", "flops", "calls"})
    tagged = [value for event in events_in("runs/eval") for value in event.summary.value]
    assert [value.tag for value in tagged] == ["net ", "flops ", "calls "]
    for value in tagged:
        stats = RunMetadata.FromString(value.tensor.string_val[0])
        (graph,) = (one.pre_optimization_graph for one in stats.function_graphs)
        assert any("Linear[fc]" in node.name for node in graph.node)
        assert bool(stats.step_stats.dev_stats) == (value.tag != "net ")


def test_an_overlay_of_times_goes_with_what_is_measured():
    words = ["export", "torch.nn:ReLU", "-i", "2x3", "--logdir", "runs", "--overlay", "time"]
    assert tbscope(*words, "--profile").exit_code == 0
    assert tags_in("runs") == {"__run_graph__", "profile", "time"}


def test_a_file_finds_its_neighbours_and_may_be_called_like_a_module(folder):
    (folder / "parts").mkdir()
    (folder / "parts" / "pieces.py").write_text("from torch.nn import ReLU as Piece\n")
    (folder / "parts" / "random.py").write_text("from pieces import Piece\nmodel = Piece()\n")
    path_before = list(sys.path)
    result = tbscope("show", "parts/random.py:model", "-i", "2")
    assert result.exit_code == 0, result.output
    assert sys.path == path_before
    assert sys.modules["random"].__file__ != str(folder / "parts" / "random.py")


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    specs = [InputSpec(None, (2, 3), "float32"), InputSpec("ids", (50,), "int64")]
    (first,), named = make_inputs(specs, None, seed=1)
    (again,), named_again = make_inputs(specs, None, seed=1)
    (other,), _ = make_inputs(specs, None, seed=2)
    assert torch.equal(first, again)
    assert torch.equal(named["ids"], named_again["ids"])
    assert not torch.equal(first, other)
    assert named["ids"].unique().tolist() == [0, 1]


def test_made_up_inputs_are_on_the_device_of_the_model():
    model = torch.nn.Linear(2, 2, device="meta")
    (made,), named = make_inputs([parse_input("1x2"), parse_input("y=2")], model, seed=0)
    assert (made.device, named["y"].device) == (torch.device("meta"),) * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_have_the_type_asked_for(dtype):
    positional, named = make_inputs([InputSpec(None, (2, 0), dtype)], None, seed=0)
    assert named == {}
    assert (positional[0].shape, positional[0].dtype) == ((2, 0), getattr(torch, dtype))


def test_demo_writes_a_log_and_prints_the_line_that_opens_it():
    result = tbscope("demo")
    assert (result.exit_code, result.output) == (0, "tensorboard --logdir runs/demo\n")
    (graph,) = graphs_in("runs/demo")
    names = {node.name for node in graph.node}
    assert {"encoder/layers/0/linear1", "decoder/layers/2/norm3", "src", "tgt"} <= names
    assert tags_in("runs/demo") == {"__run_graph__", "profile", "flops", "parameters"}


def test_it_prints_its_version_and_those_of_torch_and_tensorboard():
    done = run_process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    own = import_module("tbscope").__version__
    installed = importlib.metadata.version("torch")
    others = f"torch {installed}\ntensorboard {tensorboard.version.VERSION}\n"
    assert done.stdout == f"tbscope {own}\n{others}"


def test_the_list_of_commands_waits_for_no_command_and_none_for_torch():
    code = (
        "import sys; from tbscope.cli import main; main(['--help'], standalone_mode=False); "
        "print(*(name for name in sys.modules if name.startswith('tbscope.cli.'))); "
        "from tbscope.cli.command_line import COMMANDS; "
        "[main.resolve_command(None, [name]) for name in COMMANDS]; "
        "print(sys.modules.keys() & {'torch', 'tensorboard', 'google.protobuf', 'rich'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-2:] == ["tbscope.cli.command_line", "set()"], done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_tells_of_each_command_what_its_own_help_begins_with(name):
    listed = tbscope("--help").stdout
    assert f"  {name} " in listed
    begin = " ".join(main.resolve_command(None, [name])[1].help.split("\n\n")[0].split())
    assert begin == COMMANDS[name]


def test_a_command_that_is_not_there_is_refused():
    assert misused("exprt") == "Error: No such command 'exprt'. Did you mean 'export'?"


def test_the_shell_completes_commands_and_their_options():
    def completed(*words):
        """Ask as bash asks."""
        asked = {"_TBSCOPE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["tbscope", *words])}
        asked["COMP_CWORD"] = str(len(words))
        result = CliRunner().invoke(main, [], prog_name="tbscope", env=asked)
        return result.stdout.splitlines()

    assert completed("ex") == ["plain,export"]
    assert completed("export", "--logd") == ["plain,--logdir"]


def test_modules_are_found_in_the_working_directory(folder):
    (folder / "zoo").mkdir()
    (folder / "zoo" / "__init__.py").write_text("")
    (folder / "zoo" / "small.py").write_text("from nets import make_model\n")
    words = ("export", "zoo.small:make_model", "-i", "2x3", "-o", "-")
    done = run_process(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    again = run_warm("-m", "tbscope", *words, cwd=folder)
    assert done.stdout == again.stdout
    assert str(folder) not in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error():
    target = "torch.nn:TransformerEncoderLayer -a d_model=512 -a nhead=4 -a batch_first=True"
    done = subprocess.run(
        f"{sys.executable} -m tbscope show {target} -i 2x1x512 | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith("graph(%src")
    assert [line for line in done.stderr.splitlines() if not line.startswith("note: ")] == []
