"""Runs a model on stand-ins for its tensors: true shapes, no weights, no compute."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from tbscope.sources.torch.internals import UNINITIALIZED, fake_mode, map_tensors, quiet_fake_mode
from tbscope.sources.torch.sizes import stands_on

__all__ = ["faked", "faked_inputs"]

_Table: TypeAlias = dict[str, Any]


@contextmanager
def faked(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """Have modules hold stand-ins for their parameters and buffers, during a block.

    Whoever calls this puts the tables of the modules back after.

    Args:
        modules: The modules, each by itself.
    Returns:
        The mode in which the stand-ins compute nothing but shapes.
    """
    mode = fake_mode()
    twins: dict[int, torch.Tensor] = {}
    tables: list[_Table] = [
        table for module in modules for table in (module._parameters, module._buffers)
    ]
    for table in tables:
        for name, tensor in table.items():
            if tensor is None:
                continue
            twin = twins.get(id(tensor))
            if twin is None:
                lazy = isinstance(tensor, UNINITIALIZED)
                twin = _unmade(mode, tensor, tables) if lazy else mode.from_tensor(tensor)
                twins[id(tensor)] = twin
            table[name] = twin
    with quiet_fake_mode(), mode:
        yield mode


def faked_inputs(mode: Any, inputs: Any) -> Any:
    """Return a nest with fake tensors in place of the tensors in its plain containers.

    Tensors deeper inside of objects become stand-ins when an operation meets them.
    """

    def stand_in(tensor: torch.Tensor) -> Any:
        if isinstance(tensor, UNINITIALIZED):
            return tensor
        device = stands_on(tensor)
        if device is None:
            return mode.from_tensor(tensor)
        # The mode runs, and makes it one of its own.
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    try:
        return map_tensors(stand_in, inputs)
    except RecursionError:
        # A list may hold itself; what is in it becomes a stand-in when it is met.
        return inputs


def _unmade(mode: Any, tensor: Any, tables: Sequence[_Table]) -> Any:
    """Return a stand-in for a parameter or buffer that a lazy module makes when it first runs.

    Made in place, as a real one is, it would have the device meta: so a fake one takes its place
    in the tables.
    """
    stand = type(tensor)(
        requires_grad=tensor.requires_grad, device=tensor.device, dtype=tensor.dtype
    )

    def materialize(shape: Any, device: Any = None, dtype: Any = None) -> None:
        with mode:
            made: torch.Tensor = torch.empty(
                shape, device=device or stand.device, dtype=dtype or stand.dtype
            )
            if isinstance(stand, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=stand.requires_grad)
        for table in tables:
            for name, held in table.items():
                if held is stand:
                    table[name] = made

    stand.materialize = materialize
    return stand
