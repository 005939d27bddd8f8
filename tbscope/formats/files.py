"""Writes graphs to files of their own, whole or not at all."""

import contextlib
import os
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.formats.json import graph_to_json
from tbscope.ir.forms import require_graph
from tbscope.ir.graph import Graph
from tbscope.words import error_text, shown

__all__ = ["save_graph"]


def save_graph(graph: Graph, path: Any) -> None:
    """Write a graph to a file in JSON; see `Graph.save`."""
    require_graph(graph, "save")
    text = _path_text(path)
    if not text.endswith(".json"):
        raise ArgumentError(
            f"cannot save a graph as {shown(path)}",
            why="the end of the name tells the form, and the one that there is is .json",
            fix="graph.save('graph.json')",
        )
    data = graph_to_json(graph).encode("ascii")
    # Where a link leads, the file is; whoever reads it sees the old one or the whole new one.
    part = ""
    try:
        final = os.path.realpath(text)
        part = f"{final}.{os.getpid()}"
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, final)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            os.unlink(part)
        raise ArgumentError(
            f"cannot save a graph as {shown(path)}",
            why=error_text(error),
            fix="give a path in a folder that may be written to",
        ) from error


def _path_text(path: Any) -> str:
    try:
        text = os.fspath(path)
    except Exception as error:
        raise _no_path(path) from error
    if not isinstance(text, str) or "\0" in text or not text:
        raise _no_path(path)
    return str.__str__(text)


def _no_path(path: Any) -> ArgumentError:
    return ArgumentError(
        f"cannot save a graph as {shown(path)}",
        why="a path is a text",
        fix="graph.save('graph.json')",
    )
