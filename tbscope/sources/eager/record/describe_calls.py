"""Fills in the hyper-parameters of each call's module, once the run is over.

Hyper-parameters come from `extra_repr`, which is the user's code: it runs neither
while the model is watched nor more than once per module.
"""

from typing import Any, Literal

import torch

from tbscope.ir.graph import Module, Note, Parameter, Source
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.record.wrappers import shape_of
from tbscope.sources.torch.hyperparameters import class_source, hyperparameters
from tbscope.sources.torch.locate import short_path
from tbscope.sources.torch.module_internals import UNINITIALIZED
from tbscope.sources.torch.ranks import sharding_of
from tbscope.sources.torch.registry import ModulePlace, Registry, TensorPlace
from tbscope.sources.torch.wrapping import PLAIN, size_bytes_of, type_names

__all__ = ["describe_calls"]


def describe_calls(recorder: Recorder) -> None:
    """Complete a recorder's graph with the facts of its modules, called or not."""
    facts: dict[int, tuple[Any, ...]] = {}
    classes = _Classes()
    registry = recorder.registry
    owned = _Owned(registry)
    for call, module in zip(recorder.graph.calls, recorder.modules_called, strict=True):
        known = facts.get(id(module))
        if known is None:
            known = facts[id(module)] = (
                *classes[type(module)],
                _hyperparameters(module, recorder),
                _parameters(module, owned),
            )
        call.class_name, call.defined, call.hyperparameters, call.parameters = known
    modules = recorder.graph.modules
    for place in registry.places():
        if place.qualified_name is None:
            # No module registers it: the model does not have it.
            continue
        module = place.module
        known = facts.get(id(module))
        if known is not None:
            described, parameters = known[0], known[3]
        else:
            described = classes[type(module)][0]
            parameters = _parameters(module, owned)
        modules.append(Module(place.name, described, parameters, _borrowed(place, registry, owned)))


class _Classes(dict[type, tuple[str, Source | None]]):
    """The full name of each class, and the place where it is defined."""

    def __missing__(self, cls: type) -> tuple[str, Source | None]:
        place = class_source(cls)
        source = Source(short_path(place[0]), place[1], cls.__name__) if place else None
        about = self[cls] = (f"{cls.__module__}.{cls.__qualname__}", source)
        return about


class _Owned:
    """What modules own: also where one holds for a while what ranks have put together of it."""

    def __init__(self, registry: Registry) -> None:
        self._place_of = registry.tensor
        self._spread = registry.spread()

    def by(
        self, module: torch.nn.Module, name: str, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, TensorPlace | None]:
        """Return what a module owns that holds a tensor under a name, and its place."""
        place = self._spread.get((id(module), name)) if self._spread else None
        return (tensor, self._place_of(tensor)) if place is None else (place.tensor, place)


def _hyperparameters(module: torch.nn.Module, recorder: Recorder) -> dict[str, Any]:
    try:
        return hyperparameters(module)
    except Exception as error:  # noqa: BLE001 (extra_repr is the user's code)
        recorder.graph.notes.append(
            Note(
                f"the hyper-parameters of {type(module).__name__} are not known: its "
                f"extra_repr() raised {type(error).__name__}: {error}"
            )
        )
        return {}


def _borrowed(place: ModulePlace, registry: Registry, owned: _Owned) -> tuple[Parameter, ...]:
    """Describe the tensors of the children whose place is in another module."""
    borrowed: list[Parameter] = []
    for name, child in place.module._modules.items():
        home = None if child is None else registry.module(child)
        # What has its name further down counts in this module already.
        if child is not None and home is not None and not _is_within(home, place):
            for path, module in torch.nn.Module.named_modules(child, prefix=name):
                borrowed += [
                    parameter._replace(name=f"{path}.{parameter.name}")
                    for parameter in _parameters(module, owned)
                ]
    return tuple(borrowed)


def _is_within(inner: ModulePlace, outer: ModulePlace) -> bool:
    above = inner.parent
    while above is not None and above is not outer:
        above = above.parent
    return above is outer


def _parameters(module: torch.nn.Module, owned: _Owned) -> tuple[Parameter, ...]:
    """Describe the tensors that a module owns itself: its parameters, then its buffers."""
    described: list[Parameter] = []
    parameters, buffers = module._parameters, module._buffers
    if parameters:
        described += [
            _parameter(name, "parameter", *owned.by(module, name, tensor))
            for name, tensor in parameters.items()
            if tensor is not None
        ]
    if buffers:
        described += [
            _parameter(name, "buffer", *owned.by(module, name, tensor))
            for name, tensor in buffers.items()
            if tensor is not None
        ]
    return tuple(described)


def _parameter(
    name: str,
    kind: Literal["parameter", "buffer"],
    tensor: torch.Tensor,
    place: TensorPlace | None,
) -> Parameter:
    dtype, device = type_names(tensor.dtype, tensor.device)
    number = -1 if place is None else place.number
    asks = tensor.requires_grad
    if type(tensor) in PLAIN:
        # Nearly all are: these need not be asked what else they may be.
        size_bytes = tensor.numel() * tensor.element_size()
        return Parameter(name, kind, shape_of(tensor), dtype, size_bytes, asks, device, number)
    known = not isinstance(tensor, UNINITIALIZED)
    shape, size_bytes = (shape_of(tensor), size_bytes_of(tensor)) if known else (None, 0)
    sharding = sharding_of(tensor)
    return Parameter(name, kind, shape, dtype, size_bytes, asks, device, number, sharding)
