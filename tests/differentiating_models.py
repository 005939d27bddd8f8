"""Models that run backward passes, and steps of optimizers, in their own forward."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from cases import adding_to_a_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
X = torch.rand(2, 4) + 0.5
LABEL = torch.rand(2, 4)


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def loss_of(self: Any, x: Tensor, label: Tensor) -> Tensor:
    return ((self.lin(x).sin() * self.scale).exp() - label).pow(2).sum()


# -- the gradient of an input ----------------------------------------------------------------


@adding_to_a_module("saliency", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    loss_of(self, x, label).backward()
    return x.grad.abs()


@adding_to_a_module("an attack of one step", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    loss_of(self, x, label).backward()
    return self.lin((x + x.grad * 0.1).detach()) + self.shift


@adding_to_a_module("an attack of several steps", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    found = leaf(x)
    for _ in range(3):
        loss_of(self, found, label).backward()
        with torch.no_grad():
            found += 0.1 * found.grad
            found.grad.zero_()
    return found.detach()


@adding_to_a_module("a walk of several steps", X)
@torch.enable_grad()
def _(self: Any, x: Tensor) -> Any:
    for _ in range(3):
        x = leaf(x)
        (self.lin(x).sin() * self.shift).sum().backward()
        x = x - 0.5 * x.grad + 0.01 * torch.randn(2, 4)
    return x.detach()


@adding_to_a_module("a gradient that is dropped in between", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    loss_of(self, x, label).backward()
    x.grad = None
    self.lin(x).sin().sum().backward()
    return x.grad.clone()


@adding_to_a_module("a pass that is given its gradient", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    self.lin(x).sin().backward(gradient=label * self.shift)
    return x.grad * 2


@adding_to_a_module("a pass of several roots", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    roots = [self.lin(x).sin(), (x * self.scale).exp()]
    torch.autograd.backward(roots, [label, label * 2])
    return x.grad * 2


@adding_to_a_module("a pass for one input", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    loss_of(self, x, label).backward(inputs=[x])
    assert self.scale.grad is None
    return x.grad * 2


@adding_to_a_module("a pass through a pass", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    loss_of(self, x, label).backward(create_graph=True)
    slope = x.grad
    x.grad = None
    (slope.pow(2).sum() * self.shift.sum()).backward()
    return x.grad.clone()


@adding_to_a_module("a pass through a checkpoint", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    inner = checkpoint(lambda y: self.lin(y).sin() * self.scale, x, use_reentrant=False)
    (inner.exp() - label).pow(2).sum().backward()
    return x.grad * 2


@adding_to_a_module("a pass through a checkpoint that begins anew", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    inner = checkpoint(lambda y: self.lin(y).sin() * self.scale, x, use_reentrant=True)
    (inner.exp() - label).pow(2).sum().backward()
    return x.grad * 2


# -- the gradient of what a part gives -------------------------------------------------------


@adding_to_a_module("a gradient that a hook of a tensor keeps", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    seen: list[Tensor] = []
    features = self.lin(x).sin()
    features.register_hook(seen.append)
    ((features * self.scale).exp() - label).pow(2).sum().backward()
    return torch.relu(seen[0].mean(0) * features).detach()


@adding_to_a_module("a gradient that a tensor retains", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    features = self.lin(x).sin()
    features.retain_grad()
    ((features * self.scale).exp() - label).pow(2).sum().backward()
    return (features.grad.mean(0) * features).detach()


@adding_to_a_module("gradients that hooks of a module keep", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    seen: list[Tensor] = []
    hooks = [
        self.lin.register_full_backward_hook(lambda module, given, got: seen.append(given[0])),
        self.lin.register_full_backward_pre_hook(lambda module, got: seen.append(got[0])),
    ]
    loss_of(self, leaf(x), label).backward()
    for hook in hooks:
        hook.remove()
    return {"before": seen[0], "after": seen[1]}


@adding_to_a_module("a hook that changes a gradient", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    features = self.lin(x).sin()
    features.register_hook(lambda gradient: gradient * self.shift * label)
    (features * self.scale).exp().sum().backward()
    return x.grad * 2


@adding_to_a_module("a hook of an accumulated gradient", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    seen: list[Tensor] = []
    x = leaf(x)
    x.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad * self.shift))
    loss_of(self, x, label).backward()
    return seen[0] * 2


class Weighing(torch.autograd.Function):
    """Multiplies by two, and the gradient by what forward was given and does not read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0], None


@adding_to_a_module("a function that weighs its gradient", X, LABEL, may=["x"])
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    Weighing.apply(x, label * self.shift).sum().backward()
    return x.grad + 1


