"""Watching of work in other threads that a run starts.

Modes and recorders belong to a thread. Work that a watched thread hands over is watched in its
thread, too: functions submitted to a pool, and the target of a new thread.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

from tbscope.sources.eager.record.thread_work import ThreadWork
from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.modes import modes_of
from tbscope.sources.eager.watch.patch import Patches

HANDED_OVER = Patches()
"""Block in which work that this thread hands over to other threads is watched there."""


def _work(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is watched in whichever thread calls it, by the present recorders."""
    recorders = watching.active
    if not recorders:
        return function
    frame = sys._getframe(1)
    stand_ins, thread = watching.stand_ins, watching.thread or threading.get_ident()
    handed_over = [
        (each.threads or ThreadWork(each), each.branch(each.where.source_at(frame)))
        for each in recorders
    ]

    def watched(*args: object, **kwargs: object) -> Any:
        with ExitStack() as stack:
            stack.callback(vars(watching).update, vars(watching).copy())
            stack.callback(vars(watching).clear)
            begun = [stack.enter_context(work.recorder(each)) for work, each in handed_over]
            watching.entered = tuple(begun)
            watching.stand_ins, watching.thread = stand_ins, thread
            if stand_ins is not None:
                stack.enter_context(stand_ins.used())
            for recorder in begun:
                for mode in modes_of(recorder, stand_ins=stand_ins):
                    stack.enter_context(mode)
            return function(*args, **kwargs)

    return watched


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
    return _tasks.original(pool, job, _work(func), iterable)


@HANDED_OVER.of(threading.Thread, "start")
def _start(thread: threading.Thread) -> None:
    if watching.active and not _is_librarys(thread):
        work = _work(thread.run)

        def run() -> None:
            del thread.run
            work()

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
