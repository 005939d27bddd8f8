"""The settings of torch, Python and numpy that a run may change: how each is read and set."""

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from tbscope.sources.torch.module_internals import (
    default_device,
    precision_reader,
    reduction_reader,
    set_default_device,
)

__all__ = ["SETTINGS", "UNREADABLE", "Setting", "read"]


class Setting(NamedTuple):
    """One setting.

    Attributes:
        name: What it is, in words.
        read: Returns it; raises where this torch has no such setting.
        write: Sets it.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _attributes(owner: Any, path: str, names: Iterable[str]) -> Iterator[Setting]:
    """Yield the settings that are attributes of a module or an object."""
    for name in names:
        yield Setting(
            f"{path}.{name}", partial(getattr, owner, name), partial(setattr, owner, name)
        )


def _autocast(device: str) -> Setting:
    def write(held: Any) -> None:
        torch.set_autocast_enabled(device, held[0])
        torch.set_autocast_dtype(device, held[1])

    return Setting(
        f"autocast on {device}",
        lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
        write,
    )


def _attention(kernel: str) -> Setting:
    owner: Any = torch.backends.cuda
    write = f"enable_{kernel}_sdp"
    # What this torch does not have is left alone.
    return Setting(
        f"torch.backends.cuda.{write}",
        getattr(owner, f"{kernel}_sdp_enabled", lambda: None),
        getattr(owner, write, lambda held: None),
    )


def _reduction(dtype: str) -> Setting:
    """Return whether sums in half precision are allowed, and in parts."""
    name = f"allow_{dtype}_reduced_precision_reduction"
    owner: Any = torch.backends.cuda.matmul
    return Setting(
        f"torch.backends.cuda.matmul.{name}",
        reduction_reader(name),
        lambda held: setattr(owner, name, held),
    )


def _precision(path: str) -> Setting:
    """Return the precision of one library, or of one kind of operation in it."""
    # Looked up when it is asked for: this torch may not have it.
    owner = attrgetter(path)
    return Setting(
        f"torch.backends.{path}.fp32_precision",
        precision_reader(path),
        lambda held: setattr(owner(torch.backends), "fp32_precision", held),
    )


# The smallest number above nothing; nothing where such numbers are taken for nothing.
_TINY = 5e-324

_backends: Any = torch.backends
_sparse: Any = torch.sparse.check_sparse_tensor_invariants

_OF_TORCH: tuple[Setting, ...] = (
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("the default device", default_device, set_default_device),
    Setting("the gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting(
        "the use of deterministic algorithms",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda held: torch.use_deterministic_algorithms(held[0], warn_only=held[1]),
    ),
    *_attributes(
        torch.utils.deterministic, "torch.utils.deterministic", ["fill_uninitialized_memory"]
    ),
    Setting(
        "the search for anomalies",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda held: torch.autograd.set_detect_anomaly(*held),
    ),
    Setting("torch's warnings", torch.is_warn_always_enabled, torch.set_warn_always),
    Setting("the flush of tiny numbers", lambda: _TINY * 1.0 == 0.0, torch.set_flush_denormal),
    Setting(
        "the check of sparse tensors",
        _sparse.is_enabled,
        lambda held: _sparse.enable() if held else _sparse.disable(),
    ),
    Setting(
        "the cache of autocast", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    ),
    *map(_autocast, ("cpu", "cuda")),
    *map(_attention, ("flash", "mem_efficient", "math", "cudnn")),
    *map(_reduction, ("fp16", "bf16")),
    Setting(
        "the fast path of attention",
        _backends.mha.get_fastpath_enabled,
        _backends.mha.set_fastpath_enabled,
    ),
    *_attributes(_backends.quantized, "torch.backends.quantized", ["engine"]),
    *_attributes(
        _backends.cudnn,
        "torch.backends.cudnn",
        ["enabled", "benchmark", "deterministic", "benchmark_limit"],
    ),
    *_attributes(_backends.mkldnn, "torch.backends.mkldnn", ["enabled", "deterministic"]),
    # The precision of products, in torch's older words first: they set those below them, too.
    Setting(
        "the precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    *_attributes(_backends.cudnn, "torch.backends.cudnn", ["allow_tf32"]),
    *_attributes(_backends, "torch.backends", ["fp32_precision"]),
    *map(
        _precision,
        (
            *("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn"),
            *("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
        ),
    ),
)


def _numpy() -> Any:
    # Looked up, never imported: what is not loaded has no settings.
    return sys.modules["numpy"]


_OF_PYTHON: tuple[Setting, ...] = (
    Setting(
        "the garbage collector",
        gc.isenabled,
        lambda held: gc.enable() if held else gc.disable(),
    ),
    Setting(
        "how often garbage is collected", gc.get_threshold, lambda held: gc.set_threshold(*held)
    ),
    Setting("the limit of recursion", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("the working directory", os.getcwd, os.chdir),
    *_attributes(sys, "sys", ["stdout", "stderr"]),
    Setting("the level of logging", lambda: logging.root.level, logging.root.setLevel),
    Setting("logging.disable", lambda: logging.root.manager.disable, logging.disable),
    Setting(
        "numpy's print options",
        lambda: _numpy().get_printoptions(),
        lambda held: _numpy().set_printoptions(**held),
    ),
    Setting("numpy's errors", lambda: _numpy().geterr(), lambda held: _numpy().seterr(**held)),
)

UNREADABLE = object()
"""What stands for a setting that cannot be read."""


def read(setting: Setting) -> Any:
    """Return a setting; `UNREADABLE` where there is none, or where two of them disagree."""
    try:
        return setting.read()
    except Exception:  # noqa: BLE001 (torch raises many things)
        return UNREADABLE


SETTINGS: tuple[Setting, ...] = tuple(
    setting for setting in (*_OF_TORCH, *_OF_PYTHON) if read(setting) is not UNREADABLE
)
"""Those that there are, in the order in which they are set."""
