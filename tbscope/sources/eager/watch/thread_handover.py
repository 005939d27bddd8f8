"""Watching of work in other threads that a run starts.

Modes and recorders belong to a thread. Work that a watched thread hands over is watched in its
thread, too: functions submitted to a pool, and the target of a new thread.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

from tbscope.sources.eager.record.thread_order import Handover, ThreadWork
from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.modes import modes_of
from tbscope.sources.eager.watch.patch import Patches

HANDED_OVER = Patches()
"""Block in which work that this thread hands over to other threads is watched there."""


class _WatchedFunction:
    """Function that is watched in whichever thread calls it, by this thread's present recorders.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._stand_ins = watching.stand_ins
        self._thread = watching.thread or threading.get_ident()
        self._handovers: list[tuple[ThreadWork, Handover]] = []
        for recorder in watching.active:
            work: ThreadWork = recorder.threads or ThreadWork(recorder)
            source = recorder.where.source_at(sys._getframe(2))
            self._handovers.append((work, work.hand_over(recorder, source)))

    def __call__(self, /, *args: object, **kwargs: object) -> Any:
        return self.part(0, self._function, *args, **kwargs)

    def part(
        self, number: int, function: Callable[..., Any], /, *args: object, **kwargs: object
    ) -> Any:
        """Run one part of the work; numbers order the parts, whichever finishes first."""
        with self._watched(number):
            return function(*args, **kwargs)

    @contextmanager
    def _watched(self, number: int) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(vars(watching).update, vars(watching).copy())
            stack.callback(vars(watching).clear)
            begun = []
            for work, handover in self._handovers:
                recorder = work.begin(handover, number)
                begun.append(recorder)
                stack.callback(work.end, recorder)
            watching.entered = tuple(begun)
            watching.stand_ins, watching.thread = self._stand_ins, self._thread
            if self._stand_ins is not None:
                stack.enter_context(self._stand_ins.used())
            for recorder in begun:
                for mode in modes_of(recorder, stand_ins=self._stand_ins):
                    stack.enter_context(mode)
            yield


def _work(function: Callable[..., Any]) -> Any:
    """Return a watched version of a function, or the function itself if nothing is recorded."""
    if all(recorder.suspended for recorder in watching.recorders):
        return function
    return _WatchedFunction(function)


@HANDED_OVER.of(ThreadPoolExecutor, "submit")
def _submit(
    pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: object, **kwargs: object
) -> Any:
    return _submit.original(pool, _work(fn), *args, **kwargs)


@HANDED_OVER.of(ThreadPool, "apply_async")
def _apply(pool: object, func: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    return _apply.original(pool, _work(func), *args, **kwargs)


# All work for such a pool, except single calls, becomes tasks here.
@HANDED_OVER.of(ThreadPool, "_guarded_task_generation")
def _tasks(pool: object, job: int, func: Callable[..., Any], iterable: Iterable[object]) -> Any:
    work, tasks = _work(func), _tasks.original(pool, job, func, iterable)
    if work is func:
        return tasks
    # The last task of an iterable that raises is the error itself, raised again.
    return ((*task[:2], partial(work.part, task[1], task[2]), *task[3:]) for task in tasks)


@HANDED_OVER.of(threading.Thread, "start")
def _start(thread: threading.Thread) -> None:
    if watching.recorders and not _is_librarys(thread):
        work = _work(thread.run)

        def run() -> None:
            del thread.run
            work()

        if work is not thread.run:
            thread.run = run  # type: ignore[method-assign]
    _start.original(thread)


def _is_librarys(thread: threading.Thread) -> bool:
    """Whether a thread does work of Python's own library, such as serving a pool."""
    target: Any = type(thread)
    if target.__module__ == threading.__name__:
        # The targets of `Thread` and `Timer`.
        target = getattr(thread, "_target", None) or getattr(thread, "function", None)
    while isinstance(target, partial):
        target = target.func
    module = getattr(target, "__module__", None) or type(target).__module__
    return str(module).partition(".")[0] in sys.stdlib_module_names - {"builtins"}
