"""Things that a model may hold or be given, each with what forward does to it."""

import argparse
import functools
import random
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, StaticCache


class Box:
    """An object with an object in it."""

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner
        self.items: list[int] = []

    def add(self, item: int) -> None:
        self.items.append(item)


class Below:
    __slots__ = ("a",)


class Slotted(Below):
    __slots__ = ("b",)

    def __init__(self) -> None:
        self.a = [1]


class Named(dict):
    """A mapping with attributes."""

    def __init__(self) -> None:
        self.steps: list[int] = []


class Strict(OrderedDict):
    """A mapping that lets nobody set its items."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError


@dataclass
class Batch:
    items: list[int] = field(default_factory=list)
    tensor: torch.Tensor = field(default_factory=lambda: torch.zeros(2))


@dataclass(frozen=True, slots=True)
class Frozen:
    items: list[int] = field(default_factory=list)


class Hidden(nn.Module):
    """A module that nobody registers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.norm.running_mean.add_(1)


class Slow(nn.Module):
    """A module with slots."""

    __slots__ = ("count",)


def slow_module() -> Slow:
    module = Slow()
    module.count = [0]
    return module


def deep_box(levels: int) -> Box:
    box = Box()
    for _ in range(levels):
        box = Box(box)
    return box


def innermost(box: Box) -> Box:
    while box.inner is not None:
        box = box.inner
    return box


def sealed(values: dict[str, int]) -> Strict:
    made = Strict()
    for key, value in values.items():
        OrderedDict.__setitem__(made, key, value)
    return made


def keys_and_values() -> torch.Tensor:
    return torch.ones(1, 2, 1, 4)


def filled_cache() -> DynamicCache:
    cache = DynamicCache()
    cache.update(keys_and_values(), keys_and_values(), 0)
    return cache


def static_cache() -> StaticCache:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    cache = StaticCache(config=LlamaConfig(num_hidden_layers=1, **sizes), max_cache_len=4)
    cache.update(keys_and_values(), keys_and_values(), 0)
    return cache


def update(cache: Any) -> None:
    cache.update(keys_and_values(), keys_and_values(), 0)


def told(cache: Any) -> Any:
    held = [
        (layer.keys.tolist(), layer.values.tolist())
        for layer in cache.layers
        if layer.keys is not None
    ]
    return held, len(cache.layers)


def generators() -> list[Any]:
    return [
        *(random.Random(0), np.random.default_rng(0), np.random.RandomState(0)),
        *(np.random.PCG64(0), torch.Generator()),
    ]


def draw(held: list[Any]) -> None:
    held[0].random()
    held[1].random()
    held[2].rand()
    held[3].random_raw()
    torch.rand(2, generator=held[4])


def states(held: list[Any]) -> Any:
    return [
        *(held[0].getstate(), held[1].bit_generator.state, held[2].get_state(legacy=False)),
        *(held[3].state, held[4].get_state().tolist()),
    ]


def first(things: Any) -> Any:
    return next(iter(things))


def swap_table(box: Box) -> None:
    box.__dict__ = {"other": 1}


def swap_class(box: Box) -> None:
    box.__class__ = type("Other", (Box,), {})


