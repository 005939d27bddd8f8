"""Scopes and state of a program: its module calls, parameters, buffers and constants.

Scopes come from the module stack in the metadata of each node. The scope of a module is below the
scope of its nearest ancestor that is called, along its qualified name. Ancestors that are not
called are containers in between. The eager tracer has the same rule. Each tensor of the state has
one slot, by its name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias, TypeGuard

import torch

from tbscope.ir.builder import GraphBuilder, SourceKind
from tbscope.ir.graph import Call, Parameter, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.fx.aliasing import Slot, types_of_metadata
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType, add_value
from tbscope.sources.torch.compat.tensors import storage_key
from tbscope.sources.torch.subclasses import content_of, size_bytes_of, subclass_attributes

ModuleStack: TypeAlias = Mapping[str, object]
"""Enclosing calls of a node, outermost first: the name and class of a module, by torch's key."""

_Stack: TypeAlias = tuple[tuple[object, object], ...]
_CALL_NUMBER = re.compile(r"@\d+$")
# Prefix of module names in a function that the model passes to an operator (`cond`).
_OF_ROOT = re.compile(r"^_export_root(?:\.|$)")


def class_name_of(kind: object) -> str:
    """Return the full name of a class that a program contains as a class or as a text."""
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    return kind if isinstance(kind, str) and kind else "Module"


def label_of(class_name: str) -> str:
    """Return the label of a scope for a class: its name without the module path."""
    return class_name.rpartition(".")[2] or "Module"


def is_call(entry: object) -> TypeGuard[tuple[str, str | type]]:
    """Whether an entry of a module stack is the name of a module with its class."""
    return (
        isinstance(entry, tuple)
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], str | type)
    )


def without_call_number(text: str) -> str:
    """Return a name or a key of a module stack without the number of its call (`fc@1`)."""
    return _CALL_NUMBER.sub("", text)


