"""What a callback draws of a training, where it writes it, and that the training goes on."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tbscope.adding import add_graph, add_overlay
from tbscope.checks import check_truth, is_word
from tbscope.errors import ArgumentError, WriterError
from tbscope.ir.graph import Graph
from tbscope.options import Drawing, check_options
from tbscope.overlays.built_in import BUILT_IN
from tbscope.warning import warn_once
from tbscope.words import error_text, shown
from tbscope.writer import SummaryWriter
from tbscope.writing.sinks import open_sink
from tbscope.writing.tags import Entry

__all__ = ["Order"]


class Order:
    """What is drawn of a training step: a graph, and numbers on it.

    Args:
        logdir: The directory that it is written to; None for the trainer's own writer.
        tag: As for `add_graph`.
        run_name: As for `add_graph`.
        backward: Whether the backward pass and the optimizer's step are drawn, too.
        overlays: The names of built-in overlays, each a tag of its own.
        drawing: As for `add_graph`.
    Raises:
        ArgumentError: One of them is none.
    """

    def __init__(
        self,
        logdir: str | None,
        *,
        tag: str | None,
        run_name: str | None,
        backward: bool,
        overlays: Sequence[str],
        drawing: Drawing,
    ) -> None:
        if not (logdir is None or isinstance(logdir, str)):
            raise ArgumentError(
                f"logdir={shown(logdir)} is no directory",
                why="it is the path of one, or None for the writer that the trainer has",
                fix="GraphCallback('runs/x'), or GraphCallback()",
            )
        check_truth("backward", backward)
        _check_overlays(overlays)
        check_options(**drawing)
        Entry(tag, None, run_name).check()
        self.logdir = logdir
        self.tag = tag
        self.run_name = run_name
        self.backward = backward
        self.overlays = tuple(overlays)
        self.drawing = drawing

    def write(self, graph: Graph, holders: Callable[[], Iterable[object]]) -> None:
        """Write a graph with its numbers; what fails is warned of, once.

        Args:
            graph: The graph.
            holders: Gives what may hold a writer: the loggers of a trainer.
        """
        with self.going_on(), self._opened(holders) as writer:
            add_graph(writer, graph, tag=self.tag, run_name=self.run_name, **self.drawing)
            self._add_overlays(writer, graph)

    @contextmanager
    def _opened(self, holders: Callable[[], Iterable[object]]) -> Iterator[object]:
        if self.logdir is None:
            yield _writer_among(holders())
        else:
            with SummaryWriter(self.logdir) as writer:
                yield writer

    def _add_overlays(self, writer: object, graph: Graph) -> None:
        for name in self.overlays:
            tag = name if self.tag is None else f"{self.tag}/{name}"
            add_overlay(writer, tag, graph, name, run_name=self.run_name, **self.drawing)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Have an error in a block be one warning: no training ends for a picture."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  It is told.
            self.warn(error_text(error))

    def warn(self, text: str) -> None:
        """Warn, once, that there is no graph."""
        warn_once(f"tbscope drew no training step: {text}")


def _check_overlays(overlays: Sequence[str]) -> None:
    if isinstance(overlays, list | tuple) and all(is_word(name, BUILT_IN) for name in overlays):
        return
    raise ArgumentError(
        f"overlays={shown(overlays)} names other overlays than are built in",
        why=f"it is a list of some of {', '.join(BUILT_IN)}",
        fix='overlays=["flops", "parameters"], or overlays=() for none',
    )


def _writer_among(holders: Iterable[object]) -> object:
    """Return the first that leads to a writer of event files.

    Raises:
        WriterError: None does.
    """
    for holder in holders:
        try:
            open_sink(holder)
        except WriterError:  # It logs to something else.
            continue
        return holder
    raise WriterError(
        "the trainer has no writer of TensorBoard's",
        why="none of its loggers writes event files",
        fix="give it one that does, or name a directory: GraphCallback('runs/x')",
    )
