"""What README and docs/ show is what happens: their Python runs, their links lead somewhere."""

import contextlib
import io
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from tbscope.cli import main
from tests.sweeps import is_sweep

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)#:]+)\)")

# What these libraries warn of is none of tbscope's.
_OF_OTHERS = pytest.mark.filterwarnings("ignore")

every_page = pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[_OF_OTHERS] if page.name == "frameworks.md" else [])
        for page in PAGES
    ],
    ids=lambda page: page.name,
)


def blocks(page):
    """Give the language and the text of each block, in order."""
    return [found.groups() for found in _BLOCK.finditer(page.read_text())]


_SHORTER = {
    "Llama(LARGE, 126)": "Llama(LARGE, 32)",
    '{"pp": 16, "dp": 8, "tp": 8}': '{"pp": 4, "dp": 8, "tp": 8}',
    "fake_world(1024, rank=rank": "fake_world(256, rank=rank",
    "range(0, 1024, 64)": "range(0, 256, 64)",
}


def shortened(text):
    """Give the text of a block; outside of a sweep, with a smaller part of the largest model."""
    for long, short in () if is_sweep() else _SHORTER.items():
        text = text.replace(long, short)
    return text


@every_page
def test_python_blocks_run_in_order_and_print_what_the_next_block_shows(
    page, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem}
    shown = [*blocks(page), ("", "")]
    for (language, text), (next_language, expected) in pairwise(shown):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(shortened(text), str(page), "exec"), names)
        if next_language == "text":
            assert printed.getvalue() == expected


def test_each_shorter_text_is_that_of_a_page():
    texts = "".join(page.read_text() for page in PAGES)
    assert [long for long in _SHORTER if long not in texts] == []


@every_page
def test_links_lead_to_files(page):
    prose = _INLINE_CODE.sub("", _BLOCK.sub("", page.read_text()))
    for target in _LINK.findall(prose):
        assert (page.parent / target).exists(), target


def test_readme_begins_with_one_screen():
    screen = (ROOT / "README.md").read_text().partition("\n## ")[0]
    (python, *others), shell = (
        [text.splitlines() for name, text in _BLOCK.findall(screen) if name == language]
        for language in ("python", "sh")
    )
    assert (len(python) <= 8, others, [*map(len, shell)]) == (True, [], [2])
    assert len(re.findall(r"^- \[", screen, re.MULTILINE)) == 6
    assert len(re.findall(r"^\| [^|]+ \| [\d.]+ \|", screen, re.MULTILINE)) == 4


def test_the_commands_in_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell = "".join(text for language, text in blocks(ROOT / "README.md") if language == "sh")
    commands = [line for line in shell.splitlines() if line.startswith("tbscope ")]
    # Those that name a file of the reader's are examples of the form only.
    for command in (line for line in commands if "path/to" not in line):
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
    assert len(commands) > 2


def test_examples_are_short_and_all_named_in_readme():
    readme = (ROOT / "README.md").read_text()
    for example in (ROOT / "examples").glob("*.py"):
        assert len(example.read_text().splitlines()) <= 40, example
        assert f"examples/{example.name}" in readme
