"""The state of a program: its parameters, buffers and constants, each once, by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

from tbscope.figures.notes import Read, find_notes
from tbscope.ir.builder import SourceKind
from tbscope.ir.graph import Graph, Module, Parameter, Value
from tbscope.ir.regions import describe_calls
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Slot
from tbscope.sources.programs.types import UNKNOWN, TensorType, type_nest
from tbscope.sources.torch.internals import storage_key
from tbscope.sources.torch.wrapping import content_of, made_of, size_bytes_of

__all__ = ["State", "state_of"]


class State:
    """What a program holds.

    Args:
        reader: Who reads the program.
        kinds: What each tensor is, by its qualified name, in the order of the module tree.
        tensors: The tensors, as far as the program has them, by qualified name.
    """

    def __init__(
        self,
        reader: Reader,
        kinds: Mapping[str, Literal["parameter", "buffer"]],
        tensors: Mapping[str, Any],
    ) -> None:
        self._reader = reader
        self._kinds = kinds
        self._tensors = dict(tensors)
        self._slots: dict[str, Slot] = {}
        # Tied ones have the name of the first, and one number.
        self._first: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        # The first name of each tensor, by its identity.
        self._known: dict[Any, str] = {}
        for name in kinds:
            tensor = tensors.get(name)
            first = name if tensor is None else self._known.setdefault(_identity(tensor), name)
            self._first[name] = first
            self._numbers.setdefault(first, len(self._numbers))

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the parameter or buffer that a tensor is; None for any other."""
        return self._known.get(_identity(tensor))

    def held(self, name: str, tensor: Any, told: Any = None) -> Slot:
        """Return the slot of a tensor that the program finds among its attributes."""
        if name in self._kinds:
            return self.slot(name, told)
        if isinstance(tensor, torch.Tensor):
            self._tensors.setdefault(name, tensor)
        return self.constant(name, told)

    def slot(self, name: str, told: Any = None) -> Slot:
        """Return the slot of a parameter or buffer; its node is made once it is read."""
        name = self._first.get(name, name)
        return self._slot(name, self._kinds.get(name, "buffer"), told)

    def constant(self, name: str, told: Any = None) -> Slot:
        """Return the slot of a constant; its node is made once it is read."""
        return self._slot(name, "constant", told)

    def _slot(self, name: str, kind: SourceKind, told: Any) -> Slot:
        slot = self._slots.get(name)
        if slot is None:
            typed = self._type(name, told)
            slot = self._slots[name] = Slot(typed, make=lambda: self._make(name, kind, typed))
        return slot

    def _type(self, name: str, told: Any) -> TensorType:
        tensor = self._tensors.get(name)
        known = told if isinstance(told, TensorType) else None
        if known is None and isinstance(tensor, torch.Tensor):
            known = type_nest(tensor)
        return known or UNKNOWN

    def _make(self, name: str, kind: SourceKind, typed: TensorType) -> Value:
        scope = self._reader.places.home(name.rpartition(".")[0])
        attributes: dict[str, Any] = {}
        tensor = self._tensors.get(name)
        if kind == "constant":
            attributes = content_of(tensor) if isinstance(tensor, torch.Tensor) else {}
        elif tensor is not None:
            attributes = {"requires_grad": bool(tensor.requires_grad), **made_of(tensor)}
        return self._reader.add_source(kind, name, typed, scope=scope, attributes=attributes)

    def own(self) -> dict[str, tuple[Parameter, ...]]:
        """Return the parameters and buffers of each module that has some, by its name."""
        found: dict[str, list[Parameter]] = {}
        for name, kind in self._kinds.items():
            owner, _, attribute = name.rpartition(".")
            tensor = self._tensors.get(name)
            typed = self._type(name, None)
            if tensor is None and name in self._slots:
                typed = self._slots[name].type
            found.setdefault(owner, []).append(
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
        # Parameters first, as a module tells them.
        return {
            owner: tuple(sorted(own, key=lambda each: each.kind != "parameter"))
            for owner, own in found.items()
        }

    def finish(
        self,
        outputs: Iterable[tuple[str, Slot]],
        names: Iterable[str],
        class_of: Callable[[str], str],
        *,
        whole: bool = True,
    ) -> Graph:
        """Return the graph of all that was read.

        Args:
            outputs: The results of the program, by path.
            names: The qualified names of the modules, in the order of the tree.
            class_of: Returns the full name of the class of a module that was not called.
            whole: Whether all that ran is in it.
        """
        reader = self._reader
        graph, places = reader.graph, reader.places
        for path, slot in outputs:
            reader.builder.add_output(path, slot.read(), control_inputs=slot.writers())
        # A program does not tell what its calls were given: it is what enters and leaves them.
        calls = [call for call in graph.calls if call.scope is not places.root]
        describe_calls(graph, calls, lambda scope: places.runs_in.get(scope, scope.parent))
        own = self.own()
        for call in graph.calls:
            call.caller = places.callers.get(call.scope)
            call.parameters = own.get(call.qualified_name or "", ())
        for name in dict.fromkeys(["", *names, *own]):
            class_name = places.classes.get(name) or class_of(name)
            graph.modules.append(Module(name, class_name, own.get(name, ())))
        reads = [Read(slot.read(), by, source) for slot, by, source in reader.read_out]
        graph.notes += find_notes(graph, reads=reads, whole=whole)
        return reader.builder.finish()


def _identity(tensor: torch.Tensor) -> Any:
    key = storage_key(tensor)
    if key is None or tensor.numel() == 0:
        return id(tensor)
    stride = tensor.stride() if tensor.layout is torch.strided else ()
    return key, tensor.storage_offset(), tuple(tensor.shape), stride, tensor.dtype


def state_of(parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what each parameter and buffer is, and the tensors, by qualified name.

    Args:
        parts: The modules by qualified name, with `_parameters` and `_buffers`.
    """
    kinds: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for name, part in parts.items():
        prefix = f"{name}." if name else ""
        for kind, own in (("parameter", part._parameters), ("buffer", part._buffers)):
            for attribute, tensor in own.items():
                # A damaged file may hold anything there.
                if isinstance(tensor, torch.Tensor):
                    kinds[prefix + attribute] = kind
                    tensors[prefix + attribute] = tensor
    return kinds, tensors
