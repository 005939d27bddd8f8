"""The table of sources: how torch makes each form of a model, and how it becomes a graph."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

import tbscope
from tests.sources.compare import (
    ASKS,
    CALLS_IN_ONE,
    CHOSEN,
    CONSTANTS,
    DEAD,
    IDENTITIES,
    METHODS,
    NUMBERS,
    SEVERAL,
    SIZES,
    SPARSE,
    STRIDES,
    TIED,
    UNREGISTERED,
    VIEWED,
)
from tests.sources.models import Model

__all__ = ["FORMS", "Form", "TorchError"]


class TorchError(RuntimeError):
    """Torch itself cannot make this form of a model; the message tells why."""


@dataclass(frozen=True)
class Form:
    """One form in which torch holds a graph.

    Attributes:
        name: What it is.
        make: Has torch make it of a model.
        read: Reads it as a graph, with the inputs of the model.
        differs: The differences from an eager call that it may show.
        asked: The functions by which code asks torch whether this form is made of it, if the form
            has the kernels of an eager call.
    """

    name: str
    make: Callable[[Model], Any]
    read: Callable[[Any, Model], tbscope.Graph]
    differs: tuple[str, ...] = ()
    asked: tuple[tuple[Any, str], ...] = ()

    def answered(self, model: Model) -> tbscope.Graph:
        """Give the graph of an eager call in which code is told that this form is made of it."""
        with ExitStack() as stack:
            for owner, name in self.asked:
                stack.enter_context(patch.object(owner, name, lambda: True))
            return tbscope.trace(model.module, kwargs=model.inputs, training=None)

    def graph(self, model: Model) -> tbscope.Graph:
        """Give the graph of a model from this source.

        Raises:
            TorchError: Torch cannot make this form of it.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = self.make(model)
            except Exception as error:
                raise TorchError(f"{type(error).__name__}: {error}") from error
            return self.read(made, model)


def _program(model: Model) -> Any:
    return torch.export.export(model.module, (), model.inputs, strict=False)


def _traced(model: Model) -> Any:
    """Trace what a model does with its tensors; all else it is given is as it is."""
    rest = {name: None for name in _parameters(model) if name not in model.inputs}
    rest |= {name: given for name, given in model.inputs.items() if not _is_tensor(given)}
    return torch.fx.symbolic_trace(model.module, concrete_args=rest)


def _parameters(model: Model) -> list[str]:
    code = type(model.module).forward.__code__
    return list(code.co_varnames[1 : code.co_argcount])


def _is_tensor(given: Any) -> bool:
    return isinstance(given, torch.Tensor)


def _from_traced(traced: Any, model: Model) -> tbscope.Graph:
    names = [node.target for node in traced.graph.nodes if node.op == "placeholder"]
    return tbscope.from_fx(traced, tuple(model.inputs.get(name) for name in names))


def _onnx(model: Model) -> Any:
    return torch.onnx.export(
        model.module, (), kwargs=model.inputs, dynamo=True, verbose=False, optimize=False
    )


def _script(model: Model) -> Any:
    given = {name: each for name, each in model.inputs.items() if _is_tensor(each)}
    return torch.jit.trace(
        model.module, example_kwarg_inputs=given, strict=False, check_trace=False
    )


_EXPORTING = ((torch.compiler, "is_exporting"), (torch.compiler, "is_compiling"))

FORMS = (
    Form(
        "export",
        _program,
        lambda made, _: tbscope.from_export(made),
        (UNREGISTERED, SEVERAL, ASKS, STRIDES, CHOSEN, METHODS),
        _EXPORTING,
    ),
    Form(
        "decomposed",
        lambda model: _program(model).run_decompositions(),
        lambda made, _: tbscope.from_export(made),
        (UNREGISTERED, SEVERAL, VIEWED, SIZES, METHODS),
    ),
    Form(
        "module",
        lambda model: _program(model).module(),
        lambda made, _: tbscope.from_fx(made),
        (UNREGISTERED, SEVERAL, ASKS, STRIDES, CHOSEN, METHODS),
        _EXPORTING,
    ),
    Form("fx", _traced, _from_traced, (UNREGISTERED, SEVERAL, METHODS, IDENTITIES)),
    Form(
        "onnx",
        _onnx,
        lambda made, _: tbscope.from_onnx(made),
        (UNREGISTERED, TIED, CALLS_IN_ONE, SEVERAL, VIEWED, SIZES, METHODS),
    ),
    Form(
        "torchscript",
        _script,
        lambda made, _: tbscope.from_torchscript(made),
        (UNREGISTERED, SEVERAL, ASKS, DEAD, NUMBERS, CONSTANTS, SPARSE, METHODS),
        ((torch.jit, "is_tracing"),),
    ),
)
"""A further source is one more entry."""
