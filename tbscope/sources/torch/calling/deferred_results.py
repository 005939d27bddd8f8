"""Results that compute only when they are read: iterators, coroutines, and containers of these.

They are run to their end, so that the graph contains their operations and results.
"""

import asyncio
import itertools
import types
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from tbscope.messages import error_text
from tbscope.sources.torch.compat.tensors import flat, map_leaves

LAZY_ITERATORS: tuple[type[Iterator[object]], ...] = (
    *(types.GeneratorType, map, zip, filter, enumerate, reversed, type(reversed([]))),
    *map(type, map(iter, ([], (), set(), {}, {}.values(), {}.items()))),
    *[kind for kind in vars(itertools).values() if hasattr(kind, "__next__")],
)
"""Python's iterators that compute, or may compute, each entry when it is read.

Other iterators are left alone: a read from a file, a socket or a data set would consume it.
"""

_COROUTINES = (types.CoroutineType, types.AsyncGeneratorType)
_UNFINISHED: tuple[type, ...] = (*LAZY_ITERATORS, *_COROUTINES)

# Some iterators never end.
_MOST_ENTRIES = 1_000


def computed(result: object, tell: Callable[[str], None] = lambda _: None) -> object:
    """Return a result with iterators replaced by lists, and coroutines by their results.

    Args:
        result: The result of a model; only pytree containers are searched.
        tell: Receives a sentence on each iterator that raised, or that was cut after 1,000
            entries.
    """
    if isinstance(result, _UNFINISHED):
        return _finished(result, tell)
    try:
        if not any(isinstance(leaf, _UNFINISHED) for leaf in flat(result)):
            return result
    except Exception:  # noqa: BLE001
        # A list that contains itself, or a mapping that cannot be read, is returned unchanged.
        return result
    return map_leaves(
        lambda leaf: _finished(leaf, tell) if isinstance(leaf, _UNFINISHED) else leaf, result
    )


def _finished(unfinished: Any, tell: Callable[[str], None]) -> object:
    if isinstance(unfinished, _COROUTINES):
        return computed(_awaited(unfinished), tell)
    entries: list[object] = []
    try:
        entries.extend(
            computed(entry, tell) for entry in itertools.islice(unfinished, _MOST_ENTRIES)
        )
    except Exception as error:
        # The model ran to its end. Its result raises only for a reader, and the program may never
        # read it. The error of a generator counts as the model's, though.
        if isinstance(unfinished, types.GeneratorType):
            raise
        tell(
            f"the model gave a {type(unfinished).__name__} that raised when it was asked for its "
            f"entries: {error_text(error)}"
        )
    if len(entries) == _MOST_ENTRIES:
        tell(
            f"the model gave a {type(unfinished).__name__}, which was asked for {_MOST_ENTRIES:,} "
            "entries: what it would give after these is not in the graph"
        )
    return entries


def _awaited(unfinished: Any) -> object:
    """Run a coroutine to its end in an event loop of its own, even inside a running loop."""
    generates = isinstance(unfinished, types.AsyncGeneratorType)
    running_loop = asyncio._get_running_loop()
    task = None if running_loop is None else asyncio.current_task()
    if running_loop is not None and task is not None:
        # From Python 3.14 on, a thread runs one task at a time, of whatever loop.
        asyncio._leave_task(running_loop, task)
    asyncio._set_running_loop(None)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_collected(unfinished) if generates else unfinished)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio._set_running_loop(running_loop)
        if running_loop is not None and task is not None:
            asyncio._enter_task(running_loop, task)


async def _collected(generator: AsyncGenerator[object, object]) -> list[object]:
    entries: list[object] = []
    async for entry in generator:
        entries.append(entry)
        if len(entries) == _MOST_ENTRIES:
            break
    return entries
