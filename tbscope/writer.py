"""Models into event files: a SummaryWriter whose `add_graph` draws any model.

The pipeline joined: trace, convert, write. Whatever can fail comes before the first
byte, so a failure leaves the log directory as it was.
"""

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

import torch.utils.tensorboard
from torch.utils.tensorboard.writer import FileWriter

from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError
from tbscope.graph import Graph, Note
from tbscope.pipeline import Drawing, check_options, to_graph_def
from tbscope.records import speed_up
from tbscope.sinks import check_writer, open_sink, write_graph_event
from tbscope.sources.eager import trace
from tbscope.steps import check_place, next_step, remember_step

__all__ = ["OnError", "SummaryWriter", "add_graph"]

OnError: TypeAlias = Literal["raise", "warn"]
"""What becomes of an error: it is raised, or warned of once."""


def add_graph(
    writer: object,
    model: Any,
    input_to_model: Any = None,
    verbose: bool = False,
    use_strict_trace: bool = True,
    *,
    kwargs: Mapping[str, Any] | None = None,
    training: bool | None = False,
    grad: bool = False,
    fake: bool = False,
    partial: bool = False,
    tag: str | None = None,
    step: int | None = None,
    on_error: OnError = "raise",
    **drawing: Unpack[Drawing],
) -> Graph:
    """Draw a model in TensorBoard's Graphs dashboard, through any writer.

    The model runs once. What it holds is afterwards as before, and when this returns,
    the graph is on disk.

    Args:
        writer: A `SummaryWriter` of torch, tensorboardX or tbscope, a file writer of
            theirs or of TensorBoard, a logger of Lightning or its `experiment`, or a
            tracker of Accelerate.
        model: A module or another callable; or a `Graph` that is already made.
        input_to_model: A tensor is one argument; a tuple or list, the positional
            arguments; a mapping from parameters of forward, keyword arguments. None
            where forward needs none, or where the model has inputs of its own to show
            (`example_input_array`, `dummy_inputs`).
        verbose: Whether the graph is printed, too.
        use_strict_trace: Taken because torch's takes it; there is nothing left to relax.
        kwargs: Further keyword arguments of forward.
        training: Whether the model runs in training mode; None for the mode it is in.
        grad: Whether gradients are recorded while it runs.
        fake: Whether it computes nothing but shapes: no weights are read, no memory taken.
        partial: Whether of a model that raises is drawn what ran until then.
        tag: The graph's entry in the page's list of tags, of which one run may have any
            number; None for the graph of the run, which the list calls "Default".
        step: Which of several graphs of one tag is the later one, and so is shown. None:
            after those that this writer has written already.
        on_error: "raise" raises; "warn", for training scripts, warns once of each error
            and gives an empty graph with a note of it.
        drawing: How it is drawn: `style`, `root`, `level`, `leaves`, `keep`, `hide`, `dead`,
            `color_by`, `templates`, `cards` (see `tbscope.Drawing`).
    Returns:
        The graph that was drawn.
    Raises:
        WriterError: The writer offers no way to write an event.
        InputError: The inputs do not fit forward.
        ArgumentError: Inputs are given with a `Graph`, an option is none, or a graph of this
            tag has been written at this step or a later one.
        TraceError: The model raised.
    """
    if on_error not in {"raise", "warn"}:
        raise ArgumentError(
            f"on_error={on_error!r} is not known",
            why="an error is raised, or warned of",
            fix='give on_error="raise" or on_error="warn"',
        )
    run = _TraceOptions(kwargs=kwargs, training=training, grad=grad, fake=fake, partial=partial)
    try:
        place = _Place(tag, step)
        return _draw(writer, model, input_to_model, verbose, run, drawing, place)
    except Exception as error:  # A training script goes on, whatever became of its graph.
        if on_error == "raise":
            raise
        return _nothing_drawn(model, error)


class _Place(NamedTuple):
    """Where in the page's list a graph stands, and when."""

    tag: str | None
    step: int | None


class _TraceOptions(TypedDict):
    """The options of `add_graph` that `trace` takes."""

    kwargs: Mapping[str, Any] | None
    training: bool | None
    grad: bool
    fake: bool
    partial: bool


