"""`tbscope.trace`: what one call of a model looks like as a graph."""

import functools
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import tbscope


class Net(nn.Module):
    """A model with a nested module, a list of modules, and an operation of its own."""

    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])

    def forward(self, x, scale=1.0):
        x = self.layer1(x)
        return self.heads[0](x) + scale * self.heads[1](x)


def ops(graph):
    return [node for node in graph.nodes if node.kind == "op"]


def test_a_model_is_recorded_in_the_order_in_which_it_ran():
    graph = tbscope.trace(Net(), torch.randn(1, 3))
    assert [node.op for node in ops(graph)] == ["linear", "relu", "linear", "linear", "mul", "add"]
    assert [call.qualified_name for call in graph.calls] == [
        "",
        "layer1",
        "layer1.0",
        "layer1.1",
        "heads.0",
        "heads.1",
    ]
    graph.verify()


def test_the_printed_graph_reads_as_documented():
    graph = tbscope.trace(nn.Sequential(nn.Linear(2, 2)), torch.randn(1, 2))
    assert str(graph) == (
        "graph(%input : Float(1, 2)):\n"
        "  %1 : Float(1, 2) = linear(%input, %0.weight, %0.bias), scope: Sequential/Linear[0]\n"
        "  return (%1)"
    )


def test_values_have_the_shapes_dtypes_and_devices_of_the_tensors():
    graph = tbscope.trace(lambda x: x.to(torch.float64).sum(0).long(), torch.randn(2, 5))
    seen = [(node.outputs[0].shape, node.outputs[0].dtype) for node in ops(graph)]
    assert seen == [((2, 5), "float64"), ((5,), "float64"), ((5,), "int64")]
    assert {value.device for node in graph.nodes for value in node.outputs} == {"cpu"}


def test_a_call_knows_its_arguments_results_and_settings():
    graph = tbscope.trace(Net(), torch.randn(1, 3), kwargs={"scale": 2.0})
    root = graph.find("")
    assert [argument.name for argument in root.arguments] == ["x", "scale"]
    assert root.arguments[0].nest is graph.inputs[0].outputs[0]
    assert root.arguments[1].nest == 2.0
    assert root.results is graph.outputs[0].value
    linear = graph.find("layer1.0")
    assert linear.hyperparameters == {"in_features": 3, "out_features": 4, "bias": True}
    assert [(p.name, p.shape, p.size_bytes) for p in linear.parameters] == [
        ("weight", (4, 3), 48),
        ("bias", (4,), 16),
    ]
    assert linear.class_name == "torch.nn.modules.linear.Linear"
    assert linear.training is False


def test_every_operation_tells_the_line_of_the_model_that_called_it():
    graph = tbscope.trace(Net(), torch.randn(1, 3))
    code = Net.forward.__code__
    lines = [node.source.line - code.co_firstlineno for node in ops(graph)]
    assert lines == [1, 1, 2, 2, 2, 2]
    assert {node.source.function for node in ops(graph)} == {"forward"}
    assert {node.source.file.rpartition("/")[2] for node in ops(graph)} == {"test_trace.py"}


def test_positional_keyword_and_keyword_only_arguments_become_named_inputs():
    def forward(a, b, *, c, d=None):
        return a + b + c["deep"][0]

    graph = tbscope.trace(
        forward,
        (torch.ones(2), torch.ones(2)),
        kwargs={"c": {"deep": [torch.ones(2)]}, "d": torch.ones(3)},
    )
    assert [node.name for node in graph.inputs] == ["a", "b", "c.deep.0", "d"]


Pair = namedtuple("Pair", "left right")


@dataclass
class Result:
    """What a detection model might give."""

    boxes: torch.Tensor
    names: list
    extra: object = None


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (lambda x: x * 2, ["out"]),
        (lambda x: (x * 2, None, [x * 3]), ["out.0", "out.2.0"]),
        (lambda x: {"logits": x * 2, "n": 3, "state": (x + 1, "text")}, ["logits", "state.0"]),
        (lambda x: Pair(x * 2, x * 3), ["left", "right"]),
        (lambda x: Result(x * 2, ["cat"], {"mask": x > 0}), ["boxes", "extra.mask"]),
        (lambda x: print(end=""), []),
    ],
    ids=["tensor", "tuple", "dict", "named tuple", "dataclass", "nothing"],
)
def test_whatever_a_model_gives_back_its_tensors_are_the_outputs(result, names):
    graph = tbscope.trace(result, torch.randn(2))
    graph.verify()
    assert [output.name for output in graph.outputs] == names


