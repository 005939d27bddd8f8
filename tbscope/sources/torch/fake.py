"""Runs a model on stand-ins for its tensors: true shapes, no weights, no compute.

The model goes on holding its own tensors, which other threads may be using. Whoever watches
the functions that this thread calls hands them the stand-ins instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tbscope.sources.torch.internals import (
    UNINITIALIZED,
    fake_mode,
    map_tensors,
    quiet_fake_mode,
    without_modes,
)

__all__ = ["StandIns", "faked"]

_tensor: Any = torch.Tensor
_TAKES_GRADIENT = _tensor.grad.__get__


class StandIns:
    """Stand-ins for the parameters and buffers of modules, which the modules do not show.

    Args:
        mode: The mode in which they compute nothing but shapes.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        # By the identity of a tensor: the tensor, held so that this stays its own, and who
        # stands in for it.
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._with_gradient: set[int] = set()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have another thread compute nothing but shapes, too, during a block."""
        with self._mode:
            yield

    def add(self, module: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Make stand-ins for a module's own tensors; return those made, with their tensors."""
        made = []
        with without_modes():
            for table in (module._parameters, module._buffers):
                for tensor in table.values():
                    if (
                        tensor is None
                        or id(tensor) in self._twins
                        or isinstance(tensor, UNINITIALIZED)
                    ):
                        continue
                    self._twins[id(tensor)] = pair = (tensor, self._twin(tensor))
                    made.append(pair)
        return made

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_leaf:
            return self._mode.from_tensor(tensor)  # type: ignore[no-any-return]
        # Of the tensor itself torch would take the gradient, too, which another thread may
        # be writing.
        twin: torch.Tensor = self._mode.from_tensor(tensor.detach())
        return twin.requires_grad_(tensor.requires_grad)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return who stands in for a tensor; the tensor itself where nobody does."""
        pair = self._twins.get(id(tensor))
        return tensor if pair is None else pair[1]

    def for_call(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of a function with stand-ins for the tensors among them."""
        if func == _TAKES_GRADIENT:
            self._add_gradient(args[0])
        return self.among(args), self.among(kwargs) if kwargs else kwargs

    def among(self, nest: Any) -> Any:
        """Return a nest with stand-ins for the tensors in its plain containers."""
        return map_tensors(self.of, nest)

    def _add_gradient(self, tensor: torch.Tensor) -> None:
        pair = self._twins.get(id(tensor))
        if pair is None or id(tensor) in self._with_gradient:
            return
        self._with_gradient.add(id(tensor))
        with without_modes():
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None and pair[1].grad is None:
                pair[1].grad = self._mode.from_tensor(gradient.detach())

    def of_inputs(self, inputs: Any) -> Any:
        """Return a nest of inputs with fake tensors in place of those in its plain containers.

        Tensors deeper inside of objects become stand-ins when an operation meets them.
        """
        return map_tensors(self._mode.from_tensor, inputs)


@contextmanager
def faked() -> Iterator[StandIns]:
    """Have this thread compute nothing but shapes, during a block.

    Returns:
        Who makes stand-ins for the tensors of modules; there are none yet.
    """
    mode = fake_mode()
    with quiet_fake_mode(), mode:
        yield StandIns(mode)