def _draw(
    writer: object,
    model: Any,
    input_to_model: Any,
    verbose: bool,
    run: _TraceOptions,
    drawing: Drawing,
    place: _Place,
) -> Graph:
    check_writer(writer)
    check_options(**drawing)
    check_place(*place)
    with collecting_rarely():
        if isinstance(model, Graph):
            _refuse_inputs(model, input_to_model, run["kwargs"])
            graph = model
        else:
            kernels = drawing.get("level") == "aten"
            graph = trace(model, input_to_model, kernels=kernels, **run)
        graph_def = to_graph_def(graph, **drawing)
        graph_bytes = graph_def.SerializeToString(deterministic=True)
        if verbose:
            print(graph)  # noqa: T201  As torch's does.
        sink = open_sink(writer)
        if sink is not None:
            step = next_step(sink, *place)
            write_graph_event(sink, graph_bytes, tag=place.tag, step=step)
            remember_step(sink, place.tag, step)
    return graph


_warned: set[str] = set()


def _nothing_drawn(model: object, error: Exception) -> Graph:
    """Warn of an error, once, and give the graph that stands for what was not drawn."""
    text = f"tbscope drew no graph: {error}"
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=_script_level())
    name = model.name if isinstance(model, Graph) else type(model).__name__
    return Graph(name, notes=[Note(text)])


def _script_level() -> int:
    """Give how many calls above `_nothing_drawn` the script is that asked for a graph."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level


def _refuse_inputs(graph: Graph, input_to_model: Any, kwargs: Mapping[str, Any] | None) -> None:
    if input_to_model is not None or kwargs is not None:
        raise ArgumentError(
            f"inputs are given with the graph of {graph.name}",
            why="a graph has run already and takes no inputs",
            fix="add_graph(writer, graph), or give the model in place of its graph",
        )


class SummaryWriter(torch.utils.tensorboard.SummaryWriter):
    """torch's SummaryWriter, with an `add_graph` that draws any model.

    It takes the same arguments and writes the same files. Beyond that, it closes itself
    when it is dropped and when the interpreter exits, and in a forked process it writes
    a file of its own.
    """

    file_writer: FileWriter | None  # type: ignore[assignment]  # torch says None only.
    all_writers: dict[str, FileWriter] | None  # type: ignore[assignment]
    _closer: "weakref.finalize[[FileWriter, int], SummaryWriter] | None" = None
    _process_id = -1

    def add_graph(  # type: ignore[override]  # torch's gives None.
        self,
        model: Any,
        input_to_model: Any = None,
        verbose: bool = False,
        use_strict_trace: bool = True,
        *,
        kwargs: Mapping[str, Any] | None = None,
        training: bool | None = False,
        grad: bool = False,
        fake: bool = False,
        partial: bool = False,
        tag: str | None = None,
        step: int | None = None,
        on_error: OnError = "raise",
        **drawing: Unpack[Drawing],
    ) -> Graph:
        """Draw a model in TensorBoard's Graphs dashboard.

        Arguments, result and errors are those of `tbscope.add_graph`.
        """
        return add_graph(
            self,
            model,
            input_to_model,
            verbose,
            use_strict_trace,
            kwargs=kwargs,
            training=training,
            grad=grad,
            fake=fake,
            partial=partial,
            tag=tag,
            step=step,
            on_error=on_error,
            **drawing,
        )

    def flush(self) -> None:
        """Write to disk all that was added so far."""
        self._leave_file_of_parent()
        super().flush()

    def close(self) -> None:
        """Write to disk all that was added so far, and close the file.

        What is added later goes to a new file.
        """
        self._leave_file_of_parent()
        super().close()
        self._forget_file()

    def _get_file_writer(self) -> FileWriter:
        self._leave_file_of_parent()
        before = self.file_writer
        file_writer: FileWriter = super()._get_file_writer()  # type: ignore[no-untyped-call]
        if file_writer is not before:
            speed_up(file_writer)
            self._process_id = os.getpid()
            self._closer = weakref.finalize(self, _close, file_writer, self._process_id)
        return file_writer

    def _leave_file_of_parent(self) -> None:
        """Let go, in a forked process, of the file that the parent writes."""
        if self.file_writer is not None and self._process_id != os.getpid():
            self.file_writer = self.all_writers = None
            self._forget_file()

    def _forget_file(self) -> None:
        if self._closer is not None:
            self._closer.detach()
            self._closer = None


def _close(file_writer: FileWriter, process_id: int) -> None:
    """Close the file of a writer that is gone, in the process that opened it."""
    if os.getpid() != process_id:
        return
    if threading.current_thread() is threading.main_thread():
        file_writer.close()
    else:
        # Garbage may be collected in the very thread that writes this file, and closing
        # waits for that thread.
        threading.Thread(target=file_writer.close).start()
