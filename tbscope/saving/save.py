"""Saving: a graph as a file in the form of its path's ending, or as an event file in a folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

from google.protobuf import text_format

from tbscope.errors import ArgumentError
from tbscope.formats.json import graph_to_json
from tbscope.ir.graph import Graph
from tbscope.messages import error_text, shown
from tbscope.options import Drawing, check_options
from tbscope.pipeline import to_graph_def
from tbscope.saving.box_tree import picture_of
from tbscope.saving.depth_limit import Cut, check_depth, fitting
from tbscope.saving.dot import dot_of, rendered, size_of
from tbscope.saving.html import page_of
from tbscope.saving.mermaid import mermaid_of
from tbscope.saving.repeats import Folds
from tbscope.utils.files import path_text, write_whole
from tbscope.utils.gc_pause import not_collecting


@dataclass(frozen=True, slots=True)
class Form:
    """One form of saved graphs.

    Attributes:
        suffix: The ending of its files' names.
        help: A description in a few words.
        write: Returns the bytes of a file for a graph, a depth (None for the deepest that fits),
            and options of the drawing.
        draws: Whether options of a drawing change it.
        cuts: Whether it is drawn to a depth.
        is_text: Whether it is text, which a terminal can show.
    """

    suffix: str
    help: str
    write: Callable[[Graph, int | None, Drawing], bytes]
    draws: bool = True
    cuts: bool = False
    is_text: bool = True


def _figure(form: str) -> Callable[[Graph, int | None, Drawing], bytes]:
    """Return the writer of figures in DOT, or in an output format of Graphviz."""

    def data(cut: Cut) -> bytes:
        dot = dot_of(cut)
        return dot.encode("ascii") if form == "dot" else rendered(dot, form)

    def write(graph: Graph, depth: int | None, drawing: Drawing) -> bytes:
        folds = Folds(picture_of(graph, **drawing))
        if depth is None and form != "dot":
            return fitting(folds, data, size_of)
        return data(Cut(folds.picture, depth, folds))

    return write


def _pb(graph: Graph, _: int | None, drawing: Drawing) -> bytes:
    data: bytes = to_graph_def(graph, **drawing).SerializeToString(deterministic=True)
    return data


FORMS = (
    Form(
        ".json",
        "the whole graph; load reads it",
        lambda graph, *_: graph_to_json(graph).encode("ascii"),
        draws=False,
    ),
    Form(
        ".pbtxt",
        "a GraphDef as text",
        lambda graph, _, how: text_format.MessageToString(to_graph_def(graph, **how)).encode(),
    ),
    Form(".pb", "a GraphDef in binary form", _pb, is_text=False),
    Form(
        ".html",
        "a page with boxes that open",
        lambda graph, _, how: page_of(picture_of(graph, **how)).encode(),
    ),
    Form(".dot", "for Graphviz", _figure("dot"), cuts=True),
    Form(".svg", "a figure, drawn by Graphviz", _figure("svg"), cuts=True),
    Form(".png", "a figure, drawn by Graphviz", _figure("png"), cuts=True, is_text=False),
    Form(
        ".mmd",
        "a Mermaid flowchart, for a README",
        lambda graph, depth, how: mermaid_of(picture_of(graph, **how), depth).encode(),
        cuts=True,
    ),
)
"""Each form. A new form is a new line here."""


def form_of(name: str, path: object = None) -> Form:
    """Return the form for the ending of a file's name.

    Args:
        name: The name.
        path: The path as the caller wrote it, for the message; None for the name.
    Raises:
        ArgumentError: No form has this ending.
    """
    for form in FORMS:
        if name.lower().endswith(form.suffix):
            return form
    ends = [f"{form.suffix} ({form.help})" for form in FORMS]
    ends.append("or a / for a folder (an event file for TensorBoard)")
    why, fix = (
        f"the end of the name selects the format: {', '.join(ends)}",
        "graph.save('graph.html')",
    )
    if name.lower().endswith(".onnx"):
        why = "an ONNX model has weights and computes, and a graph has only the operations that ran"
        fix = "tbscope.export_onnx(model, args, path='model.onnx'), from the model itself"
    raise _refused(name if path is None else path, why, fix)


def data_of(graph: Graph, form: Form, depth: int | None, drawing: Drawing) -> bytes:
    """Return the bytes of a graph in a form.

    Args:
        graph: The graph.
        form: The form.
        depth: The number of open boxes around the innermost nodes; None for the most that fit.
        drawing: The options of the drawing that the caller set.
    Raises:
        ArgumentError: An option does not fit the form, or the graph.
        GraphError: The graph breaks an invariant.
    """
    if drawing and not form.draws:
        name, value = next(iter(drawing.items()))
        raise ArgumentError(
            f"{name}={shown(value)} changes nothing in a {form.suffix} file",
            why="it contains the graph itself, and no drawing of it",
            fix=f"leave {name} out",
        )
    if depth is not None and not form.cuts:
        cutting = ", ".join(form.suffix for form in FORMS if form.cuts)
        raise ArgumentError(
            f"depth={depth} changes nothing in a {form.suffix} file",
            why=f"it is for {cutting}, in which boxes neither open nor close",
            fix="leave depth out",
        )
    return form.write(graph, depth, drawing)


def save_graph(
    graph: Graph, path: object, *, depth: int | None = None, **drawing: Unpack[Drawing]
) -> None:
    """Write a graph to a file, or into a folder; see `Graph.save`."""
    text = path_text(
        path, refused=lambda value: _refused(value, "a path is a text", "graph.save('graph.json')")
    )
    check_depth(depth)
    check_options(**drawing)
    # The root folder `/` has no name, and is certainly a mistake.
    is_named = bool(os.path.basename(os.path.normpath(text)))
    if text.endswith(("/", os.sep)) and is_named:
        if depth is not None:
            raise ArgumentError(
                f"depth={depth} changes nothing in an event file",
                why="boxes open and close on TensorBoard's page",
                fix="leave depth out",
            )
        # Imports torch's writer, which only event files need.
        from tbscope.writer import SummaryWriter

        with SummaryWriter(text) as writer:
            writer.add_graph(graph, **drawing)
        return
    if os.path.isdir(text):
        fix = "give a file: graph.save('graph.html')"
        if is_named:
            fix += f", or {shown(f'{text}/')} for an event file in it"
        raise _refused(path, "it is a folder", fix)
    form = form_of(text, path)
    with not_collecting():
        # A separate function: its locals are freed before the garbage collector is enabled again.
        data = data_of(graph, form, depth, drawing)
    try:
        write_whole(text, data)
    except (OSError, ValueError) as error:
        fix = "give a path in a folder that may be written to"
        raise _refused(text, error_text(error), fix) from error


def _refused(path: object, why: str, fix: str) -> ArgumentError:
    return ArgumentError(f"cannot save a graph as {shown(path)}", why=why, fix=fix)
