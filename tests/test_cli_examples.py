"""Every example in the help of a command, and on the page about them, runs as it stands."""

import re
import shutil
from itertools import pairwise

import pytest
from cli_examples import FOUND, furnish, run_example
from cli_runs import ROOT, tbscope
from sweeps import sampled

from tbscope.cli.command_line import COMMANDS, main

PAGE = ROOT / "docs" / "command-line.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples_of(name):
    """Give the examples in the help of a command, as they are printed."""
    lines = tbscope(name, "--help").stdout.splitlines()
    return [line.strip() for line in lines if re.match(rf"  tbscope {name} ", line)]


EXAMPLES = [
    (name, line)
    for name in COMMANDS
    for line in (main.resolve_command(None, [name])[1].help or "").splitlines()
    if line.strip().startswith(f"tbscope {name} ")
]
# A module is opened by test_cli_view.py, too.
FEW = [one for one in EXAMPLES if "view torch.nn:Linear" not in one[1]]


@pytest.fixture(scope="module")
def furniture(tmp_path_factory):
    """Give a folder with all that the examples name, of which each has a copy."""
    folder = tmp_path_factory.mktemp("furniture")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        furnish(folder)
    return folder


@pytest.fixture
def furnished(furniture, tmp_path, monkeypatch):
    shutil.copytree(furniture, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
def test_the_help_of_a_command_shows_examples_whole(name):
    told = [line.strip() for _, line in EXAMPLES if line.strip().startswith(f"tbscope {name} ")]
    assert told
    assert examples_of(name) == told


@pytest.mark.parametrize(("name", "line"), sampled(EXAMPLES, FEW), ids=str.strip)
def test_an_example_in_the_help_runs(name, line, furnished):
    if name == "check" and "--update" not in line and "--pin" in line:
        run_example(f"{line} --update")
    code, _, errors = run_example(line)
    expected = int(any(f"tbscope {found}" in line for found in FOUND) and "--fix" not in line)
    # What is the same does not differ.
    if line.strip() == "tbscope diff runs/monday runs/friday":
        expected = 0
    assert code == expected, (line, errors)
    assert "Error" not in errors


def test_the_page_of_the_command_tells_what_happens(furnished):
    shown = [found.groups() for found in _BLOCK.finditer(PAGE.read_text())]
    ran = 0
    for (language, text), (following, expected) in pairwise([*shown, ("", "")]):
        if language != "sh":
            continue
        lines = [line for line in text.splitlines() if line.startswith("tbscope ")]
        outputs = []
        for line in lines:
            code, out, errors = run_example(line.partition(" > ")[0])
            assert code in (0, 1), (line, errors)
            assert "Error" not in errors, (line, errors)
            outputs.append(out)
            ran += 1
        if following == "text":
            assert "".join(outputs) == expected, lines
    assert ran > 10


def test_the_page_tells_of_every_command():
    text = PAGE.read_text()
    for name, told in COMMANDS.items():
        assert f"| `{name}` | {told} |" in text
