"""`tbscope find`: prints the nodes of a graph that patterns match."""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, gives_results
from tbscope.cli.run_target import graph_of_target, takes_a_target
from tbscope.errors import NotFoundError
from tbscope.messages import did_you_mean, shown

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph, Node, Value


FIELDS = ("name", "op", "class", "source", "shape")
"""The fields of a node that a pattern may name before its colon."""


class _Pattern(NamedTuple):
    """One pattern.

    Attributes:
        field: The field of the node, one of `FIELDS`; None for any of them.
        text: The shell pattern.
    """

    field: str | None
    text: str

    def __str__(self) -> str:
        return self.text if self.field is None else f"{self.field}:{self.text}"

    def asked(self, words: dict[str, list[str]]) -> list[str]:
        """Return the words of a node that the pattern is compared with."""
        if self.field is not None:
            return words[self.field]
        return [word for several in words.values() for word in several]


def _parse_pattern(text: str) -> _Pattern:
    """Parse `PATTERN`, or `op:PATTERN` for one of `FIELDS`.

    Raises:
        click.BadParameter: The pattern is empty.
    """
    field, colon, rest = text.partition(":")
    pattern = _Pattern(field, rest) if colon and field in FIELDS else _Pattern(None, text)
    if not pattern.text:
        raise click.BadParameter(f"{shown(text)} matches nothing: give a word, e.g. op:linear")
    return pattern


@command
@takes_a_target
@click.argument("patterns", type=_parse_pattern, nargs=-1, required=True, metavar="PATTERN...")
@gives_results
def find(*, patterns: tuple[_Pattern, ...], as_json: bool, output: Path | None, **run: Any) -> None:
    """Print the nodes of a graph that match: by name, operation, class, source or shape.

    TARGET is a model or a graph, as for `tbscope show`. A PATTERN is a name with * and ?, as in a
    shell. It is compared with all fields of a node, or with one: name: (also of its module, and
    the page's form of both: layer1/0/relu), op: (also of its kernels), class: (of its module),
    source: (file, file:line or function), shape: (of a result, 2x3). A node must match all
    patterns. The exit code is 1 if no node does.

    \b
    tbscope find torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3 op:linear
    tbscope find runs/net 'encoder.*' op:softmax
    tbscope find runs/net layer1/0/relu
    tbscope find model.onnx 'shape:*x768' --json
    """  # noqa: D301
    graph = graph_of_target(**run)
    classes = {call.scope: call.class_name for call in graph.calls}
    words = {
        node: _words_of(node, "" if node.scope is None else classes.get(node.scope, ""))
        for node in graph.nodes
    }
    matches = list(_matching(words, patterns))
    if as_json:
        give_json({"version": 1, "graph": graph.name, "nodes": [*map(_plain, matches)]}, output)
    elif matches:
        from tbscope.ir.nodes import node_to_text

        give("\n".join(node_to_text(node, source=True) for node in matches), output)
    if not matches:
        raise _nothing(graph, words, patterns)


def _nothing(
    graph: "Graph", words: "dict[Node, dict[str, list[str]]]", patterns: tuple[_Pattern, ...]
) -> NotFoundError:
    """Return the error that nothing matches, with near words as its fix."""
    quoted = " and ".join(repr(str(pattern)) for pattern in patterns)
    what = f"no node of the graph of {graph.name} matches {quoted}"
    for pattern in patterns:
        if next(_matching(words, (pattern,)), None) is None:
            otherwise = "*word* finds a part of a name, tbscope show prints all"
            known = dict.fromkeys(
                word for node_words in words.values() for word in pattern.asked(node_words)
            )
            near = did_you_mean(pattern.text.strip("*?"), known, otherwise, cutoff=0.6)
            return NotFoundError(what, fix=near)
    return NotFoundError(what, why="each pattern matches some, but none matches all of them")


def _matching(
    words: "dict[Node, dict[str, list[str]]]", patterns: tuple[_Pattern, ...]
) -> "Iterator[Node]":
    """Yield the nodes that every pattern matches, in order."""
    matches = [(pattern, _matcher(pattern.text)) for pattern in patterns]
    for node, known in words.items():
        if all(any(map(match, pattern.asked(known))) for pattern, match in matches):
            yield node


def _matcher(pattern: str) -> Callable[[str], bool]:
    # A shell reads brackets as a set of characters; in a printed path, `Net/Linear[fc]`, they are
    # literal.
    literal = re.sub(r"\[([^\]]*)\]", r"[[]\1]", pattern)
    return lambda word: fnmatchcase(word, pattern) or fnmatchcase(word, literal)


def _words_of(node: "Node", class_name: str) -> dict[str, list[str]]:
    """Return the words by which a node can be found, for each of `FIELDS`.

    Args:
        node: The node.
        class_name: The full name of the class of its module; may be empty.
    """
    names, classes = [node.name], [class_name] if class_name else []
    scope = node.scope
    if scope is not None:
        names.append(scope.path)
        if scope.qualified_name:
            # The page's form of the name, with the operation last.
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
        "shape": [_shape_text(value) for value in node.outputs],
    }


def _shape_text(value: "Value") -> str:
    """Return a shape in the form of `--input`: `2x3`, `scalar`, `?x8`; `*` for an unknown rank."""
    if value.shape is None:
        return "*"
    return "x".join("?" if size is None else str(size) for size in value.shape) or "scalar"


def _plain(node: "Node") -> dict[str, Any]:
    """Return a node as plain data for JSON."""
    scope, source = node.scope, node.source
    return {
        "name": node.name,
        "op": node.op,
        "kind": node.kind,
        "scope": scope.path if scope else "",
        "module": scope.qualified_name if scope else None,
        "inputs": [value.name for value in node.inputs],
        "outputs": [
            {
                "name": value.name,
                "shape": None if value.shape is None else list(value.shape),
                "dtype": value.dtype,
                "device": value.device,
            }
            for value in node.outputs
        ],
        "source": source and asdict(source),
        "flops": node.flops,
        "duration_us": node.duration_us,
    }
