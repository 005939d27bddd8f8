"""`tbscope find`: prints the nodes of a graph that patterns match."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli._command import command
from tbscope.cli._matching import Pattern, matching_nodes, parse_pattern, words_of
from tbscope.cli._results import give, give_json, gives_results
from tbscope.cli._running import graph_of_target, takes_a_target
from tbscope.errors import NotFoundError
from tbscope.words import did_you_mean

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph, Node

__all__ = ["find"]


@command
@takes_a_target
@click.argument("patterns", type=parse_pattern, nargs=-1, required=True, metavar="PATTERN...")
@gives_results
def find(*, patterns: tuple[Pattern, ...], as_json: bool, output: Path | None, **run: Any) -> None:
    """Print the nodes of a graph that match: by name, operation, class, source or shape.

    TARGET is a model or a graph, as for `tbscope show`. A PATTERN is a name with * and ? in it,
    as a shell has them. It is looked for everywhere, or in one place: name: (also of the module
    around, and as the page writes both: layer1/0/relu), op: (also of the kernels inside), class:
    (of the module around), source: (file, file:line or function), shape: (of a result, 2x3). Of
    several patterns, all must match. Exits with 1 where nothing does.

    \b
    tbscope find torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3 op:linear
    tbscope find runs/net 'encoder.*' op:softmax
    tbscope find runs/net layer1/0/relu
    tbscope find model.onnx 'shape:*x768' --json
    """  # noqa: D301
    graph = graph_of_target(**run)
    found = list(matching_nodes(graph, patterns))
    if as_json:
        give_json({"version": 1, "graph": graph.name, "nodes": [*map(_plain, found)]}, output)
    elif found:
        from tbscope.ir.nodes import node_to_text

        give("\n".join(node_to_text(node, source=True) for node in found), output)
    if not found:
        raise _nothing(graph, patterns)


def _nothing(graph: "Graph", patterns: tuple[Pattern, ...]) -> NotFoundError:
    """Return the error that nothing matches, with what is near."""
    told = " and ".join(
        repr(pattern.text if pattern.field is None else f"{pattern.field}:{pattern.text}")
        for pattern in patterns
    )
    what = f"no node of the graph of {graph.name} matches {told}"
    for pattern in patterns:
        if any(True for _ in matching_nodes(graph, (pattern,))):
            continue
        otherwise = "*word* finds a part of a name, tbscope show prints all"
        known, word = _words(graph, pattern), pattern.text.strip("*?")
        return NotFoundError(what, fix=did_you_mean(word, known, otherwise, cutoff=0.6))
    return NotFoundError(what, why="each pattern matches some, but none matches all of them")


def _words(graph: "Graph", pattern: Pattern) -> dict[str, None]:
    """Return the words that a pattern is looked for in, each once."""
    classes = {call.scope: call.class_name for call in graph.calls}
    known: dict[str, None] = {}
    for node in graph.nodes:
        words = words_of(node, classes.get(node.scope, "") if node.scope is not None else "")
        for field, several in words.items():
            if pattern.field in (None, field):
                known.update(dict.fromkeys(several))
    return known


def _plain(node: "Node") -> dict[str, Any]:
    """Return a node as JSON takes it."""
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
