"""What commands are made of: `--debug`, targets, results."""

import io
import json
import sys
from pathlib import Path

import click
import pytest
from build import chain
from cli_runs import enter
from click.testing import CliRunner

from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, give_tables, gives_results, table
from tbscope.cli.run_target import graphs_of_targets, takes_targets
from tbscope.errors import ArgumentError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    chain(2).save(tmp_path / "graph.json")
    return enter(tmp_path, monkeypatch)


@command
@takes_targets("a", "b")
def both(*, a, b, **run):
    """Print two graphs."""
    for graph in graphs_of_targets([a, b], **run):
        click.echo(graph.name)


@command
@gives_results
@click.argument("text")
def echo(*, text, as_json, output):
    """Give a text."""
    give_json({"text": text}, output) if as_json else give(text, output)


@command
def fail():
    """Fail."""
    raise ArgumentError("it failed", why="so", fix="do so")


def run(tool, *words):
    result = CliRunner().invoke(tool, words)
    return result.exit_code, result.stdout, result.stderr


def test_options_of_a_run_concern_the_models_among_several_targets():
    words = ["nets.py:Net", "graph.json", "-i", "2x3", "--fake", "-a", "width=5"]
    assert run(both, *words)[:2] == (0, "Net\nChain\n")
    assert run(both, *reversed(words[:2]), *words[2:])[:2] == (0, "Chain\nNet\n")
    code, out, told = run(both, "graph.json", "graph.json", "--fake")
    assert (code, out) == (2, "")
    assert told.endswith("Error: --fake is for a model that runs, and 'graph.json' is read.\n")


def test_an_error_is_one_message_and_with_debug_itself():
    assert run(fail) == (1, "", "Error: it failed\n  why: so\n  fix: do so\n")
    for flag in ("--debug", "--traceback"):
        assert isinstance(CliRunner().invoke(fail, [flag]).exception, ArgumentError)


def test_results_go_to_standard_output_or_into_a_file_as_text_or_json():
    assert run(echo, "a word") == run(echo, "a word", "-o", "-") == (0, "a word\n", "")
    assert run(echo, "a word", "--json") == (0, '{\n  "text": "a word"\n}\n', "")
    assert run(echo, "é", "--json", "-o", "out.json") == (0, "", "")
    assert Path("out.json").read_text(encoding="utf-8") == '{\n  "text": "é"\n}\n'


def test_what_no_terminal_can_print_stands_as_its_escape():
    assert run(echo, "a\udc80")[:2] == (0, "a\\udc80\n")
    _, text, _ = run(echo, "a\udc80", "--json")
    assert json.loads(text) == {"text": "a\udc80"}


def test_a_file_that_cannot_be_written_is_refused_before_any_work():
    assert run(echo, "a", "-o", "no/where.txt") == (
        1,
        "",
        "Error: cannot write 'no/where.txt'\n  why: there is no folder 'no'\n"
        "  fix: make it first: mkdir -p no\n",
    )
    code, out, told = run(echo, "a", "-o", " ")
    assert (code, out) == (2, "")
    assert told.endswith("' ' is no name of a file, e.g. out.json\n")


class Terminal(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, *, is_terminal=True):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


# -- tables ---------------------------------------------------------------------------------


TABLES = [
    table(("Op", "Count"), [("relu", "3"), ("[bold]linear", "12")], numeric=1),
    table(("", ""), [("Graph", "Net")]),
]
PLAIN = "Op            Count\nrelu              3\n[bold]linear     12\n\nGraph  Net\n"


def test_a_table_is_plain_where_no_terminal_shows_it(monkeypatch):
    shown = Terminal(is_terminal=False)
    monkeypatch.setattr(sys, "stdout", shown)
    give_tables(TABLES)
    assert shown.getvalue() == PLAIN


def test_a_terminal_shows_a_table_with_a_line_below_its_head_and_a_file_has_it_plain(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    give_tables(TABLES, Path("table.txt"))
    assert (shown.getvalue(), Path("table.txt").read_text()) == ("", PLAIN)
    give_tables(TABLES)
    lines = [line.rstrip() for line in click.unstyle(shown.getvalue()).splitlines()]
    assert [line.split() for line in lines if line] == [
        ["Op", "Count"],
        ["─" * len(lines[1])],
        ["relu", "3"],
        ["[bold]linear", "12"],
        ["Graph", "Net"],
    ]
    assert len(lines[2]) == len(lines[3])


def test_a_terminal_shows_a_plain_table_where_rich_is_not_there(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setitem(sys.modules, "rich", None)
    give_tables(TABLES)
    assert shown.getvalue() == PLAIN
