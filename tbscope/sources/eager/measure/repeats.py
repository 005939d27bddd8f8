"""Repetition of a call, each time from the same state, with everything restored afterwards.

Writes of an unwatched run are not reported. So the tensors that the watched run has written into,
and all buffers (which are small), are copied beforehand. For all other tensors, torch's version
counters show whether they were written into.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from tbscope.errors import ArgumentError, TraceError
from tbscope.messages import error_text
from tbscope.sources.eager.restore.preserve import Snapshot
from tbscope.sources.eager.restore.tensor_snapshot import is_only_thread
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.compat.modules import UNINITIALIZED
from tbscope.sources.torch.compat.tensors import version_of, without_functions


def check_measurable(modules: Iterable[torch.nn.Module], arguments: object, *, fake: bool) -> None:
    """Check that a call computes values.

    Args:
        modules: The modules that the call may run.
        arguments: A pytree of its arguments.
        fake: Whether it runs on fake tensors.
    Raises:
        ArgumentError: It runs on fake tensors, or a tensor is on the device meta.
    """
    state = [
        [*table.values()] for module in modules for table in (module._parameters, module._buffers)
    ]
    if fake or any(tensor.is_meta for _, tensor in tensor_leaves((arguments, state), "")):
        raise ArgumentError(
            "profile= has nothing to measure",
            why="only shapes are computed with fake=True, and with tensors on the device meta",
            fix="leave profile out, or leave fake out and give the model and its inputs memory: "
            "model.to_empty(device='cpu')",
        )


@dataclass
class Repeats:
    """Call that is repeated, each time from the same state.

    Attributes:
        call: Makes the call.
        modules: All modules that the call may change; children are listed, too.
        inputs: A pytree of the call's arguments.
        training: The mode of the modules; None for the present mode of each module.
        switched: Modules that switch themselves and their children by methods of their own.
        grad: Whether gradients are recorded.
        written: Tensors from before the call that the call writes into.
        were_set: Tensors whose data, gradient or `requires_grad` the call sets.
        disturbed: Whether another thread seems to have written into the model meanwhile.
    """

    call: Callable[[], Any]
    modules: Sequence[torch.nn.Module]
    inputs: Any
    _: KW_ONLY
    training: bool | None
    switched: Sequence[torch.nn.Module]
    grad: bool
    written: Sequence[torch.Tensor]
    were_set: Sequence[torch.Tensor]
    disturbed: bool = False

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Prepare the model for one run in a block, and restore it afterwards.

        Raises:
            TraceError: The run wrote into a tensor that the watched run did not write into.
        """
        with (
            Snapshot(self.modules, self.inputs, training=self.training) as preserved,
            torch.set_grad_enabled(self.grad),
        ):
            # First, because the gradients in this snapshot may be written into, too.
            for tensor in self.were_set:
                preserved.about_to_set(tensor)
            tables = [module._buffers.values() for module in self.modules]
            buffers = [buffer for table in tables for buffer in table if buffer is not None]
            for tensor in (*self.written, *buffers):
                if not isinstance(tensor, UNINITIALIZED):
                    preserved.about_to_write(tensor)
            for module in self.switched:
                preserved.switch(module)
            announced = {id(tensor) for tensor in preserved.written()}
            rest = [tensor for tensor in preserved.kept() if id(tensor) not in announced]
            versions = _versions(rest)
            yield
            # No mode sees the writes of an unwatched run, but torch's version counters do.
            counted = zip(rest, versions, _versions(rest), strict=True)
            written = [tensor for tensor, before, after in counted if before != after]
        # Version counters include the writes of all threads.
        self.disturbed = self.disturbed or (bool(written) and not is_only_thread())
        for tensor in () if self.disturbed else written:
            shape = ", ".join(map(str, tensor.shape))
            raise TraceError(
                "the model could not be put back as it was before the run",
                why=f"when it was measured, it wrote into a {type(tensor).__name__} of shape "
                f"({shape}) that it had only read when it was drawn",
                fix="make the model again, or load its state_dict, before you use it",
            )

    def run(self) -> Any:
        """Make the call, inside of a `prepared` block.

        Raises:
            TraceError: The model raised.
        """
        try:
            return self.call()
        except Exception as error:
            raise TraceError(
                "the model raised when it was measured, after it had run once to be drawn",
                why=error_text(error),
                fix="leave profile out, or give a model that runs any number of times",
            ) from error


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    """Return the version counter of each tensor; -1 for inference tensors, which have none."""
    with without_functions():
        return [-1 if tensor.is_inference() else version_of(tensor) for tensor in tensors]
