"""Descriptions of modules, added to the calls of a graph after the run.

Hyper-parameters come from `extra_repr`, which is the user's code: it runs neither while the model
is watched nor more than once per module.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from tbscope.ir.graph import Module, Note, Parameter, Source
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.record.tensors.tensor_table import shape_of
from tbscope.sources.torch.calling.hyperparameters import class_source, hyperparameters
from tbscope.sources.torch.compat.modules import UNINITIALIZED
from tbscope.sources.torch.distributed import sharding_of
from tbscope.sources.torch.module_names import TENSOR_TABLES, ModuleEntry, Registry, TensorEntry
from tbscope.sources.torch.source_location import short_path
from tbscope.sources.torch.subclasses import PLAIN, size_bytes_of, type_names


def describe_calls(recorder: Recorder) -> None:
    """Add the descriptions of its modules, called or not, to a recorder's graph."""
    about: Callable[[type], Any] = cache(_about)
    registry, descriptions = recorder.registry, dict[int, tuple[Any, ...]]()
    owned = partial(_parameters, registry=registry, spread=registry.spread())
    for call, module in zip(recorder.graph.calls, recorder.calls.modules, strict=True):
        description = descriptions.get(id(module))
        if description is None:
            try:
                settings = hyperparameters(module)
            except Exception as error:  # noqa: BLE001 (extra_repr is the user's code)
                settings = {}
                text = (
                    f"the hyper-parameters of {type(module).__name__} are not known: its "
                    f"extra_repr() raised {type(error).__name__}: {error}"
                )
                recorder.graph.notes.append(Note(text))
            description = descriptions[id(module)] = (*about(type(module)), settings, owned(module))
        call.class_name, call.defined, call.hyperparameters, call.parameters = description
    for entry in registry.places():
        # A module that no module registers is no part of the model.
        if entry.qualified_name is not None:
            module = entry.module
            parameters = (
                descriptions[id(module)][3] if id(module) in descriptions else owned(module)
            )
            borrowed = _borrowed(entry, registry, owned) if module._modules else ()
            recorder.graph.modules.append(
                Module(entry.name, about(type(module))[0], parameters, borrowed)
            )


def _about(cls: type) -> tuple[str, Source | None]:
    """Return the full name of a class, and the line of its definition."""
    line = class_source(cls)
    source = Source(short_path(line[0]), line[1], cls.__name__) if line else None
    return f"{cls.__module__}.{cls.__qualname__}", source


def _borrowed(
    entry: ModuleEntry,
    registry: Registry,
    owned: Callable[[torch.nn.Module], tuple[Parameter, ...]],
) -> tuple[Parameter, ...]:
    """Return the tensors of child modules whose entry is in another module."""
    borrowed: list[Parameter] = []
    for name, child in entry.module._modules.items():
        child_entry = None if child is None else registry.by_module.get(id(child))
        ancestor = child_entry
        while ancestor is not None and ancestor is not entry:
            ancestor = ancestor.parent
        # A child whose entry is below this module counts there already.
        if child is not None and child_entry is not None and ancestor is None:
            for path, module in torch.nn.Module.named_modules(child, prefix=name):
                borrowed += [
                    parameter._replace(name=f"{path}.{parameter.name}")
                    for parameter in owned(module)
                ]
    return tuple(borrowed)


def _parameters(
    module: torch.nn.Module, *, registry: Registry, spread: dict[tuple[int, str], TensorEntry]
) -> tuple[Parameter, ...]:
    """Return descriptions of the tensors that a module owns itself: parameters, then buffers.

    Args:
        module: The module; it may contain, for a while, tensors that ranks have gathered.
        registry: The places of modules and their tensors.
        spread: The places of the tensors that are spread over ranks.
    """
    described: list[Parameter] = []
    for kind, table in TENSOR_TABLES:
        for name, tensor in getattr(module, table).items():
            if tensor is None:
                continue
            entry = spread.get((id(module), name)) if spread else None
            own = tensor if entry is None else entry.tensor
            entry = entry or registry.by_tensor.get(id(tensor))
            dtype, device = type_names(own.dtype, own.device)
            requires_grad, number = own.requires_grad, -1 if entry is None else entry.number
            sharding = None
            if type(own) in PLAIN and not own.is_nested:
                shape, size_bytes = tuple(own.shape), own.numel() * own.element_size()
            elif isinstance(own, UNINITIALIZED):
                shape, size_bytes = None, 0
            else:
                shape, size_bytes, sharding = shape_of(own), size_bytes_of(own), sharding_of(own)
            described.append(
                Parameter(
                    name, kind, shape, dtype, size_bytes, requires_grad, device, number, sharding
                )
            )
    return tuple(described)
