"""Snapshot of the process: settings of torch, Python and numpy that a run may change."""

import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import cuda

from tbscope.sources.torch.compat.modules import (
    default_device,
    mps_generator,
    set_default_device,
    shared_tables,
)
from tbscope.sources.torch.compat.tensors import cuda_in_use

_backends: Any = torch.backends


class _Setting(NamedTuple):
    """One setting.

    Attributes:
        read: Returns the value; raises if this torch has no such setting.
        write: Sets the value.
    """

    read: Callable[[], object]
    write: Callable[[Any], object]


def _attributes(owner: object, names: Iterable[str]) -> Iterator[_Setting]:
    """Yield the settings that are attributes of a module or an object."""
    for name in names:
        yield _Setting(partial(getattr, owner, name), partial(setattr, owner, name))


def _autocast(device: str) -> _Setting:
    def write(before: Any) -> None:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])

    return _Setting(
        lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)), write
    )


def _attention(kernel: str) -> _Setting:
    owner = _backends.cuda
    return _Setting(getattr(owner, f"{kernel}_sdp_enabled"), getattr(owner, f"enable_{kernel}_sdp"))


def _precision(path: str) -> _Setting:
    """Return the float32 precision of a library, or of one kind of operation in it."""
    # The owner is looked up at each access, because this torch may lack it.
    owner = attrgetter(path)
    return _Setting(
        lambda: owner(_backends).fp32_precision,
        lambda before: setattr(owner(_backends), "fp32_precision", before),
    )


_OF_TORCH: tuple[_Setting, ...] = (
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
    _Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda before: torch.autograd.set_detect_anomaly(*before),
    ),
    *map(_autocast, ("cpu", "cuda")),
    *map(_attention, ("flash", "mem_efficient", "math", "cudnn")),
    _Setting(_backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    *_attributes(_backends.cudnn, ["enabled", "benchmark", "deterministic"]),
    *_attributes(_backends.mkldnn, ["enabled"]),
    # The older setting of matrix products comes first, because it sets the newer ones, too.
    _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *_attributes(_backends.cudnn, ["allow_tf32"]),
    *_attributes(_backends, ["fp32_precision"]),
    *map(_precision, ("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn")),
    *map(_precision, ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")),
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


def _numpy() -> Any:
    # Looked up, never imported: a numpy that is not loaded has no settings.
    return sys.modules["numpy"]


def _set_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _filters() -> tuple[object, ...]:
    return warnings.filters, (*warnings.filters,), warnings.showwarning


def _set_filters(before: tuple[Any, ...]) -> None:
    warnings.filters, filters, warnings.showwarning = before
    warnings.filters[:] = filters  # type: ignore[index]
    with warnings.catch_warnings():
        # Python's cache of filtered warnings is out of date; leaving `catch_warnings` drops it.
        pass


_OF_PYTHON: tuple[_Setting, ...] = (
    _Setting(gc.isenabled, lambda before: gc.enable() if before else gc.disable()),
    _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting(os.getcwd, os.chdir),
    _Setting(lambda: dict(os.environ), _set_environment),
    _Setting(_filters, _set_filters),
    *_attributes(sys, ["stdout", "stderr"]),
    _Setting(lambda: logging.root.level, logging.root.setLevel),
    _Setting(lambda: logging.root.manager.disable, logging.disable),
    _Setting(
        lambda: _numpy().get_printoptions(), lambda before: _numpy().set_printoptions(**before)
    ),
    _Setting(lambda: _numpy().geterr(), lambda before: _numpy().seterr(**before)),
)

_UNREADABLE = object()


def _read(setting: _Setting) -> object:
    """Return a setting, or `_UNREADABLE` if it is missing or its old and new forms disagree."""
    try:
        return setting.read()
    except Exception:  # noqa: BLE001 (torch raises many things)
        return _UNREADABLE


# Settings that exist in this process, in the order in which they are set.
_SETTINGS: tuple[_Setting, ...] = tuple(
    setting for setting in (*_OF_TORCH, *_OF_PYTHON) if _read(setting) is not _UNREADABLE
)


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


def tables() -> list[object]:
    """Return the process-wide tables that user code may fill."""
    return [sys.path, gc.callbacks, *shared_tables()]


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
