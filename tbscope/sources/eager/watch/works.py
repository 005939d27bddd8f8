"""Tells of Python waiting for what ranks do together in the background (`work.wait()`).

It is no operation, so that no mode sees it; and what was filled is read from then on.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replacement
from tbscope.sources.torch.rank_internals import WORKS
from tbscope.sources.torch.ranks import is_distributed

__all__ = ["watch_works"]

_waits = [Replacement(kind, "wait") for kind in WORKS]


@contextmanager
def watch_works() -> Iterator[None]:
    """Have this thread's recorders told of waits, during a block of a distributed run."""
    with ExitStack() as stack:
        if is_distributed():
            for wait, substitute in zip(_waits, _substitutes, strict=True):
                stack.enter_context(wait.by(substitute))
        yield


def _substitute(wait: Replacement) -> Any:
    def watched_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        """Do what `Work.wait` does."""
        result = wait.original(work, *args, **kwargs)
        for recorder in watching.recorders:
            recorder.waited(work, sys._getframe(1))
        return result

    return watched_wait


_substitutes = [_substitute(wait) for wait in _waits]
