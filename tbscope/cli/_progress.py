"""Tells on a terminal that work goes on, where it takes longer than two seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from tbscope.words import visible

__all__ = ["progress"]

_AFTER_SECONDS = 2.0
_EVERY_SECONDS = 1.0


@contextlib.contextmanager
def progress(
    doing: str, *, to: TextIO | None = None, after_s: float = _AFTER_SECONDS
) -> Iterator[None]:
    """Show a line with the seconds that something takes, until the block is left.

    Args:
        doing: What is done, one clause.
        to: Where it is shown; None for standard error. Nothing is shown on what is no terminal.
        after_s: How long the work may take before anything is shown, in seconds.
    """
    stream = sys.stderr if to is None else to
    if not stream.isatty():
        yield
        return
    done = threading.Event()
    shown = threading.Thread(target=_show, args=(doing, stream, after_s, done), daemon=True)
    shown.start()
    try:
        yield
    finally:
        done.set()
        shown.join()


def _show(doing: str, stream: TextIO, after_s: float, done: threading.Event) -> None:
    start = time.monotonic()
    if done.wait(after_s):
        return
    width = 0
    while True:
        line = f"{visible(doing)}: {time.monotonic() - start:.0f} s"
        width = max(width, len(line))
        # Behind it the cursor goes back: what comes next stands in its place.
        stream.write(f"{line}\r")
        stream.flush()
        if done.wait(_EVERY_SECONDS):
            break
    stream.write(f"{' ' * width}\r")
    stream.flush()
