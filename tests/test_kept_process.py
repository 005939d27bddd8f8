"""What forward does to the process: after a trace its settings and tables are as they were."""

import functools
import gc
import logging
import operator
import os
import random
import sys
import warnings

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


def environment():
    os.environ["TBSCOPE_NEW"] = "1"
    os.environ["TBSCOPE_OLD"] = "2"
    os.environ.pop("TBSCOPE_GONE", None)


def draw():
    random.random()
    np.random.rand()  # noqa: NPY002 (the one of the process)
    torch.rand(1)


def set_allow_tf32():
    backends.cudnn.allow_tf32 = not backends.cudnn.allow_tf32


def set_older_words_alone():
    torch.set_float32_matmul_precision("medium")
    for words in (backends.cuda.matmul, backends.mkldnn.matmul):
        # As it was; the older words, when they are put back, set it again.
        words.fp32_precision = "none"


def printing():
    return repr(torch.tensor([1.23456789]))


def generator_states():
    of_numpy = np.random.get_state()[1:3]  # noqa: NPY002 (the one of the process)
    return random.getstate(), repr(of_numpy), torch.get_rng_state().tolist()


def in_new_words(path):
    """Give the precision of a part of `torch.backends`; None where this torch has no such words."""
    owner = functools.reduce(lambda held, name: getattr(held, name, None), path.split("."), torch)
    return getattr(owner, "fp32_precision", None)


def precisions():
    parts = ("backends", "backends.cuda.matmul", "backends.mkldnn.matmul")
    return torch.get_float32_matmul_precision(), *map(in_new_words, parts)


PRECISIONS = (
    *("cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn"),
    *("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
)


def precision_of(path):
    """Set the precision of one part of `torch.backends`, and no other; tell what it is."""
    owner = operator.attrgetter(path)
    return (
        lambda: setattr(owner(backends), "fp32_precision", "ieee"),
        lambda: owner(backends).fp32_precision,
    )


# By name: what forward does, and what tells that it has done it.
DEEDS = {
    "environment": (environment, lambda: dict(os.environ)),
    "generators": (draw, generator_states),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "default device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), precisions),
    "precision in older words alone": (set_older_words_alone, precisions),
    "precision in new words": (
        lambda: setattr(backends.cuda.matmul, "fp32_precision", "tf32"),
        lambda: backends.cuda.matmul.fp32_precision,
    ),
    "precision of all": (
        lambda: setattr(backends, "fp32_precision", "tf32"),
        lambda: backends.fp32_precision,
    ),
    **{f"precision of {path}": precision_of(path) for path in PRECISIONS},
    "tf32": (
        set_allow_tf32,
        lambda: (backends.cudnn.allow_tf32, in_new_words("backends.cudnn.conv")),
    ),
    "attention": (lambda: backends.cuda.enable_flash_sdp(False), backends.cuda.flash_sdp_enabled),
    "mkldnn": (lambda: setattr(backends.mkldnn, "enabled", False), lambda: backends.mkldnn.enabled),
    "fast path": (
        lambda: backends.mha.set_fastpath_enabled(False),
        backends.mha.get_fastpath_enabled,
    ),
    "print options": (lambda: torch.set_printoptions(precision=1), printing),
    "anomalies": (
        lambda: torch.autograd.set_detect_anomaly(True, False),
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    ),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.get_deterministic_debug_mode,
    ),
    "garbage collector": (gc.disable, gc.isenabled),
    "filters of warnings": (lambda: warnings.simplefilter("always"), lambda: [*warnings.filters]),
    "filters replaced": (lambda: setattr(warnings, "filters", []), lambda: [*warnings.filters]),
    "path": (lambda: sys.path.append("nowhere"), lambda: [*sys.path]),
    "directory": (lambda: os.chdir("/"), os.getcwd),
    "output": (lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
    "logging": (lambda: logging.disable(logging.ERROR), lambda: logging.root.manager.disable),
    "recursion": (lambda: sys.setrecursionlimit(1234), sys.getrecursionlimit),
    "numpy's print options": (lambda: np.set_printoptions(precision=1), np.get_printoptions),
    "numpy's errors": (lambda: np.seterr(divide="ignore", over="raise"), np.geterr),
    "hooks of all modules": (
        lambda: nn.modules.module.register_module_forward_hook(lambda *given: None),
        lambda: len(nn.modules.module._global_forward_hooks),
    ),
}

has_new_words = needs_torch(2, 9, reason="precision is told in new words, too")
NEW = (
    *("precision in new words", "precision in older words alone", "precision of all"),
    *(f"precision of {path}" for path in PRECISIONS),
)
NAMES = [pytest.param(name, marks=has_new_words) if name in NEW else name for name in DEEDS]


@pytest.fixture(autouse=True)
def set_back(monkeypatch):
    """Whatever a deed does is undone by hand, if a trace should not undo it."""
    monkeypatch.setenv("TBSCOPE_OLD", "1")
    monkeypatch.setenv("TBSCOPE_GONE", "1")
    yield
    torch.set_default_dtype(torch.float32)
    set_default_device(None)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    gc.enable()


@pytest.mark.parametrize(
    "options", [{}, {"grad": True}, {"profile": 1}, {"partial": True}], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_the_process_is_as_it_was(name, options):
    deed, tell = DEEDS[name]
    model = Doing(deed)
    before = tell()
    tbscope.trace(model, X, **options)
    assert tell() == before


@pytest.mark.parametrize("name", ["environment", "default dtype", "print options", "precision"])
def test_the_process_is_as_it_was_where_forward_raises(name):
    deed, tell = DEEDS[name]

    def fail():
        deed()
        raise ArithmeticError

    before = tell()
    with pytest.raises(tbscope.TraceError):
        tbscope.trace(Doing(fail), X)
    assert tell() == before


@pytest.mark.parametrize("name", NAMES)
def test_each_deed_would_show(name):
    deed, tell = DEEDS[name]
    seen = []
    model = Doing(lambda: (deed(), seen.append(tell())))
    before = tell()
    tbscope.trace(model, X)
    assert seen != [before]


def test_a_warning_that_was_told_once_is_told_again_only_where_filters_were_changed():
    def warn():
        warnings.warn("once", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warn()
        tbscope.trace(Doing(lambda: None), X)
        warn()
    assert len(caught) == 1


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
        # In forward, and only there, it can be read.
        tbscope.trace(Doing(lambda: setattr(backends.cuda.matmul, "fp32_precision", "none")), X)
        assert backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        backends.cuda.matmul.fp32_precision = "none"
