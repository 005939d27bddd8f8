"""Names of modules, parameters and buffers, as in `named_modules()` and `named_parameters()`.

The names come from the module tree, never from the order of calls, so a module and the
parameters that it owns always have the same path.
"""

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from tbscope.ir.scopes import Scope
from tbscope.sources.torch.compat.modules import ScriptModule, is_compile_wrapper, uncompiled
from tbscope.sources.torch.distributed import is_dtensor

_Module = torch.nn.Module

TensorKind: TypeAlias = Literal["parameter", "buffer"]

TENSOR_TABLES: tuple[tuple[TensorKind, str], ...] = (
    ("parameter", "_parameters"),
    ("buffer", "_buffers"),
)
"""The attributes of a module with the tensors that it owns itself, by kind."""


@dataclass(eq=False, kw_only=True, slots=True)
class ModuleEntry:
    """The entry of a module in the registry: its path in the module tree, its parent and class.

    Attributes:
        module: The module itself, kept alive so that its `id` stays unique.
        name: The dotted prefix of its parameters: the qualified name or, if no module registers
            it, a path that begins at the module that called it.
        attribute: Its name in the parent; None for a root.
        parent: The entry of the parent module; None for a root.
        registered: Whether its name is one of `named_modules()`.
        qualified_name: The name in `named_modules()`; None if no module registers it.
        label: The class name that its scope shows.
        lazy: Whether it creates its parameters only in its first call.
        wrapper: The `OptimizedModule` of `torch.compile`, which has the same path and no scope
            of its own; None if the module was not compiled.
        adopter: The entry of the module that called it, if no module registers it.
        first_scope: The scope of its first call, or the container scope for it; None before
            either exists.
        scope: The scope of its latest call, or the container scope for it, outside of backward
            passes.
    """

    module: torch.nn.Module
    name: str
    attribute: str | None
    parent: "ModuleEntry | None"
    registered: bool
    qualified_name: str | None = None
    label: str = ""
    lazy: bool = False
    wrapper: torch.nn.Module | None = None
    adopter: "ModuleEntry | None" = None
    first_scope: Scope | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        module = self.module
        self.label = type(module).__name__
        if _is_special(type(module)):  # type: ignore[arg-type]
            self.module = uncompiled(module)
            self.wrapper = None if module is self.module else module
            self.label = class_label(self.module)
            self.lazy = isinstance(self.module, LazyModuleMixin)
        self.qualified_name = self.name if self.registered else None

    def path_of(self, descendant: "ModuleEntry") -> str:
        """Return the shortest path from this module to a descendant; empty if it is none."""
        pending, seen = deque([("", self.module)]), {id(self.module)}
        while pending:
            prefix, module = pending.popleft()
            for name, child in module._modules.items():
                if child is None or id(child) in seen:
                    continue
                if child is descendant.module or child is descendant.wrapper:
                    return prefix + name
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))
        return ""


@dataclass(eq=False, slots=True)
class TensorEntry:
    """The entry of a parameter or buffer: its owner, its attribute and its number in the registry.

    A tied tensor has one entry, for its first name in the tree.
    """

    tensor: torch.Tensor
    owner: ModuleEntry
    attribute: str
    kind: TensorKind
    number: int

    @property
    def qualified_name(self) -> str:
        """The name in `named_parameters()` or `named_buffers()` (`layer1.0.weight`)."""
        prefix = self.owner.name
        return f"{prefix}.{self.attribute}" if prefix else self.attribute


def class_label(module: torch.nn.Module) -> str:
    """Return the class name that a scope shows: for a scripted module, its original class."""
    if isinstance(module, ScriptModule):
        return str(module.original_name)
    return type(module).__name__


@functools.lru_cache(maxsize=4096)
def _is_special(cls: type) -> bool:
    """Whether the modules of a class are scripted, lazy, or wrappers of `torch.compile`."""
    return issubclass(cls, (ScriptModule, LazyModuleMixin)) or is_compile_wrapper(cls)


