"""Runs one job per child process, each within a time limit; a hang or a crash stops no other."""

import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["farm"]


@dataclass
class _Child:
    """A job under way."""

    name: str
    process: int
    ends: float
    data: bytearray = field(default_factory=bytearray)


def farm(
    names: Iterable[str], work: Callable[[str], Any], *, jobs: int = 1, limit_s: float = 120.0
) -> Iterator[tuple[str, Any, str | None]]:
    """Do work for each name in a forked child.

    Args:
        names: What there is to do.
        work: Gives something that JSON can hold.
        jobs: How many children run at a time.
        limit_s: Seconds after which a child is killed.
    Returns:
        As they come: the name, the result, and why there is none.
    """
    waiting = iter(names)
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        while True:
            while len(running) < jobs and (name := next(waiting, None)) is not None:
                reader, process = _start(name, work)
                running[reader] = _Child(name, process, time.monotonic() + limit_s)
                selector.register(reader, selectors.EVENT_READ)
            if not running:
                return
            soonest = min(child.ends for child in running.values())
            ready = {key.fd for key, _ in selector.select(max(soonest - time.monotonic(), 0))}
            for reader, child in list(running.items()):
                late = time.monotonic() > child.ends
                if reader in ready and (chunk := os.read(reader, 1 << 20)):
                    child.data += chunk
                elif reader in ready or late:
                    selector.unregister(reader)
                    del running[reader]
                    yield child.name, *_finish(reader, child, late and reader not in ready)


def _start(name: str, work: Callable[[str], Any]) -> tuple[int, int]:
    """Fork a child that does the work and writes what it gives; give the pipe's end and its id."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    os.close(reader)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        given = json.dumps([work(name), None])
    except BaseException:  # noqa: BLE001  (The child tells its parent and ends.)
        given = json.dumps([None, traceback.format_exc(limit=-8)])
    with os.fdopen(writer, "w") as pipe:
        pipe.write(given)
    os._exit(0)


def _finish(reader: int, child: _Child, late: bool) -> tuple[Any, str | None]:
    """End a child; give what it gave and why it gave nothing."""
    os.close(reader)
    if late:
        os.kill(child.process, signal.SIGKILL)
    _, status = os.waitpid(child.process, 0)
    if late:
        return None, "it ran past its time"
    if not child.data:
        return None, f"its process died ({os.waitstatus_to_exitcode(status)})"
    result, error = json.loads(bytes(child.data))
    return result, error
