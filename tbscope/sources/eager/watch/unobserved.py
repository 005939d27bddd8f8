"""Keeps a watched run the run that it would be unwatched.

Some code of torch asks whether anyone overrides its functions and takes another
path if so: `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` leave their
fast paths. `torch.compile` would compile the watching along with the model. While
tbscope watches, the first gets the answer that it would get without, and the
second runs functions as they were written. What torch makes once for all runs of a
process is no part of the first of them.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replaced, Replacement
from tbscope.sources.torch.internals import function_modes, jagged_dummy, without_modes
from tbscope.sources.torch.module_internals import made_by

__all__ = ["standing_by", "unobserved"]

_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_has_torch_function = Replacement(torch.overrides, "has_torch_function")
_compile = Replacement(torch, "compile")
_jagged_dummy = Replacement(*jagged_dummy())


def unobserved() -> AbstractContextManager[Any]:
    """Make torch take the paths in this thread that it takes when nobody watches."""
    with ExitStack() as stack:
        # Only the few places that look the function up when they ask are concerned; torch's
        # own functions hold it by another name and go on telling the modes of themselves.
        substitutes: dict[Replacement, Any] = {
            _has_torch_function: _answer,
            _compile: _compile_eagerly,
            _jagged_dummy: _make_unseen,
        }
        stack.enter_context(Replaced(substitutes))
        eager = _Eager()
        if "torch._dynamo" in sys.modules:
            eager.begin()
        stack.callback(eager.end, watching.eager)
        watching.eager = eager
        return stack.pop_all()


class _Stance:
    """The compiler's stance, which is that of the whole process: changed while anyone needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._stack = ExitStack()

    def take(self) -> None:
        """Have the compiler run functions as they were written."""
        with self._lock:
            if self._users == 0:
                self._stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._users += 1

    def leave(self) -> None:
        """Let the compiler do as before, if nobody else needs it to stand by."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._stack.close()


_stance = _Stance()


class _Eager:
    """Has the compiler run functions as they were written, from when it is loaded on.

    It is not loaded for this alone: that takes seconds, and where it is not, nothing
    is compiled.
    """

    def __init__(self) -> None:
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            _stance.take()

    def end(self, before: "_Eager | None" = None) -> None:
        if watching.eager is self:
            watching.eager = before
        if self._begun:
            _stance.leave()
        # Another thread may have ended it: where it was begun, it comes too late.
        self._begun = True


# Of blocks in which the compiler stands by in all threads.
_standing_by: list[_Eager] = []


@contextmanager
def standing_by() -> Iterator[None]:
    """Have functions run as they are written in all threads, during a block.

    That is so for what was compiled before as well; it runs compiled again afterwards.
    """
    eager = _Eager()
    with _compile.by(_compile_eagerly):
        if "torch._dynamo" in sys.modules:
            eager.begin()
        _standing_by.append(eager)
        try:
            yield
        finally:
            _standing_by.remove(eager)
            eager.end()


def _answer(relevant_args: Any) -> bool:
    """Answer `torch.overrides.has_torch_function` as if only tbscope's modes were absent."""
    if watching.recorders:
        relevant_args = tuple(relevant_args)
        others = function_modes() - len(watching.recorders)
        if others <= 0 and all(
            type(given) in _PLAIN_TENSORS or not isinstance(given, torch.Tensor)
            for given in relevant_args
        ):
            return False
    return bool(_has_torch_function.original(relevant_args))


def _make_unseen() -> torch.Tensor:
    """Return what torch makes once in a process, as if it were there by now."""
    with without_modes():
        made: torch.Tensor = _jagged_dummy.original()
        return made


def _compile_eagerly(*args: Any, **kwargs: Any) -> Any:
    """Call `torch.compile`'s original, and tell the compiler to stand by where that is wanted."""
    for eager in (*_standing_by, watching.eager):
        if eager is not None:
            eager.begin()
    compiled = _compile.original(*args, **kwargs)
    return made_by(args[0], compiled) if args else compiled
