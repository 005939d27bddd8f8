"""Training steps of random models: laws that every graph of one keeps."""

import warnings
from collections import Counter
from copy import deepcopy

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweeps import counted
from test_random_models import WIDTH, models
from training_steps import BackwardKernels, backward_nodes, gradients_of

import tbscope

POINTS = torch.linspace(-1, 1, 6 * WIDTH).reshape(6, WIDTH)


def tensors(nest):
    if isinstance(nest, torch.Tensor):
        return [nest]
    inner = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, tuple) else ()
    return [tensor for one in inner for tensor in tensors(one)]


def train(model, optimizer):
    """Train a model once; one that has nothing to learn does nothing."""
    torch.manual_seed(0)
    out = [tensor for tensor in tensors(model(POINTS)) if tensor.requires_grad]
    if out:
        sum(tensor.pow(2).sum() for tensor in out).backward()
        if optimizer is not None:
            optimizer.step()


def adam(model):
    learnt = [*model.parameters()]
    return torch.optim.Adam(learnt) if learnt else None


@settings(
    max_examples=counted(40, 16),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, training=st.booleans())
def test_a_random_step_is_recorded_whole_and_in_its_place(model, training):
    model.train(training)
    plain, counting = deepcopy(model), deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tbscope.record(model) as recording:
            train(model, adam(model))
        train(plain, adam(plain))
        with BackwardKernels() as counted:
            train(counting, None)
    graph = recording.graph
    # Each node comes after all that it reads: there is no way round.
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    for one, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    wanted = {name for name, one in plain.named_parameters() if one.grad is not None}
    assert set(gradients_of(graph)) == wanted
    shown = Counter(kernel for node in backward_nodes(graph) for kernel in node.kernels)
    assert shown == counted.counts
    forward = {str(node.scope) for node in graph.nodes if node.phase == "forward"}
    for node in backward_nodes(graph):
        path = str(node.scope).partition("/")[2]
        assert path in forward | {""}
        if "differentiates" in node.attributes:
            assert path in forward or str(node.scope) == "gradients"
