"""Snapshot of the process: the settings of torch that change the numbers of a later training."""

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import cuda

from tbscope.sources.torch.compat.modules import default_device, mps_generator, set_default_device
from tbscope.sources.torch.compat.tensors import cuda_in_use


class _Setting(NamedTuple):
    """One setting.

    Attributes:
        read: Returns the value; raises if its old and new forms disagree.
        write: Sets the value.
    """

    read: Callable[[], object]
    write: Callable[[Any], object]


def _autocast(device: str) -> _Setting:
    def write(before: Any) -> None:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])

    return _Setting(
        lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write
    )


def _of_cudnn(name: str) -> _Setting:
    cudnn = torch.backends.cudnn
    return _Setting(partial(getattr, cudnn, name), partial(setattr, cudnn, name))


# In the order in which they are set.
_SETTINGS: tuple[_Setting, ...] = (
    _Setting(torch.get_default_dtype, torch.set_default_dtype),
    _Setting(default_device, set_default_device),
    _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting(torch.get_num_threads, torch.set_num_threads),
    _Setting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    ),
    *map(_autocast, ("cpu", "cuda")),
    _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *map(_of_cudnn, ("enabled", "benchmark", "deterministic", "allow_tf32")),
    # Generators of CUDA devices exist from the first use of CUDA on. A use in the run alone begins
    # with the seed that they have then.
    _Setting(
        cuda_in_use,
        lambda _: [each.manual_seed(each.initial_seed()) for each in cuda.default_generators],
    ),
    # The device is that of the stream.
    _Setting(
        lambda: cuda.current_stream() if cuda_in_use() else None,
        lambda before: before is None or cuda.set_stream(before),
    ),
)

_UNREADABLE = object()


def _read(setting: _Setting) -> object:
    """Return a setting, or `_UNREADABLE` if its old and new forms disagree."""
    try:
        return setting.read()
    except Exception:  # noqa: BLE001 (torch raises many things)
        return _UNREADABLE


def keep_settings() -> Callable[[], None]:
    """Take a snapshot of the process settings; return the function that restores them."""
    kept = [(setting, _read(setting)) for setting in _SETTINGS]

    def restore() -> None:
        # The autocast cache may contain casts without gradients, or of values that the run has
        # written.
        torch.clear_autocast_cache()
        for setting, before in kept:
            # A setting may set others, so each setting is read after the earlier settings are
            # restored.
            if before is not _UNREADABLE and _read(setting) != before:
                setting.write(before)

    return restore


def generators() -> Iterator[object]:
    """Yield the random generators of Python, numpy, torch, and of devices in use."""
    yield random.getstate.__self__  # type: ignore[attr-defined]
    # Looked up, never imported: a numpy that is not loaded has no state.
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        yield numpy.get_state.__self__
    yield torch.default_generator
    for device in (torch.cuda, torch.xpu):
        if device.is_initialized():
            yield from device.default_generators
    if torch.backends.mps.is_available():
        yield mps_generator()
