"""What a run may change in the process: random generators, settings, shared tables."""

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

from tbscope.sources.eager.keep.kinds import contents_of, refill, same
from tbscope.sources.eager.keep.settings import SETTINGS, UNREADABLE, read
from tbscope.sources.torch.module_internals import shared_tables

__all__ = ["Restorer", "keep_generator", "keep_process"]

Restorer: TypeAlias = tuple[str, Callable[[], object]]
"""What is put back, in words, and the function that does it."""


def keep_process() -> Iterator[Restorer]:
    """Yield the restorers of the random generators in use, of settings, and of shared tables."""
    state = random.getstate()
    yield "the random generator of Python", lambda: random.setstate(state)
    # Looked up, never imported: what is not loaded has no state to keep.
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        held = numpy.get_state()
        yield "the random generator of numpy", lambda: numpy.set_state(held)
    yield keep_generator(torch.default_generator)
    yield from _keep_devices()
    # Weights that a run has cast lack gradients, or are those that it wrote and nobody has.
    yield "the weights that autocast has cast", torch.clear_autocast_cache
    yield _keep_settings()
    yield _keep_environment()
    yield _keep_filters()
    yield _keep_tables([sys.path, gc.callbacks, *shared_tables()])


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
    if hasattr(generator, "state"):
        position = generator.state
        return name, lambda: setattr(generator, "state", position)
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


def _keep_settings() -> Restorer:
    before = _read_all()

    def restore() -> None:
        after = _read_all()
        if after == before:
            return
        for setting, held, now in zip(SETTINGS, before, after, strict=True):
            # One setting may set others: what it was is asked again.
            if held is not UNREADABLE and (now != held or read(setting) != held):
                setting.write(held)

    return "the settings of the process", restore


def _read_all() -> list[Any]:
    try:
        return [setting.read() for setting in SETTINGS]
    except Exception:  # noqa: BLE001 (two of them disagree)
        return [*map(read, SETTINGS)]


def _keep_tables(tables: list[Any]) -> Restorer:
    empty = [table for table in tables if not table]
    filled = [(table, contents_of(table)) for table in tables if table]

    def restore() -> None:
        for table in empty:
            table.clear()
        for table, held in filled:
            if not same(table, held):
                refill(table, held)

    return "the tables of the process", restore


def _keep_environment() -> Restorer:
    variables: Any = os.environb if os.supports_bytes_environ else os.environ
    # Its own table, where it has one: to copy that costs a hundredth.
    table = getattr(variables, "_data", variables)
    held = dict(table)

    def restore() -> None:
        if table == held:
            return
        for name in [*variables]:
            if variables.encodekey(name) not in held:
                del variables[name]
        for name, value in held.items():
            if table.get(name) != value:
                variables[variables.decodekey(name)] = variables.decodevalue(value)

    return "the environment", restore


def _keep_filters() -> Restorer:
    held, table = warnings.filters[:], warnings.filters
    shown = warnings.showwarning

    def restore() -> None:
        warnings.showwarning = shown
        if warnings.filters is table and same(table, held):
            return
        warnings.filters = table
        refill(table, held)
        with warnings.catch_warnings():
            # Whoever remembers what was filtered is told by this that it is out of date.
            pass

    return "the filters of warnings", restore
