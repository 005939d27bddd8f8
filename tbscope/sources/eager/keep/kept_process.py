"""What a run may change in the process: random generators and settings of torch."""

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from tbscope.sources.torch.internals import default_device, set_default_device

__all__ = ["Restorer", "keep_generator", "keep_process"]

Restorer: TypeAlias = tuple[str, Callable[[], object]]
"""What is put back, in words, and the function that does it."""

# Settings by name: how each is read, and how it is set. Only those that differ are set.
_SETTINGS: tuple[tuple[str, Callable[[], Any], Callable[[Any], Any]], ...] = (
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the default device", default_device, set_default_device),
    ("the gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    ("the number of threads", torch.get_num_threads, torch.set_num_threads),
    (
        "the use of deterministic algorithms",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda held: torch.use_deterministic_algorithms(held[0], warn_only=held[1]),
    ),
    ("the cache of autocast", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(
        (
            f"autocast on {device}",
            lambda device=device: (
                torch.is_autocast_enabled(device),
                torch.get_autocast_dtype(device),
            ),
            lambda held, device=device: _set_autocast(device, *held),
        )
        for device in ("cpu", "cuda")
    ),
    *(
        (
            f"torch.backends.cudnn.{flag}",
            lambda flag=flag: getattr(torch.backends.cudnn, flag),
            lambda held, flag=flag: setattr(torch.backends.cudnn, flag, held),
        )
        for flag in ("enabled", "benchmark", "deterministic")
    ),
)


def keep_process() -> Iterator[Restorer]:
    """Yield the restorers of the random generators in use and of torch's settings."""
    state = random.getstate()
    yield "the random generator of Python", lambda: random.setstate(state)
    # Looked up, never imported: what is not loaded has no state to keep.
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        held = numpy.get_state()
        yield "the random generator of numpy", lambda: numpy.set_state(held)
    yield keep_generator(torch.default_generator)
    yield from _keep_devices()
    for name, read, write in _SETTINGS:
        yield _keep_setting(name, read, write)


def keep_generator(generator: Any) -> Restorer:
    """Return the restorer of one random generator: torch's, Python's or numpy's."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        name = f"the random generator of torch on {generator.device}"
        return name, lambda: generator.set_state(state)
    name = f"the generator {type(generator).__name__}"
    if hasattr(generator, "bit_generator"):
        held = generator.bit_generator.state
        return name, lambda: setattr(generator.bit_generator, "state", held)
    if hasattr(generator, "getstate"):
        kept = generator.getstate()
        return name, lambda: generator.setstate(kept)
    legacy = generator.get_state()
    return name, lambda: generator.set_state(legacy)


def _keep_devices() -> Iterator[Restorer]:
    """Yield the restorers of the generators of those devices that are in use already."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind)
        if module.is_initialized():
            for generator in module.default_generators:
                yield keep_generator(generator)
    if torch.backends.mps.is_available():
        state = torch.mps.get_rng_state()
        yield "the random generator of torch on mps", lambda: torch.mps.set_rng_state(state)


def _keep_setting(name: str, read: Callable[[], Any], write: Callable[[Any], Any]) -> Restorer:
    held = read()

    def restore() -> None:
        if read() != held:
            write(held)

    return name, restore


def _set_autocast(device: str, enabled: bool, dtype: torch.dtype) -> None:
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
