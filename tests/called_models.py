"""Models that call others with tensors in place of their parameters, by `functional_call`."""

# Each is a function of its own, so that it stands here as its user would write it.
# ruff: noqa: PLW0108
from copy import deepcopy

import torch
from cases import add, adding, adding_to_a_module
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    jacfwd,
    jacrev,
    linearize,
    stack_module_state,
    vmap,
)
from torch.nn.utils import parametrizations

torch.manual_seed(0)
X = torch.rand(3, 4) + 0.5
Y = torch.rand(3, 4) + 0.5
ROW = torch.rand(4) + 0.5
CUBE = torch.rand(2, 3, 4) + 0.5
FIXED = torch.rand(4, 4)

OTHERS = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
STACKED = {name: each.detach() for name, each in stack_module_state(OTHERS)[0].items()}
ONES = {name: each.detach() * 2 for name, each in OTHERS[0].named_parameters()}


def loss_of(parameters, x):
    return functional_call(OTHERS[0], parameters, (x,)).pow(2).sum()


add("call of a model elsewhere", lambda p, x: functional_call(OTHERS[0], p, (x,)), ONES, X)
add("call with what is elsewhere", lambda x: functional_call(OTHERS[0], ONES, (x,)), X)
add("grad of a model elsewhere", lambda p, x: grad(loss_of)(p, x), ONES, X)
add("grad with what is elsewhere", lambda x: grad(loss_of)(ONES, x), X)
add("grad per sample", lambda p, x: vmap(grad(loss_of), (None, 0))(p, x), ONES, X)
add("an ensemble", lambda p, x: vmap(lambda q: functional_call(OTHERS[0], q, (x,)))(p), STACKED, X)
add(
    "an ensemble elsewhere",
    lambda x: vmap(lambda q: functional_call(OTHERS[0], q, (x,)))(STACKED),
    X,
)
add(
    "an ensemble of its own batches",
    lambda p, x: vmap(lambda q, y: functional_call(OTHERS[0], q, (y,)))(p, x),
    STACKED,
    X,
)


@adding("a model on meta", STACKED, X)
def _(p, x):
    base = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to("meta")
    return vmap(lambda q: functional_call(base, q, (x,)))(p)


@adding("an ensemble that is held", X)
class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        parameters, buffers = stack_module_state(list(self.nets))
        run = lambda p, b: functional_call(self.nets[0], (p, b), (x,))
        return vmap(run)(parameters, buffers)


@adding("an ensemble on a base", X)
class EnsembleOnBase(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(3)
        )
        self.base = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("meta").eval()]

    def forward(self, x):
        state = stack_module_state(list(self.nets))
        return vmap(lambda *s: functional_call(self.base[0], s, (x,)))(*state)


adding_to_a_module("call of a part with its own", X)(
    lambda self, x: functional_call(
        self.lin, {name: each * 2 for name, each in self.lin.named_parameters()}, (x,)
    )
)
adding_to_a_module("call of a part with what is elsewhere", X)(
    lambda self, x: functional_call(self.lin, {"weight": FIXED, "bias": ROW}, (x,))
)
adding_to_a_module("call of a part with half of it", X)(
    lambda self, x: functional_call(self.lin, {"weight": FIXED}, (x,))
)
adding_to_a_module("grad of parameters", X)(
    lambda self, x: grad(lambda p: functional_call(self.lin, p, (x,)).sin().sum())(
        dict(self.lin.named_parameters())
    )
)
adding_to_a_module("grads per sample of parameters", X)(
    lambda self, x: vmap(
        grad(lambda p, y: functional_call(self.lin, p, (y,)).sin().sum()), in_dims=(None, 0)
    )(dict(self.lin.named_parameters()), x)
)


@adding_to_a_module("two steps of an inner loop", X, Y)
def _(self, x, y):
    parameters = dict(self.lin.named_parameters())
    loss = lambda p: (functional_call(self.lin, p, (x,)) - y).pow(2).sum()
    for _ in range(2):
        slopes = grad(loss)(parameters)
        parameters = {name: each - 0.1 * slopes[name] for name, each in parameters.items()}
    return functional_call(self.lin, parameters, (x,))


