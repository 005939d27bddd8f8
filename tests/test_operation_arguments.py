"""The names of operations and arguments, as the page tells them of an operation."""

import warnings

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import tbscope
from tbscope.sources.torch.operations import kernel_info, operation_name, positional_names


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (F.linear, ("input", "weight", "bias")),
        (F.softmax, ("input", "dim", "_stacklevel", "dtype")),
        (torch.topk, ("input", "k", "dim", "largest", "sorted")),
        (torch.Tensor.expand, ("input", "size")),
        (torch.Tensor.add_, ("input", "other", "alpha")),
        (torch.ops.aten.add.Tensor, ("self", "other")),
        (torch.Tensor.to, ("input", None, None, None, None, "memory_format")),
        (torch.max, ("input", None, "keepdim")),
        (torch.einsum, ("equation",)),
        (F.max_pool2d, ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")),
        (F.adaptive_max_pool1d, ("input", "output_size", "return_indices")),
        (torch.rand, ("size",)),
        (torch.Tensor.__eq__, (None, None)),
        (torch.Tensor.__getitem__, ("self", "key")),
        (torch.Tensor.shape.__get__, ("instance", "owner")),
        (torch.arange, (None, "end", "step")),
    ],
)
def test_an_argument_has_the_name_that_every_overload_gives_it(function, names):
    assert positional_names(function)[: len(names)] == names


T = torch.Tensor


@pytest.mark.parametrize(
    ("functions", "name"),
    [
        ([F.linear], "linear"),
        ([T.add, T.__add__, T.__radd__], "add"),
        ([T.add_, T.__iadd__], "add_"),
        ([T.__rsub__], "sub"),
        ([T.__invert__], "invert"),
        ([T.__setitem__], "setitem"),
        ([T.T.__get__], "T"),
        ([torch.ops.aten.add.Tensor], "add"),
    ],
)
def test_an_operation_is_called_as_its_user_writes_it(functions, name):
    assert {operation_name(function) for function in functions} == {name}


@pytest.mark.parametrize(
    ("kernel", "flag"),
    [
        ("native_batch_norm", "training"),
        ("cudnn_batch_norm", "training"),
        ("miopen_batch_norm", "training"),
        ("batch_norm_update_stats", None),
        ("batch_norm_gather_stats", None),
        ("batch_norm_gather_stats_with_counts", None),
    ],
)
def test_the_running_statistics_are_written_though_no_schema_says_so(kernel, flag):
    facts = kernel_info(getattr(torch.ops.aten, kernel).default)
    names = [argument.name for argument in facts.kernel._schema.arguments]
    assert facts.writes == tuple((names.index(n), n) for n in ("running_mean", "running_var"))
    assert (None if facts.flag is None else names[facts.flag]) == flag


def shown(model, *inputs):
    """Give the attributes of each operation of a function, by its op type, as texts."""
    message = tbscope.to_graph_def(tbscope.trace(model, inputs))
    return {
        node.op: {key: str(value).strip() for key, value in node.attr.items()}
        for node in message.node
    }


def test_constants_are_told_by_the_names_of_the_operation():
    attributes = shown(lambda x: x.topk(2, -1)[0].roll(1, 0).clamp(0.0), torch.ones(2, 3))
    assert attributes["topk"].items() >= {"k": "i: 2", "dim": "i: -1"}.items()
    assert attributes["roll"].items() >= {"shifts": "i: 1", "dims": "i: 0"}.items()
    assert attributes["clamp"]["min"] == "f: 0"


def test_sizes_given_one_by_one_are_told_under_one_name():
    attributes = shown(lambda x: x.repeat(4, 2), torch.ones(2, 3))
    assert attributes["repeat"]["repeats"].split() == ["list", "{", "i:", "4", "i:", "2", "}"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: x.max(1), {"dim": "i: 1"}),
        (lambda x: torch.max(x, 1, True), {"dim": "i: 1", "keepdim": "b: true"}),
        (lambda x: x.std(1), {"dim": "i: 1"}),
        (lambda x: x.std(True), {"unbiased": "b: true"}),
        (lambda x: x.sort(1, True), {"dim": "i: 1", "descending": "b: true"}),
        (lambda x: x == 1, {"other": "i: 1"}),
        (lambda x: x.to(torch.float64), {"dtype": ""}),
        (lambda x: x.tensor_split(2), {"sections": "i: 2"}),
        (lambda x: x.tensor_split((1,)), {"indices": "list { i: 1 }"}),
        (lambda x: x.scatter(1, torch.tensor([[0]]), 2.0), {"dim": "i: 1", "value": "f: 2"}),
        (lambda x: x.view(3, -1), {"size": "list { i: 3 i: -1 }"}),
        (lambda x: x.view(torch.int32), {}),
        (lambda x: F.max_pool1d(x, 2, 1), {"kernel_size": "i: 2", "stride": "i: 1"}),
        (lambda x: torch.arange(1, 4) + x, {"start": "i: 1", "end": "i: 4"}),
        (lambda x: torch.arange(3) + x, {"end": "i: 3"}),
        (lambda x: torch.rand(2, 3) + x, {"size": "list { i: 2 i: 3 }"}),
        (lambda x: torch.tensor([1.0, 2.0, 3.0]) + x, {"data": "list { f: 1 f: 2 f: 3 }"}),
    ],
)
def test_an_argument_has_the_name_of_the_overload_that_is_called(call, told):
    attributes = [*shown(call, torch.ones(2, 3)).values()]
    facts = {key: " ".join(value.split()) for one in attributes for key, value in one.items()}
    assert not [key for key in facts if key.startswith("arg")]
    assert told.items() <= {**facts, "dtype": ""}.items()


def test_packed_weights_are_told_by_their_class_and_by_the_name_in_the_schema():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    told = shown(packed, torch.ones(1, 3))["Linear"]
    assert told["W_prepack"] == 's: "<LinearPackedParamsBase>"'


def test_an_argument_whose_overloads_differ_in_one_graph_is_told_by_its_place():
    graph = tbscope.trace(lambda x: torch.max(x.max(1).values, x[:, 0]), torch.ones(2, 3))
    assert graph.signatures["max"] == ("input", None)


def test_functions_of_one_name_have_the_names_on_which_they_agree():
    def relus(x):
        return torch.relu(x) + F.relu(x)

    graph = tbscope.trace(relus, torch.ones(2))
    assert graph.signatures["relu"] == ("input",)


def test_every_function_that_torch_lets_us_watch_can_be_asked():
    for function in torch.overrides.get_testing_overrides():
        names = positional_names(function)
        assert all(name is None or name.isidentifier() for name in names), function


def test_a_call_without_operations_after_a_write_adds_no_signature():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x):
            return self.same(x.clone().add_(1))

    assert tbscope.trace(Writing(), torch.rand(2)).signatures.keys() == {"clone", "add_"}