class ProgramScopes:
    """Scopes of a program, each opened by the first node in it.

    Args:
        label: The name of the graph: the class of the model.
        container_class: Returns the full class name of a module that is never called, from its
            qualified name.

    Attributes:
        builder: The builder of the graph.
        root: The scope of the model itself, or None if the program does not record its call.
        call_of: The call of each module scope.
        classes: The full class name of each called module, by qualified name.
    """

    def __init__(self, label: str, container_class: Callable[[str], str]) -> None:
        self.builder = GraphBuilder(label_of(label))
        self._container_class = container_class
        self.root: Scope | None = None
        # While the body of an operator is read: its scope, by the scope in which it runs.
        self._inside: dict[Scope | None, Scope] = {}
        # For each module stack: the scope of the last call, and the innermost open scope by each
        # qualified name. Names are part of the key: torch numbers the calls of each name
        # separately, and a module may have several names.
        self._around: dict[_Stack, tuple[Scope | None, dict[str, Scope | None]]] = {}
        # The scope of each call, by the enclosing scope, torch's key and the name of the module;
        # that of each scope of the user, by the enclosing scope, its name and its number.
        self._calls: dict[tuple[object, ...], Scope] = {}
        # The latest scope of each module, called or not, by the enclosing scope.
        self._latest: dict[tuple[Scope | None, str], Scope] = {}
        # The first scope of each module: its parameters are placed there.
        self._first: dict[str, Scope] = {}
        # The scope of the caller by the scope of each call. It is not always the enclosing scope: a
        # submodule can be called while its parent does not run, or by another module.
        self._callers: dict[Scope, Scope | None] = {}
        # The first name of each called module, by torch's key for it; and both names of a call by
        # another name, by its scope.
        self._first_names: dict[str, str] = {}
        self._others: dict[Scope | None, tuple[str, str]] = {}
        self.call_of: dict[Scope | None, Call] = {}
        self.classes: dict[str, str] = {}

    def class_of(self, name: str) -> str:
        """Return the full class name of a module, which may never be called."""
        return self.classes.get(name) or self._container_class(name)

    def caller_of(self, scope: Scope) -> Scope | None:
        """Return the scope in which a scope was entered, which may be in another module."""
        return self._callers.get(scope, scope.parent)

    def open_root(self, class_name: str) -> None:
        """Open the scope of the model itself."""
        self.root = self._open_call(None, "", class_name, None)

    def scope_of(self, stack: ModuleStack | None, source: Source | None) -> Scope | None:
        """Return the scope of a node; open the scopes of calls that no earlier node was in.

        Args:
            stack: The enclosing calls, outermost first: the key of each call, with the qualified
                name of the module and its class. The key of a scope of the user is its name with a
                number.
            source: The line of the node.
        """
        keys = tuple((stack or {}).items())
        try:
            cached = self._around.get(keys)
        except TypeError:
            # User metadata may contain unhashable entries: entries that are no calls are left out.
            keys = tuple([(key, entry) for key, entry in keys if is_call(entry)])
            cached = self._around.get(keys)
        return self._find(keys, source) if cached is None else cached[0]

    def body(self, name: str, around: Scope | None) -> AbstractContextManager[Scope]:
        """Open the scope of an operator's body in an enclosing scope, while a block runs."""
        return self.inside(around, self.builder.new_scope(name, parent=around, kind="hand"))

    @contextmanager
    def inside(self, around: Scope | None, inner: Scope) -> Iterator[Scope]:
        """Place the nodes of one scope in another scope, while a block runs."""
        before = self._inside, self._around
        # A body in a body is the scope of all nodes that would be in the outer one. Cached scopes
        # depend on the bodies that are being read.
        outer = {scope: inner if body is around else body for scope, body in before[0].items()}
        self._inside, self._around = {**outer, around: inner}, {}
        try:
            yield inner
        finally:
            self._inside, self._around = before

    def _find(self, keys: _Stack, source: Source | None) -> Scope | None:
        bodies, cache = self._inside, self._around
        # Most stacks extend a cached stack by one call.
        length = len(keys)
        while length and keys[:length] not in cache:
            length -= 1
        cached = cache.get(keys[:length])
        if cached is None:
            scope = bodies.get(self.root, self.root)
            open_calls: dict[str, Scope | None] = {"": scope}
            if scope is not None and scope.qualified_name:
                open_calls[scope.qualified_name] = scope
            cached = cache[()] = scope, open_calls
        scope, open_calls = cached
        for end, (key, entry) in enumerate(keys[length:], length + 1):
            if isinstance(key, str) and is_call(entry):
                recorded, kind = _OF_ROOT.sub("", without_call_number(entry[0])), entry[1]
                # torch records an entry of equal key, name and class for its own operations outside
                # of modules.
                if recorded and not (recorded == key == kind):
                    name = self._name_in(scope, recorded)
                    scope = self._call(key, name, class_name_of(kind), open_calls, scope, source)
                    scope = bodies.get(scope, scope)
                    open_calls = {**open_calls, name: scope}
                    first = self._first_names.setdefault(without_call_number(key), recorded)
                    if first != name:
                        self._others[scope] = first, name
            elif isinstance(key, tuple):
                around, at = scope, (scope, *key)
                if at not in self._calls:
                    self._calls[at] = self.builder.new_scope(key[0], parent=scope, kind="hand")
                scope = bodies.get(self._calls[at], self._calls[at])
                open_calls = {
                    name: scope if opened is around else opened
                    for name, opened in open_calls.items()
                }
            cache[keys[:end]] = scope, open_calls
        return scope

    def _name_in(self, caller: Scope | None, recorded: str) -> str:
        """Return the name of a module below the name by which its enclosing module was called.

        torch records the first name of a submodule, even if its parent was called by another name.
        """
        first, name = self._others.get(caller, ("", ""))
        return (
            f"{name}{recorded[len(first) :]}"
            if first and recorded.startswith(f"{first}.")
            else recorded
        )

    def _call(
        self,
        key: str,
        name: str,
        class_name: str,
        open_calls: dict[str, Scope | None],
        caller: Scope | None,
        source: Source | None,
    ) -> Scope:
        holder = name.rpartition(".")[0]
        containers = []
        # Ancestors that no open call runs become containers.
        while holder not in open_calls:
            containers.append(holder)
            holder = holder.rpartition(".")[0]
        parent = open_calls[holder]
        for container in reversed(containers):
            parent = self._container(container, parent)
        scope = self._calls.get((parent, key, name))
        if scope is None:
            scope = self._open_call(parent, name, class_name, source)
            self._calls[parent, key, name] = scope
            self._callers[scope] = caller
        return scope

    def _open_call(
        self,
        parent: Scope | None,
        name: str,
        class_name: str,
        source: Source | None,
    ) -> Scope:
        # A container of earlier calls becomes a module scope once its own module is called.
        scope = self._latest.get((parent, name))
        if scope is None or scope.kind != "container":
            scope = self._new_scope(parent, name, class_name)
        scope.kind = "module"
        self.classes[name] = class_name
        # An operation in a module of torch.nn has the line of the user's code that calls the
        # module.
        line = source if class_name.startswith("torch.nn.") else None
        self.call_of[scope] = self.builder.add_call(scope, class_name=class_name, source=line)
        return scope

    def _new_scope(self, parent: Scope | None, name: str, class_name: str) -> Scope:
        attribute = name.rpartition(".")[2] or None
        scope = self.builder.new_scope(
            label_of(class_name), attribute, parent=parent, qualified_name=name
        )
        self._latest[parent, name] = scope
        self._first.setdefault(name, scope)
        return scope

    def _container(self, name: str, parent: Scope | None) -> Scope:
        """Return the scope of a module that encloses a call, but is not running."""
        # A submodule of a module that was called before is placed in that call.
        scope = self._latest.get((parent, name))
        if scope is None:
            scope = self._new_scope(parent, name, self._container_class(name))
            scope.kind = "container"
        return scope

    def scope_of_module(self, name: str) -> Scope | None:
        """Return the scope of a module's parameters: the scope of its first call."""
        scope = self._first.get(name)
        if scope is not None or not name:
            return scope or self.root
        holder = name.rpartition(".")[0]
        return self._container(name, self.scope_of_module(holder))


