"""What an instance of each class holds that a run may change, and how that is put back.

Nothing that a class may have overridden is asked: a copy is made, compared and put back
by the methods of the plain container below it, and by plain attribute access.
"""

import functools
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from operator import is_
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch

from tbscope.checks import table_of
from tbscope.sources.torch.module_internals import (
    ScriptModule,
    scripted_attributes,
    set_scripted_attribute,
)
from tbscope.sources.torch.nests import slots_of

__all__ = ["ATTRIBUTES", "Kind", "Part", "kind_of"]

_Sort: TypeAlias = Literal["plain", "data", "array", "generator", "tensor", "module", "machine"]


class Part(NamedTuple):
    """One thing that an instance holds.

    Attributes:
        take: Returns a copy of it.
        put: Makes an instance hold again the same as a copy.
        entries: Returns the contents of a copy.
    """

    take: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    entries: Callable[[Any], Iterable[Any]]


class Kind(NamedTuple):
    """The instances of a class, as far as a run may change them.

    Attributes:
        sort: How they are treated: "plain" for containers of Python's own classes; "machine" for
            the tools of threads and processes (queues, pools), which are never put back.
        parts: The things that they hold.
        inside: Returns the things in them that never change; None for nothing.
    """

    sort: _Sort
    parts: tuple[Part, ...] = ()
    inside: Callable[[Any], Iterable[Any]] | None = None


# -- containers ----------------------------------------------------------------------------


def _mapping(base: Any) -> Part:
    """Return the entries of instances of a class of mappings, and of classes below it."""

    def take(mapping: Any) -> dict[Any, Any]:
        # The hashes of the keys are copied, too: no key is asked for its own.
        return dict.copy(mapping) if base is dict else dict(base.items(mapping))

    def put(mapping: Any, before: dict[Any, Any]) -> None:
        # By identity: whether two tensors are equal is no yes or no.
        if (
            base.__len__(mapping) != len(before)
            or not all(map(is_, base.__iter__(mapping), before))
            or not all(map(is_, base.values(mapping), before.values()))
        ):
            base.clear(mapping)
            for key, value in before.items():
                base.__setitem__(mapping, key, value)

    return Part(take, put, lambda before: (*before, *before.values()))


def _sequence(base: Any) -> Part:
    def put(sequence: Any, before: list[Any]) -> None:
        same = map(is_, base.__iter__(sequence), before)
        if base.__len__(sequence) != len(before) or not all(same):
            base.clear(sequence)
            base.extend(sequence, before)

    return Part(lambda sequence: [*base.__iter__(sequence)], put, lambda before: before)


def _put_set(container: Any, before: list[Any]) -> None:
    if {*map(id, set.__iter__(container))} != {*map(id, before)}:
        set.clear(container)
        set.update(container, before)


_PLAIN: dict[type, Part] = {
    **{base: _mapping(base) for base in (OrderedDict, dict)},
    **{base: _sequence(base) for base in (list, deque, bytearray)},
    set: Part(lambda container: [*set.__iter__(container)], _put_set, lambda before: before),
}


# -- objects -------------------------------------------------------------------------------

_MISSING = object()


def _take_object(thing: Any) -> tuple[type, Any, dict[str, Any]]:
    """Return the class of an object, its table of attributes, and a copy of that."""
    table = table_of(thing)
    return type(thing), table, {} if table is None else table.copy()


def _put_object(thing: Any, before: tuple[type, Any, dict[str, Any]]) -> None:
    cls, table, attributes = before
    if type(thing) is not cls:
        object.__setattr__(thing, "__class__", cls)
    if table is None:
        return
    if table_of(thing) is not table:
        object.__setattr__(thing, "__dict__", table)
    table.update(attributes)
    if [*table] != [*attributes]:
        _PLAIN[dict].put(table, attributes)


def _take_slots(thing: Any) -> list[Any]:
    return [_get_slot(thing, member) for _, member in slots_of(type(thing))]


def _get_slot(thing: Any, member: Any) -> Any:
    try:
        return member.__get__(thing)
    except AttributeError:  # It was never filled.
        return _MISSING


def _put_slots(thing: Any, before: list[Any]) -> None:
    for (_, member), value in zip(slots_of(type(thing)), before, strict=True):
        if _get_slot(thing, member) is value:
            continue
        if value is _MISSING:
            member.__delete__(thing)
        else:
            member.__set__(thing, value)


