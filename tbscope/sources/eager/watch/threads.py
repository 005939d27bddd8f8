"""Watches the work that a run hands over to other threads.

Modes belong to a thread, and so does what is watched. Work that is handed over while somebody
watches takes the watching along: a function given to a pool, and what a thread is made to run.
"""

import functools
import multiprocessing.pool
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.record.strands import HandedOver, Strands, strands_of
from tbscope.sources.eager.watch.modes import FakedOperationMode, KernelMode, OperationMode
from tbscope.sources.eager.watch.replacement import Replaced, Replacement

__all__ = ["watch_threads"]

_Pool = multiprocessing.pool.ThreadPool

_start = Replacement(threading.Thread, "start")
_submit = Replacement(ThreadPoolExecutor, "submit")
# All that a pool of this kind is given goes through one of these.
_apply = Replacement(_Pool, "apply_async")
_map = Replacement(_Pool, "_map_async")
_imap = Replacement(_Pool, "imap")
_imap_unordered = Replacement(_Pool, "imap_unordered")


def watch_threads() -> AbstractContextManager[None]:
    """Have what this thread hands over to others watched there, during a block."""
    return Replaced(
        {
            _start: _watched_start,
            _submit: _watched_submit,
            _apply: _watched_apply,
            _map: _watched_map,
            _imap: _watched_imap,
            _imap_unordered: _watched_imap_unordered,
        }
    )


class _Work:
    """A function that is watched in whichever thread calls it, by those who watch now.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._stand_ins = watching.stand_ins
        self._eager = watching.eager
        self._thread = watching.thread or threading.get_ident()
        self._handed: list[tuple[Strands, HandedOver]] = []
        for recorder in watching.recorders:
            if isinstance(recorder, Recorder) and not recorder.paused:
                strands = strands_of(recorder)
                source = recorder.source_at(sys._getframe(2))
                self._handed.append((strands, strands.hand_over(recorder, source)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.part(0, *args, **kwargs)

    def part(self, number: int, /, *args: Any, **kwargs: Any) -> Any:
        """Do one part of the work; parts have numbers, whichever is done first."""
        with self._watched(number):
            return self._function(*args, **kwargs)

    def numbered(self, part: tuple[int, Any]) -> Any:
        """Do one part of the work: its number, and the argument."""
        return self.part(*part)

    @contextmanager
    def _watched(self, number: int) -> Iterator[None]:
        before = dict(vars(watching))
        with ExitStack() as stack:
            stack.callback(_put_back, before)
            begun = []
            for strands, handed in self._handed:
                recorder = strands.begin(handed, number)
                begun.append(recorder)
                stack.callback(strands.end, recorder)
            watching.recorders = tuple(begun)
            watching.stand_ins, watching.eager = self._stand_ins, self._eager
            watching.thread = self._thread
            if self._stand_ins is not None:
                stack.enter_context(self._stand_ins.used())
            for recorder in begun:
                operations = OperationMode(recorder)
                if self._stand_ins is not None:
                    operations = FakedOperationMode(recorder, self._stand_ins)
                recorder.functions = operations.in_pass
                stack.enter_context(KernelMode(recorder, operations))
                stack.enter_context(operations)
            yield


def _put_back(before: dict[str, Any]) -> None:
    vars(watching).clear()
    vars(watching).update(before)


def _work(function: Callable[..., Any]) -> Any:
    """Return a function that is watched where it runs; the same one where nobody watches."""
    if all(recorder.paused for recorder in watching.recorders):
        return function
    return _Work(function)


def _watched_submit(
    pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    return _submit.original(pool, _work(fn), *args, **kwargs)


def _watched_apply(pool: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _apply.original(pool, _work(func), *args, **kwargs)


def _watched_map(
    pool: Any, func: Callable[..., Any], iterable: Iterable[Any], mapper: Any, *args: Any
) -> Any:
    work = _work(func)
    if work is not func:
        if mapper.__name__ == "starmapstar":
            # `starmap` takes each entry apart, `map` does not.
            func, iterable = work.part, [(at, *entry) for at, entry in enumerate(iterable)]
        else:
            func, iterable = work.numbered, enumerate(iterable)
    return _map.original(pool, func, iterable, mapper, *args)


def _watched_imap(
    pool: Any, func: Callable[..., Any], iterable: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    return _imap.original(pool, *_in_parts(func, iterable), *args, **kwargs)


def _watched_imap_unordered(
    pool: Any, func: Callable[..., Any], iterable: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    return _imap_unordered.original(pool, *_in_parts(func, iterable), *args, **kwargs)


def _in_parts(
    func: Callable[..., Any], iterable: Iterable[Any]
) -> tuple[Callable[..., Any], Iterable[Any]]:
    work = _work(func)
    return (func, iterable) if work is func else (work.numbered, enumerate(iterable))


def _watched_start(thread: threading.Thread) -> None:
    if watching.recorders and not _is_librarys(thread):
        work = _work(thread.run)

        def run() -> None:
            del thread.run
            work()

        if work is not thread.run:
            thread.run = run  # type: ignore[method-assign]
    _start.original(thread)


def _is_librarys(thread: threading.Thread) -> bool:
    """Tell whether a thread does work of Python's own library, such as serving a pool."""
    does: Any = type(thread)
    if does.__module__ == threading.__name__:
        # What `Thread` and `Timer` are given.
        does = getattr(thread, "_target", None) or getattr(thread, "function", None)
    while isinstance(does, functools.partial):
        does = does.func
    module = getattr(does, "__module__", None) or type(does).__module__
    return str(module).partition(".")[0] in sys.stdlib_module_names - {"builtins"}