# By name: what makes the thing, what forward does to it, and what it is afterwards told by.
THINGS: dict[str, tuple[Any, Any, Any]] = {
    "namespace": (
        lambda: types.SimpleNamespace(a=[]),
        lambda h: (h.a.append(1), vars(h).update(b=1)),
        repr,
    ),
    "arguments": (lambda: argparse.Namespace(a=1), lambda h: setattr(h, "b", 2), repr),
    "UserDict": (lambda: UserDict(a=1), lambda h: h.update(b=2), repr),
    "UserList": (lambda: UserList([1]), lambda h: h.append(2), repr),
    "ChainMap": (
        lambda: ChainMap({"a": 1}, {"b": 2}),
        lambda h: (h.update(c=1), h.maps[1].update(z=1)),
        repr,
    ),
    "deque": (lambda: deque([1], maxlen=2), lambda h: h.extend([2, 3]), repr),
    "defaultdict": (lambda: defaultdict(list, a=[1]), lambda h: h["b"].append(1), repr),
    "OrderedDict": (lambda: OrderedDict(a=1, b=2), lambda h: h.move_to_end("a"), repr),
    "strict mapping": (lambda: sealed({"a": 1, "b": 2}), lambda h: h.move_to_end("a"), repr),
    "objects five deep": (
        lambda: deep_box(5),
        lambda h: innermost(h).add(1),
        lambda h: repr(vars(innermost(h))),
    ),
    "objects in tuples": (lambda: ((Box(),),), lambda h: h[0][0].add(1), lambda h: h[0][0].items),
    "objects in sets": (lambda: {Box()}, lambda h: first(h).add(1), lambda h: first(h).items),
    "frozen set": (
        lambda: frozenset([Box()]),
        lambda h: first(h).add(1),
        lambda h: first(h).items,
    ),
    "keys": (lambda: {Box(): 1}, lambda h: first(h).add(1), lambda h: first(h).items),
    "set": (lambda: {1, 2}, lambda h: h.add(3), repr),
    "slots": (
        Slotted,
        lambda h: (h.a.append(2), setattr(h, "b", 1)),
        lambda h: (h.a, hasattr(h, "b")),
    ),
    "slot deleted": (Slotted, lambda h: delattr(h, "a"), lambda h: hasattr(h, "a")),
    "dataclass": (Batch, lambda h: (h.items.append(1), h.tensor.add_(1)), repr),
    "frozen dataclass": (Frozen, lambda h: h.items.append(1), repr),
    "attributes of a mapping": (
        Named,
        lambda h: (h.steps.append(1), h.update(a=1)),
        lambda h: (h, h.steps),
    ),
    "class of an object": (Box, swap_class, lambda h: type(h) is Box),
    "table of an object": (Box, swap_table, lambda h: [*vars(h)]),
    "array": (lambda: np.zeros(3), lambda h: h.__iadd__(1), repr),
    "negative zero": (lambda: np.zeros(3), lambda h: np.negative(h, out=h), repr),
    "view of an array": (
        lambda: np.arange(12.0).reshape(3, 4)[:, ::2],
        lambda h: h.__iadd__(1),
        repr,
    ),
    "records": (
        lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        lambda h: h["a"].fill(1),
        repr,
    ),
    "masked array": (lambda: np.ma.array([1, 2], mask=[0, 1]), lambda h: h.__setitem__(1, 5), repr),
    "arrays deep inside": (lambda: [{"a": (np.zeros(2),)}], lambda h: h[0]["a"][0].fill(1), repr),
    "bytes": (lambda: bytearray(b"ab"), lambda h: h.extend(b"c"), repr),
    "partial of a method": (
        lambda: functools.partial(Box().add, 1),
        lambda held: held(),
        lambda held: held.func.__self__.items,
    ),
    "partial": (
        lambda: functools.partial(print, Box(), k=[]),
        lambda h: (h.args[0].add(1), h.keywords["k"].append(1)),
        lambda h: (h.args[0].items, h.keywords),
    ),
    "method": (lambda: Box().add, lambda h: h(1), lambda h: h.__self__.items),
    "generators": (generators, draw, lambda h: repr(states(h))),
    "DynamicCache": (filled_cache, update, told),
    "empty DynamicCache": (DynamicCache, update, told),
    "StaticCache": (static_cache, update, told),
    "hidden module": (
        lambda: [Hidden()],
        lambda h: h[0].step(),
        lambda h: (h[0].steps, h[0].norm.running_mean.tolist(), h[0].training),
    ),
    "slots of a module": (
        lambda: [slow_module()],
        lambda h: (h[0].count.append(1), setattr(h[0], "count", 3)),
        lambda h: repr(h[0].count),
    ),
}
