"""Whole training steps of real models: a recorded one does to the bit what one unwatched does."""

import warnings
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from training_models import TRAININGS
from training_steps import BackwardKernels, backward_nodes

import tbscope
from tbscope.sources.torch.compat.tensors import sequence_number


@pytest.fixture(autouse=True, scope="module")
def group():
    """Have a group of one process, as under `torchrun`."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(params=TRAININGS)
def make(request):
    return TRAININGS[request.param]


def same(one, other):
    """Tell whether two nests are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def recorded(training):
    with tbscope.record(*training.models) as recording:
        training.step()
    return recording.graph


def test_a_recorded_step_and_those_after_it_are_those_of_an_unwatched_training(make):
    watched, plain = make(), make()
    torch.manual_seed(1)
    for _ in range(3):
        plain.step()
    wanted = plain.state()
    torch.manual_seed(1)
    watched.step()
    recorded(watched)
    watched.step()
    assert same(watched.state(), wanted)
    assert not same(make().state(), wanted)


def test_a_step_that_watch_records_is_that_of_an_unwatched_training(make, tmp_path):
    watched, plain = make(), make()
    torch.manual_seed(1)
    for _ in range(3):
        plain.step()
    wanted = plain.state()
    torch.manual_seed(1)
    with tbscope.SummaryWriter(str(tmp_path)) as writer, warnings.catch_warnings():
        warnings.simplefilter("error")
        handle = writer.watch(watched.model, optimizer=watched.optimizer)
        for _ in range(3):
            watched.step()
    assert same(watched.state(), wanted)
    assert handle.graph is not None


def test_the_graph_of_a_step_is_sound_and_drawn_without_a_fault(make):
    training = make()
    for _ in range(2):
        graph = recorded(training)
        graph.verify()
        found = tbscope.lint(tbscope.to_graph_def(graph))
        # What is told of ranks stands in the box of all modules whose gradients it reads.
        told = {"box-cycle"} if any(node.collective for node in graph.nodes) else set()
        assert {one.rule for one in found} <= told


def test_the_parameters_with_gradients_are_those_of_the_graph(make):
    training = make()
    graph = recorded(training)
    given = Counter(
        node.attributes["gradient_of"]
        for node in graph.nodes
        if "gradient_zeros" in node.attributes
    )
    for model in training.models:
        inner = getattr(model, "module", model)
        known = {name for name, one in inner.named_parameters() if one.grad is not None}
        assert known
        assert {name.removeprefix("module.") for name in given} >= known
    frozen = {
        name
        for model in training.models
        for name, one in model.named_parameters()
        if one.grad is None
    }
    assert not frozen & set(given)


def test_the_kernels_of_a_backward_pass_are_those_that_a_plain_counter_sees(make):
    training, other = make(), make()
    training.step()
    other.step()
    torch.manual_seed(1)
    nodes = backward_nodes(recorded(training))
    shown = Counter(kernel for node in nodes for kernel in node.kernels)
    torch.manual_seed(1)
    with BackwardKernels() as counted:
        other.step()
    # What is done once all of autograd's nodes have run has none of them: DDP's buckets, which
    # stand with what is reduced of them.
    ends = {node.scope for node in nodes if node.collective is not None}
    last = Counter(
        kernel
        for node in nodes
        if str(node.scope) == "gradients" or node.scope in ends
        for kernel in node.kernels
    )
    assert shown - counted.counts <= last + Counter({"aten::detach": 1})
    assert counted.counts - shown <= Counter({"aten::detach": 1})
    assert sum(counted.counts.values()) > 5


def test_almost_every_gradient_stands_where_its_operation_mirrors_it(make):
    graph = recorded(make())
    forward = {
        "/".join(part.partition(".")[0] for part in str(node.scope).split("/"))
        for node in graph.nodes
        if node.phase == "forward" and node.scope is not None
    }
    nodes = [node for node in backward_nodes(graph) if "recomputed" not in str(node.scope)]
    strays = []
    for node in nodes:
        path = str(node.scope).split("/")[1:]
        plain = "/".join(part.partition(".")[0] for part in path)
        if plain not in forward and path:
            strays.append(str(node.scope))
    assert len(nodes) > 10
    assert strays == []


class Numbered(TorchDispatchMode):
    """Notes for each kernel of autograd's engine the module whose operation it differentiates.

    A module's operations have the numbers that autograd gave between the beginning of its call
    and the end, as its hooks tell.
    """

    def __init__(self, model):
        super().__init__()
        self.ran, self._calls, self._begun = [], [], []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._begin, name))
            module.register_forward_hook(self._end)

    def _begin(self, name, *_):
        self._begun.append((sequence_number(), name))

    def _end(self, *_):
        begun, name = self._begun.pop()
        self._calls.append((begun, sequence_number(), name))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        node = torch._C._current_autograd_node()
        if node is not None and not hasattr(node, "variable"):
            number = node._sequence_nr()
            # Inner calls end first.
            inside = [name for begun, end, name in self._calls if begun <= number < end]
            self.ran.append((func.name().partition(".")[0], inside[0] if inside else None))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["ResNet", "BERT", "GPT-2", "LSTM, packed", "LoRA"])
def test_each_gradient_stands_in_the_module_that_autograds_numbers_tell(name):
    training, other = TRAININGS[name](), TRAININGS[name]()
    torch.manual_seed(1)
    graph = recorded(training)
    modules = {f"gradients/{call.scope}": call.qualified_name for call in graph.calls}

    def module_of(scope):
        while scope is not None and str(scope) not in modules:
            scope = scope.parent
        return None if scope is None else modules[str(scope)]

    told = [
        (kernel, module_of(node.scope))
        for node in backward_nodes(graph)
        if "gradient_of" not in node.attributes
        for kernel in node.kernels
    ]
    torch.manual_seed(1)
    with Numbered(other.model) as numbered:
        other.step()
    assert [kernel for kernel, _ in told] == [kernel for kernel, _ in numbered.ran]
    same_place = [one == another for one, another in zip(told, numbered.ran, strict=True)]
    assert sum(same_place) >= 0.98 * len(told)
    assert len({place for _, place in told}) > 2
