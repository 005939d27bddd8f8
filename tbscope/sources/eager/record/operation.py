"""Operations while they run, and the kernels inside of them.

An `Operation` collects the kernels of one torch function; the recorder makes a node of it when the
function returns, and drops it if the function raises.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tbscope.sources.eager.record.events import ignore_event
from tbscope.sources.eager.record.tensors.backward_io import InnerPass
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.flops import NO_FORMULA, Copies, Formulas, KernelWork
from tbscope.sources.torch.operations import KernelInfo


class KernelRun(NamedTuple):
    """One kernel that has run, with its arguments and results; it keeps the tensors alive."""

    facts: KernelInfo
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    flops: int | None = None


# Shared by all operations; never appended to.
_NOTHING: list[Any] = []


class Operation:
    """One operation while it runs.

    Args:
        operations: The operations of the run.

    Attributes:
        kernels: The names of its ATen kernels so far.
        work: The work of those kernels that have a FLOPs formula.
        runs: The arguments and results of the kernels, or None if they are not recorded.
        copies: The copies that were made inside of it.
        written: The tensors that its kernels wrote into.
        returned: The tensors returned by the functions that it called (`cond`, `scan`).
        function_calls: For each call of these functions the number of nodes before it, and its
            results.
        recorded: Whether its work is in the graph already (a backward pass).
        fed: The results of collectives that ran inside of it, and the parameters and buffers of the
            modules that were called inside of it.
        joined: Its kernels that have communicated with other ranks.
        passing: The backward pass that it runs; None if it runs none, or if the operations of the
            pass are in the graph.
    """

    # Defaults of the class: few operations need these, and an instance is made even for a query of
    # a size.
    runs: list[KernelRun] | None = None
    copies: Copies | None = None
    returned: Sequence[torch.Tensor] = ()
    function_calls: Sequence[tuple[int, list[torch.Tensor]]] = ()
    fed: Sequence[torch.Tensor] = ()
    joined: Sequence[KernelRun] = ()
    passing: InnerPass | None = None
    recorded = False

    def __init__(self, operations: "Operations") -> None:
        self._operations = operations
        self.kernels: list[str] = []
        # The first entry replaces these by lists of the operation's own.
        self.work: list[KernelWork] = _NOTHING
        self.written: list[torch.Tensor] = _NOTHING
        if operations.keep_runs:
            self.runs = []

    def feed(self, tensors: Iterable[torch.Tensor]) -> None:
        """Add tensors that are read inside of the operation, each of them once."""
        self.fed = [*{id(tensor): tensor for tensor in (*self.fed, *tensors)}.values()]

    def run(self, facts: KernelInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one kernel of the operation, record its effects, and return its result."""
        if facts.writes:
            self._write(facts.written(args, kwargs))
        formulas = self._operations.formulas
        formula, copies = formulas[facts], self.copies
        self.kernels.append(facts.name)
        if self.passing is not None:
            self.passing.reads((args, kwargs))
        result = facts.kernel(*args, **kwargs)
        if self.passing is not None:
            self.passing.makes(result)
        if facts.exchange is not None:
            self.joined = (*self.joined, KernelRun(facts, args, kwargs, result))
        if facts.copies:
            copies = self.copies = copies or Copies()
            copies.add(args[0], result)
        elif copies and facts.makes_tensor:
            copies.forget(result)
        if formula is not None:
            try:
                work = formula(args, kwargs, result)
            except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
                formulas.fail(facts, error)
            else:
                self.work = [*self.work, copies.trace(work) if copies else work]
        if self.runs is not None:
            flops = None
            if facts.name not in formulas.uncounted:
                flops = 0 if formula is None else self.work[-1][0]
            self.runs.append(KernelRun(facts, args, kwargs, result, flops))
        return result

    def launch(self, kernel: str, written: list[torch.Tensor]) -> None:
        """Record a kernel outside of torch that is about to run, and the tensors it writes into."""
        self._write(written)
        self.kernels.append(kernel)
        self._operations.formulas.uncounted[kernel] = NO_FORMULA

    def _write(self, tensors: list[torch.Tensor]) -> None:
        # Before the kernel runs: a snapshot needs the content from before the write.
        for tensor in tensors:
            self._operations.about_to_write(tensor)
        self.written = [*self.written, *tensors]


class Operations:
    """The operations of a run: at most one runs, but a function that it calls may run others.

    Args:
        uncounted: Receives each kernel that computes and has no FLOPs formula, with the reason.
        keep_runs: Whether arguments and results of kernels are kept, to make nodes of them.

    Attributes:
        running: The innermost running operation; None between operations, and in a function that an
            operation calls, until that function calls another operation.
        idle: A finished operation without kernels, for reuse; None if there is none.
        formulas: The FLOPs formula of each kernel seen so far.
        about_to_write: Called with each tensor that a kernel is about to write into.
        scripted: Whether a scripted module was called, which may run in several threads.
    """

    def __init__(self, uncounted: dict[str, str], *, keep_runs: bool) -> None:
        self.running: Operation | None = None
        self.idle: Operation | None = None
        self.formulas = Formulas(uncounted)
        self.keep_runs = keep_runs
        self.about_to_write: Callable[[torch.Tensor], None] = ignore_event
        self.scripted = False

    def begin(self) -> Operation:
        """Start a new operation, and return it."""
        self.running = operation = Operation(self)
        return operation

    @contextmanager
    def function(self, at: int = 0) -> Iterator[Callable[[Any], None]]:
        """Record the operations of a function that the running operation calls, as separate nodes.

        Args:
            at: The number of nodes in the graph.
        Returns:
            A callable that takes the result of the function.
        """
        caller, self.running = self.running, None

        def take(result: object) -> None:
            if caller is not None:
                results = collect_tensors(result, [])
                caller.returned = [*caller.returned, *results]
                caller.function_calls = [*caller.function_calls, (at, results)]

        try:
            yield take
        finally:
            if caller is not None:
                # Storages of copies may have other contents by now.
                caller.copies = None
            self.running = caller
