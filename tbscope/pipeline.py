"""The pipeline from a graph to a GraphDef and its figures: verify, copy, passes, layout, convert.

The passes change a copy, so the user's graph stays as it is. `originals` and `CopyPairs` map the
copy's nodes back to those of the user.
"""

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.analysis.costs import scope_work, work_of
from tbscope.drawing.categories import label_nodes
from tbscope.drawing.figure_placement import CopyPairs, place_figures
from tbscope.drawing.figures import Figure, profile_figures
from tbscope.drawing.graph_def import graph_def_bytes
from tbscope.drawing.layout import lay_out
from tbscope.graphdef.run_metadata import run_metadata
from tbscope.ir.graph import Graph, Node, copy_graph, require_graph
from tbscope.ir.invariants import check_invariants
from tbscope.ir.nodes import release_nodes
from tbscope.ir.scopes import Scope
from tbscope.options import Drawing, check_options, with_defaults
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.passes.dead_code import mark_dead
from tbscope.passes.detail_level import set_level
from tbscope.passes.fold_micro_batches import fold_micro_batches
from tbscope.passes.hide_views import hide_plumbing
from tbscope.passes.tied_parameters import copy_shared_parameters, copy_tied_parameters
from tbscope.utils.gc_pause import not_collecting
from tbscope.utils.option import shows_options


class Drawn(NamedTuple):
    """A graph in the form that TensorBoard reads.

    Attributes:
        data: A serialised GraphDef. The bytes depend on the graph and the options alone.
        stats: The figures by which the page colours nodes, under their names in the GraphDef;
            None if there are none.
    """

    data: bytes
    stats: RunMetadata | None

    @property
    def graph_def(self) -> GraphDef:
        """The GraphDef, as a new message."""
        return GraphDef.FromString(self.data)


@shows_options
def to_graph_def(graph: Graph, **drawing: Unpack[Drawing]) -> GraphDef:
    """Return the GraphDef that TensorBoard draws as this graph.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Linear(3, 5), torch.rand(1, 3))
    >>> graph_def = tbscope.to_graph_def(graph, cards=False)
    >>> [node.name for node in graph_def.node]
    ['input', 'Linear/weight', 'Linear/bias', 'Linear', 'out']

    Args:
        graph: Any graph; it stays as it is.
        drawing: Options of the drawing (see `Drawing`).
    Returns:
        A new message, which depends on the graph and the options alone.
    Raises:
        ArgumentError: `graph` is no graph; or an option is unknown, or does not fit the graph.
        GraphError: The graph breaks an invariant.
    """
    require_graph(graph, "to_graph_def")
    check_invariants(graph)
    return draw(graph, **drawing).graph_def


def draw(
    graph: Graph,
    figures: Sequence[Figure] | None = None,
    *,
    rows: bool = True,
    **drawing: Unpack[Drawing],
) -> Drawn:
    """Return the GraphDef of a graph, with figures on its nodes and on the cards of its modules.

    Args:
        graph: A graph that satisfies the invariants (see `check_invariants`); it stays as it is.
        figures: Numbers of its nodes and scopes; None for those of its own profile.
        rows: Whether long rows are split for TensorBoard's page, which shows no row as one box.
        drawing: Options of the drawing (see `Drawing`).
    Raises:
        ArgumentError: An option is unknown, or does not fit the graph.
    """
    check_options(**drawing)
    with not_collecting():
        # A separate function: its locals are freed before the garbage collector is enabled again.
        return _draw(graph, figures, with_defaults(drawing), rows=rows)


def _draw(graph: Graph, figures: Sequence[Figure] | None, options: Drawing, *, rows: bool) -> Drawn:
    level, leaves = options["level"], options["leaves"]
    root, color_by, cards = options["root"], options["color_by"], options["cards"]
    if figures is None:
        figures = profile_figures(graph)
    folded = fold_micro_batches(graph)
    user_nodes: Sequence[Node] = graph.nodes
    if folded is not None:
        figures = [figure.moved(folded.copies) for figure in figures]
        graph, user_nodes = folded.graph, folded.originals
    # Figures are shown on parameters, too, so the copy needs them.
    drawn = copy_graph(graph, state=bool(figures))
    origin = CopyPairs.of(graph, drawn) if figures else None
    # A user's function receives the nodes of the user's own graph, not of the copy.
    originals = dict(zip(drawn.nodes, user_nodes, strict=True)) if callable(color_by) else None
    stacks = set_level(drawn, level)
    work = scope_work(graph)
    # The node that represents each operation and each scope of a stack.
    stood_for: dict[Node | Scope, Node] = {}
    for stack in stacks:
        assert stack.node.scope is not None, "a stack stands for a call"
        work[stack.node.scope] = work_of(stack.node, graph)
        stood_for.update(dict.fromkeys(stack.nodes, stack.node))
        stood_for.update(dict.fromkeys(stack.scopes, stack.node))
    mark_dead(drawn, options["dead"])
    if level != "aten":
        hide_plumbing(drawn, keep=options["keep"], hide=options["hide"])
    elif options["hide"]:
        hide_plumbing(drawn, keep=("*",), hide=options["hide"])
    if leaves == "node":
        copy_tied_parameters(drawn)
        collapse_leaves(drawn)
        copy_shared_parameters(drawn)
    layout = lay_out(
        drawn,
        style=options["style"],
        # The page scales colours to the largest figure of the top level: a single box around
        # everything would make all others pale.
        root=False if figures and root is None else root,
        circles=leaves == "node",
        templates=options["templates"],
        cards=cards,
        helpers=options["helpers"],
        work=work,
        also=[
            target for figure in figures for target in figure.numbers if isinstance(target, Scope)
        ],
        stacks=[stack.node for stack in stacks],
        labels=options["labels"],
        rows=rows,
    )
    labels = None
    if color_by is not None:
        labels = label_nodes(drawn, color_by, layout.facts, originals)
    stats = None if origin is None else place_figures(figures, origin, drawn, layout, stood_for)
    data = graph_def_bytes(drawn, layout, labels=labels)
    release_nodes(set(drawn.nodes).difference(graph.nodes))
    return Drawn(data, None if stats is None else run_metadata(stats))
