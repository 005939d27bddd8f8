"""Every tensor in a nest is found once per place, by the path that its user would write."""

import argparse
import collections
import logging
import threading
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast

from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves

A, B, C = torch.zeros(1), torch.zeros(2), torch.zeros(3)
Pair = namedtuple("Pair", ["left", "right"])


class Color(Enum):
    RED = 1


@dataclass
class Batch:
    image: torch.Tensor
    label: torch.Tensor | None = None
    names: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class SlottedBatch:
    image: torch.Tensor
    label: torch.Tensor


@dataclass(slots=True)
class MoreSlots(SlottedBatch):
    weight: torch.Tensor
    depth: torch.Tensor


class Privates:
    __slots__ = ("__hidden", "empty", "shown")

    def __init__(self):
        self.shown = A
        self.__hidden = [B]


class Instances:
    """As detectron2 has it: fields in a private dict."""

    def __init__(self):
        self.image_size = (4, 4)
        self._fields = {"boxes": A, "scores": B}

    @property
    def never(self):
        raise AssertionError("a property was evaluated")


class Meta(torch.Tensor):
    pass


def paths(nest, name="x"):
    return [path for path, _ in tensor_leaves(nest, name)]


@pytest.mark.parametrize(
    ("nest", "expected"),
    [
        (A, ["x"]),
        ((A, B), ["x.0", "x.1"]),
        ([A, [B, (C,)]], ["x.0", "x.1.0", "x.1.1.0"]),
        (deque([A, B]), ["x.0", "x.1"]),
        (UserList([A]), ["x.0"]),
        ({"b": A, "a": {"c": B}}, ["x.b", "x.a.c"]),
        (OrderedDict(b=A, a=B), ["x.b", "x.a"]),
        (UserDict({"k": A}), ["x.k"]),
        (collections.ChainMap({"k": A}), ["x.k"]),
        (BatchEncoding({"input_ids": A, "lengths": [1, 2]}), ["x.input_ids"]),
        (BaseModelOutputWithPast(last_hidden_state=A), ["x.last_hidden_state"]),
        (Pair(A, [B]), ["x.left", "x.right.0"]),
        (torch.max(torch.zeros(2, 2), 0), ["x.values", "x.indices"]),
        (Batch(A, names=["a", B]), ["x.image", "x.names.1"]),
        (SlottedBatch(A, B), ["x.image", "x.label"]),
        (MoreSlots(A, B, C, A), ["x.image", "x.label", "x.weight", "x.depth"]),
        (Privates(), ["x._Privates__hidden.0", "x.shown"]),
        (SimpleNamespace(k=A), ["x.k"]),
        (argparse.Namespace(k=A), ["x.k"]),
        (Instances(), ["x._fields.boxes", "x._fields.scores"]),
        (slice(A, None, B), ["x.start", "x.step"]),
        ({"a": A}.values(), ["x.0"]),
        ({"a": A}.items(), ["x.0.1"]),
        ({A}, ["x.0"]),
        (nn.Parameter(A), ["x"]),
        (A.as_subclass(Meta), ["x"]),
        (A.to_sparse(), ["x"]),
        (torch.distributions.Normal(A, 1.0), ["x.loc", "x.scale"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_each_container_is_walked_in_its_own_way(nest, expected):
    assert paths(nest) == expected


@pytest.mark.parametrize(
    ("key", "step"),
    [
        (0, "0"),
        (True, "True"),
        (None, "None"),
        (1.5, "1.5"),
        (Color.RED, "RED"),
        (("user", "rates", "item"), "user,rates,item"),
        (torch.float32, "torch.float32"),
        (object(), "0"),
        (C, "0"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_key_has_the_same_text_in_every_process(key, step):
    assert paths({key: A}) == [f"x.{step}"]


def test_a_cache_of_transformers_is_named_by_its_attributes():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 0)
    assert paths(cache, "past_key_values") == [
        "past_key_values.layers.0.keys",
        "past_key_values.layers.0.values",
    ]


def test_a_packed_sequence_gives_its_tensors():
    packed = pack_sequence([torch.zeros(2), torch.zeros(1)])
    assert paths(packed) == ["x.data", "x.batch_sizes"]


@pytest.mark.parametrize(
    "nest",
    [
        None,
        3,
        "text",
        b"bytes",
        np.zeros(3),
        nn.Linear(2, 2),
        torch.Size([2]),
        torch.float32,
        Batch,
        len,
        lambda held=A: held,
        logging.getLogger("tbscope"),
        threading.Lock(),
        Color.RED,
        range(3),
        ValueError("text"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_holds_no_tensors_gives_none(nest):
    assert tensor_leaves(nest, "x") == []
    assert tensor_leaves([nest, A], "x") == [("x.1", A)]


def test_an_iterator_is_not_consumed():
    numbers = (tensor for tensor in [A, B])
    assert paths([numbers, iter([A]), map(id, [A])]) == []
    assert next(numbers) is A


def test_modules_inside_of_objects_are_not_entered():
    holder = SimpleNamespace(model=nn.Linear(2, 2), x=A)
    assert paths(holder) == ["x.x"]


def test_a_tensor_in_two_places_is_given_for_each():
    assert paths({"a": A, "b": A}) == ["x.a", "x.b"]


def test_a_container_in_two_places_is_given_for_each():
    state = (A, B)
    assert paths((state, state)) == ["x.0.0", "x.0.1", "x.1.0", "x.1.1"]


def test_a_cycle_ends():
    first: dict[str, Any] = {"t": A}
    first["self"] = first
    second = SimpleNamespace(t=B, back=first)
    first["other"] = second
    assert paths(first) == ["x.t", "x.other.t"]


def test_a_nest_that_shares_its_parts_costs_no_more_than_its_size():
    nest: Any = [A]
    for _ in range(200):
        nest = [nest, nest]
    assert tensor_leaves(nest, "x")


def test_a_nest_deeper_than_the_recursion_limit_is_walked():
    nest: Any = A
    for _ in range(5_000):
        nest = [nest]
    [(path, tensor)] = tensor_leaves(nest, "x")
    assert tensor is A
    assert path == "x" + ".0" * 5_000


def test_a_mapping_that_cannot_list_its_items_is_read_by_its_attributes():
    class Broken(collections.abc.Mapping):
        def __init__(self):
            self.held = A

        def __getitem__(self, key):
            raise RuntimeError("not now")

        def __iter__(self):
            return iter(["a"])

        def __len__(self):
            return 1

    assert paths(Broken()) == ["x.held"]


def test_a_walk_runs_no_operation_of_torch():
    class Refusing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    nest = {"a": [A, (B, Batch(C))], C: A}
    with Refusing():
        assert len(tensor_leaves(nest, "x")) == 4


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (A, ["out"]),
        ((A, B), ["out.0", "out.1"]),
        ([A, {"k": B}], ["out.0", "out.1.k"]),
        ({"logits": A, "aux": [B]}, ["logits", "aux.0"]),
        ({0: A, "x": B}, ["out.0", "out.x"]),
        (Batch(A), ["image"]),
        (Pair(A, B), ["left", "right"]),
        (BaseModelOutputWithPast(last_hidden_state=A), ["last_hidden_state"]),
        (None, []),
        (3, []),
        ((A, None, 3, "text"), ["out.0"]),
        ({}, []),
        ((), []),
    ],
    ids=lambda given: type(given).__name__,
)
def test_results_are_named_as_their_user_names_them(result, expected):
    assert [path for path, _ in result_leaves(result)] == expected


tensors = st.builds(torch.zeros, st.integers(0, 3))
nests = st.recursive(
    tensors | st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(nests)
def test_a_path_leads_back_to_its_tensor(nest):
    for path, tensor in tensor_leaves([nest], ""):
        found: Any = [nest]
        for step in path.split("."):
            found = found[step] if isinstance(found, dict) else found[int(step)]
        assert found is tensor


@given(nests)
def test_as_many_leaves_are_given_as_torch_finds(nest):
    flat = torch.utils._pytree.tree_leaves(nest)
    expected = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    found = [tensor for _, tensor in tensor_leaves(nest, "x")]
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))
