"""Docstrings and comments of the package use the field's words, and few vague ones."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tbscope"
VAGUE = re.compile(
    r"\b(what|who|nobody|st(?:and(?:s|ing)?|ood)|h(?:old(?:s|ing)?|eld)|t(?:ell(?:s|ing)?|old)"
    r"|g(?:iv(?:e|es|en|ing)|ave)|kn(?:ow(?:s|n|ing)?|ew))\b",
    re.IGNORECASE,
)
"""In torch.fx one word of 247 is one of these, in click one of 254, in onnx-ir one of 470."""

MOST = 1 / 200
# Code in backticks and doctests is no prose.
CODE = re.compile(r"`[^`]*`|^\s*(?:>>>|\.\.\.).*$", re.MULTILINE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def prose_of(source):
    """Return the docstrings and comments of a file, without the code in them."""
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    # A string behind an assignment documents it.
    strings = [
        statement.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED)
        for statement in node.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    ]
    return CODE.sub("", "\n".join([*comments, *strings]))


def counts_of(prose):
    """Return how many vague words a text has, and how many words."""
    return len(VAGUE.findall(prose)), len(re.findall(r"[A-Za-z']+", prose))


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ('"""Tell what a `given` node holds."""', (3, 5)),
        ("# Who knows?\nx = 'told'", (2, 2)),
        ('x = 1\n"""The understanding of nodes."""', (0, 4)),
        ('def f():\n    """Add.\n\n    >>> held()\n    """', (0, 1)),
    ],
)
def test_words_are_counted_in_docstrings_and_comments_alone(source, counts):
    assert counts_of(prose_of(source)) == counts


def test_one_word_of_two_hundred_is_vague_at_most():
    counts = {
        path.relative_to(PACKAGE).as_posix(): counts_of(prose_of(path.read_text(encoding="utf-8")))
        for path in PACKAGE.rglob("*.py")
    }
    vague, words = (sum(column) for column in zip(*counts.values(), strict=True))
    worst = sorted(counts, key=lambda name: -counts[name][0])[:10]
    assert vague <= words * MOST, {name: counts[name] for name in worst}