@adding_to_a_module("a kernel of tangents", X, Y)
def _(self, x, y):
    parameters = dict(self.lin.named_parameters())
    run = lambda p, z: functional_call(self.lin, p, (z,)).sin()
    one = vmap(jacrev(run), (None, 0))(parameters, x)["weight"].flatten(2)
    two = vmap(jacfwd(run), (None, 0))(parameters, y)["weight"].flatten(2)
    return torch.einsum("nof,mof->nmo", one, two)


@adding_to_a_module("a network of a network", X)
def _(self, x):
    layer = nn.Linear(4, 4, bias=False)
    weights = vmap(lambda r: torch.outer(self.lin(r), r))(x)
    return vmap(lambda w, r: functional_call(layer, {"weight": w}, (r,)))(weights, x)


@adding("running statistics", X)
class RunningStatistics(nn.Sequential):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(4))

    def forward(self, x):
        state = {name: each + 1 for name, each in self.state_dict().items()}
        return functional_call(self[0], {name[2:]: each for name, each in state.items()}, (x,))


@adding("a parameter made in forward", X, ROW)
def _(x, y):
    layer = nn.Linear(4, 4)
    layer.bias = nn.Parameter(y * 2)
    return layer(x)


@adding_to_a_module("a function made of a part", X)
def _(self, x):
    import functorch

    run, parameters = functorch.make_functional(self.lin)
    return run([each * 2 for each in parameters], x)


adding_to_a_module("a copy of a part", X)(lambda self, x: deepcopy(self.lin)(x))


class Normed(nn.Module):
    """A layer whose weight is computed of two others."""

    def __init__(self):
        super().__init__()
        self.lin = parametrizations.weight_norm(nn.Linear(4, 4))


@adding("vmap of a computed weight", X)
class VmapNormed(Normed):
    def forward(self, x):
        return vmap(self.lin)(x)


@adding("call with a computed weight", X)
class CallNormed(Normed):
    def forward(self, x):
        given = {name: each * 2 for name, each in self.lin.named_parameters()}
        return functional_call(self.lin, given, (x,))


@adding("call of what is tied", X)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.pair[1].weight = self.pair[0].weight

    def forward(self, x):
        return functional_call(self.pair, {"0.weight": self.pair[0].weight * 2}, (x,))


@adding_to_a_module("losses and grads per sample", X, Y)
def _(self, x, y):
    loss = lambda p, one, other: (functional_call(self.lin, p, (one,)) - other).pow(2).sum()
    parameters = {name: each.detach() for name, each in self.lin.named_parameters()}
    return vmap(grad_and_value(loss), (None, 0, 0))(parameters, x, y)


@adding_to_a_module("linearize by parameters", X)
def _(self, x):
    parameters = dict(self.lin.named_parameters())
    run = lambda p: functional_call(self.lin, p, (x,)).sin()
    return linearize(run, parameters)[1]({k: torch.ones_like(v) for k, v in parameters.items()})


class Calling(torch.Tensor):
    """Has a module take each sine further."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            given = [each.as_subclass(torch.Tensor) for each in args]
            made = func(*given, **(kwargs or {}))
            return args[0].module(made) if func is torch.sin else made


@adding_to_a_module("an operation that calls a module", X)
def _(self, x):
    x = x.as_subclass(Calling)
    x.module = self.lin
    return torch.sin(x)


MULTIPLIERS = []


@torch.library.custom_op("tbscope_tests::multiplied", mutates_args=())
def multiplied(x: torch.Tensor) -> torch.Tensor:
    return MULTIPLIERS[-1](x)


@adding_to_a_module("an operator of one's own that calls a module", X)
def _(self, x):
    MULTIPLIERS[:] = [self.lin]
    return multiplied(x)
