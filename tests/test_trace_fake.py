"""`tbscope.trace(..., fake=True)`: shapes without weights or compute."""

import functools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

import tbscope


def shapes(graph):
    return [
        (node.op, [(value.shape, value.dtype, value.device) for value in node.outputs])
        for node in graph.nodes
    ]


def test_a_fake_run_gives_the_graph_of_a_real_one():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    x = torch.randn(2, 3, 8, 8)
    real, fake = tbscope.trace(net, x), tbscope.trace(net, x, fake=True)
    fake.verify()
    assert shapes(fake) == shapes(real)
    assert str(fake) == str(real)


def test_nothing_is_computed_and_nothing_changes():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    held = dict(net.named_parameters())
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x = torch.full((2, 3), float("nan"))
    tbscope.trace(net, x, training=True, fake=True)
    assert all(net.get_parameter(name) is parameter for name, parameter in held.items())
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, state[name]), name


def test_memory_is_not_taken_for_what_would_be_large():
    net = nn.Sequential(nn.Linear(8, 8))
    graph = tbscope.trace(
        lambda x: net(x).expand(10**6, 10**6, 8).contiguous(), torch.randn(1, 8), fake=True
    )
    assert graph.outputs[0].value.shape == (10**6, 10**6, 8)


def test_tied_weights_stay_tied():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    graph = tbscope.trace(net, torch.randn(1, 2), fake=True)
    assert [node.name for node in graph.nodes if node.kind == "parameter"] == ["0.weight"]


def test_a_model_that_decides_on_values_says_so():
    with pytest.raises(tbscope.TraceError) as error:
        tbscope.trace(lambda x: x if x.sum() > 0 else -x, torch.randn(2), fake=True)
    assert error.value.fix == (
        "the model decides on the values of tensors, and fake=True has none: pass fake=False, "
        "on the device meta after model.to_empty(device='cpu')"
    )


class Casts(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(x.float().to(torch.float32).contiguous().mul(2)).to("cpu")


@pytest.mark.parametrize("training", [False, True])
def test_what_a_real_run_leaves_out_a_fake_one_does_too(training):
    net, x = Casts(), torch.randn(2, 3)
    fake = tbscope.trace(net, x, training=training, fake=True)
    assert str(fake) == str(tbscope.trace(net, x, training=training))
    assert [node.op for node in fake.nodes] == ["input", "mul", "Dropout"]


def test_a_failure_on_stand_ins_says_how_to_run_without_them():
    with pytest.raises(tbscope.TraceError) as error:
        tbscope.trace(lambda x: x.nonzero(), torch.ones(2), fake=True)
    assert error.value.fix == (
        "pass fake=False if the model runs when called by itself: not every operation tells "
        "its result's shape without values"
    )


def test_a_failure_on_stand_ins_is_told_once(logged):
    with pytest.raises(tbscope.TraceError, match="must have same reduction dim"):
        tbscope.trace(nn.Linear(4, 4), torch.ones(2, 5), fake=True)
    assert logged == []


def lazy_net():
    return nn.Sequential(
        *(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3, bias=False))
    )


@pytest.mark.parametrize("training", [False, True])
def test_lazy_modules_run_on_stand_ins_too(training):
    net, x = lazy_net(), torch.randn(2, 3, 8, 8)
    fake = tbscope.trace(net, x, fake=True, training=training)
    fake.verify()
    assert str(fake) == str(tbscope.trace(net, x, training=training))
    assert fake.find("3.weight").kind == "parameter"
    assert [call.parameters for call in fake.calls][4][0].shape == (3, 144)


def test_lazy_modules_are_as_lazy_as_before_a_fake_run():
    net, x = lazy_net(), torch.randn(2, 3, 8, 8)
    held = dict(net.named_parameters(remove_duplicate=False))
    tbscope.trace(net, x, fake=True)
    assert dict(net.named_parameters(remove_duplicate=False)).keys() == held.keys()
    assert all(net.get_parameter(name) is parameter for name, parameter in held.items())
    assert all(isinstance(each, nn.UninitializedParameter) for each in held.values())
    assert type(net[3]) is nn.LazyLinear
    assert net(x).shape == (2, 3)
    assert net[0].weight.shape == (4, 3, 3, 3)


class Plain(nn.Module):
    """Has a parameter, a buffer and a layer, and does something with them in forward."""

    def __init__(self, act):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.layer = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.same = nn.Identity()
        self.act = act

    def forward(self, x):
        return self.act(self, x)


