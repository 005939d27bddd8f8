"""Models into event files: graphs of models, and numbers on graphs, through any writer.

The pipeline joined: trace, convert, write. Whatever can fail comes before the first
byte, so a failure leaves the log directory as it was.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack

from tbscope.errors import ArgumentError
from tbscope.formats.compressed import record_of
from tbscope.ir.graph import Graph, Note, require_graph
from tbscope.messages import shown
from tbscope.options import (
    GATHERING,
    PLACING,
    Adding,
    Drawing,
    OnError,
    check_gathering,
    check_on_error,
    check_options,
)
from tbscope.overlays.overlay import OverlayValues, make_overlay
from tbscope.pipeline import draw
from tbscope.ranks.gather import Gathering, gathering_of, lost_texts, pretended_ranks
from tbscope.ranks.merge import merge_ranks
from tbscope.ranks.rank_options import Ranks
from tbscope.run_options import RUNNING, WORLD
from tbscope.sources.compiled.results import CompiledGraphs
from tbscope.sources.registry import graph_of
from tbscope.sources.torch.compat.compiler import never_compiled
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.option import shows_options, take_values
from tbscope.utils.validation import check_truth, plain_text
from tbscope.utils.warning import warn_once
from tbscope.writing.event_sinks import check_writer
from tbscope.writing.tags import Entry, write_entry

__all__ = ["add_graph", "add_overlay", "gathered"]


@never_compiled
@shows_options
def add_graph(
    writer: object,
    model: Any,
    input_to_model: Any = None,
    verbose: bool = False,
    use_strict_trace: bool = True,
    *,
    on_error: OnError = "raise",
    **options: Unpack[Adding],
) -> Graph:
    """Draw a model in TensorBoard's Graphs dashboard, through any writer.

    The model runs once, or more often if it is measured. What it holds is afterwards as
    before, and when this returns, the graph is on disk.

    Args:
        writer: A `SummaryWriter` of torch, tensorboardX or tbscope, a file writer of
            theirs or of TensorBoard, a `tensorboard.summary.Writer`, a logger of Lightning or
            its `experiment`, or a tracker of Accelerate.
        model: A module or another callable; or a `Graph` that is already made. What
            `compile_graphs` gave is several: all of them under the tag (None for "compiled"), each
            under the tag, `/` and its title. A `Difference` is the union of two graphs, coloured
            by what was added, removed and changed.
        input_to_model: A tensor is one argument; a tuple or list, the positional
            arguments; a mapping from parameters of forward, keyword arguments. None
            where forward needs none, or where the model has inputs of its own to show
            (`example_input_array`, `dummy_inputs`).
        verbose: Whether the graph is printed, too.
        use_strict_trace: Taken because torch's takes it; there is nothing left to relax.
        kwargs: Further keyword arguments of forward.
        input_size: In place of `input_to_model`, the size of an input to make up:
            `(1, 3, 224, 224)`; a list of several, or a mapping from names of parameters.
        dtypes: The element types of these inputs: one for all, or one for each.
        training: Whether the model runs in training mode; None for the mode it is in.
        grad: Whether gradients are recorded while it runs.
        loss: A function that makes a loss of what the model gives, which is drawn, too.
        backward: Whether the backward pass is run and drawn, from the loss on, or from a
            scalar that the model gives; gradients are afterwards as before.
        fake: Whether it computes nothing but shapes: no weights are read, no memory taken.
        partial: Whether of a model that raises is drawn what ran until then.
        profile: Whether times and memory are measured: True for 5 more runs after 2 to warm
            up, or how many. The page colours by them: a graph with a tag under "Profile",
            the graph of the run under the tag "profile".
        world_size: How many ranks a distributed run has that does not exist, as one of which the
            model is traced; None for as many as the mesh has, without one for no such run.
        rank: Which of these ranks it is.
        mesh: The dimensions of a device mesh over all of these ranks, with their sizes:
            `{"dp": 128, "tp": 8}`.
        parallelize: A function of the model and the device mesh that spreads a copy of the model
            over the ranks, and returns what is run, or None.
        tag: The graph's entry in the page's list of tags, of which one run may have any
            number; None for the graph of the run, which the list calls "Default".
        step: Which of several graphs of one tag is the later one, and so is shown. None:
            after those that this writer has written already.
        run_name: A run of its own for the graph, as a path below the writer's log directory
            (`eval`); None for the writer's own run.
        ranks: Of a distributed run, "mine" draws this rank alone; "all" or a list of numbers
            draws what several ranks record, with those that ran the same as one;
            "unfolded" draws each in a box of its own, of up to 64. Every rank calls it, the
            lowest of those drawn merges and writes, and the others need no writer. Of a run that
            does not exist, the model is traced as each of them, one after the other.
        ranks_timeout: For how many seconds the rank that draws waits for the others.
        on_error: "raise" raises; "warn", for training scripts, warns once of each error
            and gives an empty graph with a note of it. Of several ranks it draws those that came.
        options: How it is drawn, beside these: `style`, `labels`, `root`, `level`, `leaves`,
            `keep`, `hide`, `dead`, `color_by`, `templates`, `cards`, `helpers`
            (see `tbscope.Drawing`).
    Returns:
        The graph that was drawn; on a rank that hands its graph to another one, that graph.
    Raises:
        WriterError: The writer offers no way to write an event, or its file cannot be written.
        InputError: The inputs do not fit forward.
        ArgumentError: Inputs are given with a `Graph`, an option is none, the tag holds
            something else, or a graph of it has been written at this step or a later one.
        TraceError: The model raised.
        RanksError: Another rank sent no graph: it raised, is too slow, or gone.
    """
    check_on_error(on_error)
    drawing: Any = {**options}
    run, world, gathered, place = (
        take_values(group, drawing) for group in (RUNNING, WORLD, GATHERING, PLACING)
    )
    try:
        check_gathering(**gathered)
        entry = Entry(plain_text(place["tag"]), place["step"], place["run_name"])
        pretended = world["world_size"] is not None or world["mesh"] is not None
        gathering = None if pretended else gathering_of(*gathered.values())
        if gathering is None:
            check_writer(writer)
        ranks = gathered["ranks"]
        ask = _Asked(model, input_to_model, verbose, run, world, ranks, drawing, entry)
        return _draw(writer, ask, gathering, lenient=on_error == "warn")
    except Exception as error:  # A training script goes on, whatever became of its graph.
        if on_error == "raise":
            raise
        text = f"tbscope drew no graph: {error}"
        warn_once(text)
        name = model.name if isinstance(model, Graph) else type(model).__name__
        # It stands for what was not drawn.
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
    time", and sums them up for each box. The card of a node tells its exact number by the
    name of the overlay, that of a module the sum.

    Args:
        writer: Any writer, as for `add_graph`.
        tag: The name of the overlay, and its entry in the page's list.
        graph: What `trace`, `record` and `add_graph` give.
        values: A mapping from names to numbers; or a function of a `Node` that gives its
            number, or None; or the name of a built-in overlay: "flops", "backward_flops",
            "parameters", "parameter_bytes", "activation_bytes", "moved_bytes", "saved_bytes",
            "time", "peak", "calls", "operations", "communication_bytes"
            ("communication_bytes/tp" along one dimension of the device mesh),
            "parameter_bytes_here", "flops_here". A name is that of a parameter
            (`layer1.0.weight`) or of a module (`layer1.0`), the path of a scope, an input's or a
            node's name; a `Node`, a `Call` or a `Scope` will do, too.
            None for the built-in that is named like the tag.
        step: As for `add_graph`.
        run_name: As for `add_graph`.
        on_error: As for `add_graph`.
        drawing: As for `add_graph`.
    Raises:
        WriterError: The writer offers no way to write an event, or its file cannot be written.
        ArgumentError: A number is none that the page can show, there is none, or an argument
            is none.
        NotFoundError: The graph holds nothing of a name that a number is given for.
    """
    check_on_error(on_error)
    try:
        check_writer(writer)
        check_options(**drawing)
        entry = Entry(plain_text(tag), step, run_name)
        entry.check()
        given: object = graph
        if entry.tag is None:
            raise ArgumentError(
                "an overlay needs a tag, and was given None",
                why="it is an entry of its own in the page's list of tags",
                fix="writer.add_overlay('flops', graph)",
            )
        if not isinstance(given, Graph):
            raise ArgumentError(
                f"no overlay can be drawn on {shown(given)}",
                why="numbers are drawn on a graph that has been recorded",
                fix="graph = tbscope.trace(model, input), or what add_graph gave",
            )
        require_graph(graph, "add_overlay")
        with collecting_rarely():
            drawn = draw(graph, make_overlay(graph, entry.tag, values), **drawing)
            write_entry(writer, drawn, entry, record_of(graph))
    except Exception as error:  # As in `add_graph`.
        if on_error == "raise":
            raise
        warn_once(f"tbscope drew no overlay: {error}")


