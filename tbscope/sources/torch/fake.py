"""Runs a model on stand-ins for its tensors: true shapes, no weights, no compute.

The model goes on holding its own tensors, which other threads may be using. Whoever watches
the functions that this thread calls hands them the stand-ins instead. Parameters that a lazy
module has yet to make hold nothing that anybody could be using: stand-ins take their places.
"""

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch

from tbscope.sources.torch.compat.modules import UNINITIALIZED
from tbscope.sources.torch.compat.tensors import (
    fake_mode,
    is_fake,
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
        """Make stand-ins for a module's own tensors; return those made, with their tensors.

        Whoever calls this puts the tables of lazy modules back after.
        """
        made = []
        with without_modes():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if isinstance(tensor, UNINITIALIZED):
                        table[name] = self._unmade_twin(tensor, table, name)
                        continue
                    if tensor is None or id(tensor) in self._twins:
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

    def _unmade_twin(self, tensor: Any, table: dict[str, Any], name: str) -> Any:
        """Return the stand-in for a parameter or buffer that a lazy module makes when it runs.

        Made in place, as a real one is, it would have the device meta: so a fake one takes its
        place in the table.
        """
        stand = type(tensor)(
            requires_grad=tensor.requires_grad, device=tensor.device, dtype=tensor.dtype
        )

        def materialize(shape: Any, device: Any = None, dtype: Any = None) -> None:
            with self._mode:
                made: torch.Tensor = torch.empty(
                    shape, device=device or stand.device, dtype=dtype or stand.dtype
                )
                if isinstance(stand, torch.nn.Parameter):
                    made = torch.nn.Parameter(made, requires_grad=stand.requires_grad)
            table[name] = made

        stand.materialize = materialize
        return stand

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return who stands in for a tensor; the tensor itself where nobody does."""
        pair = self._twins.get(id(tensor))
        return tensor if pair is None else pair[1]

    def for_call(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of a function with stand-ins for the tensors among them."""
        if func == _TAKES_GRADIENT:
            self._add_gradient(args[0])
        elif func == torch.Tensor.backward:
            # A pass adds to the gradients that are there.
            for tensor, _ in list(self._twins.values()):
                self._add_gradient(tensor)
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
                # Several tensors may have one gradient.
                if id(gradient) not in self._twins:
                    self._twins[id(gradient)] = gradient, self._mode.from_tensor(gradient.detach())
                pair[1].grad = self.of(gradient)

    def of_inputs(self, inputs: Any) -> Any:
        """Return a nest of inputs with fake tensors in place of those in its plain containers.

        Tensors deeper inside of objects become stand-ins when an operation meets them.
        """

        def stand_in(tensor: torch.Tensor) -> Any:
            if isinstance(tensor, UNINITIALIZED):
                return tensor
            # That of a stand-in which `sizes` has made up.
            device = getattr(tensor, "stands_on", None)
            if device is None:
                return self._mode.from_tensor(tensor)
            # The mode runs, and makes it one of its own.
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

        try:
            return map_tensors(stand_in, inputs)
        except RecursionError:
            # A list may hold itself; what is in it becomes a stand-in when it is met.
            return inputs


@contextmanager
def faked() -> Iterator[StandIns]:
    """Have this thread compute nothing but shapes, during a block.

    Returns:
        Who makes stand-ins for the tensors of modules; there are none yet.
    """
    mode = fake_mode()
    try:
        with quiet_fake_mode(), mode:
            yield StandIns(mode)
    finally:
        for cache in gc.get_referrers(_CACHE):
            if type(cache) is _CACHE and _has_stand_in(cache):
                cache.cache_clear()


# The class of functions that remember their results: a later call would get stand-ins from them.
_CACHE: Any = type(functools.lru_cache(lambda: None))


def _has_stand_in(cache: Any) -> bool:
    """Whether a stand-in is in what a cache remembers since lately: it may be a million of things.

    It is looked for among the first leaves of each key and result, which may be a data set.
    """
    size = cache.cache_info().currsize
    things = gc.get_referents(cache)[-1000:] if size else []
    for table in things[:]:
        # A cache without limit has its results in a table.
        if type(table) is dict and len(table) == size:
            things += islice(reversed(table.values()), 300)
    leaves = (leaf for thing in things for leaf in islice(_leaves(thing, levels=4), 100))
    return any(is_fake(type(leaf)) for leaf in leaves)


def _leaves(nest: Any, levels: int) -> Iterator[Any]:
    if not isinstance(nest, list | tuple | dict):
        yield nest
    elif levels > 0:
        for entry in nest.values() if isinstance(nest, dict) else nest:
            yield from _leaves(entry, levels - 1)
