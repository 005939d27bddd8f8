"""Lets modules nest as deep while they are watched as they do unwatched.

Each watched call of a module takes a Python frame of its own beside the three or more that it
takes anyway, and Python counts all of them against its limit of nested calls.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["deep_enough"]

# What watching one operation takes, in the innermost module.
_OPERATION = 100

_lock = threading.Lock()
_limits: list[tuple[int, int]] = []
_users = 0


@contextmanager
def deep_enough() -> Iterator[None]:
    """Have Python's limit leave room for the watching, during a block.

    The limit is there once in a process: the first one of several raises it, and the last one
    puts it back, unless somebody else has set it meanwhile.
    """
    global _users  # noqa: PLW0603 (the limit of a process)
    with _lock:
        if _users == 0:
            before = sys.getrecursionlimit()
            raised = before + before // 3 + _OPERATION
            sys.setrecursionlimit(raised)
            _limits.append((before, raised))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                before, raised = _limits.pop()
                if sys.getrecursionlimit() == raised:
                    sys.setrecursionlimit(before)
