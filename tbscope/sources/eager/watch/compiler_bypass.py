"""Bypass of code that behaves differently under watching, so a watched run equals an unwatched run.

Some code of torch checks whether its functions are overridden, and then takes another path:
`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` leave their fast paths. `torch.compile`
would compile the watching code along with the model. While tbscope watches, the check returns its
unwatched answer, and compiled functions run as written. Objects that torch creates once for all
runs of a process are not part of the first run.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.patch import Patches, SharedBlock
from tbscope.sources.torch.compat.modules import compiled_call_of
from tbscope.sources.torch.compat.tensors import function_modes, jagged_dummy, without_modes
from tbscope.sources.torch.subclasses import PLAIN

UNOBSERVED = Patches()
"""Block in which torch takes its unwatched paths."""


# Only code that looks up the function at each check is affected. torch's own functions import it by
# another name, and still report to the modes.
@UNOBSERVED.of(torch.overrides, "has_torch_function")
def _has_torch_function(relevant_args: Any) -> bool:
    """Return torch's answer without tbscope's modes; all other overrides still count."""
    if watching.recorders:
        relevant_args = tuple(relevant_args)
        others = function_modes() - len(watching.recorders)
        if others <= 0 and all(
            type(arg) in PLAIN or not isinstance(arg, torch.Tensor) for arg in relevant_args
        ):
            return False
    return bool(_has_torch_function.original(relevant_args))


@UNOBSERVED.of(*jagged_dummy())
def _jagged_dummy() -> torch.Tensor:
    """Return the dummy tensor that torch creates once in a process, unseen by modes."""
    with without_modes():
        dummy: torch.Tensor = _jagged_dummy.original()
        return dummy


# -- the compiler --------------------------------------------------------------------------

_compiling = Patches()
# The stance of the compiler that is in force, if any; it is process-wide.
_stance: list[Any] = []


@_compiling.of(torch, "compile")
def _compile(*args: object, **kwargs: object) -> Any:
    """Call the original `torch.compile`, and suspend the compiler."""
    _stand_by()
    compiled = _compile.original(*args, **kwargs)
    return compiled_call_of(args[0], compiled) if args else compiled


def _stand_by() -> None:
    if not _stance:
        _stance.append(torch.compiler.set_stance("force_eager"))


def _run_as_written() -> Callable[[], None]:
    compile_again = _compiling.put()
    # Loading the compiler takes seconds. If it is not loaded, nothing has been compiled.
    if "torch._dynamo" in sys.modules:
        _stand_by()

    def compile_on() -> None:
        while _stance:
            _stance.pop().__exit__(None, None, None)
        compile_again()

    return compile_on


running_eagerly = SharedBlock(_run_as_written)
"""Block in which all functions run as written, in all threads, compiled functions as well."""
