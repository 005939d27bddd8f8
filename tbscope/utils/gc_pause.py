"""Keeps Python's garbage collector from walking a growing graph over and over.

A graph is many small objects that live. The collector's default thresholds make it
look at all of them again and again, which costs more than making them: a tenth of a
trace, and of a conversion.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collect_recent", "collecting_rarely", "not_collecting"]

# Young objects every 20,000 allocations: garbage of the model's own still goes.
_RARELY = (20_000, 50, 100)
# The oldest generation of what is young.
_YOUNG = 1


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector run, but seldom, and set it back after.

    Unless somebody else has set it meanwhile.
    """
    before = gc.get_threshold()
    if before[0] == 0 or before[0] >= _RARELY[0]:
        yield
        return
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        if gc.get_threshold() == _RARELY:
            gc.set_threshold(*before)


def collect_recent() -> None:
    """Free what the latest code has left in cycles, unless somebody holds the collector.

    What has lived for long is not walked. What is young and lives counts as old then, so that no
    later look at the young ones walks it again.
    """
    if gc.isenabled():
        gc.collect(_YOUNG)


@contextmanager
def not_collecting() -> Iterator[None]:
    """Hold the garbage collector, and let it go on after.

    For code that runs none of the user's models, and leaves no cycles behind.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
