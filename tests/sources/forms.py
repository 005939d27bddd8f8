"""The table of sources: how torch makes each form of a model, and how it becomes a graph."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tbscope
from tests.sources.compare import CALLS_IN_ONE, TIED, UNREGISTERED
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
    """

    name: str
    make: Callable[[Model], Any]
    read: Callable[[Any, Model], tbscope.Graph]
    differs: tuple[str, ...] = ()

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
    return tbscope.from_fx(traced, *(model.inputs.get(name) for name in names))


def _onnx(model: Model) -> Any:
    return torch.onnx.export(
        model.module, (), kwargs=model.inputs, dynamo=True, verbose=False, optimize=False
    )


FORMS = (
    Form("export", _program, lambda made, _: tbscope.from_export(made), (UNREGISTERED,)),
    Form(
        "decomposed",
        lambda model: _program(model).run_decompositions(),
        lambda made, _: tbscope.from_export(made),
        (UNREGISTERED,),
    ),
    Form(
        "module",
        lambda model: _program(model).module(),
        lambda made, _: tbscope.from_fx(made),
        (UNREGISTERED,),
    ),
    Form("fx", _traced, _from_traced, (UNREGISTERED,)),
    Form(
        "onnx", _onnx, lambda made, _: tbscope.from_onnx(made), (UNREGISTERED, TIED, CALLS_IN_ONE)
    ),
)
"""A further source is one more entry."""
