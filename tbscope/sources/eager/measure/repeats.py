"""The same call again and again, each time from the same state, with all put back after.

Nobody sees what an unwatched run writes into. So what the watched run before it has
written is copied beforehand, and the buffers, which are few bytes; and for the rest,
torch's count of writes tells whether it was left alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from tbscope.errors import ArgumentError, TraceError
from tbscope.messages import error_text
from tbscope.sources.eager.restore.preserve import Preserved
from tbscope.sources.eager.restore.tensor_snapshot import is_only_thread
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.compat.modules import UNINITIALIZED
from tbscope.sources.torch.compat.tensors import version_of, without_functions

__all__ = ["Repeats", "check_measurable"]


def check_measurable(modules: Iterable[torch.nn.Module], given: list[tuple[str, Any]]) -> None:
    """Check that a call computes something, any number of times.

    Args:
        modules: The modules that it may call.
        given: Its arguments by name.
    Raises:
        ArgumentError: It does not.
    """
    for name, value in given:
        if isinstance(value, Iterator):
            raise ArgumentError(
                f"argument {name} is a {type(value).__name__}, and profile= needs it many times",
                why="each measured run reads it anew, and it gives what it holds only once",
                fix="give the model a list or a tuple, or leave profile out",
            )
    for name, tensor in _tensors(modules, given):
        if tensor.is_meta:
            raise ArgumentError(
                f"profile= has nothing to measure: {name} is on the device meta",
                why="a tensor on meta has no content, and nothing is computed with it",
                fix="leave profile out, or give the model and its inputs memory: "
                "model.to_empty(device='cpu')",
            )


def _tensors(
    modules: Iterable[torch.nn.Module], given: list[tuple[str, Any]]
) -> Iterator[tuple[str, torch.Tensor]]:
    for module in modules:
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    yield f"the {name} of a {type(module).__name__}", tensor
    for name, value in given:
        for path, tensor in tensor_leaves(value, name):
            yield f"argument {path}", tensor


@dataclass
class Repeats:
    """A call that is made again and again, each time from the same state.

    Attributes:
        call: Makes it.
        modules: All modules that it may change, each by itself.
        inputs: A nest of its arguments.
        training: The mode of the modules; None for that in which each stands.
        switched: Those that switch themselves, and what they hold, by methods of their own.
        grad: Whether gradients are recorded.
        written: The tensors from before the call that it writes into.
        were_set: Those of which it sets the data, the gradient, or whether they ask for one.
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
        """Have the model ready for one run, and as it was after.

        Raises:
            TraceError: The run wrote into what the run before did not write into.
        """
        with (
            Preserved(self.modules, self.inputs, training=self.training) as preserved,
            torch.set_grad_enabled(self.grad),
        ):
            # First: the gradients that are kept then are among what is written into.
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
            # Writes of an unwatched run are seen by none, but torch counts them.
            counted = zip(rest, versions, _versions(rest), strict=True)
            written = [tensor for tensor, before, after in counted if before != after]
        # Torch counts those of all threads.
        self.disturbed = self.disturbed or (bool(written) and not is_only_thread())
        for tensor in () if self.disturbed else written:
            shape = ", ".join(map(str, tensor.shape))
            raise TraceError(
                "the model could not be put back as it was before the run",
                why=f"when it was measured, it wrote into a {type(tensor).__name__} of shape "
                f"({shape}) that it had only read when it was drawn",
                fix="make the model anew, or load its state_dict, before it is used further",
            )

    def run(self) -> Any:
        """Make the call, which is to be prepared.

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
    """Return how often each tensor was written into; -1 where torch does not count that."""
    with without_functions():
        return [-1 if tensor.is_inference() else version_of(tensor) for tensor in tensors]
