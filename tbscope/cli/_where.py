"""`tbscope where`: prints the lines of code that a node or a module comes from."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tbscope.cli._command import command
from tbscope.cli._results import give, give_json, gives_results
from tbscope.cli._running import graph_of_target, takes_a_target
from tbscope.cli._tables import plain_cell
from tbscope.cli._words import in_command_words
from tbscope.errors import ArgumentError, NotFoundError

if TYPE_CHECKING:
    from tbscope.ir.graph import Call, Graph, Node, Source

__all__ = ["where"]

# A source as a card of the page tells it.
_SOURCE = re.compile(r"(.+):([0-9]+) in (.+)")


class _Place(NamedTuple):
    """One line of code, and what of the graph it is for."""

    source: "Source"
    what: str

    def __str__(self) -> str:
        return f"{plain_cell(str(self.source))}: {plain_cell(self.what)}"


@command
@takes_a_target
@click.argument("name")
@gives_results
def where(*, name: str, as_json: bool, output: Path | None, **run: Any) -> None:
    """Print the lines of code that a node or a module comes from.

    TARGET is a model or a graph, as for `tbscope show`. NAME is what one knows it by: the module's
    name in the model (layer1.0.conv1), its path (Net/Linear[fc]), a node's name (%3, or 3), or
    the name of a box or a node on the page (layer1/0/conv1).

    \b
    tbscope where torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3 %1
    tbscope where nets.py:make_model -i 2x3 layer1.0.conv1
    tbscope where runs/net layer1/0/conv1
    """  # noqa: D301
    graph = graph_of_target(**run)
    with in_command_words():
        places = list(_places(graph, name))
    if not places:
        raise ArgumentError(
            f"no line of code is known for {name!r} in the graph of {graph.name}",
            why="whatever wrote this graph told of none",
            fix="give the model, which is run: package.module:NAME or path/to/file.py:NAME",
        )
    if as_json:
        told = [
            {
                "file": place.source.file,
                "line": place.source.line,
                "function": place.source.function,
                "what": place.what,
            }
            for place in places
        ]
        give_json({"version": 1, "graph": graph.name, "places": told}, output)
    else:
        give("\n".join(map(str, places)), output)


def _places(graph: "Graph", name: str) -> Iterator[_Place]:
    """Yield each line once.

    Raises:
        NotFoundError: Nothing has that name, in the graph or on the page.
    """
    seen = set()
    for place in _found(graph, name):
        if place not in seen:
            seen.add(place)
            yield place


def _found(graph: "Graph", name: str) -> Iterator[_Place]:
    from tbscope.ir.graph import Call

    thing = _thing(graph, name)
    if isinstance(thing, _Place):
        yield thing
    elif isinstance(thing, Call):
        # All calls of a module, but of a path only the one.
        several = thing.qualified_name is not None and thing.scope.path != name
        yield from _of_calls(graph.find_calls(thing.qualified_name or "") if several else [thing])
    else:
        yield from _of_node(thing)


def _of_calls(calls: "list[Call]") -> Iterator[_Place]:
    for call in calls:
        if call.source is not None:
            yield _Place(call.source, f"{call.scope.path} is called")
    for call in calls:
        if call.defined is not None:
            yield _Place(call.defined, f"{call.class_name} is defined")


def _of_node(node: "Node") -> Iterator[_Place]:
    if node.source is not None:
        where = f" in {node.scope.path}" if node.scope else ""
        yield _Place(node.source, f"{node.op}{where}")


def _thing(graph: "Graph", name: str) -> "Call | Node | _Place":
    """Return what has a name: in the model, in the printed graph, or on the page."""
    for other in (name.removeprefix("%"), name.replace("/", ".")):
        try:
            return graph.find(other)
        except NotFoundError:
            continue
    drawn = _on_the_page(graph, name)
    return graph.find(name) if drawn is None else drawn


def _on_the_page(graph: "Graph", name: str) -> "Call | Node | _Place | None":
    """Return what a box or a node of the page stands for; None where there is none."""
    from tbscope.graphdef.attributes import ascii_line
    from tbscope.ir.graph import Source
    from tbscope.pipeline import to_graph_def

    for node in to_graph_def(graph).node:
        # The card of a box stands in it, and is called like its class.
        is_card = node.op == "NoOp" and node.name.rpartition("/")[0] == name
        if node.name != name and not is_card:
            continue
        # Blanks before their names order the attributes of a card.
        told = {key.strip(): value.s.decode() for key, value in node.attr.items()}
        if "class" in told:
            return next(
                (call for call in graph.calls if ascii_line(call.scope.path) == told["scope"]), None
            )
        found = _SOURCE.fullmatch(told.get("source", ""))
        if found:
            file, line, function = found.groups()
            return _Place(Source(file, int(line), function), f"{node.op} at {name}")
    return None
