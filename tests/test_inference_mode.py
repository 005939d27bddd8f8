"""Inference mode, in which torch takes no operator apart before its kernels are watched."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

import tbscope

POINTS = torch.rand(5, 4, generator=torch.Generator().manual_seed(0))


class Within(nn.Module):
    """Runs another model in a mode of its own."""

    def __init__(self, inner, mode):
        super().__init__()
        self.inner, self.mode = inner, mode

    def forward(self, x):
        with self.mode():
            return self.inner(x)


def norms():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.ReLU())


def nested(x):
    both = torch.nested.nested_tensor([x, x[:2]])
    return functional.linear(both, torch.eye(4)).to_padded_tensor(0.0)


def sparse(x):
    return x.to_sparse().matmul(x.T)


def mkldnn(x):
    return functional.linear(x.to_mkldnn(), torch.eye(4).to_mkldnn()).to_dense()


def quantised(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).reshape(-1).dequantize()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "inner",
    [
        *(norms(), nn.LSTM(4, 3, 2, dropout=0.5), nn.TransformerEncoderLayer(4, 2, 8)),
        *(nested, sparse, mkldnn, quantised),
    ],
    ids=["norms", "lstm", "encoder", "nested", "sparse", "mkldnn", "quantised"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inference_mode_is_drawn_as_a_run_without_gradients(inner, training):
    plain, inference = (
        tbscope.trace(Within(inner, mode), POINTS, training=training, kernels=True)
        for mode in (torch.no_grad, torch.inference_mode)
    )
    assert str(inference) == str(plain)
    assert [node.kernels for node in inference.nodes] == [node.kernels for node in plain.nodes]


def around():
    with torch.inference_mode():
        tbscope.trace(model := norms(), POINTS, training=True)
    return model


def inside():
    tbscope.trace(Within(model := norms(), torch.inference_mode), POINTS, training=True)
    return model


def made():
    with torch.inference_mode():
        model = norms()
        tbscope.trace(model, POINTS, training=True)
    return model


@pytest.mark.parametrize("draw", [around, inside, made])
def test_what_a_norm_counts_in_inference_mode_is_put_back(draw):
    norm = draw()[1]
    assert norm.running_mean.tolist() == [0] * 4
    assert norm.running_var.tolist() == [1] * 4
    with torch.inference_mode():
        norm.train()(POINTS)
    assert norm.running_mean.count_nonzero() == 4


def test_inference_mode_draws_the_random_numbers_of_a_call_that_nobody_watches():
    gave = []
    inner = nn.Sequential(nn.Dropout(0.5), nn.RReLU(), nn.AlphaDropout(0.5))
    inner.register_forward_hook(lambda module, args, result: gave.append(result.tolist()))
    model = Within(inner, torch.inference_mode).train()
    twin = deepcopy(model)
    torch.manual_seed(0)
    tbscope.trace(model, POINTS, training=True)
    model(POINTS)
    torch.manual_seed(1)
    twin(POINTS)
    assert gave[0] == gave[1] != gave[2]


class Whole(torch.Tensor):
    """A tensor that knows what `linear` gives, and none of its parts."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (5, 4))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        known = {torch.ops.aten.linear: torch.zeros(5, 4), torch.ops.aten.detach: args[0]}
        return known[function.overloadpacket]


def test_a_tensor_with_a_say_of_its_own_is_asked_for_the_operator_as_a_whole():
    with torch.inference_mode():
        given = Whole()
        graph = tbscope.trace(lambda x: functional.linear(x, torch.eye(4)), given)
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["eye", "linear"]


def test_an_operator_that_a_device_runs_by_itself_stays_whole():
    def slope(x):
        (found,) = torch.autograd.grad(functional.silu(x).sum(), x)
        return found

    graph = tbscope.trace(slope, POINTS.clone().requires_grad_(), grad=True)
    kernels = {kernel for node in graph.nodes for kernel in node.kernels}
    assert "aten::silu_backward" in kernels
    assert "aten::sigmoid" not in kernels
