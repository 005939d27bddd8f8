"""Parameters that are made of other tensors, as quantisation makes them (torchao's int8)."""

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import tbscope
from tbscope.sources.torch.subclasses import size_bytes_of, subclass_attributes
from tests.agreement import check_whole, disagreements

pytestmark = pytest.mark.filterwarnings("ignore")


class Packed(torch.Tensor):
    """A float32 tensor that is kept as int8 with a scale for each row."""

    @staticmethod
    def __new__(cls, codes, scale):
        shape, strides = codes.shape, codes.stride()
        return torch.Tensor._make_wrapper_subclass(cls, shape, strides, dtype=scale.dtype)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(held, context, size, stride):
        return Packed(held["codes"], held["scale"])

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            given, weight, bias = args
            return function(given, weight.codes * weight.scale, bias)
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, kernel, types, args=(), kwargs=None):
        if kernel is torch.ops.aten.detach.default:
            return Packed(args[0].codes, args[0].scale)
        plain = pytree.tree_map_only(Packed, lambda each: each.codes * each.scale, args)
        return kernel(*plain, **(kwargs or {}))


def packed(*, rows=4):
    codes = torch.ones(rows, 8, dtype=torch.int8)
    return Packed(codes, torch.ones(rows, 1))


def net():
    model = nn.Sequential(nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
    model[1].weight = nn.Parameter(packed(), requires_grad=False)
    return model


X = torch.ones(2, 8)
PROGRAMS = {
    "export": tbscope.from_export,
    "module": lambda program: tbscope.from_fx(program.module()),
}


@pytest.mark.parametrize("source", PROGRAMS)
def test_a_program_reads_what_is_inside_of_a_parameter_in_the_module_that_does(source):
    graph = PROGRAMS[source](torch.export.export(net(), (X,)))

    check_whole(graph)
    assert disagreements(tbscope.trace(net(), X), graph) == {}
    taken = [node for node in graph.nodes if node.op == "access_subclass_inner_tensor"]
    assert {(node.scope.path, node.role) for node in taken} == {("Sequential/Linear[1]", "view")}
    assert not [kernel for kernel in graph.uncounted if kernel.startswith("export::")]


def test_what_is_made_of_state_stands_in_the_module_only_where_nobody_told_another_place():
    class Times(nn.Module):
        def forward(self, x, weight):
            return x @ weight

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.times = Times()

        def forward(self, x):
            return self.times(x, self.fc.weight.t())

    graph = tbscope.from_export(torch.export.export(Net(), (torch.ones(2, 4),)))

    assert [node.scope.path for node in graph.nodes if node.op == "t"] == ["Net"]


@pytest.mark.parametrize("source", ["eager", *PROGRAMS])
def test_a_parameter_is_as_large_as_what_it_is_made_of(source):
    if source == "eager":
        graph = tbscope.trace(net(), X)
    else:
        graph = PROGRAMS[source](torch.export.export(net(), (X,)))

    (weight,) = [own for own in graph.find("1").parameters if own.name == "weight"]
    assert (weight.shape, weight.dtype) == ((4, 8), "float32")
    assert weight.size_bytes == 4 * 8 + 4 * 4
    told = graph.find("1.weight").attributes
    assert told["tensor_class"].endswith("test_packed.Packed")
    assert told["holds"] == "codes: int8 (4, 8), scale: float32 (4, 1)"
    assert "tensor_class" not in graph.find("1.bias").attributes


class Whole(Packed):
    """A tensor that hands all on to one of its own type, as a sharded one does."""

    @staticmethod
    def __new__(cls, local):
        return torch.Tensor._make_wrapper_subclass(cls, (2 * len(local), 8), dtype=local.dtype)

    def __init__(self, local):
        self.local = local

    def __tensor_flatten__(self):
        return ["local"], None


@pytest.mark.parametrize(
    ("tensor", "size_bytes"),
    [
        (torch.ones(3, 5), 60),
        (nn.Parameter(torch.ones(3, 5)), 60),
        (packed(rows=2), 16 + 8),
        (TwoTensor(torch.ones(2, 2), torch.ones(2, 2)), 32),
        (TwoTensor(packed(rows=2), packed(rows=2)), 48),
        (Whole(torch.ones(2, 8)), 128),
        (Whole(torch.ones(2, 8, dtype=torch.float16)), 64),
    ],
)
def test_bytes_are_those_of_all_that_is_inside_of_another_type(tensor, size_bytes):
    assert size_bytes_of(tensor) == size_bytes


def test_a_plain_tensor_is_made_of_nothing():
    assert subclass_attributes(nn.Parameter(torch.ones(2))) == {}
