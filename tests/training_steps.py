"""Models with their training steps, and a plain count of what autograd runs in them."""

from collections import Counter

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tbscope


class BackwardKernels(TorchDispatchMode):
    """Counts the kernels that run for a node of autograd's graph."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch._C._current_autograd_node() is not None:
            self.counts[func.name().partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return x + torch.relu(self.fc(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2)
        self.reentrant = reentrant

    def forward(self, x):
        return self.b(checkpoint(self.a, x, use_reentrant=self.reentrant))


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y + x * 0


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return Exp.apply(self.fc(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def conv():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 9, 2)),
    )


POINTS = torch.linspace(-1, 1, 15).reshape(5, 3)
IMAGES, TARGETS = torch.linspace(-1, 1, 768).reshape(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
TOKENS, SEQUENCES = torch.tensor([1, 2, 3]), torch.linspace(-1, 1, 80).reshape(2, 5, 8)


def loss_of(model, points=POINTS):
    return model(points).pow(2).mean()


def closure_of(model, optimizer):
    """Give the closure that an optimizer calls for the loss, with gradients anew."""

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    return closure


def squares(model):
    loss_of(model).backward()


def classes(model):
    nn.functional.cross_entropy(model(IMAGES), TARGETS).backward()


def with_input_gradient(model):
    model(POINTS.clone().requires_grad_()).sum().backward()


def twice(model):
    model(POINTS).sum().backward()
    model(POINTS).sum().backward()


def retained(model):
    loss = model(POINTS).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def with_hooks(model):
    y = model(POINTS)
    y.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()


def penalty(model):
    points = POINTS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
    (gradient.norm() - 1).pow(2).backward()


def mixed(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(POINTS).float().sum()
    loss.backward()


def packed(model):
    whole = nn.utils.rnn.pack_padded_sequence(SEQUENCES[..., :3], [5, 3], batch_first=True)
    model(whole)[0].data.sum().backward()


STEPS = {
    "blocks": (Net, squares),
    "convolutions": (conv, classes),
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True), packed),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        lambda model: model(SEQUENCES).sum().backward(),
    ),
    "checkpoint": (lambda: Checkpointed(reentrant=False), with_input_gradient),
    "reentrant checkpoint": (lambda: Checkpointed(reentrant=True), with_input_gradient),
    "own function": (WithFunction, squares),
    "tied": (Tied, lambda model: model(TOKENS).sum().backward()),
    "accumulation": (Net, twice),
    "retained": (Net, retained),
    "hooks": (Net, with_hooks),
    "double backward": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        penalty,
    ),
    "autocast": (Net, mixed),
}
"""A model and its step, by name."""


def made(name):
    """Give the model and the step of this name; the model is the same each time."""
    from odd_steps import ODD

    torch.manual_seed(0)
    model, step = (STEPS | ODD)[name]
    return model(), step


def recorded(model, step, **named):
    """Give the graph of a step."""
    with tbscope.record(model, **named) as recording:
        step(model)
    return recording.graph


def backward_nodes(graph):
    return [node for node in graph.nodes if node.phase == "backward"]


def gradients_of(graph):
    """Give the names of the tensors whose gradients a graph shows."""
    return [
        node.attributes["gradient_of"] for node in graph.nodes if "gradient_of" in node.attributes
    ]
