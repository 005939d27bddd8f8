"""Runs TensorBoard on a folder in a process of its own, until it is interrupted."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import FrameType
from typing import IO, NoReturn

from tbscope.errors import TbscopeError
from tbscope.words import error_text

__all__ = ["Server", "ended_by_signals", "serve"]

_ADDRESS = re.compile(r"at (http://\S+?)/? ")
_POLL_SECONDS = 0.1
_MOST_SECONDS = 120


class Server:
    """TensorBoard while it runs.

    Attributes:
        url: The address of the tab that shows them.
    """

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        self._process = process
        self._said = said
        self.url = ""

    def wait_for_page(self) -> None:
        """Wait until the page lists a graph, and learn its address.

        Raises:
            TbscopeError: TensorBoard ended, or took too long.
        """
        address = ""
        for _ in range(int(_MOST_SECONDS / _POLL_SECONDS)):
            if self._process.poll() is not None:
                raise _not_started(self._text())
            found = _ADDRESS.search(self._text())
            address = found[1] if found else ""
            if address and _lists_graphs(address):
                self.url = f"{address}/#tbscope"
                return
            time.sleep(_POLL_SECONDS)
        raise TbscopeError(
            f"TensorBoard did not show the graph within {_MOST_SECONDS} seconds",
            why=_last_line(self._text()),
            fix="look at it by hand: tbscope export TARGET --logdir runs/x, tensorboard --logdir "
            "runs/x",
        )

    def wait(self) -> None:
        """Wait until TensorBoard ends of its own accord.

        Raises:
            TbscopeError: It did.
        """
        self._process.wait()
        raise _not_started(self._text())

    def _text(self) -> str:
        self._said.seek(0)
        return self._said.read().decode("utf-8", "replace")


@contextlib.contextmanager
def serve(logdir: str, *, host: str, port: int) -> Iterator[Server]:
    """Start TensorBoard; it is ended when the block is left.

    Args:
        logdir: The folder.
        host: The address at which it listens.
        port: The port; 0 for any that is free.
    Raises:
        TbscopeError: It cannot be started.
    """
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir]
    command += ["--host", host, "--port", str(port)]
    with tempfile.TemporaryFile() as said:
        try:
            # In a session of its own: an interrupt at the terminal is ours to pass on.
            process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )
        except OSError as error:
            raise _not_started(error_text(error)) from error
        try:
            yield Server(process, said)
        finally:
            process.terminate()
            process.wait()


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


def _not_started(said: str) -> TbscopeError:
    return TbscopeError(
        "TensorBoard cannot be started, or has ended",
        why=_last_line(said),
        fix="try it by itself: python -m tensorboard.main --logdir .",
    )


def _last_line(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it told nothing"
