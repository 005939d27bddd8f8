"""Fake runs of a model: fake tensors in place of its own, with true shapes and no compute.

The modules keep their own tensors, since other threads may be using them. The function mode of
this thread replaces the tensors among the arguments of each function call by fake ones.
Uninitialized parameters of lazy modules have no contents that another thread could use, so fake
ones take their places in the modules.
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

_tensor: Any = torch.Tensor
_TAKES_GRADIENT = _tensor.grad.__get__


class FakeTensors:
    """Fake tensors for the parameters and buffers of modules, kept outside the modules.

    Args:
        mode: The FakeTensorMode, which computes only shapes.
    """

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        # By the `id` of a tensor: the tensor, kept alive so that no other gets its `id`, and its
        # fake tensor.
        self._twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._with_gradient: set[int] = set()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make another thread compute only shapes, too, during a block."""
        with self._mode:
            yield

    def add(self, module: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Make fake tensors for a module's own parameters and buffers.

        In a lazy module, they replace uninitialized ones in the module's tables. The caller must
        restore these tables later.

        Returns:
            Pairs of tensor and fake tensor, for tensors that had none before.
        """
        pairs = []
        with without_modes():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if isinstance(tensor, UNINITIALIZED):
                        table[name] = self._unmade_twin(tensor, table, name)
                        continue
                    if tensor is None or id(tensor) in self._twins:
                        continue
                    self._twins[id(tensor)] = pair = (tensor, self._twin(tensor))
                    pairs.append(pair)
        return pairs

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_leaf:
            return self._mode.from_tensor(tensor)  # type: ignore[no-any-return]
        # Without `detach`, torch would convert the gradient, too, which another thread may be
        # writing.
        fake: torch.Tensor = self._mode.from_tensor(tensor.detach())
        return fake.requires_grad_(tensor.requires_grad)

    def _unmade_twin(self, tensor: Any, table: dict[str, Any], name: str) -> Any:
        """Return a replacement for an uninitialized parameter or buffer of a lazy module.

        A real one materializes in place. On a fake run its device would then be `meta`, so
        `materialize` of the replacement puts a fake tensor into the table instead.
        """
        replacement = type(tensor)(
            requires_grad=tensor.requires_grad, device=tensor.device, dtype=tensor.dtype
        )

        def materialize(shape: Any, device: Any = None, dtype: Any = None) -> None:
            with self._mode:
                fake: torch.Tensor = torch.empty(
                    shape, device=device or replacement.device, dtype=dtype or replacement.dtype
                )
                if isinstance(replacement, torch.nn.Parameter):
                    fake = torch.nn.Parameter(fake, requires_grad=replacement.requires_grad)
            table[name] = fake

        replacement.materialize = materialize
        return replacement

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake tensor for a tensor, or the tensor itself if it has none."""
        pair = self._twins.get(id(tensor))
        return tensor if pair is None else pair[1]

    def for_call(self, func: object, args: Any, kwargs: object) -> tuple[Any, Any]:
        """Return the arguments of a function, with fake tensors for the tensors among them.

        Calls that read gradients get fake gradients first, made only when they are needed.
        """
        if func == _TAKES_GRADIENT:
            self._add_gradient(args[0])
        elif func == torch.Tensor.backward:
            # A backward pass adds to the gradients that exist already.
            for tensor, _ in list(self._twins.values()):
                self._add_gradient(tensor)
        return self.among(args), self.among(kwargs) if kwargs else kwargs

    def among(self, nest: object) -> object:
        """Return a pytree with fake tensors for the tensors in its plain containers."""
        return map_tensors(self.of, nest)

    def _add_gradient(self, tensor: torch.Tensor) -> None:
        pair = self._twins.get(id(tensor))
        if pair is None or id(tensor) in self._with_gradient:
            return
        self._with_gradient.add(id(tensor))
        with without_modes():
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None and pair[1].grad is None:
                # Several tensors may share one gradient.
                if id(gradient) not in self._twins:
                    self._twins[id(gradient)] = gradient, self._mode.from_tensor(gradient.detach())
                pair[1].grad = self.of(gradient)

    def of_inputs(self, inputs: object) -> Any:
        """Return a pytree of inputs with fake tensors for the tensors in its plain containers.

        Tensors inside other objects become fake when an operation reads them.
        """

        def stand_in(tensor: torch.Tensor) -> object:
            if isinstance(tensor, UNINITIALIZED):
                return tensor
            # The device that `make_tensor` notes on a meta tensor of a dummy input.
            device = getattr(tensor, "stands_on", None)
            if device is None:
                return self._mode.from_tensor(tensor)
            # The mode is active, so this is a fake tensor.
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

        try:
            return map_tensors(stand_in, inputs)
        except RecursionError:
            # A list may contain itself; its tensors become fake when an operation reads them.
            return inputs


@contextmanager
def faked() -> Iterator[FakeTensors]:
    """Make this thread compute only shapes, during a block.

    After the block, `functools` caches that contain fake tensors are cleared.

    Yields:
        A `FakeTensors` without fake tensors so far.
    """
    mode = fake_mode()
    try:
        with quiet_fake_mode(), mode:
            yield FakeTensors(mode)
    finally:
        # Every cached function of the process refers to its class.
        for cache in gc.get_referrers(_CACHE):
            if type(cache) is _CACHE and _has_stand_in(cache):
                cache.cache_clear()


# The class of functions with a cache of results: a later call would get fake tensors from it.
_CACHE: object = type(functools.lru_cache(lambda: None))


def _has_stand_in(cache: Any) -> bool:
    """Whether a fake tensor is among the latest entries of a cache.

    A cache may have a million entries, and an entry may be a data set: only the latest entries
    are searched, and only the first leaves of each key and result.
    """
    size = cache.cache_info().currsize
    referents = gc.get_referents(cache)[-1000:] if size else []
    for table in referents[:]:
        # A cache without a size limit keeps its results in a dict.
        if type(table) is dict and len(table) == size:
            referents += islice(reversed(table.values()), 300)
    leaves = (leaf for referent in referents for leaf in islice(_leaves(referent, levels=4), 100))
    return any(is_fake(type(leaf)) for leaf in leaves)


def _leaves(nest: object, levels: int) -> Iterator[object]:
    if not isinstance(nest, list | tuple | dict):
        yield nest
    elif levels > 0:
        for entry in nest.values() if isinstance(nest, dict) else nest:
            yield from _leaves(entry, levels - 1)