def _put_scripted(module: Any, before: dict[str, Any]) -> None:
    now = scripted_attributes(module)
    for name, value in before.items():
        if not _alike(now[name], value):
            set_scripted_attribute(module, name, value)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values that TorchScript gave are the same, down to their tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return _alike([*one], [*other]) and _alike([*one.values()], [*other.values()])
    return one is other if isinstance(one, torch.Tensor) else bool(one == other)


ATTRIBUTES = Part(_take_object, _put_object, lambda before: before[2].values())
"""The attributes of an object, and its class."""

_SLOTS = Part(_take_slots, _put_slots, lambda before: before)
# A scripted module has its parameters, buffers and mode outside of Python.
_SCRIPTED = Part(scripted_attributes, _put_scripted, lambda before: before.values())


# -- numbers -------------------------------------------------------------------------------


def _plain_array(array: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.ndarray.view(array, numpy.ndarray)


def _take_array(array: Any) -> Any:
    return _plain_array(array).copy(order="K")


def _put_array(array: Any, before: Any) -> None:
    now = _plain_array(array)
    # By their bytes: a number that is none equals nothing, and zeros have signs.
    if now.tobytes() != before.tobytes():
        now[...] = before


def _take_state(generator: Any) -> Any:
    owner = getattr(generator, "bit_generator", generator)
    for name in ("get_state", "getstate"):
        if hasattr(owner, name):
            return getattr(owner, name)()
    return owner.state


def _put_state(generator: Any, before: Any) -> None:
    owner = getattr(generator, "bit_generator", generator)
    for name in ("set_state", "setstate"):
        if hasattr(owner, name):
            getattr(owner, name)(before)
            return
    owner.state = before


_ARRAY = Part(_take_array, _put_array, lambda before: ())
_STATE = Part(_take_state, _put_state, lambda before: ())


# -- classes -------------------------------------------------------------------------------

# Of the standard library and of torch, the modules whose objects carry data of the user;
# the others work with the world outside (loggers, threads, files) or with code.
_STANDARD_DATA = frozenset({"argparse", "collections", "types"})
_TORCH_DATA = (
    *("torch.amp", "torch.ao", "torch.distributions", "torch.nn", "torch.optim"),
    "torch.utils.data.dataset",
    # How a module is sharded: whether its parameters are gathered now.
    *("torch.distributed.fsdp", "torch.distributed._composable"),
)
_MACHINES = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "queue", "_queue", "socket", "subprocess"}
    | {"threading"}
)
_OPAQUE = (type, types.ModuleType, Enum, random.SystemRandom)

_CONSTANTS: tuple[type, ...] = (
    *(int, float, bool, str, bytes, complex, type(None)),
    *(torch.dtype, torch.device, torch.Size),
)
_KINDS: WeakKeyDictionary[type, Kind | None] = WeakKeyDictionary(dict.fromkeys(_CONSTANTS))


def kind_of(cls: type) -> Kind | None:
    """Return the kind of the instances of a class; None for those that no run can change."""
    if cls not in _KINDS:
        _KINDS[cls] = _find_kind(cls)
    return _KINDS[cls]


def _find_kind(cls: type) -> Kind | None:
    if cls in _PLAIN:
        return Kind("plain", (_PLAIN[cls],))
    if issubclass(cls, _OPAQUE):
        return None
    if issubclass(cls, torch.Tensor):
        return Kind("tensor")
    slots = (_SLOTS,) if slots_of(cls) else ()
    if issubclass(cls, torch.nn.Module):
        scripted = (_SCRIPTED,) if issubclass(cls, ScriptModule) else ()
        return Kind("module", (ATTRIBUTES, *slots, *scripted))
    if issubclass(cls, _generators()):
        return Kind("generator", (_STATE,))
    if any(str(base.__module__).partition(".")[0] in _MACHINES for base in cls.__mro__):
        return Kind("machine")
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.ndarray):
        return Kind("array", (_ARRAY, ATTRIBUTES))
    inside = next((found for base, found in _INSIDE if issubclass(cls, base)), None)
    parts = [part for base, part in _PLAIN.items() if issubclass(cls, base)][:1]
    if _holds_data(cls) and (cls.__dictoffset__ or slots):
        parts += (ATTRIBUTES, *slots)
    return Kind("data", tuple(parts), inside) if parts or inside else None


def _generators() -> tuple[type, ...]:
    # Looked up, never imported: what is not loaded has no instances.
    numpy = sys.modules.get("numpy.random")
    return (
        torch.Generator,
        random.Random,
        *((numpy.Generator, numpy.RandomState, numpy.BitGenerator) if numpy else ()),
    )


# What leads to others, and never to other ones.
_INSIDE: tuple[tuple[type, Callable[[Any], Iterable[Any]]], ...] = (
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
