"""Sizes: inputs that are made up (`input_size=`, `dtypes=`), and sizes given in place of inputs."""

import pytest
import torch
from torch import nn

import tbscope
from tbscope.sources.torch.calling.dummy_inputs import made_inputs, size_advice


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)

    def forward(self, ids, weight=None):
        return self.embed(ids) if weight is None else self.embed(ids) * weight


def inputs(graph):
    return [str(node).partition(" =")[0] for node in graph.inputs]


@pytest.mark.parametrize(
    ("size", "dtypes", "expected"),
    [
        ((2, 3), "int64", ["%ids : Long(2, 3)"]),
        ([2, 3], torch.int32, ["%ids : Int(2, 3)"]),
        (torch.Size((2, 3)), "torch.int64", ["%ids : Long(2, 3)"]),
        ([(2, 3)], ["int64"], ["%ids : Long(2, 3)"]),
        ([(2, 3), (3,)], ["int64", None], ["%ids : Long(2, 3)", "%weight : Float(3)"]),
        ({"ids": (2, 3)}, "int64", ["%ids : Long(2, 3)"]),
        (
            {"weight": (3,), "ids": (2, 3)},
            {"ids": torch.int64},
            ["%ids : Long(2, 3)", "%weight : Float(3)"],
        ),
        ([()], "int64", ["%ids : Long()"]),
    ],
    ids=str,
)
def test_inputs_are_made_of_their_sizes_and_types(size, dtypes, expected):
    for fake in (False, True):
        graph = tbscope.trace(Two(), input_size=size, dtypes=dtypes, fake=fake)
        assert inputs(graph) == expected


def test_keyword_arguments_go_beside_inputs_that_are_made_up():
    weight = torch.ones(3)
    graph = tbscope.trace(Two(), kwargs={"weight": weight}, input_size=(2, 3), dtypes="int64")
    assert inputs(graph) == ["%ids : Long(2, 3)", "%weight : Float(3)"]


def test_add_graph_makes_inputs_up_too(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        assert inputs(writer.add_graph(nn.Linear(3, 2), input_size=(1, 3))) == [
            "%input : Float(1, 3)"
        ]
    graph = tbscope.add_graph(writer, nn.Linear(3, 2), input_size=(1, 3), step=1)
    writer.close()
    assert inputs(graph) == ["%input : Float(1, 3)"]


def test_made_inputs_are_random_the_same_each_time_and_leave_the_generators_alone():
    before = torch.get_rng_state()
    (first, whole), _ = made_inputs([(50,), (50,)], ["float32", "int64"])
    (again, _), _ = made_inputs([(50,), (50,)], ["float32", "int64"])
    assert torch.equal(first, again)
    assert first.min() < 0 < first.max()
    assert set(whole.tolist()) == {0, 1}
    assert torch.equal(torch.get_rng_state(), before)


def test_made_inputs_are_on_the_device_of_the_model():
    graph = tbscope.trace(nn.Linear(3, 2, device="meta"), input_size=(1, 3))
    assert inputs(graph) == ["%input : Float(1, 3, device=meta)"]


def test_a_fake_input_takes_no_memory_and_stands_on_the_device_of_the_model():
    graph = tbscope.trace(nn.Linear(10**6, 2, device="cpu"), input_size=(10**9, 10**6), fake=True)
    assert graph.outputs[0].value.shape == (10**9, 2)
    assert {value.device for node in graph.nodes for value in node.outputs} == {"cpu"}
    with pytest.raises(tbscope.InputError) as caught:
        tbscope.trace(nn.Linear(10, 2), input_size=(10**14, 10))
    assert caught.value.fix == "give smaller sizes, or fake=True, which takes no memory"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"input_size": (2, -3)}, "input_size=(2, -3) is no size"),
        ({"input_size": ()}, "input_size=() is no size"),
        ({"input_size": {}}, "input_size={} is no size"),
        ({"input_size": {3: (1,)}}, "input_size={3: (1,)} is no size"),
        ({"input_size": (2, 3.0)}, "input_size=(2, 3.0) is no size"),
        ({"input_size": (2, True)}, "input_size=(2, True) is no size"),
        ({"dtypes": "int64"}, "input_size=None and dtypes='int64' do not fit"),
        ({"input_size": (2,), "dtypes": "int46"}, "dtypes='int46' are no types of the inputs"),
        ({"input_size": (2,), "dtypes": "nn"}, "dtypes='nn' are no types of the inputs"),
        ({"input_size": (2,), "dtypes": []}, "dtypes=[] are no types of the inputs"),
        (
            {"input_size": {"ids": (2,)}, "dtypes": {"id": "int64"}},
            "dtypes={'id': 'int64'} are no types of the inputs",
        ),
    ],
    ids=str,
)
def test_what_is_no_size_and_no_type_is_refused(options, what):
    with pytest.raises(tbscope.InputError) as caught:
        tbscope.trace(Two(), **options)
    assert caught.value.what == what


def test_sizes_beside_inputs_are_refused():
    with pytest.raises(tbscope.InputError, match=r"input_size=\(2,\) and dtypes=None do not fit"):
        tbscope.trace(Two(), torch.zeros(2, dtype=torch.int64), input_size=(2,))


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        (
            (1, 3, 8, 8),
            "a size is no input: give torch.rand(1, 3, 8, 8), or input_size=(1, 3, 8, 8)",
        ),
        (
            torch.Size((1, 3, 8, 8)),
            "a size is no input: give torch.rand(1, 3, 8, 8), or input_size=(1, 3, 8, 8)",
        ),
        (
            [(1, 3, 8, 8)],
            "sizes are no inputs: give (torch.rand(1, 3, 8, 8),), or input_size=[(1, 3, 8, 8)]",
        ),
    ],
    ids=str,
)
def test_a_size_in_place_of_an_input_is_told_with_what_to_write(given, fix):
    with pytest.raises(tbscope.TbscopeError) as caught:
        tbscope.trace(nn.Conv2d(3, 4, 3), given)
    assert caught.value.fix == fix


@pytest.mark.parametrize("given", [(), [], (torch.ones(2),), (1, "a"), None, 3, [()]], ids=str)
def test_what_holds_no_size_is_not_taken_for_one(given):
    assert size_advice(given) == ""


def test_numbers_that_a_function_takes_are_no_size():
    assert tbscope.trace(torch.ones, (2, 3)).outputs[0].value.shape == (2, 3)
