"""Keeps a watched run the run that it would be unwatched.

Some code of torch asks whether anyone overrides its functions and takes another
path if so: `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` leave their
fast paths, `torch.compile` compiles. While tbscope watches, both get the answer
that they would get without it.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch

from tbscope.sources.active import watching

__all__ = ["answer_unwatched", "force_eager"]

_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_lock = Lock()
_askers = 0
_original = torch.overrides.has_torch_function


def _has_torch_function(relevant_args: Any) -> bool:
    """Answer `torch.overrides.has_torch_function` as if only tbscope's modes were absent."""
    if watching.recorders:
        relevant_args = tuple(relevant_args)
        others = torch._C._len_torch_function_stack() - len(watching.recorders)
        if others <= 0 and all(
            type(given) in _PLAIN_TENSORS or not isinstance(given, torch.Tensor)
            for given in relevant_args
        ):
            return False
    return bool(_original(relevant_args))


@contextmanager
def answer_unwatched() -> Iterator[None]:
    """Let code that asks torch by `torch.overrides.has_torch_function` not see the watching.

    Only the few places that look the function up when they ask are concerned; torch's
    own functions hold it by another name and go on telling the modes of themselves.
    """
    global _askers, _original
    with _lock:
        if _askers == 0:
            _original = torch.overrides.has_torch_function
            torch.overrides.has_torch_function = _has_torch_function
        _askers += 1
    try:
        yield
    finally:
        with _lock:
            _askers -= 1
            if _askers == 0 and torch.overrides.has_torch_function is _has_torch_function:
                torch.overrides.has_torch_function = _original


def force_eager() -> AbstractContextManager[Any]:
    """Run functions of `torch.compile` as they were written.

    Nothing to do where the compiler was never loaded: nothing is compiled then, and
    loading it takes seconds.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
