"""Operations in flight: what their kernels did, until each is over and becomes a node.

An operation that fails is gone with all that was noted of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tbscope.sources.eager.record.bodies import KernelRun
from tbscope.sources.eager.record.passed import Passing
from tbscope.sources.torch.communication import Exchange
from tbscope.sources.torch.flops import Copies, Formula, Formulas, KernelWork
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.operations import KernelFacts
from tbscope.sources.torch.wrapping import PLAIN

__all__ = ["Joined", "Operation", "Operations"]


class Joined(NamedTuple):
    """One kernel that has communicated with other ranks.

    Attributes:
        exchange: How it does.
        kernel: The kernel.
        args: What it was given by position.
        kwargs: What it was given by name.
        result: What it gave.
    """

    exchange: Exchange
    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


# Nobody adds to this one.
_NOTHING: list[Any] = []


class Operation:
    """One operation while it runs.

    Args:
        operations: All that run.

    Attributes:
        kernels: Its ATen kernels so far, by name.
        work: The work of those kernels that have a FLOPs formula.
        runs: The arguments and results of the kernels; None where they are not recorded.
        copies: The copies that were made inside of it.
        written: The tensors that its kernels wrote into.
        given: The tensors returned by the functions that it ran (`cond`, `scan`).
        turns: For each of these functions how many nodes there were before, and what it gave.
        told: Whether what it did is in the graph already (a backward pass).
        fed: What collectives gave that ran inside of it, and what the modules hold that did.
        joined: What it did together with other ranks: how, and the kernel that did it.
        passing: The backward pass that it runs; None where that is in the graph already, or none.
    """

    # Few operations have these; one is made for every question for a size, too.
    runs: list[KernelRun] | None = None
    copies: Copies | None = None
    given: Sequence[torch.Tensor] = ()
    turns: Sequence[tuple[int, list[torch.Tensor]]] = ()
    fed: Sequence[torch.Tensor] = ()
    joined: Sequence[Joined] = ()
    passing: Passing | None = None
    told = False

    def __init__(self, operations: "Operations") -> None:
        self._operations = operations
        self.kernels: list[str] = []
        # Lists of its own only once they hold something.
        self.work: list[KernelWork] = _NOTHING
        self.written: list[torch.Tensor] = _NOTHING
        if operations.keep_runs:
            self.runs = []

    def feed(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note of tensors that are read inside of it, each of them once."""
        self.fed = [*{id(tensor): tensor for tensor in (*self.fed, *tensors)}.values()]

    def run(self, facts: KernelFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of its kernels, note what it did, and return its result."""
        if facts.writes:
            own = args[0] if facts.writes_first and args else None
            if type(own) in PLAIN and self._operations.about_to_write is None and not self.written:
                # Most kernels that write do so into what they are a method of.
                self.written = [args[0]]
            else:
                self._note_writes(facts, args, kwargs)
        formula = self._operations.formulas[facts]
        self.kernels.append(facts.name)
        copies, runs, passing = self.copies, self.runs, self.passing
        if passing is not None:
            passing.reads((args, kwargs))
        elif formula is None and facts.usual and copies is None and runs is None:
            # Most kernels: what they did is told by their name.
            return facts.kernel(*args, **kwargs)
        result = facts.kernel(*args, **kwargs)
        if passing is not None:
            passing.makes(result)
        if facts.exchange is not None:
            self.joined = (*self.joined, Joined(facts.exchange, facts.kernel, args, kwargs, result))
        if facts.copies:
            if copies is None:
                copies = self.copies = Copies()
            copies.add(args[0], result)
        elif copies and facts.makes_tensor:
            copies.forget(result)
        if formula is not None:
            self._note_work(formula, facts, args, kwargs, result)
        if runs is not None:
            runs.append(KernelRun(facts, args, kwargs, result, self._flops(facts, formula)))
        return result

    def _note_writes(
        self, facts: KernelFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Take note of the tensors that a kernel is about to write into."""
        about_to_write = self._operations.about_to_write
        for tensor in facts.written(args, kwargs):
            if about_to_write is not None:
                about_to_write(tensor)
            if self.written:
                self.written.append(tensor)
            else:
                self.written = [tensor]

    def _note_work(
        self,
        formula: Formula,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        try:
            work = formula(args, kwargs, result)
        except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
            self._operations.formulas.fail(facts, error)
            return
        if self.copies:
            work = self.copies.trace(work)
        if self.work:
            self.work.append(work)
        else:
            self.work = [work]

    def _flops(self, facts: KernelFacts, formula: Formula | None) -> int | None:
        """Return the FLOPs of the latest kernel; None where no formula counts them."""
        if facts.name in self._operations.formulas.uncounted:
            return None
        return self.work[-1][0] if formula is not None else 0


class Operations:
    """The operations of a run: at most one runs, but inside of it may run functions with others.

    Args:
        uncounted: Where each kernel is told that computes and has no FLOPs formula.
        keep_runs: Whether what kernels were given and gave is kept, to make nodes of them.

    Attributes:
        running: The innermost one that runs; None between operations, and in a function that
            one of them runs, until that calls another.
        idle: One that is over and in which no kernel ran, to be used again; None for none.
        formulas: The FLOPs formula of each kernel that was met.
        about_to_write: Told of each tensor that a kernel is about to write into.
    """

    def __init__(self, uncounted: dict[str, str], *, keep_runs: bool) -> None:
        self.running: Operation | None = None
        self.idle: Operation | None = None
        self.formulas = Formulas(uncounted)
        self.keep_runs = keep_runs
        self.about_to_write: Callable[[torch.Tensor], None] | None = None

    def branch(self) -> "Operations":
        """Return those that another thread runs at the same time."""
        branch = Operations({}, keep_runs=self.keep_runs)
        branch.formulas, branch.about_to_write = self.formulas, self.about_to_write
        return branch

    def begin(self) -> Operation:
        """Return a new operation, which runs from now on."""
        self.running = operation = Operation(self)
        return operation

    def end(self) -> None:
        """Have no operation run: the one that did is over."""
        self.running = None

    @contextmanager
    def function(self, at: int = 0) -> Iterator[Callable[[Any], None]]:
        """Watch a function that the running operation was given: its operations are their own.

        Args:
            at: How many nodes the graph has.
        Returns:
            Takes what the function gave.
        """
        outer, self.running = self.running, None

        def take(result: Any) -> None:
            if outer is not None:
                results = collect_tensors(result, [])
                outer.given = [*outer.given, *results]
                outer.turns = [*outer.turns, (at, results)]

        try:
            yield take
        finally:
            if outer is not None:
                # Storages that held copies may hold something else by now.
                outer.copies = None
            self.running = outer
