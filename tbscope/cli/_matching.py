"""What nodes can be found by: patterns for their names, operations, classes, sources and shapes."""

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

import click

from tbscope.words import shown

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph, Node, Value

__all__ = ["FIELDS", "Pattern", "matching_nodes", "parse_pattern", "shape_text", "words_of"]

FIELDS = ("name", "op", "class", "source", "shape")
"""What a pattern may be about, before its colon."""


class Pattern(NamedTuple):
    """One pattern.

    Attributes:
        field: What it is about, one of `FIELDS`; None for any of them.
        text: The shell pattern.
    """

    field: str | None
    text: str


def parse_pattern(text: str) -> Pattern:
    """Read `PATTERN`, or `op:PATTERN` for one of `FIELDS`.

    >>> parse_pattern("op:*norm"), parse_pattern("encoder.*")
    (Pattern(field='op', text='*norm'), Pattern(field=None, text='encoder.*'))

    Raises:
        click.BadParameter: It is empty.
    """
    field, colon, rest = text.partition(":")
    found = Pattern(field, rest) if colon and field in FIELDS else Pattern(None, text)
    if not found.text:
        raise click.BadParameter(f"{shown(text)} matches nothing: give a word, e.g. op:linear")
    return found


def matching_nodes(graph: "Graph", patterns: tuple[Pattern, ...]) -> Iterator["Node"]:
    """Yield the nodes that every pattern matches, in order."""
    classes = {call.scope: call.class_name for call in graph.calls}
    matches = [_matcher(pattern.text) for pattern in patterns]
    for node in graph.nodes:
        scope = node.scope
        words = words_of(node, classes.get(scope, "") if scope is not None else "")
        if all(
            any(map(match, _asked(pattern, words)))
            for pattern, match in zip(patterns, matches, strict=True)
        ):
            yield node


def words_of(node: "Node", class_name: str) -> dict[str, list[str]]:
    """Return the words that a node can be found by, for each of `FIELDS`.

    Args:
        node: The node.
        class_name: The full name of the class of the module that it runs in; may be empty.
    """
    names, classes = [node.name], [class_name] if class_name else []
    scope = node.scope
    if scope is not None:
        names.append(scope.path)
        if scope.qualified_name:
            # The page has it in this form, with the operation behind.
            box = scope.qualified_name.replace(".", "/")
            names += [scope.qualified_name, box, f"{box}/{node.op}"]
        classes += [scope.part.label] if scope.kind in ("module", "container") else []
    if node.kind == "module":
        classes.append(node.op)
    source = node.source
    places = []
    if source is not None:
        file = source.file.replace("\\", "/")
        base = file.rpartition("/")[2]
        places = [file, base, f"{file}:{source.line}", f"{base}:{source.line}", source.function]
    return {
        "name": names,
        "op": [node.op, *node.kernels],
        "class": classes,
        "source": places,
        "shape": [shape_text(value) for value in node.outputs],
    }


def shape_text(value: "Value") -> str:
    """Return a shape as `--input` takes it: `2x3`, `scalar`, `?x8`; `*` for an unknown rank."""
    if value.shape is None:
        return "*"
    return "x".join("?" if size is None else str(size) for size in value.shape) or "scalar"


def _asked(pattern: Pattern, words: dict[str, list[str]]) -> list[str]:
    if pattern.field is not None:
        return words[pattern.field]
    return [word for several in words.values() for word in several]


def _matcher(pattern: str) -> Callable[[str], bool]:
    # The brackets of a printed path are meant as they stand: `Net/Linear[fc]`.
    literal = re.sub(r"\[([^\]]*)\]", r"[[]\1]", pattern)
    return lambda word: fnmatchcase(word, pattern) or fnmatchcase(word, literal)
