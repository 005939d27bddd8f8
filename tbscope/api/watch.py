"""`watch`: draws the next training step of a model in a running training."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack
from weakref import finalize

import torch

from tbscope.api.add_graph import add_graph, gathered
from tbscope.errors import ArgumentError, TraceError
from tbscope.ir.graph import Graph, Note
from tbscope.ir.training_steps import changed_operations
from tbscope.messages import error_text, shown
from tbscope.options import GATHERING, Drawing, check_options
from tbscope.ranks.gather import gathering_of
from tbscope.ranks.rank_options import Ranks
from tbscope.sources.torch.calling.bind import require_whole
from tbscope.sources.torch.distributed import process_rank
from tbscope.sources.torch.optimizers import parameters_of
from tbscope.utils.option import check_values, shows_options
from tbscope.utils.validation import check_truth
from tbscope.utils.warning import warn, warn_once
from tbscope.writing.event_sinks import check_writer
from tbscope.writing.tags import GraphEntry

if TYPE_CHECKING:
    from tbscope.sources.eager.step_watcher import TrainingWatch

__all__ = ["Watched", "close_watches", "watch"]


class Watched:
    """The handle of `watch`: a model whose next training step is awaited.

    Attributes:
        graph: The latest graph that was drawn; None before the first.
    """

    def __init__(self, name: str, *, gathers: bool) -> None:
        self.graph: Graph | None = None
        self._waiting: TrainingWatch | None = None
        self._name, self._gathers = name, gathers

    @property
    def is_over(self) -> bool:
        """Whether no further step is awaited."""
        return self._waiting is None or self._waiting.is_over

    def remove(self) -> None:
        """Stop waiting; a step whose recording has not ended is dropped."""
        if self._waiting is not None:
            self._waiting.remove()

    def close(self) -> None:
        """Stop waiting; draw a step that lacks only an optimizer, or warn that none was drawn."""
        # Other ranks may not close at all: a step of several ranks is not completed here.
        self._end(completes=not self._gathers)

    def _end(self, *, completes: bool = False) -> None:
        reason = None if self._waiting is None else self._waiting.close(completes=completes)
        if reason is not None:
            self._warn(reason)

    def _warn(self, reason: str) -> None:
        warn(f"tbscope drew no step of {self._name}: {reason}")


_closers: "list[finalize[..., Any]]" = []


def close_watches(writer: object) -> None:
    """Close the watches of a writer, but for those that have drawn, and await changes."""
    for closer in [*_closers]:
        alive = closer.peek()
        if alive is None or alive[0] is writer:
            _closers.remove(closer)
        if alive is not None and alive[0] is writer:
            closer.detach()
            if alive[2][0].graph is None or alive[2][0].is_over:
                alive[2][0].close()


@shows_options
def watch(
    writer: object,
    model: torch.nn.Module,
    *,
    tag: str | None = None,
    run_name: str | None = None,
    every: int | None = None,
    backward: bool = True,
    optimizer: object | None = None,
    all_ranks: bool = False,
    ranks: Ranks = "mine",
    ranks_timeout: float = 300.0,
    **drawing: Unpack[Drawing],
) -> Watched:
    """Draw a model's next training step in the training that runs.

    No example input is needed: the calls are the training's own, with its data, on its device.
    A step is recorded once, and then the hooks are removed. A failure is one warning, and the
    training goes on; so is the reason why nothing could be drawn, once the writer is closed.

    >>> import torch, tbscope
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tbscope.SummaryWriter("runs/step") as writer:
    ...     watched = tbscope.watch(writer, model)
    ...     for batch in torch.rand(2, 4, 3):
    ...         optimizer.zero_grad()
    ...         model(batch).mean().backward()
    ...         optimizer.step()
    >>> watched.is_over, {node.phase for node in watched.graph.nodes} >= {"backward", "optimizer"}
    (True, True)

    Args:
        writer: Any writer, as for `add_graph`.
        model: The model. If it is compiled, the recorded step runs uncompiled.
        tag: As for `add_graph`.
        run_name: As for `add_graph`.
        every: The number of further calls after which a step is recorded again. It is drawn if
            the structure has changed, with a note of the changes. None: no further recording.
        backward: Whether the backward pass and the optimizer's step are drawn, too; then a
            call in training mode is awaited.
        optimizer: The optimizer whose step ends the graph, or an object around it (Accelerate's);
            None for the optimizers of the parameters that the step trains, after one backward pass
            or several.
        all_ranks: Whether every process of a distributed run draws by itself; otherwise only rank
            0 draws.
        ranks: The ranks of a distributed run that are drawn: "mine" draws one rank; "all",
            "unfolded" or a list merges the recordings of several ranks, as for `add_graph`. Every
            rank calls `watch`, and those that do not draw need no writer; a rank that fails or is
            late stops no training.
        ranks_timeout: As for `add_graph`.
        drawing: As for `add_graph`.
    Returns:
        A handle, whose `remove()` ends the waiting.
    Raises:
        ArgumentError: An argument is wrong.
        WriterError: The writer offers no way to write an event.
    """
    _check(model, every, optimizer)
    check_truth("backward", backward)
    check_truth("all_ranks", all_ranks)
    check_options(**drawing)
    GraphEntry(tag, None, run_name).check()
    check_values(GATHERING, {"ranks": ranks, "ranks_timeout": ranks_timeout})
    gathering = gathering_of(ranks, ranks_timeout)
    if gathering is not None and all_ranks:
        raise ArgumentError(
            f"all_ranks=True is given with ranks={shown(ranks)}",
            why="all_ranks draws a graph in each rank, ranks= those of several in one rank",
            fix="leave one of the two out",
        )
    name = type(model).__name__
    watched = Watched(name, gathers=gathering is not None)
    if gathering is None and process_rank() and not all_ranks:
        return watched
    if gathering is None or gathering.draws:
        check_writer(writer)

    def draw(graph: Graph, calls: int) -> None:
        before, watched.graph = watched.graph, graph
        if before is not None:
            changes = changed_operations(before.nodes, graph.nodes)
            if not changes:
                return
            graph.notes.insert(0, Note(f"before call {calls:,} the structure changed: {changes}"))
        add_graph(writer, graph, tag=tag, run_name=run_name, **drawing)

    def take(record: Callable[[], Graph], calls: int) -> None:
        """Draw the recorded graph, or on the drawing rank the merged graphs of several ranks."""
        again = gathering_of(ranks, ranks_timeout)
        try:
            graph = record() if again is None else gathered(again, record, lenient=True)
            if again is None or again.draws:
                draw(graph, calls)
        except Exception as error:  # noqa: BLE001  A training must not end for a picture.
            warn_once(f"tbscope drew no step of {name}: {error_text(error)}")

    def recorded(graph: Graph, calls: int) -> None:
        graph.name = name
        take(lambda: graph, calls)

    def recorded_nothing(text: str) -> None:
        if gathering is None:
            watched._warn(text)
        else:
            # The other ranks then need not wait for this one; if it draws, it draws theirs.
            take(lambda: _raise(text), 0)

    # Few users watch, and each import delays everybody's first graph.
    from tbscope.sources.eager.step_watcher import TrainingWatch

    watched._waiting = TrainingWatch(
        model,
        done=recorded,
        failed=recorded_nothing,
        backward=backward,
        optimizer=optimizer,
        every=every,
    )
    with suppress(TypeError):
        # A writer that is never closed ends with the program; some take no weak references.
        _closers.append(finalize(writer, Watched._end, watched))
    return watched


def _raise(text: str) -> Graph:
    raise TraceError(text)


def _check(model: object, every: object, optimizer: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"watch() was given {shown(model)} as a model",
            why="watch() waits for a call of a torch.nn.Module",
            fix="writer.watch(model), or tbscope.record() around any code",
        )
    require_whole(model)
    if optimizer is not None and not parameters_of(optimizer):
        raise ArgumentError(
            f"optimizer={shown(optimizer)} has no parameters",
            why="it is an optimizer whose step ends the graph, or contains such optimizers",
            fix="leave it out to watch the optimizers that have parameters of the model",
        )
    if every is not None and (type(every) is not int or every < 1):
        raise ArgumentError(
            f"every={shown(every)} is no number of calls",
            why="it is a whole number from 1 on, or None",
            fix="every=1000",
        )