StateKind: TypeAlias = Literal["parameter", "buffer"]
"""Kind of a tensor in the state of a program."""


class State:
    """Parameters, buffers and constants of a program.

    Args:
        places: The scopes of the program.
        kinds: The kind of each tensor, by qualified name.
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
        # Tied tensors share the name of the first of them.
        self._first: dict[str, str] = {}
        # The first name of each tensor, by its identity.
        self._known: dict[object, str] = {}
        for name in kinds:
            tensor = tensors.get(name)
            self._first[name] = (
                name if tensor is None else self._known.setdefault(_identity(tensor), name)
            )

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

    def own(self, modules: Iterable[str]) -> dict[str, tuple[Parameter, ...]]:
        """Return the parameters and buffers of each module that has any, by module name.

        Args:
            modules: The names of the modules, in the order of the tree.
        """
        parameters: dict[str, list[Parameter]] = {name: [] for name in modules}
        order = {name: at for at, name in enumerate(parameters)}

        def place(entry: tuple[str, StateKind]) -> tuple[int, bool]:
            return order.get(entry[0].rpartition(".")[0], len(order)), entry[1] == "buffer"

        # Tied tensors share a number.
        numbers: dict[str, int] = {}
        # A module lists its parameters first.
        for name, kind in sorted(self._kinds.items(), key=place):
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
                    numbers.setdefault(self._first[name], len(numbers)),
                )
            )
        return {owner: tuple(own) for owner, own in parameters.items()}


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
