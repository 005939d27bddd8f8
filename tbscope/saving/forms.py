"""Forms: what a graph can be saved as, each known by the end of a file's name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import text_format

from tbscope.errors import ArgumentError
from tbscope.formats.json import graph_to_json
from tbscope.ir.graph import Graph
from tbscope.options import Drawing
from tbscope.pipeline import to_graph_def
from tbscope.saving.cut import Cut
from tbscope.saving.dot import dot_of
from tbscope.saving.explorer import explorer_of
from tbscope.saving.fitting import fitting
from tbscope.saving.folds import Folds
from tbscope.saving.graphviz import rendered, size_of
from tbscope.saving.html import page_of
from tbscope.saving.mermaid import mermaid_of
from tbscope.saving.picture import picture_of
from tbscope.words import shown

__all__ = ["FORMS", "How", "Form", "data_of", "form_of", "listed_forms"]


@dataclass(frozen=True, slots=True)
class How:
    """How a graph is drawn.

    Attributes:
        depth: How many boxes are open around the innermost nodes; None for what fits.
        drawing: The options of a drawing that were given.
    """

    depth: int | None = None
    drawing: Drawing = field(default_factory=Drawing)


@dataclass(frozen=True, slots=True)
class Form:
    """One form.

    Attributes:
        suffix: How the names of its files end.
        help: What it is, in a few words.
        write: Gives what the file holds.
        draws: Whether options of a drawing change it.
        cuts: Whether it is drawn to a depth.
        is_text: Whether it is text, that a terminal can show.
    """

    suffix: str
    help: str
    write: Callable[[Graph, How], bytes]
    draws: bool = True
    cuts: bool = False
    is_text: bool = True


def _json(graph: Graph, _: How) -> bytes:
    return graph_to_json(graph).encode("ascii")


def _pbtxt(graph: Graph, how: How) -> bytes:
    return text_format.MessageToString(to_graph_def(graph, **how.drawing)).encode()


def _pb(graph: Graph, how: How) -> bytes:
    data: bytes = to_graph_def(graph, **how.drawing).SerializeToString(deterministic=True)
    return data


def _html(graph: Graph, how: How) -> bytes:
    return page_of(picture_of(graph, kinds=True, **how.drawing)).encode()


def _explorer(graph: Graph, how: How) -> bytes:
    return explorer_of(picture_of(graph, **how.drawing)).encode("ascii")


def _mermaid(graph: Graph, how: How) -> bytes:
    return mermaid_of(picture_of(graph, **how.drawing), how.depth).encode()


def _dot(graph: Graph, how: How) -> bytes:
    folds = Folds(picture_of(graph, **how.drawing))
    return dot_of(Cut(folds.picture, how.depth, folds)).encode("ascii")


def _about(cut: Cut) -> str:
    nodes = sum(not item.embedded for item in cut.picture.items)
    return f"{nodes:,} nodes; {cut.shapes:,} nodes and boxes are drawn, {cut.depth} boxes deep."


def _by_graphviz(form: str) -> Callable[[Graph, How], bytes]:
    def draw(cut: Cut) -> bytes:
        return rendered(dot_of(cut), form, _about(cut))

    def write(graph: Graph, how: How) -> bytes:
        folds = Folds(picture_of(graph, **how.drawing))
        if how.depth is None:
            return fitting(folds, draw, size_of)
        return draw(Cut(folds.picture, how.depth, folds))

    return write


FORMS = (
    Form(".explorer.json", "for Model Explorer, with layers", _explorer),
    Form(".json", "all that the graph holds; load reads it", _json, draws=False),
    Form(".pbtxt", "a GraphDef as text", _pbtxt),
    Form(".pb", "a GraphDef in binary form", _pb, is_text=False),
    Form(".html", "a page with boxes that open", _html),
    Form(".dot", "for Graphviz", _dot, cuts=True),
    Form(".svg", "a figure, drawn by Graphviz", _by_graphviz("svg"), cuts=True),
    Form(".png", "a figure, drawn by Graphviz", _by_graphviz("png"), cuts=True, is_text=False),
    Form(".mmd", "a Mermaid flowchart, for a README", _mermaid, cuts=True),
)
"""Each form, a longer suffix before one that it ends with. A new form is a new line here."""

_ELSEWHERE = {
    ".onnx": (
        "an ONNX model holds the weights and computes, and a graph tells only what ran",
        "tbscope.export_onnx(model, args, path='model.onnx'), from the model itself",
    ),
}


def form_of(name: str, given: object = None) -> Form:
    """Return the form that the end of a file's name tells.

    Args:
        name: The name.
        given: What was given as its path, for the message; None for the name.
    Raises:
        ArgumentError: It tells none.
    """
    form = next((form for form in FORMS if name.lower().endswith(form.suffix)), None)
    if form is not None:
        return form
    other = next((told for end, told in _ELSEWHERE.items() if name.lower().endswith(end)), None)
    why, fix = other or (
        f"the end of the name tells the form: {listed_forms()}",
        "graph.save('graph.html')",
    )
    what = f"cannot save a graph as {shown(name if given is None else given)}"
    raise ArgumentError(what, why=why, fix=fix)


def listed_forms() -> str:
    """Return the suffixes of all forms, each with what it is."""
    told = [f"{form.suffix} ({form.help})" for form in FORMS]
    return ", ".join([*told, "or a / for a folder (an event file for TensorBoard)"])


def data_of(graph: Graph, form: Form, how: How) -> bytes:
    """Return what a file of a form holds.

    Raises:
        ArgumentError: An option does not fit the form, or the graph.
        GraphError: The graph breaks an invariant.
    """
    check_how(form, how)
    return form.write(graph, how)


def check_how(form: Form, how: How) -> None:
    """Raise ArgumentError where a form knows nothing of how a graph is to be drawn."""
    given: dict[str, Any] = {**how.drawing}
    if given and not form.draws:
        name = next(iter(given))
        raise ArgumentError(
            f"{name}={shown(given[name])} changes nothing in a {form.suffix} file",
            why="it holds the graph itself, and no drawing of it",
            fix=f"leave {name} out",
        )
    if how.depth is not None and not form.cuts:
        cutting = ", ".join(form.suffix for form in FORMS if form.cuts)
        raise ArgumentError(
            f"depth={how.depth} changes nothing in a {form.suffix} file",
            why=f"it is for {cutting}, in which boxes neither open nor close",
            fix="leave depth out",
        )