@adding_to_a_module("a pass in another thread", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    loss = loss_of(self, x, label)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loss.backward).result()
    return x.grad * 2


@adding_to_a_module("the gradient of a root", X, may=["x", "lin.weight", "lin.bias"])
@torch.enable_grad()
def _(self: Any, x: Tensor) -> Any:
    seen: list[Tensor] = []
    loss = self.lin(x).sum()
    loss.register_hook(lambda gradient: seen.append(gradient * self.shift))
    loss.backward()
    return seen[0]


# -- the gradients of parameters -------------------------------------------------------------


@adding_to_a_module("gradients that add up", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    self.zero_grad()
    loss_of(self, x, x).backward()
    (self.lin(x) * label).exp().sum().backward()
    return self.lin.weight.grad * self.shift


@adding_to_a_module("gradients that add up, and can be differentiated", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    weight = leaf(self.lin.weight)
    (x @ weight * self.shift).exp().sum().backward(create_graph=True)
    (x @ weight * label).exp().sum().backward(create_graph=True)
    gradient, weight.grad = weight.grad, None
    return gradient.detach() * 2


@adding_to_a_module("a gradient in a part, of a pass outside", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    class Reads(nn.Module):
        def forward(self, y: Tensor, weight: Tensor) -> Tensor:
            return y * weight.grad.mean()

    loss_of(self, x, label).backward()
    return Reads()(self.shift * 2, self.lin.weight)


@adding_to_a_module("a pass in a part, a gradient outside", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    class Runs(nn.Module):
        def forward(self, loss: Tensor) -> None:
            loss.backward()

    Runs()(loss_of(self, x, label))
    return self.lin.weight.grad * 2


@adding_to_a_module("a view of a gradient to which is added", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    (x * self.scale).exp().sum().backward()
    flat = x.grad.view(-1)
    (self.lin(x).exp() * label).sum().backward()
    return flat * 2


@adding_to_a_module("a gradient that is added up for long", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    for number in range(20):
        (self.lin(x * number).sin() * self.scale).sum().backward()
    return self.lin.weight.grad * label.sum()


@adding_to_a_module("a gradient that was set", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    x = leaf(x)
    x.grad = torch.zeros_like(x) + self.shift
    loss_of(self, x, label).backward()
    return x.grad.clone()


@adding_to_a_module("gradients that are clipped", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    loss_of(self, x, label).backward()
    torch.nn.utils.clip_grad_norm_(self.lin.parameters(), 0.1)
    return self.lin.bias.grad * self.shift


# -- steps -----------------------------------------------------------------------------------


def tune(self: Any, x: Tensor, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        (self.lin(x) - x).pow(2).sum().mul(self.scale.sum()).backward()
        optimizer.step()


@adding_to_a_module("a step of SGD", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    tune(self, label, torch.optim.SGD(self.lin.parameters(), lr=0.1, momentum=0.9), 2)
    return self.lin(x).detach()


@adding_to_a_module("a step of Adam", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    tune(self, label, torch.optim.Adam(self.lin.parameters(), lr=0.1, foreach=True), 2)
    return self.lin(x).detach()


@adding_to_a_module("a step by hand", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    loss_of(self, x, label).backward()
    with torch.no_grad():
        for each in self.lin.parameters():
            each.sub_(0.01 * each.grad)
            each.grad = None
    return self.lin(self.shift).detach()


@adding_to_a_module("a step by hand into the data", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    loss_of(self, x, label).backward()
    for each in self.lin.parameters():
        each.data -= 0.01 * each.grad
    return self.lin(self.shift).detach()


@adding_to_a_module("an average of what is tuned", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    average = copy.deepcopy(self.lin)
    tune(self, label, torch.optim.SGD(self.lin.parameters(), lr=0.1))
    with torch.no_grad():
        for kept, learnt in zip(average.parameters(), self.lin.parameters(), strict=True):
            kept.mul_(0.9).add_(learnt, alpha=0.1)
    return average(x).detach()


@adding_to_a_module("steps in the pass", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in self.lin.parameters()}
    hooks = [
        each.register_post_accumulate_grad_hook(lambda one: optimizers[one].step())
        for each in optimizers
    ]
    loss_of(self, label, self.shift).backward()
    for hook in hooks:
        hook.remove()
    return self.lin(x).detach()


@adding_to_a_module("a step with a closure", X, LABEL)
@torch.enable_grad()
def _(self: Any, x: Tensor, label: Tensor) -> Any:
    optimizer = torch.optim.LBFGS(self.lin.parameters(), lr=0.01, max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (self.lin(label) - label).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return self.lin(x).detach()