def switches_itself(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether a module overrides `train()` or `eval()`, in its class or its attributes.

    Examples: a backbone keeps its BatchNorm frozen, an adapter merges its weights. Wrappers of
    `torch.compile` do not count.
    """
    return any(
        uncompiled(module) is module
        for module in modules
        if type(module).train is not _Module.train
        or type(module).eval is not _Module.eval
        or not vars(module).keys().isdisjoint(("train", "eval"))
    )


class Registry:
    """Entries of all modules, parameters and buffers with a name, by the `id` of the object.

    Attributes:
        by_module: The entries of modules and of their wrappers, by `id`: a trace looks them up
            directly at each call.
        by_tensor: The entries of parameters and buffers, by `id`, also under their fake and their
            unsharded copies.
    """

    def __init__(self) -> None:
        self.by_module: dict[int, ModuleEntry] = {}
        self.by_tensor: dict[int, TensorEntry] = {}
        # Tied tensors under their further names, by the `id` of the module and the attribute.
        self._shared: dict[tuple[int, str], TensorEntry] = {}
        # Tensors added by `put_together`, kept alive so that their `id` stays unique.
        self._held: list[torch.Tensor] = []

    def add_root(
        self,
        module: torch.nn.Module,
        *,
        name: str = "",
        attribute: str | None = None,
        registered: bool = True,
    ) -> ModuleEntry:
        """Register a module and everything below it.

        Args:
            module: The module; a module that is registered already keeps its entry.
            name: The dotted path of the module, the prefix of its children's paths.
            attribute: The name that its scope shows in brackets.
            registered: Whether the path is one of `named_modules()`.
        Returns:
            The entry of the module.
        """
        existing = self.by_module.get(id(module))
        if existing is not None:
            return existing
        root = ModuleEntry(
            module=module, name=name, attribute=attribute, parent=None, registered=registered
        )
        self._grow([root])
        return root

    def _grow(self, pending: list[ModuleEntry]) -> None:
        """Register modules, the last of the list first, with all modules below them."""
        # Depth first and in order, like named_modules(), but without its recursion.
        while pending:
            entry = pending.pop()
            if id(entry.module) in self.by_module:
                continue
            self.by_module[id(entry.module)] = entry
            if entry.wrapper is not None:
                self.by_module[id(entry.wrapper)] = entry
            self.refresh(entry, pending)

    def module(self, module: torch.nn.Module) -> ModuleEntry | None:
        """Return the entry of a module or of its wrapper, or None if it is not registered."""
        return self.by_module.get(id(module))

    def tensor(self, tensor: torch.Tensor) -> TensorEntry | None:
        """Return the entry of a parameter or buffer, or None for any other tensor."""
        return self.by_tensor.get(id(tensor))

    def knows(self, owner: ModuleEntry, names: list[str]) -> bool:
        """Whether a module owned a tensor of each of these names when it was registered."""
        attributes = {entry.attribute for entry in self.by_tensor.values() if entry.owner is owner}
        return attributes.issuperset(names)

    def forget(self) -> None:
        """Release all modules and tensors."""
        self.by_module.clear()
        self.by_tensor.clear()
        self._shared.clear()
        self._held.clear()

    def add_stand_in(self, tensor: torch.Tensor, fake: torch.Tensor) -> None:
        """Register a fake tensor under the entry of its original, if the original has one."""
        entry = self.by_tensor.get(id(tensor))
        if entry is not None:
            self.by_tensor[id(fake)] = entry

    def put_together(self, owner: ModuleEntry, name: str, tensor: torch.Tensor) -> None:
        """Register an unsharded parameter, which a module has for a while instead of its shard.

        Args:
            owner: The entry of the module.
            name: The name of the attribute.
            tensor: The whole tensor, gathered from the ranks.
        """
        for entry in self.by_tensor.values():
            if entry.owner is owner and entry.attribute == name:
                self.by_tensor[id(tensor)] = entry
                self._held.append(tensor)
                return

    def refresh(self, owner: ModuleEntry, pending: list[ModuleEntry] | None = None) -> None:
        """Register tensors and children that a module received late (lazy modules, late children).

        Args:
            owner: The entry of the module.
            pending: Receives the entries of new children in reverse order; None to register them
                at once.
        """
        module, tensors = owner.module, self.by_tensor
        for kind, table in TENSOR_TABLES:
            for name, tensor in getattr(module, table).items():
                if tensor is None:
                    continue
                entry = tensors.get(id(tensor))
                if entry is None:
                    tensors[id(tensor)] = TensorEntry(tensor, owner, name, kind, len(tensors))
                elif entry.owner is not owner or entry.attribute != name:
                    self._shared[id(module), name] = entry
        prefix = f"{owner.name}." if owner.name else ""
        children = [
            ModuleEntry(
                module=child,
                name=prefix + name,
                attribute=name,
                parent=owner,
                registered=owner.registered,
            )
            for name, child in reversed(module._modules.items())
            if child is not None and id(child) not in self.by_module
        ]
        if pending is None:
            self._grow(children)
        else:
            pending += children

    def places(self) -> list[ModuleEntry]:
        """Return the entry of every registered module, parents first."""
        # A compiled module is in the table twice: itself and its wrapper.
        return list(dict.fromkeys(self.by_module.values()))

    def modules(self, since: int = 0) -> list[torch.nn.Module]:
        """Return every registered module once, parents first, each followed by its wrapper.

        Args:
            since: The number of modules registered before, which are left out.
        """
        # A compiled module is in the table twice: itself and its wrapper.
        entries = dict.fromkeys(itertools.islice(self.by_module.values(), since, None))
        return [
            module
            for entry in entries
            for module in (entry.module, entry.wrapper)
            if module is not None
        ]

    def spread(self) -> dict[tuple[int, str], TensorEntry]:
        """Return the entries of DTensors, by the `id` of the module and the attribute."""
        # The tensors of a model have few classes, mostly without DTensor, so the classes are
        # checked first.
        kinds = {type(entry.tensor) for entry in self.by_tensor.values()}
        kinds = {kind for kind in kinds if is_dtensor(kind)}
        if not kinds:
            return {}
        shared = {key: entry for key, entry in self._shared.items() if type(entry.tensor) in kinds}
        return shared | {
            (id(entry.owner.module), entry.attribute): entry
            for entry in self.by_tensor.values()
            if type(entry.tensor) in kinds
        }

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield every registered parameter and buffer, in the order of the tree.

        A tensor with a fake or unsharded copy is yielded once more for each.
        """
        return (entry.tensor for entry in self.by_tensor.values())
