"""`add_graph` and `add_overlay`: a model's graph, or numbers on a graph, written by any writer.

The steps are: check the options, trace, draw, write. All steps that can fail come before the
first byte is written, so a failure leaves the log directory as it was.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from tbscope.errors import ArgumentError
from tbscope.formats.compressed import record_of
from tbscope.ir.graph import Graph, Note
from tbscope.ir.invariants import check_invariants
from tbscope.messages import shown
from tbscope.options import (
    GATHERING,
    PLACING,
    Adding,
    Drawing,
    OnError,
    check_on_error,
    check_options,
)
from tbscope.overlays.overlay import OverlayValues, make_overlay
from tbscope.pipeline import draw
from tbscope.ranks.gather import RanksDrawing, gathering_of, lost_texts, simulated_ranks
from tbscope.ranks.merge import merge_ranks
from tbscope.run_options import RUNNING, WORLD
from tbscope.sources.compiled.results import CompiledGraphs
from tbscope.sources.registry import graph_of, runs
from tbscope.sources.torch.compat.compiler import never_compiled
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.option import check_values, shows_options, take_values
from tbscope.utils.validation import check_truth, plain_text
from tbscope.utils.warning import warn_once
from tbscope.writing.event_sinks import check_writer
from tbscope.writing.tags import GraphEntry, write_entry


@never_compiled
@shows_options
def add_graph(
    writer: object,
    model: object,
    input_to_model: object = None,
    verbose: bool = False,
    use_strict_trace: bool = True,
    *,
    on_error: OnError = "raise",
    **options: Unpack[Adding],
) -> Graph:
    """Draw a model in TensorBoard's Graphs dashboard, through any writer.

    The model runs once, or more often if it is measured. Its parameters, buffers and attributes
    are restored afterwards, and the graph is on disk when this returns.

    >>> import torch, tbscope
    >>> with torch.utils.tensorboard.SummaryWriter("runs/linear") as writer:
    ...     tbscope.add_graph(writer, torch.nn.Linear(3, 5), torch.rand(1, 3), root=True)
    <Graph Linear: 4 nodes, 1 calls>

    Args:
        writer: A `SummaryWriter` of torch, tensorboardX or tbscope, a file writer of
            theirs or of TensorBoard, a `tensorboard.summary.Writer`, a logger of Lightning or
            its `experiment`, or a tracker of Accelerate.
        model: A module or another callable; or a `Graph` that is already made. The result of
            `compile_graphs` is several graphs: all of them together are drawn under the tag (None
            for "compiled"), each alone under the tag, `/` and its title. A `Difference` is drawn
            as the union of two graphs, coloured by added, removed and changed nodes.
        input_to_model: A tensor is one argument; a tuple or list, the positional
            arguments; a mapping from parameters of forward, keyword arguments. None
            if forward needs none, or if the model has example inputs of its own
            (`example_input_array`, `dummy_inputs`).
        verbose: Whether the graph is printed, too.
        use_strict_trace: Accepted for compatibility with torch's `add_graph`; it has no effect.
        on_error: "raise" raises; "warn", for training scripts, warns once of each error
            and returns an empty graph with a note of it. If some ranks sent no graph, it draws
            the others.
        options: Options of the run (`Running`: `training`, `fake`, `backward`, `profile` and
            more; `World` for a simulated distributed run), of the place (`Placing`: `tag`, `step`,
            `run_name`), of the ranks that are drawn (`Gathering`), and of the drawing (`Drawing`:
            `style`, `labels`, `root`, `level`, `leaves`, `keep`, `hide`, `dead`, `color_by`,
            `templates`, `cards`, `helpers`).
    Returns:
        The graph that was drawn; on a rank that sends its graph to another rank, that graph.
    Raises:
        WriterError: The writer offers no way to write an event, or its file cannot be written.
        InputError: The inputs do not fit forward.
        ArgumentError: Inputs come with a `Graph`, an option is unknown or wrong, the tag
            contains other data, or a graph of it was written at this step or a later one.
        TraceError: The model raised.
        RanksError: Another rank sent no graph: it raised, timed out, or is gone.
    """
    check_on_error(on_error)
    drawing: Any = {**options}
    run, world, ranks, placing = (
        take_values(group, drawing) for group in (RUNNING, WORLD, GATHERING, PLACING)
    )
    try:
        check_values(GATHERING, ranks)
        check_truth("verbose", verbose)
        # `Difference` is looked up, not imported: a caller that has one has imported it already.
        home = sys.modules.get("tbscope.comparison.difference")
        if home is not None and isinstance(model, home.Difference):
            model, drawing = model.graph, {"color_by": "difference", **drawing}
        check_options(**drawing)
        entry = GraphEntry(plain_text(placing["tag"]), placing["step"], placing["run_name"])
        entry.check()
        pretended = world["world_size"] is not None or world["mesh"] is not None
        gathering = None if pretended else gathering_of(*ranks.values())
        if gathering is None:
            check_writer(writer)
        run = {**run, **world, "kernels": drawing.get("level") == "aten"}

        def record() -> Graph:
            """Trace the model: once, or as several ranks of a simulated run."""
            several = simulated_ranks(ranks["ranks"], world)
            if several is None:
                return graph_of(model, input_to_model, run)
            graphs = [graph_of(model, input_to_model, {**run, "rank": rank}) for rank in several]
            return merge_ranks(graphs, unfolded=ranks["ranks"] == "unfolded")

        with collecting_rarely():
            if gathering is None:
                graph = record()
            else:
                graph = gathered(gathering, record, lenient=on_error == "warn")
                if not gathering.draws:
                    return graph
                # Not before: an error here would leave the other ranks waiting in their
                # collectives.
                check_writer(writer)
            parts = model if isinstance(model, CompiledGraphs) else {}
            # A graph of the user's may have been edited.
            _write(writer, graph, parts, entry, drawing, edited=not runs(model))
        if verbose:
            print(graph, *parts.values(), sep="\n")  # noqa: T201  As torch's does.
        return graph
    except Exception as error:  # A training script goes on, whatever became of its graph.
        if on_error == "raise":
            raise
        text = f"tbscope drew no graph: {error}"
        warn_once(text)
        name = model.name if isinstance(model, Graph) else type(model).__name__
        # The caller receives a graph in any case.
        return Graph(name, notes=[Note(text)])


@shows_options
def add_overlay(
    writer: object,
    tag: str,
    graph: Graph,
    values: OverlayValues | None = None,
    *,
    step: int | None = None,
    run_name: str | None = None,
    on_error: OnError = "raise",
    **drawing: Unpack[Drawing],
) -> None:
    """Draw numbers on a graph, as an entry of its own in the page's list of tags.

    With the graph type "Profile", the page colours by them under "Memory" and under "Compute
    time", and sums them up for each box. The info card of a node shows its exact number under
    the name of the overlay, the card of a module the sum.

    >>> import torch, tbscope
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU())
    >>> with tbscope.SummaryWriter("runs/numbers") as writer:
    ...     graph = writer.add_graph(model, torch.rand(1, 3))
    ...     tbscope.add_overlay(writer, "flops", graph)
    ...     norms = {name: p.norm() for name, p in model.named_parameters()}
    ...     tbscope.add_overlay(writer, "norm", graph, norms)

    Args:
        writer: Any writer, as for `add_graph`.
        tag: The name of the overlay, and its entry in the page's list.
        graph: A graph that `trace`, `record` or `add_graph` made.
        values: A mapping from names to numbers; or a function of a `Node` that returns its
            number, or None; or the name of a built-in overlay: "flops", "backward_flops",
            "parameters", "parameter_bytes", "activation_bytes", "moved_bytes", "saved_bytes",
            "time", "peak", "calls", "operations", "communication_bytes"
            ("communication_bytes/tp" along one dimension of the device mesh),
            "parameter_bytes_here", "flops_here". A key is the name of a parameter
            (`layer1.0.weight`), of a module (`layer1.0`), of an input or of a node, the path of a
            scope, or a `Node`, `Call` or `Scope` itself.
            None for the built-in that is named like the tag.
        step: As for `add_graph`.
        run_name: As for `add_graph`.
        on_error: As for `add_graph`.
        drawing: As for `add_graph`.
    Raises:
        WriterError: The writer offers no way to write an event, or its file cannot be written.
        ArgumentError: The page cannot show a number, there is no number, or an argument is
            wrong.
        NotFoundError: A key names nothing in the graph.
    """
    check_on_error(on_error)
    try:
        check_writer(writer)
        check_options(**drawing)
        entry = GraphEntry(plain_text(tag), step, run_name)
        entry.check()
        recorded: object = graph
        if entry.tag is None:
            raise ArgumentError(
                "an overlay needs a tag, and was given None",
                why="it is an entry of its own in the page's list of tags",
                fix="writer.add_overlay('flops', graph)",
            )
        if not isinstance(recorded, Graph):
            raise ArgumentError(
                f"no overlay can be drawn on {shown(recorded)}",
                why="an overlay is drawn on a recorded graph",
                fix="graph = tbscope.trace(model, input), or the graph that add_graph returned",
            )
        check_invariants(graph)
        with collecting_rarely():
            drawn = draw(graph, make_overlay(graph, entry.tag, values), **drawing)
            write_entry(writer, drawn, entry, record_of(graph))
    except Exception as error:  # As in `add_graph`.
        if on_error == "raise":
            raise
        warn_once(f"tbscope drew no overlay: {error}")


def _write(
    writer: object,
    graph: Graph,
    parts: Mapping[str, Graph],
    entry: GraphEntry,
    drawing: Drawing,
    *,
    edited: bool,
) -> None:
    """Draw a graph and its parts, and write them.

    Args:
        writer: The writer.
        graph: The graph.
        parts: Its parts by title; each is drawn under the graph's tag, `/` and its title.
        entry: The entry of the graph.
        drawing: Options of the drawing.
        edited: Whether the graphs may break the invariants; the recorder's own satisfy them.
    """
    if parts and entry.tag is None:
        entry = entry._replace(tag="compiled")
    graphs = {entry: graph}
    for title, part in parts.items():
        graphs[entry._replace(tag=f"{entry.tag}/{title}")] = part
    for made in graphs.values() if edited else ():
        check_invariants(made)
    # All are drawn before the first is written, so a failure leaves no part of them on disk.
    drawn = {key: draw(made, **drawing) for key, made in graphs.items()}
    for key, data in drawn.items():
        write_entry(writer, data, key, record_of(graphs[key]))


def gathered(gathering: RanksDrawing, record: Callable[[], Graph], *, lenient: bool) -> Graph:
    """Return the merged graph of several ranks, or this rank's graph if another rank draws.

    A warning reports the ranks that sent no graph.
    """
    graph = gathering.take(record, lenient=lenient)
    for text in lost_texts(gathering.lost):
        warn_once(f"tbscope: {text}")
    return graph
