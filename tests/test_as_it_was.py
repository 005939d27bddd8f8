"""A law: whatever is drawn, in whatever mode and wherever it fails, trains on as if it were not.

Two models are made alike. One is drawn, the other one is not; both are then told apart in
nothing, and trained to the same weights.
"""

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweeps import counted
from torch import nn
from torch.ao.quantization import FakeQuantize, quantize_dynamic
from torch.nn.utils import parametrizations, prune
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import tbscope
from tests.kept_things import THINGS

WIDTH = 4
X = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)


class Counting(nn.Module):
    """Changes all that a module has of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.steps = 0
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.seen.append(x)
        self.mean.mul_(0.9).add_(x.detach().mean(0))
        return self.fc(x) + self.mean * self.steps + len(self.seen)


class Scripted(nn.Module):
    """What TorchScript holds by itself."""

    steps: int
    seen: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.last = torch.zeros(WIDTH)
        self.steps = 0
        self.seen = [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.seen.append(self.steps)
        self.mean = self.mean * 0.9 + x.detach().mean(0)
        self.last.add_(1)
        return self.fc(x) + self.mean * self.steps + self.last + len(self.seen)


class Drawing(nn.Module):
    """Draws from every generator."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(0)
        self.of_numpy = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(WIDTH, generator=self.own) + torch.rand(WIDTH)
        return x + noise * (random.random() + self.of_numpy.random())


class Around(nn.Module):
    """Runs something around a layer."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.inner, x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH)
        self.state = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, state = self.rnn(x, self.state)
        self.state = state.detach()
        return y


class Holding(nn.Module):
    """Holds things of other packages, and changes them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.held = [THINGS[name][0]() for name in names]
        self.change = [THINGS[name][1] for name in names]
        self.names = names

    def told(self) -> list[str]:
        pairs = zip(self.names, self.held, strict=True)
        return [repr(THINGS[name][2](held)) for name, held in pairs]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for change, held in zip(self.change, self.held, strict=True):
            change(held)
        return x * 2


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def hooked() -> nn.Module:
    layer = linear()
    layer.calls = []
    layer.register_forward_pre_hook(lambda module, args: module.calls.append(args))
    layer.register_forward_hook(lambda module, args, out: out + len(module.calls))
    return layer