class Product(torch.autograd.Function):
    """A user's own product of matrices."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


def differentiate(model, x):
    with torch.enable_grad():
        Product.apply(model.layer(x), model.weight).sum().backward()
    return x @ model.weight.grad + model.layer.weight.grad.sum()


def write(model, x):
    model.weight.data.mul_(2)
    model.seen.add_(1)
    model.seen = model.seen * 2
    return x @ model.weight, model.weight, model.seen


def replace(model, x):
    model.weight.data = torch.cat([model.weight, model.weight], 1)
    model.layer.weight.requires_grad_(False)
    return model.layer(x) @ model.weight


def look_at_gradient(model, x):
    gradient = model.weight.grad
    return x if gradient is None else x @ gradient


def hand_over(model, x):
    return model.layer(model.weight) + model.layer(x)[0]


def pass_on(model, x):
    return x @ model.same(model.weight), model.same(model.seen)


@pytest.mark.parametrize(
    "act", [differentiate, look_at_gradient, write, replace, hand_over, pass_on]
)
@pytest.mark.parametrize("had", [None, torch.ones(3, 3)], ids=["no gradient", "gradient"])
@pytest.mark.parametrize("options", [{}, {"grad": True}, {"training": True}], ids=str)
def test_what_a_model_does_with_its_own_tensors_is_drawn_and_not_done(act, had, options):
    model, x = Plain(act), torch.randn(2, 3)
    model.weight.grad = model.layer.weight.grad = had
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fake = tbscope.trace(model, x, fake=True, **options)
    assert model.weight.grad is model.layer.weight.grad is had
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert str(fake) == str(tbscope.trace(model, x, **options))


@pytest.mark.parametrize("inside", [False, True], ids=["whole", "inside"])
def test_a_scripted_model_has_its_own_tensors_during_and_after_a_fake_run(inside):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    model, x = nn.Sequential(scripted, nn.Linear(3, 3)) if inside else scripted, torch.randn(2, 3)
    wanted = model(x)
    assert str(tbscope.trace(model, x, fake=True)) == str(tbscope.trace(model, x))
    assert torch.equal(model(x), wanted)


def test_a_module_that_nobody_registers_has_stand_ins_too():
    layer, x = nn.Linear(3, 3), torch.randn(2, 3)

    def run(x):
        y = layer(x)
        layer.weight.data = torch.cat([layer.weight, layer.weight])
        return y, torch.nn.functional.linear(x, layer.weight)

    assert tbscope.trace(run, x, fake=True).outputs[1].value.shape == (2, 6)
    assert layer.weight.shape == (3, 3)


def test_modules_hold_their_own_tensors_while_stand_ins_run():
    held = []

    def look(model, x):
        held.extend([model.weight, model._buffers["seen"], *model.layer._parameters.values()])
        return model.layer(x)

    model = Plain(look)
    tbscope.trace(model, torch.randn(2, 3), fake=True)
    own = [model.weight, model.seen, model.layer.weight, model.layer.bias]
    assert all(one is other for one, other in zip(held, own, strict=True))


def test_figures_of_a_symbolic_size_are_those_of_the_size_that_it_stands_for():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.ones(5, 3), symbolic_context=sizes)
    assert type(x.shape[0]) is torch.SymInt
    with mode:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    graph = tbscope.trace(model, x)
    plain = tbscope.trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.ones(5, 3))
    assert str(graph.summary()) == str(plain.summary())
    for node, other in zip(graph.nodes, plain.nodes, strict=True):
        told = node.flops, node.allocated_bytes, node.gradients
        assert told == (other.flops, other.allocated_bytes, other.gradients)
        assert type(node.flops) in (int, type(None))


def test_no_stand_in_stays_in_a_cache_of_a_function():
    # Made here: the collector, which knows the caches, is kept from what was there before tests.
    @functools.lru_cache
    def positions(size):
        return torch.arange(size)

    @functools.cache
    def pairs(size):
        return [(torch.ones(size), size)]

    class Remembering(nn.Module):
        @functools.lru_cache  # noqa: B019 (what models do)
        def mask(self, size):
            return torch.ones(size)

        def forward(self, x):
            return x * self.mask(2) + positions(2) + pairs(2)[0][0]

    model, x = Remembering(), torch.ones(2)
    tbscope.trace(model, x, fake=True)
    assert type(model(x)) is torch.Tensor
    tbscope.trace(model, x)
    infos = [cache.cache_info() for cache in (positions, pairs, Remembering.mask)]
    assert [(info.hits, info.misses) for info in infos] == [(1, 1)] * 3


def test_a_cache_that_remembers_a_list_which_contains_itself_is_left():
    @functools.cache
    def ring():
        entries = [1]
        entries.append(entries)
        return entries

    entries = ring()
    tbscope.trace(nn.Linear(2, 2), torch.ones(1, 2), fake=True)
    assert ring() is entries


@pytest.mark.parametrize("maxsize", [None, 5000])
def test_a_stand_in_is_found_among_many_results_and_no_data_set_is_walked(maxsize):
    looked = []

    class Data(list):
        def __iter__(self):
            for entry in super().__iter__():
                looked.append(entry)
                yield entry

    @functools.lru_cache(maxsize)
    def data(size):
        return Data(range(size))

    @functools.lru_cache(maxsize)
    def positions(size):
        return torch.zeros(size)

    class Net(nn.Module):
        def forward(self, x):
            return x + positions(2)

    data(10_000)
    for size in range(3, 2000):
        positions(size)
    tbscope.trace(Net(), torch.ones(2), fake=True)
    assert type(positions(2)) is torch.Tensor
    assert 0 < len(looked) < 1000
