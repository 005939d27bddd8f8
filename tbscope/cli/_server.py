"""Runs TensorBoard on a folder, in threads of the command."""

import contextlib
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from tbscope.errors import TbscopeError

__all__ = ["ended_by_signals", "serve"]

_POLL_SECONDS = 0.1
_MOST_SECONDS = 120


def serve(logdir: str, *, host: str, port: int) -> str:
    """Start TensorBoard, and return the address of the tab once the page lists a graph.

    Args:
        logdir: The folder.
        host: The address at which it listens.
        port: The port; 0 for any that is free.
    Raises:
        TbscopeError: It cannot be started, or takes too long.
    """
    from tensorboard import program

    server = program.TensorBoard()
    # The other loader is a process of its own, which outlives a command that is killed.
    server.configure(logdir=logdir, host=host, port=port, load_fast="false")
    try:
        address: str = server.launch().rstrip("/")
    except program.TensorBoardServerException as error:
        raise TbscopeError(
            "TensorBoard cannot be started, or has ended",
            why=error.msg,
            fix="try it by itself: python -m tensorboard.main --logdir .",
        ) from error
    end = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < end:
        if _lists_graphs(address):
            return f"{address}/#tbscope"
        time.sleep(_POLL_SECONDS)
    raise TbscopeError(
        f"TensorBoard did not show the graph within {_MOST_SECONDS} seconds",
        fix=f"look at it by hand: python -m tensorboard.main --logdir {logdir}",
    )


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have a request to end (SIGTERM, SIGHUP) end the block as an interrupt does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGTERM, signal.SIGHUP):
            before[one] = signal.signal(one, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _lists_graphs(address: str) -> bool:
    """Tell whether TensorBoard answers, and has read a graph."""
    try:
        with urllib.request.urlopen(  # noqa: S310
            f"{address}/data/plugin/graphs/info", timeout=10
        ) as answer:
            return bool(json.loads(answer.read()))
    except (urllib.error.URLError, OSError, ValueError):
        return False
