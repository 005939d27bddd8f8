"""The base class of callbacks: its options, and the writing of the graph and its overlays."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Unpack

from tbscope.api.add_graph import add_graph, add_overlay
from tbscope.errors import ArgumentError, WriterError
from tbscope.ir.graph import Graph
from tbscope.messages import error_text, shown
from tbscope.options import Drawing, check_options
from tbscope.overlays.overlay import BUILT_IN
from tbscope.utils.option import shows_options
from tbscope.utils.validation import check_truth, is_word
from tbscope.utils.warning import warn_once
from tbscope.writer import SummaryWriter
from tbscope.writing.event_sinks import open_sink
from tbscope.writing.tags import GraphEntry


class DrawingCallback:
    """Draws one training step; a subclass also inherits from the callback class of its library.

    Attributes:
        graph: The graph that was drawn; None before that.
    """

    @shows_options
    def __init__(
        self,
        logdir: str | PathLike[str] | None = None,
        *,
        tag: str | None = None,
        run_name: str | None = None,
        backward: bool = True,
        overlays: Sequence[str] = ("flops", "parameters"),
        **drawing: Unpack[Drawing],
    ) -> None:
        """Take the options of the drawing, and the log directory.

        Args:
            logdir: A directory; None for the directory of the trainer's own writer
                (`TensorBoardLogger`, `report_to="tensorboard"`).
            tag: The graph's entry in the page's list of tags; None for the graph of the run.
            run_name: A run of its own, as a path below the log directory.
            backward: Whether the backward pass and the optimizer's step are drawn, too.
            overlays: The names of built-in overlays, each an entry of its own in that list.
            drawing: Options of the drawing, as for `tbscope.add_graph`.
        Raises:
            ArgumentError: An option is unknown or wrong.
        """
        super().__init__()
        if not isinstance(logdir, str | PathLike | None):
            raise ArgumentError(
                f"logdir={shown(logdir)} is no directory",
                why="it is the path of one, or None for the writer that the trainer has",
                fix="GraphCallback('runs/x'), or GraphCallback()",
            )
        check_truth("backward", backward)
        known = isinstance(overlays, list | tuple) and all(
            is_word(name, BUILT_IN) for name in overlays
        )
        if not known:
            raise ArgumentError(
                f"overlays={shown(overlays)} names other overlays than are built in",
                why=f"it is a list of some of {', '.join(BUILT_IN)}",
                fix='overlays=["flops", "parameters"], or overlays=() for none',
            )
        check_options(**drawing)
        GraphEntry(tag, None, run_name).check()
        self.graph: Graph | None = None
        self._logdir = logdir
        self._tag = tag
        self._run_name = run_name
        self._backward = backward
        self._overlays = tuple(overlays)
        self._drawing = drawing
        self._begun = False

    def _write(self, graph: Graph, holders: Callable[[], Iterable[object]]) -> None:
        """Write a graph with its overlays; a failure is one warning.

        Args:
            graph: The graph.
            holders: Returns the objects that may have a writer: the loggers of a trainer.
        """
        with self._going_on(), self._opened(holders) as writer:
            add_graph(writer, graph, tag=self._tag, run_name=self._run_name, **self._drawing)
            for name in self._overlays:
                tag = name if self._tag is None else f"{self._tag}/{name}"
                add_overlay(writer, tag, graph, name, run_name=self._run_name, **self._drawing)

    @contextmanager
    def _opened(self, holders: Callable[[], Iterable[object]]) -> Iterator[object]:
        if self._logdir is None:
            yield _writer_among(holders())
        else:
            with SummaryWriter(self._logdir) as writer:
                yield writer

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Turn an error in a block into one warning: a training must not end for a picture."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  The warning names it.
            warn_of_none(error_text(error))


def warn_of_none(text: str) -> None:
    """Issue the warning, at most once per text, that no graph was drawn."""
    warn_once(f"tbscope drew no training step: {text}")


def _writer_among(holders: Iterable[object]) -> object:
    """Return the first object that leads to a writer of event files.

    Raises:
        WriterError: No object does.
    """
    for holder in holders:
        try:
            open_sink(holder)
        except WriterError:  # It logs to something other than event files.
            continue
        return holder
    raise WriterError(
        "the trainer has no writer of TensorBoard's",
        why="none of its loggers writes event files",
        fix="give it one that does, or name a directory: GraphCallback('runs/x')",
    )
