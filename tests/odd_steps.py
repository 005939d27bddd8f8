"""Training steps that few write and strangers try: each a model and its step, by name."""

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from training_steps import POINTS, Net, squares

import tbscope


class Sorted(torch.autograd.Function):
    """Gives a result that has no gradient, too, and cannot be differentiated twice."""

    @staticmethod
    def forward(ctx, x, factor):
        y, order = x.sort(dim=1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        ctx.factor = factor
        return y * factor, order

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter_(1, order, gradient * ctx.factor), None


class AddedInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.add_(1))
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


class WithFunctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        y, order = Sorted.apply(self.a(x), 2.0)
        return self.c(y + Cubed.apply(AddedInPlace.apply(self.b(x)))) + order.float().mean()


class Helped(nn.Module):
    """Calls the parts of a part that it never calls itself, one of them checkpointed."""

    def __init__(self, reentrant):
        super().__init__()
        self.net, self.reentrant = Net(), reentrant

    def forward(self, x):
        x = torch.relu(self.net.inp(x))
        block = checkpoint(self.net.blocks[0], x, use_reentrant=self.reentrant)
        return self.net.head(block)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)

    def inner(self, x):
        return torch.sigmoid(self.b(x))

    def outer(self, x):
        return checkpoint(self.inner, torch.tanh(self.a(x)), use_reentrant=False) + x

    def forward(self, x):
        return self.head(checkpoint(self.outer, x, use_reentrant=False))


class InParts(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.net = nn.Sequential(*layers)

    def forward(self, x):
        return checkpoint_sequential(self.net, 2, x, use_reentrant=False)


class Force(nn.Module):
    """Gives what the gradient of an energy is, which is differentiated again."""

    def __init__(self):
        super().__init__()
        self.energy, self.out = nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.energy(x).tanh().sum()
            (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
        return self.out(-gradient)


class CheckpointedForce(nn.Module):
    """Differentiates a checkpointed part in forward, where parts of a running module run again."""

    def __init__(self):
        super().__init__()
        self.parts, self.out = nn.ModuleList([nn.Linear(3, 1)]), nn.Linear(3, 2)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = checkpoint(self.parts[0], x, use_reentrant=False).tanh().sum()
            (gradient,) = torch.autograd.grad(energy, x)
        return self.out(x - gradient)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = self.a(x)
        y[:, 0] *= 2
        y[:, 1:3].add_(1)
        first, second = y.clone().relu_().chunk(2, 1)
        return self.b(torch.cat([second, first], 1))


def double(parameter):
    parameter.grad.mul_(2)


def hooked():
    model = Net()
    model.inp.register_full_backward_hook(lambda module, given, gave: None)
    model.blocks[0].register_full_backward_pre_hook(lambda module, gave: (gave[0] * 2,))
    model.head.register_full_backward_hook(lambda module, given, gave: (given[0].clamp(-1, 1),))
    return model


def with_all_hooks(model):
    hooks = (
        model.inp.weight.register_hook(lambda gradient: gradient * 0.5),
        model.head.bias.register_post_accumulate_grad_hook(double),
    )
    y = model(POINTS.clone().requires_grad_())
    y.retain_grad()
    y.pow(2).mean().backward()
    for hook in hooks:
        hook.remove()


def with_a_hook_that_opens_scopes(model):
    def times_two(gradient):
        with tbscope.scope("penalty"):
            return gradient * 2

    with tbscope.scope("penalty"):
        y = model(POINTS) * 3
    y.register_hook(times_two)
    y.exp().sum().backward()


def many_roots(model):
    y = model(POINTS)
    torch.autograd.backward([y[:, 0], y[:, 1]], [torch.ones(5), torch.full((5,), 2.0)])


def saved_elsewhere(model):
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda tensor: tensor.clone(), lambda tensor: tensor * 1.0):
        loss = model(POINTS).pow(2).mean()
    loss.backward()


def some_inputs(model):
    model(POINTS).sum().backward(inputs=list(model.head.parameters()))


def two_losses(model):
    y = model(POINTS)
    y[:, 0].mean().backward(retain_graph=True)
    y[:, 1].pow(2).mean().backward()


def inner_loop(model):
    """Train as MAML does: through a step of its own."""
    held = dict(model.named_parameters())
    loss = torch.func.functional_call(model, held, (POINTS,)).pow(2).mean()
    gradients = torch.autograd.grad(loss, list(held.values()), create_graph=True)
    moved = {name: one - 0.1 * g for (name, one), g in zip(held.items(), gradients, strict=True)}
    torch.func.functional_call(model, moved, (POINTS + 1,)).pow(2).mean().backward()


def jacobian(model):
    rows = torch.autograd.functional.jacobian(lambda x: model(x).sum(1), POINTS, create_graph=True)
    rows.pow(2).sum().backward()


def smooth():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


ODD = {
    "own functions of all kinds": (WithFunctions, squares),
    "a checkpoint amid parts of a part": (lambda: Helped(reentrant=False), squares),
    "a reentrant checkpoint amid parts of a part": (lambda: Helped(reentrant=True), squares),
    "a checkpoint in a checkpoint": (Nested, squares),
    "checkpoints of a sequence": (InParts, squares),
    "a gradient in forward": (Force, squares),
    "a checkpoint in a gradient in forward": (CheckpointedForce, squares),
    "a hook that opens a scope": (smooth, with_a_hook_that_opens_scopes),
    "writes into views": (InPlace, squares),
    "hooks of all kinds": (hooked, with_all_hooks),
    "many roots": (Net, many_roots),
    "saved elsewhere": (Net, saved_elsewhere),
    "some parameters": (Net, some_inputs),
    "two losses": (Net, two_losses),
    "a step through a step": (smooth, inner_loop),
    "jacobian": (smooth, jacobian),
    "parametrized": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh()),
        squares,
    ),
}
"""A model and its step, by name."""