def remembered(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Let a layer's weight get a hook on its gradient, and an attribute."""
    if layer.weight.requires_grad:
        layer.weight.register_hook(lambda gradient: gradient * 2)
    layer.weight.calls = getattr(layer.weight, "calls", 0) + 1
    return layer(x) * layer.weight.calls


def own_gradient(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Run a backward pass of its own, where gradients are recorded."""
    y = layer(x)
    if y.requires_grad:
        y.sum().backward(retain_graph=True)
    return y


# One line for each kind of module; what it takes and gives has the shape of X.
KINDS: dict[str, Any] = {
    "linear": linear,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "in place": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True)),
    "transformer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 4, batch_first=True),
    "recurrent": Recurrent,
    "weight norm": lambda: parametrizations.weight_norm(linear()),
    "spectral norm": lambda: parametrizations.spectral_norm(linear()),
    "orthogonal": lambda: parametrizations.orthogonal(linear()),
    "older spectral norm": lambda: nn.utils.spectral_norm(linear()),
    "pruned": lambda: prune.random_unstructured(linear(), "weight", 0.5),
    "lazy": lambda: nn.LazyLinear(WIDTH),
    "lazy norm": nn.LazyBatchNorm1d,
    "scripted": lambda: torch.jit.script(Scripted()),
    "scripted norm": lambda: torch.jit.script(nn.BatchNorm1d(WIDTH)),
    "recorded": lambda: torch.jit.trace(nn.BatchNorm1d(WIDTH).eval(), X),
    "quantised": lambda: quantize_dynamic(nn.Sequential(linear()), {nn.Linear}),
    "quantised in training": lambda: nn.Sequential(linear(), FakeQuantize()),
    "checkpointed": lambda: Around(lambda layer, x: checkpoint(layer, x, use_reentrant=False)),
    "hooked": hooked,
    "with hooks on gradients": lambda: Around(remembered),
    "with gradients of its own": lambda: Around(own_gradient),
    "counting": Counting,
    "drawing": Drawing,
    "holding": lambda: Holding(["DynamicCache", "objects five deep", "array", "slots"]),
    "holding more": lambda: Holding(["set", "UserDict", "frozen set", "hidden module"]),
}
MODES = st.fixed_dictionaries(
    {},
    optional={
        "training": st.sampled_from([True, None]),
        "grad": st.just(True),
        "partial": st.just(True),
        "kernels": st.just(True),
        "fake": st.just(True),
        "profile": st.just(1),
    },
).filter(lambda mode: not ("fake" in mode and "profile" in mode))


class Fuse(TorchFunctionMode):
    """Raises at an operation by its number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if self.left == 0:
            raise ArithmeticError
        self.left -= 1
        return function(*args, **(kwargs or {}))


class Whole(nn.Module):
    """Runs its parts one after the other, some of them twice."""

    def __init__(self, parts: list[nn.Module], again: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.last = linear()
        self.again = again
        self.fuse: int | None = None

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for part in [*self.parts, *self.parts[: 1 if self.again else 0]]:
            x = torch.tanh(part(x * 1))
        return self.last(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fuse is None:
            return self.run(x)
        with Fuse(self.fuse):
            return self.run(x)


def made(kinds: list[str], again: bool) -> Whole:
    torch.manual_seed(0)
    whole = Whole([KINDS[kind]() for kind in kinds], again)
    # Each part in a mode of its own.
    for at, part in enumerate(whole.parts):
        part.train(at % 2 == 0)
    return whole


def seed() -> None:
    torch.manual_seed(1)
    random.seed(1)


def train(model: nn.Module) -> list[float]:
    """Train a model in the modes that its modules stand in; return its losses."""
    seed()
    optimizer, losses = None, []
    for _ in range(2):
        loss = (model(X) ** 2).mean()
        # Lazy parameters are there only now.
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def told(model: nn.Module) -> list[Any]:
    """Return what tells a model, its modes and the generators from others."""
    lines: list[Any] = [torch.get_rng_state().tolist(), random.getstate()]
    for name, module in model.named_modules():
        lines.append((name, type(module).__name__, module.training, sorted(vars(module))))
        if isinstance(module, Counting | Holding):
            lines.append(module.told() if isinstance(module, Holding) else len(module.seen))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            lazy = isinstance(tensor, nn.parameter.UninitializedTensorMixin)
            lines.append(None if tensor is None or lazy else tensor.tolist())
            lines.append(None if tensor is None or tensor.grad is None else tensor.grad.tolist())
    return lines


def check(kinds: list[str], mode: dict[str, Any], *, again: bool, fuse: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn, other = made(kinds, again), made(kinds, again)
        seed()
        before = told(drawn)
        drawn.fuse = fuse
        try:
            tbscope.trace(drawn, X, **mode)
        except tbscope.TraceError:
            # With a fuse it must, on stand-ins it may; each time all is as before.
            assert fuse is not None or "fake" in mode
        drawn.fuse = None
        assert told(drawn) == before
        assert train(drawn) == train(other)
        assert told(drawn) == told(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "mode",
    [{}, {"training": True, "grad": True}, {"fake": True}, {"profile": 1, "training": None}],
    ids=str,
)
def test_each_kind_trains_on_as_if_it_was_not_drawn(kind, mode):
    check([kind], mode, again=False, fuse=None)


@settings(
    max_examples=counted(40, 16),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4),
    mode=MODES,
    again=st.booleans(),
    fuse=st.none() | st.integers(0, 12),
)
def test_a_model_trains_on_as_if_it_was_not_drawn(kinds, mode, again, fuse):
    check(kinds, mode, again=again, fuse=fuse)
