"""The names of operations and arguments, as the page tells them of an operation."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import tbscope
from tbscope.sources.torch.operation_arguments import positional_names
from tbscope.sources.torch.operations import kernel_facts, operation_name


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
        (torch.einsum, ()),
        (torch.Tensor.__eq__, (None, None)),
        (torch.Tensor.__getitem__, ("self", "key")),
        (torch.Tensor.shape.__get__, ("instance", "owner")),
        (torch.arange, ()),
    ],
)
def test_an_argument_has_the_name_that_every_overload_gives_it(function, names):
    assert positional_names(function)[: len(names) or None] == names


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
    facts = kernel_facts(getattr(torch.ops.aten, kernel).default)
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


def test_an_argument_whose_overloads_differ_is_told_by_its_place():
    attributes = shown(lambda x: x.max(1).values, torch.ones(2, 3))
    assert attributes["max"]["arg1"] == "i: 1"


def test_functions_of_one_name_have_the_names_on_which_they_agree():
    def relus(x):
        return torch.relu(x) + F.relu(x)

    graph = tbscope.trace(relus, torch.ones(2))
    assert graph.signatures["relu"] == ("input",)


def test_every_function_that_torch_lets_us_watch_can_be_asked():
    for function in torch.overrides.get_testing_overrides():
        names = positional_names(function)
        assert all(name is None or name.isidentifier() for name in names), function
