"""Snapshot of containers, objects and arrays that modules and inputs refer to.

A walk in breadth-first order visits everything that plain attribute access reaches. Each visited
object is copied shallowly, so it is restored in place and keeps its identity.

No method that a class may override is called: copies are made, compared and restored by the
methods of the plain container class, and by plain attribute access.
"""

import functools
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import is_
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from tbscope.sources.torch.calling.pytree import slots_of
from tbscope.sources.torch.compat.modules import (
    ScriptModule,
    scripted_attributes,
    set_scripted_attribute,
)
from tbscope.utils.validation import table_of

Report: TypeAlias = Callable[[str, Exception], None]
"""Receives the name of a part that could not be restored, and the error."""

MOST_OBJECTS = 200_000
"""Largest number of containers and objects in a snapshot, without modules."""

MOST_ARRAY_BYTES = 256 * 2**20
"""Largest number of bytes of numpy arrays that are copied."""

# In a container with more entries the classes are checked first: mostly all are numbers.
_MANY = 50

_Sort: TypeAlias = Literal["plain", "data", "array", "generator", "tensor", "module", "machine"]


class _Accessor(NamedTuple):
    """One part of an instance's state: functions that copy and restore it.

    Attributes:
        take: Returns a copy of the part, and its contents.
        put: Restores the part of an instance from a copy.
    """

    take: Callable[[object], tuple[object, Collection[object]]]
    put: Callable[[object, Any], None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Treatment of a class's instances, by the ways in which a run may change them.

    Attributes:
        sort: "plain" for containers of Python's own classes; "machine" for tools of threads and
            processes (queues, pools), which are never restored; the other names speak for
            themselves.
        parts: The parts of an instance's state.
        inside: Returns contents of an instance that never change; None if there are none.
    """

    sort: _Sort
    parts: tuple[_Accessor, ...] = ()
    inside: Callable[[object], Iterable[object]] | None = None


_MACHINE = _Kind("machine")
_TENSOR = _Kind("tensor")


# -- containers ----------------------------------------------------------------------------


def _mapping(base: Any) -> _Accessor:
    """Return the part for the entries of a mapping class and its subclasses."""

    def take(mapping: Any) -> tuple[dict[object, Any], Collection[object]]:
        # `dict.copy` copies the hashes, so no `__hash__` of a key runs.
        copy = dict.copy(mapping) if base is dict else dict(base.items(mapping))
        return copy, (*copy, *copy.values())

    def put(mapping: Any, before: dict[Any, object]) -> None:
        # By identity, because `==` of two tensors is no bool.
        if (
            base.__len__(mapping) != len(before)
            or not all(map(is_, base.__iter__(mapping), before))
            or not all(map(is_, base.values(mapping), before.values()))
        ):
            base.clear(mapping)
            for key, value in before.items():
                base.__setitem__(mapping, key, value)

    return _Accessor(take, put)


def _sequence(base: Any) -> _Accessor:
    def take(sequence: object) -> tuple[list[object], list[object]]:
        copy = [*base.__iter__(sequence)]
        return copy, copy

    def put(sequence: object, before: list[object]) -> None:
        same = map(is_, base.__iter__(sequence), before)
        if base.__len__(sequence) != len(before) or not all(same):
            base.clear(sequence)
            base.extend(sequence, before)

    return _Accessor(take, put)


def _put_set(container: Any, before: list[object]) -> None:
    if {*map(id, set.__iter__(container))} != {*map(id, before)}:
        set.clear(container)
        set.update(container, before)


_PLAIN: dict[type, _Accessor] = {
    **{base: _mapping(base) for base in (OrderedDict, dict)},
    **{base: _sequence(base) for base in (list, deque, bytearray)},
    set: _Accessor(_sequence(set).take, _put_set),
}


# -- objects -------------------------------------------------------------------------------

_MISSING = object()


def _take_attributes(
    obj: object,
) -> tuple[tuple[type, object, dict[str, object]], Collection[Any]]:
    """Return the class of an object, its `__dict__` and a copy of it; and the attributes."""
    table = table_of(obj)
    attributes = {} if table is None else table.copy()
    return (type(obj), table, attributes), attributes.values()


def _put_attributes(obj: object, before: tuple[type, Any, dict[str, object]]) -> None:
    cls, table, attributes = before
    if type(obj) is not cls:
        object.__setattr__(obj, "__class__", cls)
    if table is None:
        return
    if object.__getattribute__(obj, "__dict__") is not table:
        object.__setattr__(obj, "__dict__", table)
    table.update(attributes)
    # A table with further names, or in another order, is rebuilt.
    if [*table] != [*attributes]:
        _PLAIN[dict].put(table, attributes)


def _take_slots(obj: object) -> tuple[list[object], list[object]]:
    contents = [_get_slot(obj, member) for _, member in slots_of(type(obj))]
    return contents, contents


def _get_slot(obj: object, member: Any) -> object:
    try:
        return member.__get__(obj)
    except AttributeError:  # The slot is empty.
        return _MISSING


def _put_slots(obj: object, before: list[Any]) -> None:
    for (_, member), value in zip(slots_of(type(obj)), before, strict=True):
        if _get_slot(obj, member) is value:
            continue
        if value is _MISSING:
            member.__delete__(obj)
        else:
            member.__set__(obj, value)


def _take_scripted(module: object) -> tuple[dict[str, object], Collection[object]]:
    attributes = scripted_attributes(module)
    return attributes, attributes.values()


def _put_scripted(module: object, before: dict[str, Any]) -> None:
    now = scripted_attributes(module)
    for name, value in before.items():
        # TorchScript returns a new list or mapping on each access, so identity shows nothing: set
        # it.
        plain = isinstance(value, bool | int | float | complex | str)
        if now[name] is not value and not (plain and now[name] == value):
            set_scripted_attribute(module, name, value)


_ATTRIBUTES = _Accessor(_take_attributes, _put_attributes)
"""The attributes of an object, and its class."""

_SLOTS = _Accessor(_take_slots, _put_slots)
# The parameters, buffers and mode of a scripted module are in C++.
_SCRIPTED = _Accessor(_take_scripted, _put_scripted)


# -- numbers -------------------------------------------------------------------------------


def _plain_array(array: object) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.ndarray.view(array, numpy.ndarray)


def _take_array(array: object) -> tuple[Any, tuple[()]]:
    return _plain_array(array).copy(order="K"), ()


def _put_array(array: object, before: Any) -> None:
    now = _plain_array(array)
    # By bytes: NaN equals nothing, and -0.0 equals 0.0.
    if now.tobytes() != before.tobytes():
        now[...] = before


def _take_generator_state(generator: Any) -> tuple[object, tuple[()]]:
    owner = getattr(generator, "bit_generator", generator)
    for name in ("get_state", "getstate"):
        if hasattr(owner, name):
            return getattr(owner, name)(), ()
    return owner.state, ()


def _put_generator_state(generator: Any, before: object) -> None:
    owner = getattr(generator, "bit_generator", generator)
    for name in ("set_state", "setstate"):
        if hasattr(owner, name):
            getattr(owner, name)(before)
            return
    owner.state = before


_ARRAY = _Accessor(_take_array, _put_array)
_STATE = _Accessor(_take_generator_state, _put_generator_state)


# -- classes -------------------------------------------------------------------------------

# Modules of the standard library and of torch whose objects contain data of the user. Objects of
# the other modules represent the outside world (loggers, threads, files) or code.
_STANDARD_DATA = frozenset({"argparse", "collections", "types"})
_TORCH_DATA = (
    *("torch.amp", "torch.ao", "torch.distributions", "torch.nn", "torch.optim"),
    "torch.utils.data.dataset",
    # Sharding state: whether the parameters of a module are gathered now.
    *("torch.distributed.fsdp", "torch.distributed._composable"),
)
_MACHINES = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "queue", "_queue", "socket", "subprocess"}
    | {"threading"}
)
_OPAQUE = (type, types.ModuleType, Enum, random.SystemRandom)


def _find_kind(cls: type) -> _Kind | None:
    if cls in _PLAIN:
        return _Kind("plain", (_PLAIN[cls],))
    if issubclass(cls, _OPAQUE):
        return None
    if issubclass(cls, torch.Tensor):
        return _TENSOR
    slots = (_SLOTS,) if slots_of(cls) else ()
    if issubclass(cls, torch.nn.Module):
        scripted = (_SCRIPTED,) if issubclass(cls, ScriptModule) else ()
        return _Kind("module", (_ATTRIBUTES, *slots, *scripted))
    if issubclass(cls, _generators()):
        return _Kind("generator", (_STATE,))
    if any(str(base.__module__).partition(".")[0] in _MACHINES for base in cls.__mro__):
        return _MACHINE
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.ndarray):
        return _Kind("array", (_ARRAY, _ATTRIBUTES))
    inside = next((contents for base, contents in _INSIDE if issubclass(cls, base)), None)
    parts = [part for base, part in _PLAIN.items() if issubclass(cls, base)][:1]
    if _holds_data(cls) and (cls.__dictoffset__ or slots):
        parts += (_ATTRIBUTES, *slots)
    return _Kind("data", tuple(parts), inside) if parts or inside else None


def _generators() -> tuple[type, ...]:
    # Looked up, never imported: a module that is not loaded has no instances.
    numpy = sys.modules.get("numpy.random")
    return (
        torch.Generator,
        random.Random,
        *((numpy.Generator, numpy.RandomState, numpy.BitGenerator) if numpy else ()),
    )


# Immutable classes: their instances always refer to the same objects.
_INSIDE: tuple[tuple[type, Callable[[Any], Iterable[object]]], ...] = (
    (tuple, tuple.__iter__),
    (frozenset, frozenset.__iter__),
    (types.MethodType, lambda method: (method.__self__,)),
    (functools.partial, lambda made: (made.func, made.args, made.keywords)),
)


def _holds_data(cls: type) -> bool:
    module = str(cls.__module__)
    top = module.partition(".")[0]
    if top == "torch":
        return module.startswith(_TORCH_DATA)
    if top in sys.stdlib_module_names:
        return top in _STANDARD_DATA
    return top not in ("numpy", "tbscope")


# -- the walk ------------------------------------------------------------------------------


# Cache of the kinds, by class.
_KINDS: dict[type, _Kind | None] = {}


def _kind_of(cls: type) -> _Kind | None:
    if cls not in _KINDS:
        _KINDS[cls] = _find_kind(cls)
    return _KINDS[cls]


class ObjectSnapshot:
    """Snapshot of containers, objects, arrays and random generators.

    Attributes:
        lacks_some: Whether objects beyond the limits are left out.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[object, _Accessor, Any]] = []
        # Empty containers are frequent, and need no copy.
        self._empty: list[Any] = []
        # By identity; the reference keeps each object alive, so that its identity stays unique.
        self._seen: dict[int, object] = {}
        self._objects_left = MOST_OBJECTS
        self._bytes_left = MOST_ARRAY_BYTES
        self.lacks_some = False

    def keep(self, things: Iterable[object]) -> list[torch.Tensor]:
        """Take a snapshot of objects and all that they refer to, except objects in it already.

        Returns:
            The tensors that were visited for the first time; they are not part of this snapshot.
        """
        kinds, seen, kept = _KINDS, self._seen, self._kept
        add_empty = self._empty.append
        tensors: list[torch.Tensor] = []
        # Breadth first: the entries of one object together, after all objects visited before.
        pending = deque[Collection[Any]]([[*things]])
        while pending:
            entries = pending.popleft()
            if len(entries) > _MANY and not any(map(_kind_of, {*map(type, entries)})):
                continue
            for obj in entries:
                try:
                    kind = kinds[type(obj)]
                except KeyError:
                    kind = _kind_of(type(obj))
                if kind is None:
                    continue
                if kind.sort == "plain" and not obj:
                    add_empty(obj)
                    continue
                key = id(obj)
                if key in seen:
                    continue
                seen[key] = obj
                if kind is _TENSOR:
                    tensors.append(obj)
                    continue
                is_module = kind.sort == "module"
                if not is_module:
                    if not self._objects_left:
                        self.lacks_some = True
                        continue
                    self._objects_left -= 1
                    if kind.sort == "array" and not self._affords(obj):
                        continue
                if kind.inside is not None:
                    pending.append([*kind.inside(obj)])
                for part in kind.parts:
                    before, contents = part.take(obj)
                    # An object with threading tools is changed by other threads, so it is not
                    # restored.
                    shared = part is _ATTRIBUTES and not is_module
                    if shared and _MACHINE in map(_kind_of, map(type, contents)):
                        continue
                    kept.append((obj, part, before))
                    pending.append(contents)
        return tensors

    def keep_alone(self, container: object) -> None:
        """Take a snapshot of a container, without the objects that it contains."""
        kind = _kind_of(type(container))
        assert kind is not None
        self._kept += [(container, part, part.take(container)[0]) for part in kind.parts]

    def modes(self) -> dict[int, dict[str, object]]:
        """Return the copied table that contains the training flag of each module, by identity."""
        tables = [
            (id(obj), before[2] if part is _ATTRIBUTES else before)
            for obj, part, before in self._kept
            if issubclass(type(obj), torch.nn.Module) and part is not _SLOTS
        ]
        return {module: table for module, table in tables if "training" in table}

    def _affords(self, array: Any) -> bool:
        """Whether an array can change, and fits into the limit of bytes."""
        if not array.flags.writeable:
            return False
        if array.nbytes > self._bytes_left:
            self.lacks_some = True
            return False
        self._bytes_left -= array.nbytes
        return True

    def restore(self, report: Report) -> None:
        """Restore everything."""
        for container in filter(None, self._empty):
            container.clear()
        # In reverse order: the run may have changed objects before they were added later.
        for obj, part, before in reversed(self._kept):
            try:
                part.put(obj, before)
            except Exception as error:  # noqa: BLE001 (reported)
                kind, name = _kind_of(type(obj)), type(obj).__name__
                named = {"module": "the attributes of", "generator": "the generator"}
                report(f"{named.get(kind.sort if kind else '', 'a')} {name}", error)
