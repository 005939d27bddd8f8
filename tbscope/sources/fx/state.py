"""State of a program: its parameters, buffers and constants, each once, by name."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from tbscope.ir.builder import SourceKind
from tbscope.ir.graph import Parameter, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.fx.aliasing import UNKNOWN, Slot, TensorType, add_value, types_of_metadata
from tbscope.sources.fx.scopes import ProgramScopes
from tbscope.sources.torch.compat.tensors import storage_key
from tbscope.sources.torch.subclasses import content_of, size_bytes_of, subclass_attributes

__all__ = ["State", "StateKind", "state_of"]

StateKind: TypeAlias = Literal["parameter", "buffer"]
"""Kind of a tensor in the state of a program."""


class State:
    """Parameters, buffers and constants of a program.

    Args:
        places: The scopes of the program.
        kinds: The kind of each tensor, by qualified name, in the order of the module tree.
        tensors: The tensors, as far as the program contains them, by qualified name.

    Attributes:
        places: The argument `places`.
    """

    def __init__(
        self,
        places: ProgramScopes,
        kinds: Mapping[str, StateKind],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        self.places = places
        self._kinds = kinds
        self._tensors = dict(tensors)
        self._slots: dict[str, Slot] = {}
        # Tied tensors share the name of the first of them, and its number.
        self._first: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        # The first name of each tensor, by its identity.
        self._known: dict[object, str] = {}
        for name in kinds:
            tensor = tensors.get(name)
            first = name if tensor is None else self._known.setdefault(_identity(tensor), name)
            self._first[name] = first
            self._numbers.setdefault(first, len(self._numbers))

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of a parameter or buffer, or None for any other tensor."""
        return self._known.get(_identity(tensor))

    def slot(self, name: str, types: object = None, tensor: object = None) -> Slot:
        """Return the slot of a tensor by its name; the node is appended at the first read.

        Args:
            name: The name of a parameter or a buffer; any other name is the name of a constant.
            types: The type in the metadata, if there is one.
            tensor: The tensor, if it is an attribute of the program.
        """
        name = self._first.get(name, name)
        slot = self._slots.get(name)
        if slot is None:
            if isinstance(tensor, torch.Tensor):
                self._tensors.setdefault(name, tensor)
            kind: SourceKind = self._kinds.get(name, "constant")
            typed = self._type(name, types)
            make = partial(self._make, name, kind, typed)
            slot = self._slots[name] = Slot(typed, make=make)
        return slot

    def _type(self, name: str, types: object) -> TensorType:
        tensor = self._tensors.get(name)
        typed = types if isinstance(types, TensorType) else None
        if typed is None and isinstance(tensor, torch.Tensor):
            typed = types_of_metadata(tensor)
        return typed or UNKNOWN

    def _make(self, name: str, kind: SourceKind, typed: TensorType) -> Value:
        attributes: dict[str, object] = {}
        tensor = self._tensors.get(name)
        if kind == "constant":
            attributes = content_of(tensor) if isinstance(tensor, torch.Tensor) else {}
        elif tensor is not None:
            attributes = {
                "requires_grad": bool(tensor.requires_grad),
                **subclass_attributes(tensor),
            }
        scope = self.places.scope_of_module(name.rpartition(".")[0])
        return self.add_source(kind, name, typed, scope=scope, attributes=attributes)

    def add_source(
        self,
        kind: SourceKind,
        name: str | None,
        typed: TensorType,
        *,
        scope: Scope | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> Value:
        """Append the node of an input, a parameter, a buffer or a constant; return its value."""
        node = self.places.builder.append_source(kind, name, scope)
        node.attributes.update(attributes or {})
        return add_value(node, typed)

    def own(self) -> dict[str, tuple[Parameter, ...]]:
        """Return the parameters and buffers of each module that has any, by module name."""
        parameters: dict[str, list[Parameter]] = {}
        for name, kind in self._kinds.items():
            owner, _, attribute = name.rpartition(".")
            tensor = self._tensors.get(name)
            slot = self._slots.get(name) if tensor is None else None
            typed = self._type(name, None) if slot is None else slot.type
            parameters.setdefault(owner, []).append(
                Parameter(
                    attribute,
                    kind,
                    typed.shape,
                    typed.dtype,
                    0 if tensor is None else size_bytes_of(tensor),
                    bool(tensor is not None and tensor.requires_grad),
                    typed.device,
                    self._numbers[self._first[name]],
                )
            )
        # A module, too, lists parameters first.
        return {
            owner: tuple(sorted(own, key=lambda each: each.kind != "parameter"))
            for owner, own in parameters.items()
        }


def _identity(tensor: torch.Tensor) -> object:
    """Return a key that tensors share if they are the same view of one storage."""
    key = storage_key(tensor)
    if key is None or tensor.numel() == 0:
        # Tensors without memory have no address to compare.
        return id(tensor)
    stride = tensor.stride() if tensor.layout is torch.strided else ()
    return key, tensor.storage_offset(), tuple(tensor.shape), stride, tensor.dtype


def state_of(parts: Mapping[str, Any]) -> tuple[dict[str, StateKind], dict[str, torch.Tensor]]:
    """Return the kind of each parameter and buffer, and the tensors, by qualified name.

    Args:
        parts: The modules by qualified name, with `_parameters` and `_buffers`.
    """
    kinds: dict[str, StateKind] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, part in parts.items():
        prefix = f"{name}." if name else ""
        tables: dict[StateKind, Any] = {"parameter": part._parameters, "buffer": part._buffers}
        for kind, table in tables.items():
            for attribute, tensor in table.items():
                # A damaged file may have any object there.
                if isinstance(tensor, torch.Tensor):
                    kinds[prefix + attribute] = kind
                    tensors[prefix + attribute] = tensor
    return kinds, tensors
