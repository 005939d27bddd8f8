"""Fills in what each call's module was set to, once the run is over.

Hyper-parameters come from `extra_repr`, which is the user's code: it runs neither
while the model is watched nor more than once per module.
"""

from typing import Any

import torch

from tbscope.graph import Note, Parameter, Source
from tbscope.sources.hyperparameters import class_source, hyperparameters
from tbscope.sources.locate import short_path
from tbscope.sources.recorder import Recorder
from tbscope.sources.torch_internals import UNINITIALIZED
from tbscope.sources.values import shape_of

__all__ = ["describe_calls"]


def describe_calls(recorder: Recorder) -> None:
    """Complete the calls of a recorder's graph with what their modules tell."""
    facts: dict[int, tuple[Any, ...]] = {}
    classes: dict[type, tuple[str, Source | None]] = {}
    for call, module in zip(recorder.graph.calls, recorder.modules_called, strict=True):
        known = facts.get(id(module))
        if known is None:
            known = facts[id(module)] = _facts(module, recorder, classes)
        call.class_name, call.defined, call.hyperparameters, call.parameters = known


def _facts(
    module: torch.nn.Module, recorder: Recorder, classes: dict[type, tuple[str, Source | None]]
) -> tuple[Any, ...]:
    cls = type(module)
    about = classes.get(cls)
    if about is None:
        place = class_source(cls)
        source = Source(short_path(place[0]), place[1], cls.__name__) if place else None
        about = classes[cls] = (f"{cls.__module__}.{cls.__qualname__}", source)
    parameters = tuple(
        _parameter(name, tensor, kind)
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers))
        for name, tensor in held.items()
        if tensor is not None
    )
    return (*about, _hyperparameters(module, recorder), parameters)


def _hyperparameters(module: torch.nn.Module, recorder: Recorder) -> dict[str, Any]:
    try:
        return dict(hyperparameters(module))
    except Exception as error:  # noqa: BLE001 (extra_repr is the user's code)
        recorder.graph.notes.append(
            Note(
                f"the hyper-parameters of {type(module).__name__} are not known: its "
                f"extra_repr() raised {type(error).__name__}: {error}"
            )
        )
        return {}


def _parameter(name: str, tensor: torch.Tensor, kind: Any) -> Parameter:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, UNINITIALIZED):
        return Parameter(name, kind, None, dtype, 0, tensor.requires_grad, str(tensor.device))
    return Parameter(
        name,
        kind,
        shape_of(tensor),
        dtype,
        tensor.numel() * tensor.element_size(),
        tensor.requires_grad,
        str(tensor.device),
    )
