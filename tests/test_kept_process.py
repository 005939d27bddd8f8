"""What forward does to the process: after a trace its settings and tables are as they were."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from versions import needs_torch

import tbscope
from tbscope.sources.torch.compat.modules import set_default_device

X = torch.ones(1, 2)
backends = torch.backends


class Doing(nn.Module):
    """Does something in forward that has nothing to do with its output."""

    def __init__(self, action):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.action = action

    def forward(self, x):
        y = self.fc(x)
        self.action()
        return y


def draw():
    random.random()
    np.random.rand()  # noqa: NPY002 (the one of the process)
    torch.rand(1)


def set_allow_tf32():
    backends.cudnn.allow_tf32 = not backends.cudnn.allow_tf32


def generator_states():
    of_numpy = np.random.get_state()[1:3]  # noqa: NPY002 (the one of the process)
    return random.getstate(), repr(of_numpy), torch.get_rng_state().tolist()


# By name: what forward does, and what tells that it has done it.
DEEDS = {
    "generators": (draw, generator_states),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "default device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "tf32": (set_allow_tf32, lambda: backends.cudnn.allow_tf32),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.get_deterministic_debug_mode,
    ),
    "hooks of all modules": (
        lambda: nn.modules.module.register_module_forward_hook(lambda *given: None),
        lambda: len(nn.modules.module._global_forward_hooks),
    ),
}

has_new_words = needs_torch(2, 9, reason="precision is told in new words, too")


@pytest.fixture(autouse=True)
def set_back():
    """Whatever a deed does is undone by hand, if a trace should not undo it."""
    yield
    torch.set_default_dtype(torch.float32)
    set_default_device(None)
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "options", [{}, {"grad": True}, {"profile": 1}, {"partial": True}], ids=str
)
@pytest.mark.parametrize("name", DEEDS)
def test_the_process_is_as_it_was(name, options):
    deed, tell = DEEDS[name]
    model = Doing(deed)
    before = tell()
    tbscope.trace(model, X, **options)
    assert tell() == before


@pytest.mark.parametrize("name", ["default dtype", "precision"])
def test_the_process_is_as_it_was_where_forward_raises(name):
    deed, tell = DEEDS[name]

    def fail():
        deed()
        raise ArithmeticError

    before = tell()
    with pytest.raises(tbscope.TraceError):
        tbscope.trace(Doing(fail), X)
    assert tell() == before


@pytest.mark.parametrize("name", DEEDS)
def test_each_deed_would_show(name):
    deed, tell = DEEDS[name]
    seen = []
    model = Doing(lambda: (deed(), seen.append(tell())))
    before = tell()
    tbscope.trace(model, X)
    assert seen != [before]


def test_weights_that_are_computed_once_are_computed_with_gradients_after_a_trace():
    model = weight_norm(nn.Linear(2, 2))
    with parametrize.cached():
        tbscope.trace(model, X)
        model(X).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_weights_that_autocast_keeps_have_gradients_after_a_trace():
    model = nn.Linear(2, 2)
    with torch.autocast("cpu"):
        tbscope.trace(model, X)
        model(X).sum().backward()
    assert model.weight.grad is not None


class Doubling(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(2)
        return super().forward(x)


@pytest.mark.parametrize("grad", [False, True])
def test_weights_that_autocast_keeps_are_those_of_the_model_after_a_trace(grad):
    model = Doubling(2, 2)
    with torch.autocast("cpu"):
        tbscope.trace(model, X, grad=grad)
        after = nn.functional.linear(X, model.weight)
    with torch.autocast("cpu"):
        assert torch.equal(nn.functional.linear(X, model.weight), after)


@has_new_words
def test_a_setting_that_cannot_be_read_is_left_alone():
    backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        tbscope.trace(Doing(lambda: None), X)
        assert backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        backends.cuda.matmul.fp32_precision = "none"
