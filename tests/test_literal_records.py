"""Arguments and results of calls: records by field, as at the ends of a graph, and cycles."""

from collections import UserList, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree

import tbscope
from tbscope.ir.graph import Constant, Node, Value
from tbscope.ir.pytree import walk
from tbscope.sources.torch.calling.argument_values import ArgumentConverter, collect_tensors
from tbscope.sources.torch.calling.pytree import tensor_leaves


@dataclass
class Record:
    one: Any = None
    other: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    one: Any
    other: Any = 3


class Pair(NamedTuple):
    one: Any
    other: Any


class Registered:
    def __init__(self, one, other=None):
        self.one, self.other = one, other


_pytree.register_pytree_node(
    Registered,
    lambda held: ([held.one, held.other], None),
    lambda held, _: Registered(*held),
)


class Plain:
    def __init__(self, one):
        self.one = one


def nest(thing):
    """Give the nest of a thing, its tensors, and these as values."""
    values = {}

    def value_of(tensor):
        node = Node("x", "input", "input")
        return values.setdefault(id(tensor), Value(node, 0, tuple(tensor.shape), "float32", "cpu"))

    found, known = [], []
    return ArgumentConverter(value_of).nest(thing, found, known), found, values


X, Y = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize("make", [Record, Frozen, Pair, Registered], ids=lambda cls: cls.__name__)
def test_a_record_is_told_by_field(make):
    told, found, values = nest([make(X, Record([Y, 2], None)), {"k": make(Y, X)}])
    x, y = values[id(X)], values[id(Y)]
    inner = {"one": [y, 2], "other": None}
    assert told == [{"one": x, "other": inner}, {"k": {"one": y, "other": x}}]
    assert [id(one) for one in found] == [id(one) for one in (X, Y, Y, X)]


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (Plain(X), "<Plain>"),
        (Record, "<Record>"),
        (dataclass(type("Empty", (), {}))(), "<Empty>"),
        (nn.Linear(1, 1), "<Linear>"),
        ({X}, "<set>"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_is_no_record_is_told_by_its_class(thing, text):
    told, found, _ = nest(thing)
    assert (told, found) == (Constant(text), [])


@pytest.mark.parametrize("make", [deque, UserList, lambda held: dict(enumerate(held)).values()])
def test_a_list_of_any_kind_is_told_as_one(make):
    told, found, values = nest(make([X, 1]))
    assert told == [values[id(X)], 1]
    assert len(found) == 1


def test_what_holds_itself_is_entered_once():
    entries, mapping, record = [X], {"x": X}, Record(X)
    entries.append(entries)
    mapping["me"] = mapping
    record.other = {"me": record}
    for thing in (entries, mapping, record):
        assert len(nest(thing)[1]) == len(collect_tensors(thing, [])) == 1
    assert nest(entries)[0][1] == [Constant("...")]
    assert nest(mapping)[0]["me"] == Constant("{...}")
    assert nest(record)[0]["other"] == {"me": Constant("{...}")}


def test_a_container_in_two_places_is_told_in_both():
    flat, deep = Record(X, 1), Record([X], 1)
    for one in (flat, [X], {"a": [X]}):
        told = nest([one, one])[0]
        assert told[0] == told[1]
    # Records may be a graph, of more ways than there are records.
    assert nest([deep, deep])[0][1] == Constant("{...}")
    assert len(tensor_leaves([deep, deep], "")) == 1


def test_tensors_are_collected_as_often_as_they_are_told():
    pair = [torch.ones(1), (torch.ones(2),)]
    given = (pair, {"again": pair})
    tensors, values = [], []
    ArgumentConverter(lambda tensor: Constant("value")).nest(given, tensors, values)
    collected = collect_tensors(given, [])
    assert len(collected) == len(values) == 4
    assert all(one is other for one, other in zip(collected, tensors, strict=True))


def test_records_that_all_know_each_other_cost_no_more_than_they_are():
    everyone = []
    everyone += [Record(torch.ones(at), everyone) for at in range(60)]
    told, found, _ = nest(everyone[0])
    assert len(found) == 60
    assert len(collect_tensors(everyone[0], [])) == 60
    assert sum(isinstance(leaf, Value) for _, leaf in walk(told)) == 60


TENSORS = st.integers(0, 3).map(torch.ones)
NESTS = st.recursive(
    st.one_of(TENSORS, st.sampled_from([None, 1, "x", 2.5])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        *(st.builds(make, inner, inner) for make in (Record, Frozen, Pair, Registered)),
    ),
    max_leaves=8,
)


@given(NESTS)
def test_a_nest_has_the_paths_that_it_has_at_the_ends_of_a_graph(thing):
    told, found, _ = nest(thing)
    paths = [path for path, leaf in walk(told, "in") if isinstance(leaf, Value)]
    leaves = tensor_leaves(thing, "in")
    assert paths == [path for path, _ in leaves]
    expected = [id(tensor) for _, tensor in leaves]
    assert [id(one) for one in found] == [id(one) for one in collect_tensors(thing, [])] == expected


@dataclass
class State:
    hidden: torch.Tensor
    mask: Any = None
    steps: int = 0
    past: list = field(default_factory=list)


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, state):
        hidden = self.fc(state.hidden)
        return State(hidden, state.mask, state.steps, [*state.past, hidden])


class Same(nn.Module):
    def forward(self, state):
        return state


def test_calls_that_hand_records_on_are_told_as_functions_of_their_fields():
    net = nn.Sequential(Step(), Step(), Same())
    graph = tbscope.trace(net, [State(torch.ones(1, 2), torch.ones(1))])
    (given,) = graph.calls[3].arguments
    first, mask = graph.calls[1].results["hidden"], graph.inputs[1].outputs[0]
    assert given.nest == {"hidden": first, "mask": mask, "steps": 0, "past": [first]}
    row = graph.summary().rows[3]
    assert row["input"] == {"state.hidden": (1, 2), "state.mask": (1,), "state.past.0": (1, 2)}
    assert row["output"] == {"hidden": (1, 2), "mask": (1,), "past.0": (1, 2), "past.1": (1, 2)}
    assert "<State>" not in f"{graph.functions()}{graph.calls[1].results}"
    cards = str(tbscope.to_graph_def(graph, leaves="box"))
    assert "<State>" not in cards
    assert "{hidden: Float(1, 2), mask: Float(1), steps: 0, past: []}" in cards


def test_a_program_tells_records_of_its_model_by_field():
    torch.export.register_dataclass(State, serialized_type_name="tests.State")
    state = State(torch.ones(1, 2), torch.ones(1))
    graph = tbscope.from_export(torch.export.export(Step(), (state,)))
    assert graph.calls[0].arguments[0].nest.keys() == {"hidden", "mask", "steps", "past"}
    assert list(graph.calls[0].results) == ["hidden", "mask", "steps", "past"]
