"""Context managers that keep Python's garbage collector from walking a growing graph repeatedly.

A graph is many small objects that stay alive. With its default thresholds the collector walks
all of them again and again, which takes a tenth of the time of a trace, and of a conversion.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Young objects every 20,000 allocations: garbage of the model itself is still collected.
_RARELY = (20_000, 50, 100)
# The generation up to which an object counts as young.
_YOUNG = 1


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Raise the thresholds of the garbage collector during a block, and restore them afterwards.

    Thresholds that other code has set during the block stay.
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
    """Collect young garbage in reference cycles, unless the garbage collector is disabled.

    Old objects are not walked. Young objects that survive become old, so that no later collection
    of young objects walks them again.
    """
    if gc.isenabled():
        gc.collect(_YOUNG)


@contextmanager
def not_collecting() -> Iterator[None]:
    """Disable the garbage collector during a block, and enable it again afterwards.

    It is for code that runs no model of the user, and leaves no reference cycles behind.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
