"""Gathering of a distributed run's graphs: each rank records its own, and one rank merges them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from tbscope.errors import ArgumentError, RanksError
from tbscope.ir.graph import Graph, Note
from tbscope.ir.metadata import ranks_text
from tbscope.messages import error_text, shown
from tbscope.ranks.merge import merge_ranks
from tbscope.ranks.rank_options import Ranks, check_unfolded
from tbscope.ranks.store_exchange import GraphExchange
from tbscope.sources.torch.distributed import (
    is_distributed,
    is_launched_in_group,
    is_simulated,
    process_rank,
    shared_store,
    world_size,
)
from tbscope.sources.torch.fake_process_group import size_of_world

# Counter of gathering calls in this process; equal on all ranks, as they run the same program.
_calls = count()

_FOR_TORCHRUN = "call it in a program that torchrun started, after init_process_group()"


def gathering_of(ranks: Ranks, timeout_s: float) -> "RanksDrawing | None":
    """Return the `RanksDrawing` for the selected ranks.

    Args:
        ranks: A valid option (see `check_ranks`).
        timeout_s: Longest wait for the other ranks, in seconds.
    Returns:
        None if this process draws only its own graph.
    Raises:
        ArgumentError: The run has no such ranks, or too many to be drawn unfolded; or a launcher
            started several processes, and the process group is not initialized.
    """
    if isinstance(ranks, str) and ranks == "mine":
        return None
    world = world_size() if is_distributed() else 0
    if world == 0 and is_launched_in_group():
        raise ArgumentError(
            f"ranks={shown(ranks)} asks processes that have not met",
            why="a launcher started several, and no process group is there",
            fix="torch.distributed.init_process_group() before it",
        )
    unfolded = ranks == "unfolded"
    return RanksDrawing(_wanted(ranks, world), timeout_s, unfolded=unfolded, alone=world <= 1)


def _wanted(ranks: Ranks, world: int) -> list[int]:
    """Return the selected ranks in order; `world` is their total, 0 if not distributed."""
    selected = list(range(max(world, 1))) if isinstance(ranks, str) else sorted(ranks)
    if selected[-1] >= max(world, 1):
        raise ArgumentError(
            f"ranks={shown(ranks)} asks for rank {selected[-1]}",
            why=f"the run has {world}, counted from 0" if world else "this is no distributed run",
            fix="ranks='all'" if world else _FOR_TORCHRUN,
        )
    if ranks == "unfolded":
        check_unfolded(len(selected))
    return selected


def simulated_ranks(ranks: Ranks, world: Mapping[str, object]) -> list[int] | None:
    """Return the ranks that a model is traced as, or None if it is traced once.

    Args:
        ranks: The selected ranks: a valid option (see `check_ranks`).
        world: Options of the simulated run: `world_size`, `mesh` and `rank`.
    Raises:
        ArgumentError: The run has no such ranks, too many to be drawn unfolded, or `rank` is set,
            too.
    """
    size = size_of_world(world["world_size"], world["mesh"])
    if size is None or ranks == "mine":
        return None
    if world["rank"] != 0:
        raise ArgumentError(
            f"rank={shown(world['rank'])} is given with ranks={shown(ranks)}",
            why="the model is traced as each of these ranks",
            fix=f"leave rank out, or ranks={shown([world['rank']])}",
        )
    return _wanted(ranks, size)


class RanksDrawing:
    """One drawing of the graphs of several ranks.

    Args:
        ranks: The ranks to draw, in order.
        timeout_s: Longest wait for the other ranks, in seconds.
        unfolded: Whether each rank has a box of its own.
        alone: Whether there is no other process.

    Attributes:
        draws: Whether this process merges the graphs and draws: the first of `ranks` does.
        lost: Reasons why graphs are missing, by rank; empty before all are gathered.
    """

    def __init__(self, ranks: list[int], timeout_s: float, *, unfolded: bool, alone: bool) -> None:
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._unfolded = unfolded
        self._rank = process_rank()
        self._posts = None if alone else _posts()
        self.draws = self._rank == ranks[0]
        self.lost: dict[int, str] = {}

    def take(self, record: Callable[[], Graph], *, lenient: bool) -> Graph:
        """Record this rank; then send its graph, or merge it with the graphs of the other ranks.

        Args:
            record: Returns the graph of this rank. It runs on all ranks, because they wait for each
                other in collectives.
            lenient: Whether the graphs that arrived are merged if some are missing.
        Returns:
            The merged graph if this process draws, else the graph of this rank.
        Raises:
            RanksError: A selected graph did not arrive, or arrived too late.
        """
        graph: Graph | None = None
        failure: Exception | None = None
        try:
            graph = replace(record(), rank=self._rank, world_size=world_size())
        except BaseException as error:
            if not (self.draws and lenient and isinstance(error, Exception)):
                self._give_up(error)
                raise
            failure = error
        if self.draws:
            return self._gathered(graph, failure, lenient=lenient)
        assert graph is not None, "whoever does not draw has raised by now"
        if self._rank in self._ranks and self._posts is not None:
            with _exchanging():
                awaited = self._posts.send(self._rank, graph)
            if not awaited:
                raise RanksError(
                    f"the graph of rank {self._rank} came too late",
                    why=f"rank {self._ranks[0]}, which draws, waits {self._timeout_s:g} s for it",
                    fix=f"ranks_timeout={2 * self._timeout_s:g}",
                )
        return graph

    def _give_up(self, error: BaseException) -> None:
        """Report to the other ranks that this rank sends no graph, or does not merge the graphs."""
        if self._posts is None or (self._rank not in self._ranks):
            return
        try:
            if self.draws:
                self._posts.close()
            else:
                self._posts.fail(self._rank, error_text(error))
        except RuntimeError:
            # The store is gone; the error of the model is more useful than the error of the store.
            return

    def _gathered(self, graph: Graph | None, failure: Exception | None, *, lenient: bool) -> Graph:
        graphs: dict[int, Graph] = {}
        if graph is not None:
            graphs[self._rank] = graph
        if failure is not None:
            self.lost[self._rank] = error_text(failure)
        if self._posts is not None:
            with _exchanging():
                for rank, result in self._posts.collect(self._ranks[1:], self._timeout_s):
                    if isinstance(result, Graph):
                        graphs[rank] = result
                    else:
                        self.lost[rank] = result
        if self.lost and not (lenient and graphs):
            raise failure or lost_error(self.lost)
        merged = merge_ranks(graphs.values(), unfolded=self._unfolded)
        merged.notes[:0] = [Note(text) for text in lost_texts(self.lost)]
        return merged


def _posts() -> GraphExchange:
    """Return the exchange of this call, whose name is equal on all ranks.

    Raises:
        ArgumentError: The process group is simulated, without other processes.
    """
    number = next(_calls)
    if is_simulated():
        raise ArgumentError(
            "the other ranks send no graphs: they are pretended",
            why="the process group is torch's fake one, with this process alone",
            fix="tbscope.merge_ranks([...]) of graphs that are traced as each rank",
        )
    return GraphExchange(shared_store("tbscope"), str(number))


@contextmanager
def _exchanging() -> Iterator[None]:
    """Turn an error of the store into a `RanksError`."""
    try:
        yield
    except RuntimeError as error:
        raise RanksError(
            "the graphs of ranks cannot be exchanged",
            why=f"the store of the process group failed: {error_text(error)}",
            fix="look at the rank that hosts it, mostly rank 0; on_error='warn' goes on",
        ) from error


def lost_texts(lost: Mapping[int, str]) -> list[str]:
    """Return a sentence for each reason why graphs are missing."""
    ranks: dict[str, list[int]] = {}
    for rank, why in sorted(lost.items()):
        ranks.setdefault(why, []).append(rank)
    return [
        f"{ranks_text(members)} {'is' if len(members) == 1 else 'are'} not drawn: {why}"
        for why, members in ranks.items()
    ]


def lost_error(lost: Mapping[int, str]) -> RanksError:
    """Return the error for missing graphs.

    Args:
        lost: Reasons, by rank.
    """
    return RanksError(
        f"{ranks_text(lost)} sent no graph",
        why="; ".join(lost_texts(lost)),
        fix="ranks_timeout=... for ranks that are slow; on_error='warn' draws what came",
    )
