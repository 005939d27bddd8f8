"""Tells of Python waiting for what ranks do together in the background (`work.wait()`).

It is no operation, so that no mode sees it; and what was filled is read from then on.
"""

import sys
from contextlib import AbstractContextManager
from typing import Any

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replaced, Replacement
from tbscope.sources.torch.rank_internals import WORKS
from tbscope.sources.torch.ranks import is_distributed

__all__ = ["watch_works"]

_waits = [Replacement(kind, "wait") for kind in WORKS]


def watch_works() -> AbstractContextManager[None]:
    """Have this thread's recorders told of waits, during a block of a distributed run."""
    return Replaced(_substitutes if is_distributed() else {})


def _substitute(wait: Replacement) -> Any:
    def watched_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what `Work.wait` does."""
        result = wait.original(work, *args, **kwargs)
        for recorder in watching.recorders:
            recorder.waited(work, sys._getframe(1))
        return result

    return watched_wait


_substitutes = {wait: _substitute(wait) for wait in _waits}