class _Asked(NamedTuple):
    """What is to be drawn, and how."""

    model: Any
    input_to_model: Any
    verbose: bool
    run: Mapping[str, Any]
    world: Mapping[str, Any]
    ranks: Ranks
    drawing: Drawing
    entry: Entry

    def record(self) -> Graph:
        """Return the graph of the model, as which rank or ranks it is asked for."""
        several = pretended_ranks(self.ranks, self.world)
        if several is None:
            return self._graph_on(self.world)
        graphs = [self._graph_on({**self.world, "rank": rank}) for rank in several]
        return merge_ranks(graphs, unfolded=self.ranks == "unfolded")

    def _graph_on(self, world: Mapping[str, Any]) -> Graph:
        kernels = self.drawing.get("level") == "aten"
        run = {**self.run, **world, "kernels": kernels}
        graph = graph_of(self.model, self.input_to_model, run)
        if graph is self.model:
            require_graph(graph, "add_graph")
        return graph


def _draw(writer: object, asked: _Asked, gathering: Gathering | None, *, lenient: bool) -> Graph:
    model, verbose, drawing, entry = asked.model, asked.verbose, asked.drawing, asked.entry
    check_truth("verbose", verbose)
    check_options(**drawing)
    entry.check()
    with collecting_rarely():
        # Whoever has no `Difference` loads nothing for it.
        home = sys.modules.get("tbscope.comparison.difference")
        if home is not None and isinstance(model, home.Difference):
            model, drawing = model.graph, {"color_by": "difference", **drawing}
            asked = asked._replace(model=model, drawing=drawing)
        if gathering is None:
            graph = asked.record()
        else:
            graph = gathered(gathering, asked.record, lenient=lenient)
            if not gathering.draws:
                return graph
            # Not before: the others wait for this one in what they do together.
            check_writer(writer)
        parts = model if isinstance(model, CompiledGraphs) else {}
        if parts and entry.tag is None:
            entry = entry._replace(tag="compiled")
        graphs = {entry: graph}
        for title, part in parts.items():
            graphs[entry._replace(tag=f"{entry.tag}/{title}")] = part
        drawn = {each: draw(one, **drawing) for each, one in graphs.items()}
        if verbose:
            print(graph, *parts.values(), sep="\n")  # noqa: T201  As torch's does.
        # All are drawn before the first is written.
        for each, one in drawn.items():
            write_entry(writer, one, each, record_of(graphs[each]))
    return graph


def gathered(gathering: Gathering, record: Callable[[], Graph], *, lenient: bool) -> Graph:
    """Return what several ranks record, or this one alone if another draws; warn of those lost."""
    graph = gathering.take(record, lenient=lenient)
    for text in lost_texts(gathering.lost):
        warn_once(f"tbscope: {text}")
    return graph
