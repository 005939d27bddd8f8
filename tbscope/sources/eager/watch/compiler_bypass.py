"""Keeps a watched run the run that it would be unwatched.

Some code of torch asks whether anyone overrides its functions and takes another
path if so: `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` leave their
fast paths. `torch.compile` would compile the watching along with the model. While
tbscope watches, the first gets the answer that it would get without, and the
second runs functions as they were written. What torch makes once for all runs of a
process is no part of the first of them.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.patch import Replacements, Shared
from tbscope.sources.torch.compat.modules import made_by
from tbscope.sources.torch.compat.tensors import function_modes, jagged_dummy, without_modes

__all__ = ["UNOBSERVED", "standing_by"]

_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

UNOBSERVED = Replacements()
"""Has torch take the paths that it takes unwatched."""


# Only the few places that look the function up when they ask are concerned; torch's own
# functions have it by another name and go on telling the modes of themselves.
@UNOBSERVED.of(torch.overrides, "has_torch_function")
def _has_torch_function(relevant_args: Any) -> bool:
    """Answer as if only tbscope's modes were absent."""
    if watching.recorders:
        relevant_args = tuple(relevant_args)
        others = function_modes() - len(watching.recorders)
        if others <= 0 and all(
            type(given) in _PLAIN_TENSORS or not isinstance(given, torch.Tensor)
            for given in relevant_args
        ):
            return False
    return bool(_has_torch_function.original(relevant_args))


@UNOBSERVED.of(*jagged_dummy())
def _jagged_dummy() -> torch.Tensor:
    """Return what torch makes once in a process, as if it were there by now."""
    with without_modes():
        made: torch.Tensor = _jagged_dummy.original()
        return made


# -- the compiler --------------------------------------------------------------------------

_compiling = Replacements()
# The compiler's stance, which is that of the whole process.
_stance: list[Any] = []


@_compiling.of(torch, "compile")
def _compile(*args: Any, **kwargs: Any) -> Any:
    """Call `torch.compile`'s original, and have the compiler stand by."""
    _stand_by()
    compiled = _compile.original(*args, **kwargs)
    return made_by(args[0], compiled) if args else compiled


def _stand_by() -> None:
    if not _stance:
        _stance.append(torch.compiler.set_stance("force_eager"))


def _run_as_written() -> Callable[[], None]:
    compile_again = _compiling.put()
    # The compiler is not loaded for this alone: that takes seconds, and where it is not, nothing
    # is compiled.
    if "torch._dynamo" in sys.modules:
        _stand_by()

    def compile_on() -> None:
        while _stance:
            _stance.pop().__exit__(None, None, None)
        compile_again()

    return compile_on


standing_by = Shared(_run_as_written)
"""A block in which functions run as they are written in all threads, compiled ones as well."""
