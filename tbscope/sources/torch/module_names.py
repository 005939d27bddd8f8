"""Which module and which tensor has which name, as `named_modules()` tells.

The names come from the module tree, never from the order of calls, so a module
and the parameters it owns always stand at the same place.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from tbscope.sources.torch.compat.modules import ScriptModule, uncompiled
from tbscope.sources.torch.distributed import is_spread

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["ModulePlace", "Registry", "TensorPlace", "class_label", "switches_itself"]

_Module = torch.nn.Module


@dataclass(eq=False, kw_only=True, slots=True)
class ModulePlace:
    """A module at its place in the tree.

    Attributes:
        module: The module itself, held so that its identity stays its own.
        name: The dotted path below which its parameters stand: the qualified name, or
            where no module registers it, one that begins at the module that called it.
        attribute: The name under which its parent holds it; None for a root.
        parent: The place of the module that holds it; None for a root.
        registered: Whether its name is one of `named_modules()`.
        qualified_name: That name; None where no module registers it.
        label: The name of its class.
        lazy: Whether it makes its parameters only in its first call.
        wrapper: What `torch.compile` made of it, which stands at the same place and has
            no scope of its own; None where it was not compiled.
        adopter: The place of the module that called it, where no module registers it.
        first_scope: The scope of its first call, or the container scope that stands for
            it; None before either.
    """

    module: torch.nn.Module
    name: str
    attribute: str | None
    parent: "ModulePlace | None"
    registered: bool
    qualified_name: str | None = None
    label: str = ""
    lazy: bool = False
    wrapper: torch.nn.Module | None = None
    adopter: "ModulePlace | None" = None
    first_scope: "Scope | None" = None

    def __post_init__(self) -> None:
        whole = uncompiled(self.module)
        if whole is not self.module:
            self.module, self.wrapper = whole, self.module
        self.label = class_label(whole)
        self.lazy = isinstance(whole, LazyModuleMixin)
        self.qualified_name = self.name if self.registered else None

    def path_of(self, other: "ModulePlace") -> str:
        """Return the shortest path by which this module holds another one; empty for none."""
        pending, seen = deque([("", self.module)]), {id(self.module)}
        while pending:
            prefix, module = pending.popleft()
            for name, child in module._modules.items():
                if child is None or id(child) in seen:
                    continue
                if child is other.module or child is other.wrapper:
                    return prefix + name
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))
        return ""


@dataclass(eq=False, slots=True)
class TensorPlace:
    """A parameter or buffer at its place: whose it is, under which attribute, and its number."""

    tensor: torch.Tensor
    owner: ModulePlace
    attribute: str
    kind: Literal["parameter", "buffer"]
    number: int

    @property
    def qualified_name(self) -> str:
        """The name in `named_parameters()` or `named_buffers()` (`layer1.0.weight`)."""
        prefix = self.owner.name
        return f"{prefix}.{self.attribute}" if prefix else self.attribute


def class_label(module: torch.nn.Module) -> str:
    """Return the class name that a scope shows; for a scripted module, that of its source."""
    if isinstance(module, ScriptModule):
        return str(module.original_name)
    return type(module).__name__


def switches_itself(modules: Iterable[torch.nn.Module]) -> bool:
    """Tell whether one of some modules has a `train()` or `eval()` of its own.

    A backbone keeps its BatchNorm frozen, an adapter merges its weights.
    """
    return any(
        uncompiled(module) is module
        for module in modules
        if type(module).train is not _Module.train
        or type(module).eval is not _Module.eval
        or not vars(module).keys().isdisjoint(("train", "eval"))
    )


class Registry:
    """The places of all modules and tensors that are known by name.

    Attributes:
        by_module: The places of modules by identity, for whoever asks for each call of a trace.
    """

    def __init__(self) -> None:
        self.by_module: dict[int, ModulePlace] = {}
        self._tensors: dict[int, TensorPlace] = {}
        # What a module holds that has its place in another one: by module and attribute.
        self._shared: dict[tuple[int, str], TensorPlace] = {}
        # Known by another tensor's place: held, so that their identities stay their own.
        self._held: list[torch.Tensor] = []

    def add_root(
        self,
        module: torch.nn.Module,
        *,
        name: str = "",
        attribute: str | None = None,
        parent: ModulePlace | None = None,
        registered: bool = True,
    ) -> ModulePlace:
        """Register a module and everything below it.

        Args:
            module: The module; one that is known already keeps its place.
            name: The dotted path of the module itself; its children stand below it.
            attribute: What its scope shows in brackets.
            parent: The place that holds it; None for a root.
            registered: Whether the path is one of `named_modules()`.
        Returns:
            The place of the module.
        """
        known = self.by_module.get(id(module))
        if known is not None:
            return known
        root = ModulePlace(
            module=module, name=name, attribute=attribute, parent=parent, registered=registered
        )
        self._grow([root])
        return root

    def _grow(self, pending: list[ModulePlace]) -> None:
        """Register modules, the last first, with all below them."""
        # Depth first and in order, as named_modules() goes, without its recursion.
        while pending:
            place = pending.pop()
            if id(place.module) in self.by_module:
                continue
            self.by_module[id(place.module)] = place
            if place.wrapper is not None:
                self.by_module[id(place.wrapper)] = place
            self.refresh(place, pending)

    def _add_tensors(self, place: ModulePlace) -> None:
        module, tensors = place.module, self._tensors
        tables: tuple[tuple[Literal["parameter", "buffer"], dict[str, Any]], ...] = (
            ("parameter", module._parameters),
            ("buffer", module._buffers),
        )
        for kind, table in tables:
            for name, tensor in table.items():
                known = tensors.get(id(tensor))
                if tensor is None:
                    continue
                if known is None:
                    tensors[id(tensor)] = TensorPlace(tensor, place, name, kind, len(tensors))
                elif known.owner is not place or known.attribute != name:
                    self._shared[id(module), name] = known

    def module(self, module: torch.nn.Module) -> ModulePlace | None:
        """Return the place of a module; None where it is not registered."""
        return self.by_module.get(id(module))

    def tensor(self, tensor: torch.Tensor) -> TensorPlace | None:
        """Return the place of a parameter or buffer; None where it is neither."""
        return self._tensors.get(id(tensor))

    def knows(self, place: ModulePlace, names: list[str]) -> bool:
        """Tell whether a module held a tensor under each of these names when it was registered."""
        known = {each.attribute for each in self._tensors.values() if each.owner is place}
        return known.issuperset(names)

    def forget(self) -> None:
        """Let go of all modules and tensors."""
        self.by_module.clear()
        self._tensors.clear()
        self._shared.clear()
        self._held.clear()

    def add_stand_in(self, tensor: torch.Tensor, twin: torch.Tensor) -> None:
        """Register who stands in for a tensor, at the same place, where that has one."""
        place = self._tensors.get(id(tensor))
        if place is not None:
            self._tensors[id(twin)] = place

    def put_together(self, place: ModulePlace, name: str, tensor: torch.Tensor) -> None:
        """Register what a module holds for a while in the place of one that is spread over ranks.

        Args:
            place: The module.
            name: The attribute under which it holds it.
            tensor: What ranks have put together.
        """
        for each in self._tensors.values():
            if each.owner is place and each.attribute == name:
                self._tensors[id(tensor)] = each
                self._held.append(tensor)
                return

    def refresh(self, place: ModulePlace, pending: list[ModulePlace] | None = None) -> None:
        """Register what a module holds only since it ran (lazy modules, late children).

        Args:
            place: The module.
            pending: Where to add the modules in it, the first last; None to register them.
        """
        self._add_tensors(place)
        prefix = f"{place.name}." if place.name else ""
        children = [
            ModulePlace(
                module=child,
                name=prefix + name,
                attribute=name,
                parent=place,
                registered=place.registered,
            )
            for name, child in place.module._modules.items()
            if child is not None and id(child) not in self.by_module
        ]
        children.reverse()
        if pending is None:
            self._grow(children)
        else:
            pending += children

    def places(self) -> list[ModulePlace]:
        """Return the place of every registered module, parents first."""
        # What was compiled stands there a second time, under its wrapper.
        return list(dict.fromkeys(self.by_module.values()))

    @property
    def count(self) -> int:
        """How many modules are registered, wrappers counted."""
        return len(self.by_module)

    def modules(self) -> list[torch.nn.Module]:
        """Return every registered module once, parents first, and the wrappers of those."""
        return self.modules_since(0)

    def modules_since(self, count: int) -> list[torch.nn.Module]:
        """Return the modules registered after the first `count`, each once."""
        # What was compiled stands there a second time, under its wrapper.
        places = dict.fromkeys(itertools.islice(self.by_module.values(), count, None))
        return [
            module
            for place in places
            for module in (place.module, place.wrapper)
            if module is not None
        ]

    def spread(self) -> dict[tuple[int, str], TensorPlace]:
        """Return the places of tensors that are spread over ranks, by module and attribute."""
        # Of a model there are few classes of tensors, and mostly none of these.
        kinds = {type(place.tensor) for place in self._tensors.values()}
        kinds = {kind for kind in kinds if is_spread(kind)}
        if not kinds:
            return {}
        shared = {key: place for key, place in self._shared.items() if type(place.tensor) in kinds}
        return shared | {
            (id(place.owner.module), place.attribute): place
            for place in self._tensors.values()
            if type(place.tensor) in kinds
        }

    def count_tensors(self) -> int:
        """Return how many registered parameters and buffers are known, by any of their tensors."""
        return len(self._tensors)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Return every registered parameter and buffer, in the order of the tree."""
        return (place.tensor for place in self._tensors.values())
