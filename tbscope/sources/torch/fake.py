"""Runs a model on stand-ins for its tensors: true shapes, no weights, no compute."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tbscope.sources.torch.internals import UNINITIALIZED, fake_mode, map_tensors, quiet_fake_mode

__all__ = ["faked", "faked_inputs"]


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
    for module in modules:
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or isinstance(tensor, UNINITIALIZED):
                    continue
                twin = twins.get(id(tensor))
                if twin is None:
                    twin = twins[id(tensor)] = mode.from_tensor(tensor)
                table[name] = twin  # type: ignore[assignment]
    with quiet_fake_mode(), mode:
        yield mode


def faked_inputs(mode: Any, inputs: Any) -> Any:
    """Return a nest with fake tensors in place of the tensors in its plain containers.

    Tensors deeper inside of objects become stand-ins when an operation meets them.
    """
    return map_tensors(mode.from_tensor, inputs)
