"""What a command writes to the terminal: no name of a file makes it do anything."""

import json
import unicodedata
from pathlib import Path

import onnx
import pytest
import torch
from cli_runs import enter
from click.testing import CliRunner
from onnx_build import FLOAT, info, model_of, node
from test_cli_commands import Terminal
from torch import nn

import tbscope
from tbscope import cli
from tbscope.cli.output import give_tables, table

# Red, to the left, the same in one character, a bell, a line that comes over the one before.
EVIL = "\x1b[31m\u202e\x9b31m\x07\r"


class Evil(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.add_module(f"a{EVIL}", nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.times = times

    def forward(self, x):
        for part in self.children():
            with tbscope.scope(f"s{EVIL}"):
                x = part(x) * self.times
        return {f"k{EVIL}": x}

    def extra_repr(self):
        return f"times={EVIL}"


Evil.__qualname__ = Evil.__name__ = f"Evil{EVIL}"


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = enter(tmp_path_factory.mktemp("evil"), patch)
        graph = tbscope.trace(Evil(1), torch.ones(2, 4))
        graph.save(made / "graph.json")
        tbscope.trace(Evil(2), torch.ones(2, 4)).save(made / "other.json")
        (made / "graph.pb").write_bytes(tbscope.to_graph_def(graph).SerializeToString())
        names = [f"x{EVIL}", f"y{EVIL}"]
        ends = [[info(name, FLOAT, [2])] for name in names]
        model = model_of([node("Relu", names[:1], names[1:], name=f"/n{EVIL}/r")], *ends)
        model.graph.name = f"g{EVIL}"
        onnx.save(model, made / "model.onnx")
        with tbscope.SummaryWriter(made / "log") as writer:
            writer.add_graph(graph)
            writer.add_graph(graph, tag="\u202etag", run_name="\u202erun")
        yield made


FILES = ("graph.json", "graph.pb", "model.onnx", "log:Default")
COMMANDS = (
    *(("show",), ("show", "--summary"), ("show", "--functions"), ("show", "--sources"), ("stats",)),
    *(("find", "*"), ("lint",), ("diff", "other.json")),
    *(
        ("export", "-o", "-"),
        ("export", "-o", ".mmd"),
        ("export", "-o", ".dot"),
        ("check", f"no{EVIL}.json"),
    ),
)
JSON = (
    *(("show", "--json"), ("show", "--summary", "--json"), ("stats", "--json"), ("lint", "--json")),
    *(("find", "*", "--json"), ("diff", "other.json", "--json"), ("export", "-o", ".json")),
)


def _obeyed(text):
    return [
        char
        for char in text
        if unicodedata.category(char) in ("Cc", "Cs") or "\u202a" <= char <= "\u202e"
        if char not in "\t\n"
    ]


def _ran(command, *words):
    # Else click takes what colours a text out of it, as this is no terminal.
    result = CliRunner().invoke(cli.main, [command, *words], prog_name="tbscope", color=True)
    assert "itself failed" not in result.stderr
    assert result.exit_code in (0, 1, 2)
    return result


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).split("no")[0])
def test_no_command_prints_what_a_terminal_obeys(file, command):
    result = _ran(command[0], file, *command[1:])

    assert _obeyed(result.stdout) == []
    assert _obeyed(result.stderr) == []


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("command", JSON, ids=" ".join)
def test_json_has_the_names_whole(file, command):
    result = _ran(command[0], file, *command[1:])

    assert _obeyed(result.stdout) == []
    told = _texts(json.loads(result.stdout))
    assert EVIL in told or file != "graph.json" or command[0] not in ("show", "stats", "export")


def _texts(data):
    if isinstance(data, dict):
        return "\n".join([*map(_texts, data), *map(_texts, data.values())])
    return "\n".join(map(_texts, data)) if isinstance(data, list) else str(data)


@pytest.mark.parametrize(
    "words",
    [
        *(("ls", "log"), ("ls", "log", "--json"), ("lint", "log"), ("show", "log")),
        *(("show", f"no{EVIL}.json"), ("show", f"no{EVIL}.py:x"), ("show", f"--no{EVIL}")),
        *((f"no{EVIL}",), ("export", "graph.json", "-o", f"no{EVIL}/graph.svg")),
        *(("export", "graph.json", "--logdir", "more", "--tag", f"a{EVIL}"),),
        *(("export", "graph.json", "--logdir", "more", "--run-name", "\u202ea"),),
    ],
    ids=range(11),
)
def test_no_error_and_no_list_prints_what_a_terminal_obeys(words):
    result = _ran(*words)

    assert _obeyed(result.stdout + result.stderr) == []


def test_a_command_writes_in_one_way():
    texts = {path.name: path.read_text() for path in Path(cli.__file__).parent.rglob("*.py")}

    writing = {name for name, text in texts.items() if "click.echo" in text}

    assert writing == {"output.py"}


def test_a_terminal_shows_tables_with_escapes(monkeypatch):
    monkeypatch.setattr("sys.stdout", page := Terminal())
    give_tables([table(("Name",), [(f"a{EVIL}",)])])

    assert _obeyed(page.getvalue().replace("\x1b[", "")) == []


@pytest.mark.parametrize(("environment", "has_codes"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_without_colours_shows_no_bold_either(monkeypatch, environment, has_codes):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", page := Terminal())
    give_tables([table(("Name",), [("a",)])])

    assert "Name" in page.getvalue()
    assert ("\x1b[" in page.getvalue()) == has_codes
