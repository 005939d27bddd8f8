"""The events of a run: the functions that take them, and the guards around all of these functions.

The sources of events are in `watch/`: the modes of torch, module calls, hooks and patches. They
report to the `Events` of a recorder, whose functions are methods of its subscribers: the dataflow
(`dataflow.py`), module calls and scopes (`module_calls.py`), training (`training/training.py`),
ranks (`ranks.py`) and the snapshots of `restore/`. A guard is a decorator of all functions at once,
which knows no subscriber: errors that must not reach a training (`nonfatal`), and the lock and the
order of several threads (`threads.py`).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

Handler: TypeAlias = Callable[..., Any]
"""Takes an event."""

Block: TypeAlias = Callable[..., AbstractContextManager[Any]]
"""Takes an event that lasts as long as a block runs."""

Guard: TypeAlias = Callable[[str, Handler], Handler]
"""Returns the guarded form of the function for the event of this name."""


def ignore_event(*_: object) -> None:
    """Ignore an event."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Events:
    """The functions that take the events of one run in one thread.

    Attributes:
        operation_ended: A torch function has returned.
        operation_failed: A torch function or a kernel has raised.
        kernel_ended: A kernel outside of torch functions has returned.
        content_read: Python has read the content of a tensor.
        slices_made: An operator has cut slices of its operands for a function that it calls.
        alias_made: A tensor is an alias of another tensor (`Parameter(tensor)`).
        tensors_swapped: Two tensors swap their contents in the block.
        tensors_replaced: Other tensors replace tensors of a module in the block.
        about_to_write: Code that is no operation is about to write into a tensor.
        about_to_set: Code is about to set the data or the gradient of a tensor.
        about_to_accumulate: A backward pass is about to add to gradients.
        scope_opened: A script has opened a scope.
        scope_closed: A script has closed a scope.
        call_begins: A module is called.
        call_ended: A module call has returned.
        call_failed: A module call has raised.
        function_runs: An operator runs a function that is its argument in the block.
        shard_step: A sharded module gathers or frees its parameters, or reduces their gradients,
            in the block.
        graph_replayed: A CUDA graph is about to be replayed.
        storage_freed: The memory of a tensor that remains is freed.
        backward_pass: The engine of autograd runs in the block.
        gradient_set: A script has set the gradient of a tensor.
        step_begins: An optimizer begins a step.
        step_ended: An optimizer has ended its step.
        step_failed: An error leaves a Python frame, in which an optimizer may run.
        closure_runs: An optimizer calls its closure in the block.
        work_awaited: Python has waited for an asynchronous collective.
        wait_inside: A kernel inside of another kernel has waited for a collective.
    """

    operation_ended: Handler
    operation_failed: Handler
    kernel_ended: Handler
    content_read: Handler
    slices_made: Handler
    alias_made: Handler
    tensors_swapped: Block
    tensors_replaced: Block
    about_to_write: Handler
    about_to_set: Handler
    about_to_accumulate: Handler
    scope_opened: Handler
    scope_closed: Handler
    call_begins: Handler
    call_ended: Handler
    call_failed: Handler
    function_runs: Block
    shard_step: Block
    graph_replayed: Handler
    storage_freed: Handler
    backward_pass: Block
    gradient_set: Handler
    step_begins: Handler
    step_ended: Handler
    step_failed: Handler
    closure_runs: Block
    work_awaited: Handler
    wait_inside: Handler

    def guarded(self, guard: Guard, block_guard: Guard) -> "Events":
        """Return these events with a guard around each function.

        Args:
            guard: The guard of functions.
            block_guard: The guard of functions that return blocks.
        """
        guarded = {}
        for event in fields(self):
            put = block_guard if event.type is Block else guard
            guarded[event.name] = put(event.name, getattr(self, event.name))
        return replace(self, **guarded)


def result_of_failure(name: str, args: tuple[object, ...]) -> object:
    """Return the result of an event whose function is not run, or has failed.

    The last argument of `call_ended` is the result of the call, which goes on to the caller.
    """
    return args[-1] if name == "call_ended" else None


def ignored(name: str, _: Handler) -> Handler:
    """Return a function that ignores the event of a recording that is over."""

    def ignoring(*args: object, **_: object) -> object:
        return result_of_failure(name, args)

    return ignoring


def ignored_block(_: str, __: Block) -> Block:
    """Return a function that ignores an event which lasts as long as a block."""
    return lambda *_, **__: nullcontext(ignore_event)


def nonfatal(fail: Callable[[Exception], None]) -> Guard:
    """Return a guard that reports errors instead of raising them: a training goes on.

    Args:
        fail: Receives each error.
    """

    def guard(name: str, handler: Handler) -> Handler:
        @functools.wraps(handler)
        def guarded(*args: object, **kwargs: object) -> Any:
            try:
                return handler(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  It is reported.
                fail(error)
                return result_of_failure(name, args)

        return guarded

    return guard


def nonfatal_block(fail: Callable[[Exception], None]) -> Guard:
    """Return a guard of blocks that reports their own errors; errors of the code inside go on.

    Args:
        fail: Receives each error.
    """
    safe = nonfatal(fail)

    def guard(_: str, handler: Block) -> Block:
        @contextmanager
        def guarded(*args: object, **kwargs: object) -> Iterator[Any]:
            take: Handler = ignore_event
            with ExitStack() as stack:
                try:
                    block = handler(*args, **kwargs)
                    take = block.__enter__()
                    # An error of the block's own end is reported; the code's error goes on.
                    stack.push(safe("", block.__exit__))
                except Exception as error:  # noqa: BLE001  It is reported.
                    fail(error)
                yield safe("", take)

        return functools.wraps(handler)(guarded)

    return guard
