"""The pipeline from a graph to a GraphDef and its figures: verify, copy, tidy, lay out, convert."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, TypedDict, Unpack, get_args

from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.collector import collecting_rarely
from tbscope.drawing.build import build_graph_def
from tbscope.drawing.categories import ColorBy, check_color_by, label_nodes
from tbscope.drawing.figures import Figure, profile_figures
from tbscope.drawing.layout import lay_out
from tbscope.drawing.naming import Style, check_style
from tbscope.drawing.places import Origin, place_figures
from tbscope.errors import ArgumentError
from tbscope.figures.costs import scope_work
from tbscope.graphdef.stats import run_metadata
from tbscope.ir.graph import Graph
from tbscope.ir.invariants import verify
from tbscope.ir.scopes import Scope
from tbscope.passes.dead import Dead, check_dead, mark_dead
from tbscope.passes.leaves import collapse_leaves
from tbscope.passes.levels import Level, check_level, set_level
from tbscope.passes.plumbing import check_patterns, hide_plumbing

__all__ = ["Drawing", "Drawn", "Leaves", "check_options", "draw", "to_graph_def"]

Leaves: TypeAlias = Literal["node", "box"]
"""How a module of one operation is drawn: as that node, or as a box around it."""


class Drawing(TypedDict, total=False):
    """How a graph is drawn: the options of `to_graph_def`, of which none is needed.

    Attributes:
        style: How names are made of scopes: "tf" (`layer1/0`), "torch"
            (`Net/Sequential[layer1]/Linear[0]`), or a function that gives the whole name
            of a `Scope`.
        root: Whether the one scope that holds all others is a box around everything. None:
            in style "torch", and where boxes below it are called by a number alone; but not
            where times, memory or an overlay are drawn, whose colours it would make pale.
        level: How far the drawing goes into detail: "module" for the modules that call no
            others and the operations between them, "op" for operations as the user wrote
            them, "aten" for the kernels inside of each (`trace(..., kernels=True)`).
        leaves: "node" draws a module of one operation as one node, with its parameters as
            small circles beside it; "box" draws every module as a box.
        keep: Patterns of plumbing (views, casts, copies) that is drawn all the same.
        hide: Patterns of further operations and modules that are left out.
        dead: Whether operations that no output depends on are drawn: "keep" or "drop".
        color_by: What the page colours nodes by under "XLA cluster": "class", "dtype",
            "trainable", "device", "source file", "rank", a mapping from names to labels, or
            a function of a node.
        templates: Whether equal boxes are made to have equal colours, as Chrome, Edge and
            Safari need it. False for Firefox, which needs nothing.
        cards: Whether the box of each module holds a node that tells of it.
    """

    style: Style
    root: bool | None
    level: Level
    leaves: Leaves
    keep: Sequence[str]
    hide: Sequence[str]
    dead: Dead
    color_by: ColorBy | None
    templates: bool
    cards: bool


class Drawn(NamedTuple):
    """A graph as TensorBoard takes it.

    Attributes:
        graph_def: What it draws.
        stats: What it colours by: the figures of the nodes, by their names in the GraphDef;
            None where there are none.
    """

    graph_def: GraphDef
    stats: RunMetadata | None


def to_graph_def(graph: Graph, **drawing: Unpack[Drawing]) -> GraphDef:
    """Give the GraphDef that TensorBoard draws as this graph.

    Args:
        graph: Any graph; it stays as it is.
        drawing: How it is drawn (see `Drawing`).
    Returns:
        A new message; the same graph always gives the same one.
    Raises:
        ArgumentError: An option is none, or does not fit the graph.
        GraphError: The graph breaks an invariant.
    """
    return draw(graph, profile_figures(graph), **drawing).graph_def


def draw(graph: Graph, figures: Sequence[Figure], **drawing: Unpack[Drawing]) -> Drawn:
    """Give the GraphDef of a graph, with figures on its nodes and on the cards of its modules.

    Args:
        graph: Any graph; it stays as it is.
        figures: Numbers of its nodes and scopes.
        drawing: How it is drawn (see `Drawing`).
    Raises:
        ArgumentError: An option is none, or does not fit the graph.
        GraphError: The graph breaks an invariant.
    """
    check_options(**drawing)
    level, leaves = drawing.get("level", "op"), drawing.get("leaves", "node")
    color_by, cards = drawing.get("color_by"), drawing.get("cards", True)
    with collecting_rarely():
        verify(graph)
        drawn = graph.copy()
        origin = Origin.of(graph, drawn) if figures else None
        set_level(drawn, level)
        mark_dead(drawn, drawing.get("dead", "keep"))
        keep, hide = drawing.get("keep", ()), drawing.get("hide", ())
        if level != "aten":
            hide_plumbing(drawn, keep=keep, hide=hide)
        elif hide:
            hide_plumbing(drawn, keep=("*",), hide=hide)
        if leaves == "node":
            collapse_leaves(drawn)
        layout = lay_out(
            drawn,
            style=drawing.get("style", "tf"),
            # Colours by figures go up to the largest one at the top level: in a single box
            # around everything, all were pale.
            root=False if figures and drawing.get("root") is None else drawing.get("root"),
            circles=leaves == "node",
            templates=drawing.get("templates", True),
            cards=cards,
            work=scope_work(graph) if cards else None,
            also=[
                target
                for figure in figures
                for target in figure.numbers
                if isinstance(target, Scope)
            ],
        )
        labels = None if color_by is None else label_nodes(drawn, color_by)
        stats = None if origin is None else place_figures(figures, origin, drawn, layout)
        message = build_graph_def(drawn, layout, labels=labels)
        for node in drawn.nodes:
            # A node and its values refer to each other: garbage that only the collector finds.
            node.outputs.clear()
        return Drawn(message, None if stats is None else run_metadata(stats))


def check_options(**drawing: Unpack[Drawing]) -> None:
    """Check the options of `to_graph_def`, before anything has been run for it.

    Raises:
        ArgumentError: One of them is none.
    """
    unknown = sorted(drawing.keys() - Drawing.__annotations__.keys())
    if unknown:
        raise ArgumentError(
            f"a graph cannot be drawn with {unknown[0]}=",
            why=f"the options are {', '.join(Drawing.__annotations__)}",
            fix=f"leave {unknown[0]} out",
        )
    check_style(drawing.get("style", "tf"))
    check_level(drawing.get("level", "op"))
    check_dead(drawing.get("dead", "keep"))
    check_patterns(drawing.get("keep", ()), drawing.get("hide", ()))
    check_color_by(drawing.get("color_by"))
    leaves = drawing.get("leaves", "node")
    if leaves not in get_args(Leaves):
        raise ArgumentError(
            f"leaf modules cannot be drawn as {leaves!r}",
            why="leaves is 'node' or 'box'",
            fix="leaves='box' to give every module a box",
        )
