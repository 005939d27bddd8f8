"""Parts of a watched training step: what is recorded of it, its open watch, and its callables."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.compat.modules import is_tracing

if TYPE_CHECKING:
    from tbscope.sources.eager.record.scope_stack import Frame


class Mark:
    """Mark of the node that made a result in autograd's graph: it lives as long as the node.

    The nodes themselves take no weak references.
    """


@dataclass(slots=True, eq=False)
class RecordedStep:
    """The recorded part of a training step.

    Attributes:
        recorder: Its recorder; None before the first call or pass.
        marks: The marks of the results of its calls.
        leaves: The tensors whose gradients its backward passes compute.
        changed: The parameters that optimizers have changed, by identity.
        other: An optimizer that stepped after the latest pass, of parameters that the model does
            not have.
        calls: The number of recorded calls of the model, or of micro batches without such a call.
        passed: Whether a backward pass has been recorded.
        spent: Whether one has that ends a graph of autograd's.
        awaits_pass: Whether none has since the last call.
        skips: Whether a call has been left out, of many.
        stepped: Whether an optimizer stepped in a call or a pass.
    """

    recorder: Recorder | None = None
    marks: list[ref[Mark]] = field(default_factory=list)
    leaves: list[ref[torch.Tensor]] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    other: Callable[[], object] = lambda: None
    calls: int = 0
    passed: bool = False
    spent: bool = False
    awaits_pass: bool = False
    skips: bool = False
    stepped: bool = False

    def suspend(self) -> None:
        """Record nothing further."""
        if self.recorder is not None:
            self.recorder.suspended = True


class OpenWatch:
    """Open watch of a call, a backward pass or an optimizer step.

    Attributes:
        frame: The Python frame that began it.
        optimizer: The optimizer whose step it is; None for a call or a pass.
        call: The recorder's frame of a call.
    """

    def __init__(
        self,
        recorder: Recorder,
        frame: FrameType,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._watch = Watch(recorder)
        self._watch.__enter__()
        # The frame itself, not its id: a later frame may have the same address.
        self.frame, self.optimizer = frame, optimizer
        self.call: Frame | None = None

    def close(self) -> None:
        """End the watch."""
        self._watch.__exit__(None, None, None)


class CallWrapper:
    """Function around the calls of a model, in the model's own wrapper.

    Args:
        function: The function.

    Attributes:
        step: The unfinished step. It refers to the model, and would keep it alive from anywhere
            but the model itself.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.step = RecordedStep()

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self._function(*args)


class CountingHook:
    """Hook of a model that counts its calls; its copies, in memory and in files, have no effect.

    Args:
        function: The function that the hook calls.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: object) -> None:
        """Call the function, unless the compiler or torch.jit traces the model."""
        # Dynamo would guard on the state that the function reads, and recompile whenever it
        # changes.
        if not (torch.compiler.is_compiling() or is_tracing()):
            self._function(*args)

    def __reduce__(self) -> tuple[object, ...]:
        # The pickle contains only Python's own objects, so reading it does not need tbscope.
        return getattr, (nullcontext(), "__exit__")
