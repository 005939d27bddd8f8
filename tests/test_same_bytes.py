"""A law: the second and the tenth trace of any model have the bytes of the first.

Between them others are traced, so that something else lies where objects of the first have lain.
"""

import random
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import called_models
import composite_models
import helper_models
import list_models
import program_models
import pytest
import replaced_models
import torch
import transformed_models
import wide_models
from cases import MODELS
from nasty_models import NASTY
from odd_steps import ODD
from training_steps import STEPS, made, recorded

import tbscope
from tbscope.formats.json import graph_to_json
from tbscope.ir.graph import Graph
from tests.real_graphs import KINDS
from tests.sweeps import sampled
from tests.zoo.models import CannotBuildError, build, catalogue

FILES = (called_models, composite_models, replaced_models, transformed_models)
EXAMPLES = (
    *(helper_models.Helped, helper_models.Decoder, helper_models.Seq2Seq, helper_models.TimeMix),
    *(helper_models.Detector, list_models.Embedding, list_models.Turns, list_models.Leaves),
    *(list_models.Shared, list_models.Skips, list_models.Detector, list_models.Borrower),
)
# Of these one trace takes seconds.
HUGE = {"a list of 2000", "5000 steps", "5000 calls"}

Drawing = Callable[[], Graph]


def traced(make, inputs) -> Graph:
    return tbscope.trace(make(), inputs)


def traced_case(make) -> Graph:
    case = make()
    return tbscope.trace(case.model, case.inputs)


def traced_example(kind) -> Graph:
    file = helper_models if kind.__module__.endswith("helper_models") else list_models
    return tbscope.trace(*file.example(kind))


GROUPS: dict[str, dict[str, Drawing]] = {
    "cases": {name: partial(traced_case, make) for name, make in MODELS.items()},
    "nasty models": {name: partial(traced, *given) for name, given in NASTY.items()},
    "helpers and lists": {str(kind): partial(traced_example, kind) for kind in EXAMPLES},
    "programs": {
        name: lambda name=name: program_models.example(name)[3] for name in program_models.MODELS
    },
    "wide models": {
        name: partial(traced, *wide_models.MODELS[name])
        for name in sampled(wide_models.MODELS, sorted(wide_models.MODELS.keys() - HUGE))
    },
    "steps": {name: lambda name=name: recorded(*made(name)) for name in STEPS | ODD},
}


def some(group: dict[str, Drawing]) -> list[str]:
    """Give every third drawing of a group, or all of a sweep."""
    return sampled(group, [*group][::3])


def bytes_of(draw: Drawing) -> tuple[bytes, str]:
    """Give what is written of a graph: its drawing and the record beside that."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = draw()
    message = tbscope.to_graph_def(graph)
    return message.SerializeToString(deterministic=True), graph_to_json(graph)


def unlike(group: dict[str, Drawing], orders: Iterable[list[str]]) -> list[str]:
    """Give the names of those that are drawn otherwise in one of the rounds than at first."""
    first = {name: bytes_of(group[name]) for name in some(group)}
    return [name for order in orders for name in order if bytes_of(group[name]) != first[name]]


@pytest.mark.parametrize("name", GROUPS)
def test_the_second_trace_has_the_bytes_of_the_first_whatever_is_traced_between(name):
    assert unlike(GROUPS[name], [some(GROUPS[name])[::-1]]) == []


@pytest.mark.parametrize("name", sampled(GROUPS, ["nasty models"]))
def test_the_tenth_trace_has_the_bytes_of_the_first_whatever_is_traced_between(name):
    group, shuffled = GROUPS[name], random.Random(0)
    orders = [shuffled.sample(some(group), len(some(group))) for _ in range(9)]
    assert unlike(group, orders) == []


@pytest.mark.parametrize("name", sampled(GROUPS, ["helpers and lists"]))
def test_each_of_ten_traces_in_a_row_has_the_same_bytes(name):
    for model in some(GROUPS[name]):
        assert len({bytes_of(GROUPS[name][model]) for _ in range(10)}) == 1, model


ZOO = {entry.name: entry for entry in catalogue()}


@pytest.mark.parametrize(
    "name",
    sampled(
        dict.fromkeys([*KINDS, *ZOO]),
        ["BertModel", "T5ForConditionalGeneration", "MixtralForCausalLM"],
    ),
)
def test_a_real_model_has_the_same_bytes_after_others(name):
    def draw() -> Graph:
        return tbscope.trace(example.model, example.inputs)

    try:
        example = build(ZOO[name])
    except CannotBuildError as error:
        pytest.skip(f"the zoo has no small {name}: {error}")
    first = bytes_of(draw)
    for between in GROUPS["helpers and lists"].values():
        bytes_of(between)
    assert bytes_of(draw) == first
