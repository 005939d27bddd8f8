"""Saving: a graph into a file, or into a folder of event files, as the path tells."""

import os
from typing import Any, Unpack

from tbscope.collector import not_collecting
from tbscope.errors import ArgumentError
from tbscope.files import path_text, write_whole
from tbscope.ir.graph import Graph, require_graph
from tbscope.options import Drawing, check_options
from tbscope.saving.cut import check_depth
from tbscope.saving.forms import How, data_of, form_of
from tbscope.words import error_text, shown

__all__ = ["save_graph"]


def save_graph(
    graph: Graph, path: Any, *, depth: int | None = None, **drawing: Unpack[Drawing]
) -> None:
    """Write a graph to a file, or into a folder; see `Graph.save`."""
    require_graph(graph, "save")
    text = path_text(path, refused=_no_path)
    check_depth(depth)
    check_options(**drawing)
    if text.endswith(("/", os.sep)) and _is_named(text):
        _save_events(graph, text, depth, drawing)
        return
    if os.path.isdir(text):
        fix = "give a file: graph.save('graph.html')"
        if _is_named(text):
            fix += f", or {shown(f'{text}/')} for an event file in it"
        raise _refused(path, "it is a folder", fix)
    form = form_of(text, path)
    with not_collecting():
        # In a function of its own: all that it made is gone before the collector comes back.
        data = data_of(graph, form, How(depth, drawing))
    try:
        write_whole(text, data)
    except (OSError, ValueError) as error:
        fix = "give a path in a folder that may be written to"
        raise _refused(text, error_text(error), fix) from error


def _no_path(path: object) -> ArgumentError:
    return _refused(path, "a path is a text", "graph.save('graph.json')")


def _refused(path: object, why: str, fix: str) -> ArgumentError:
    return ArgumentError(f"cannot save a graph as {shown(path)}", why=why, fix=fix)


def _is_named(folder: str) -> bool:
    """Tell whether a folder has a name: the root of all, which nobody means, has none."""
    return bool(os.path.basename(os.path.normpath(folder)))


def _save_events(graph: Graph, folder: str, depth: int | None, drawing: Drawing) -> None:
    if depth is not None:
        raise ArgumentError(
            f"depth={depth} changes nothing in an event file",
            why="boxes open and close on TensorBoard's page",
            fix="leave depth out",
        )
    # torch's writer, which nothing else here needs.
    from tbscope.writer import SummaryWriter

    with SummaryWriter(folder) as writer:
        writer.add_graph(graph, **drawing)
