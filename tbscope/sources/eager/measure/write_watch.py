"""Tells what one thread writes into, where torch only counts the writes of all threads."""

from collections.abc import Callable
from typing import Any

import torch

from tbscope.sources.torch.internals import DispatchMode
from tbscope.sources.torch.operations import kernel_facts

__all__ = ["WriteWatch"]


class WriteWatch(DispatchMode):  # type: ignore[no-untyped-call]
    """Sees the tensors that kernels of this thread write into.

    Args:
        about_to_write: Told of each, before it is written into.
    """

    def __init__(self, about_to_write: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._about_to_write = about_to_write

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in kernel_facts(func).written(args, kwargs):
            self._about_to_write(tensor)
        return func(*args, **kwargs)