def test_an_output_that_is_an_input_and_an_input_that_is_unused_are_both_there():
    graph = tbscope.trace(lambda x, unused: (x, x * 2), (torch.randn(2), torch.randn(3)))
    assert [node.name for node in graph.inputs] == ["x", "unused"]
    assert graph.outputs[0].value is graph.inputs[0].outputs[0]


def test_one_tensor_given_twice_is_one_input_with_both_names():
    x = torch.randn(2)
    graph = tbscope.trace(lambda a, b: a + b, (x, x))
    assert [node.name for node in graph.inputs] == ["a"]
    assert graph.inputs[0].attributes["also"] == "b"


@pytest.mark.parametrize(
    "make",
    [
        lambda net: net.layer1.forward,
        lambda net: functools.partial(net, scale=3.0),
        lambda net: lambda x: net(x),  # noqa: PLW0108
        lambda net: functools.partial(lambda m, x: m(x), net),
    ],
    ids=["method", "partial", "lambda", "partial of a function"],
)
def test_any_callable_is_drawn(make):
    graph = tbscope.trace(make(Net()), torch.randn(1, 3))
    graph.verify()
    assert "linear" in [node.op for node in ops(graph)]
    assert len(graph.outputs) == 1


def test_a_method_of_a_model_is_drawn_in_the_scope_of_the_model():
    class AutoEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(3, 2)

        def encode(self, x):
            return self.encoder(x).tanh()

    graph = tbscope.trace(AutoEncoder().encode, torch.randn(1, 3))
    assert [node.scope.path for node in ops(graph)] == [
        "AutoEncoder/Linear[encoder]",
        "AutoEncoder",
    ]


def test_training_modes_are_drawn_as_asked():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    net[1].eval()
    for training, flags in [(False, [False, False]), (True, [True, True]), (None, [True, False])]:
        graph = tbscope.trace(net, torch.randn(2, 3), training=training)
        assert [graph.find(name).training for name in "01"] == flags
    assert (net.training, net[0].training, net[1].training) == (True, True, False)


def test_gradients_are_recorded_only_where_asked():
    seen = []

    def forward(x):
        seen.append(torch.is_grad_enabled())
        return x * 2

    tbscope.trace(forward, torch.randn(2))
    tbscope.trace(forward, torch.randn(2), grad=True)
    assert seen == [False, True]


def test_forward_and_hooks_run_once():
    counts = {"forward": 0, "hook": 0}

    class Counting(nn.Linear):
        def forward(self, x):
            counts["forward"] += 1
            return super().forward(x)

    net = nn.Sequential(Counting(2, 2))
    net[0].register_forward_hook(lambda *_: counts.update(hook=counts["hook"] + 1))
    tbscope.trace(net, torch.randn(1, 2))
    assert counts == {"forward": 1, "hook": 1}


def test_activations_live_no_longer_for_being_watched():
    import weakref

    alive = []

    def forward(x):
        first = x * 2
        held = weakref.ref(first)
        first = first + 1
        alive.append(held() is not None)
        return first

    tbscope.trace(forward, torch.randn(2))
    assert alive == [False]


def test_the_same_model_gives_the_same_graph():
    torch.manual_seed(0)
    net, x = Net(), torch.randn(1, 3)
    texts = {str(tbscope.trace(net, x)) for _ in range(3)}
    assert len(texts) == 1


def test_find_tells_near_names_of_what_it_does_not_find():
    graph = tbscope.trace(Net(), torch.randn(1, 3))
    assert graph.find("heads.1").scope.path == "Net/ModuleList[heads]/Linear[1]"
    assert graph.find("Net/Sequential[layer1]/Linear[0]").qualified_name == "layer1.0"
    assert graph.find("layer1.0.weight").kind == "parameter"
    with pytest.raises(tbscope.NotFoundError, match=r"did you mean 'layer1\.0'"):
        graph.find("layer1.00")


def test_an_option_that_is_none_names_those_near():
    with pytest.raises(tbscope.ArgumentError) as error:
        tbscope.trace(Net(), torch.randn(1, 3), bakward=True)
    assert error.value.what == "a model cannot be run with bakward="
    assert error.value.fix == "did you mean 'backward'?"
    with pytest.raises(TypeError):
        tbscope.trace(Net(), torch.randn(1, 3), cards=True)
