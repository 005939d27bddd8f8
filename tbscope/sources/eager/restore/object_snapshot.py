"""What modules and inputs lead to: containers, objects and arrays as they were.

One walk, the nearest first, through whatever plain attribute access leads to. What it meets
is copied shallowly, so that each thing is put back in its place and stays the same thing.

Nothing that a class may have overridden is asked: a copy is made, compared and put back
by the methods of the plain container below it, and by plain attribute access.
"""

import functools
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
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

__all__ = ["MOST_ARRAY_BYTES", "MOST_OBJECTS", "KeptContents", "Report"]

Report: TypeAlias = Callable[[str, Exception], None]
"""Takes note of a part that could not be put back: its name, and the error."""

MOST_OBJECTS = 200_000
"""How many containers and objects are looked into, modules not counted."""

MOST_ARRAY_BYTES = 256 * 2**20
"""How many bytes of arrays of numpy are copied."""

# From how many things on their classes are looked at first: mostly all are numbers.
_MANY = 50

_Sort: TypeAlias = Literal["plain", "data", "array", "generator", "tensor", "module", "machine"]


class _Part(NamedTuple):
    """One thing that an instance holds.

    Attributes:
        take: Returns a copy of it.
        put: Makes an instance hold again the same as a copy.
        entries: Returns the contents of a copy.
    """

    take: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    entries: Callable[[Any], Collection[Any]]


class _Kind(NamedTuple):
    """The instances of a class, as far as a run may change them.

    Attributes:
        sort: How they are treated: "plain" for containers of Python's own classes; "machine" for
            the tools of threads and processes (queues, pools), which are never put back.
        parts: The things that they hold.
        inside: Returns the things in them that never change; None for nothing.
    """

    sort: _Sort
    parts: tuple[_Part, ...] = ()
    inside: Callable[[Any], Iterable[Any]] | None = None


# -- containers ----------------------------------------------------------------------------


def _mapping(base: Any) -> _Part:
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

    def entries(before: dict[Any, Any]) -> Collection[Any]:
        # Most mappings have names as keys, which lead nowhere.
        return (
            before.values() if {str}.issuperset(map(type, before)) else (*before, *before.values())
        )

    return _Part(take, put, entries)


def _sequence(base: Any) -> _Part:
    def put(sequence: Any, before: list[Any]) -> None:
        same = map(is_, base.__iter__(sequence), before)
        if base.__len__(sequence) != len(before) or not all(same):
            base.clear(sequence)
            base.extend(sequence, before)

    return _Part(lambda sequence: [*base.__iter__(sequence)], put, lambda before: before)


def _put_set(container: Any, before: list[Any]) -> None:
    if {*map(id, set.__iter__(container))} != {*map(id, before)}:
        set.clear(container)
        set.update(container, before)


_PLAIN: dict[type, _Part] = {
    **{base: _mapping(base) for base in (OrderedDict, dict)},
    **{base: _sequence(base) for base in (list, deque, bytearray)},
    set: _Part(lambda container: [*set.__iter__(container)], _put_set, lambda before: before),
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
        # TorchScript gives a new list, or mapping, each time: these are set in any case.
        plain = isinstance(value, bool | int | float | complex | str)
        if now[name] is not value and not (plain and now[name] == value):
            set_scripted_attribute(module, name, value)


_ATTRIBUTES = _Part(_take_object, _put_object, lambda before: before[2].values())
"""The attributes of an object, and its class."""

_SLOTS = _Part(_take_slots, _put_slots, lambda before: before)
# A scripted module has its parameters, buffers and mode outside of Python.
_SCRIPTED = _Part(scripted_attributes, _put_scripted, lambda before: before.values())


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


_ARRAY = _Part(_take_array, _put_array, lambda before: ())
_STATE = _Part(_take_state, _put_state, lambda before: ())


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


def _find_kind(cls: type) -> _Kind | None:
    if cls in _PLAIN:
        return _Kind("plain", (_PLAIN[cls],))
    if issubclass(cls, _OPAQUE):
        return None
    if issubclass(cls, torch.Tensor):
        return _Kind("tensor")
    slots = (_SLOTS,) if slots_of(cls) else ()
    if issubclass(cls, torch.nn.Module):
        scripted = (_SCRIPTED,) if issubclass(cls, ScriptModule) else ()
        return _Kind("module", (_ATTRIBUTES, *slots, *scripted))
    if issubclass(cls, _generators()):
        return _Kind("generator", (_STATE,))
    if any(str(base.__module__).partition(".")[0] in _MACHINES for base in cls.__mro__):
        return _Kind("machine")
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.ndarray):
        return _Kind("array", (_ARRAY, _ATTRIBUTES))
    inside = next((found for base, found in _INSIDE if issubclass(cls, base)), None)
    parts = [part for base, part in _PLAIN.items() if issubclass(cls, base)][:1]
    if _holds_data(cls) and (cls.__dictoffset__ or slots):
        parts += (_ATTRIBUTES, *slots)
    return _Kind("data", tuple(parts), inside) if parts or inside else None


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


# -- the walk ------------------------------------------------------------------------------


class _Kinds(dict[type, _Kind | None]):
    """The kinds of the classes that were met."""

    def __missing__(self, cls: type) -> _Kind | None:
        kind = self[cls] = _find_kind(cls)
        return kind


class KeptContents:
    """Containers, objects, arrays and random generators as they were.

    Attributes:
        modes: By the identity of each module among them, the table that has its training flag.
    """

    def __init__(self) -> None:
        self.modes: dict[int, dict[str, Any]] = {}
        self._kept: list[tuple[Any, _Part, Any]] = []
        # Containers that are empty are many, and need no copy.
        self._empty: list[Any] = []
        self._kinds = _Kinds()
        # By identity; each lives on here, so that its identity stays its own.
        self._seen: dict[int, Any] = {}
        self._objects_left = MOST_OBJECTS
        self._objects_left_out = False
        self._bytes_left = MOST_ARRAY_BYTES
        self._bytes_left_out = 0

    def keep(self, things: Iterable[Any]) -> list[torch.Tensor]:
        """Keep things and what they lead to, as they are now; what is kept already stays so.

        Returns:
            The tensors that were not met before, which are not kept.
        """
        kinds, seen, empty = self._kinds, self._seen, self._empty
        tensors: list[torch.Tensor] = []
        # What one thing holds is looked at together, after all that was met before it.
        pending = deque[Collection[Any]]([[*things]])
        while pending:
            together = pending.popleft()
            if len(together) > _MANY and not any(map(kinds.__getitem__, {*map(type, together)})):
                continue
            for thing in together:
                cls = type(thing)
                if cls in _PLAIN and not thing:
                    empty.append(thing)
                    continue
                kind = kinds[cls]
                if kind is None or id(thing) in seen:
                    continue
                seen[id(thing)] = thing
                if kind.sort == "tensor":
                    tensors.append(thing)
                elif kind.sort == "module" or self._affords(thing, kind):
                    if kind.inside is not None:
                        pending.append([*kind.inside(thing)])
                    pending += [self._keep(thing, kind, part) for part in kind.parts]
        return tensors

    def _keep(self, thing: Any, kind: _Kind, part: _Part) -> Collection[Any]:
        """Keep a part of a thing; return what it leads to."""
        before = part.take(thing)
        entries = part.entries(before)
        if kind.sort == "module":
            table = before[2] if part is _ATTRIBUTES else before
            if isinstance(table, dict) and "training" in table:
                self.modes[id(thing)] = table
        elif part is _ATTRIBUTES and any(
            inner is not None and inner.sort == "machine"
            for inner in map(self._kinds.__getitem__, map(type, entries))
        ):
            # What threads work on is no longer as it was, whatever the model does.
            return []
        self._kept.append((thing, part, before))
        return entries

    def keep_alone(self, container: Any) -> None:
        """Keep a container as it is now, and nothing that it leads to."""
        kind = self._kinds[type(container)]
        assert kind is not None
        self._kept += [(container, part, part.take(container)) for part in kind.parts]

    def _affords(self, thing: Any, kind: _Kind) -> bool:
        """Whether a thing is few enough to be kept."""
        if not self._objects_left:
            self._objects_left_out = True
            return False
        self._objects_left -= 1
        if kind.sort == "array":
            # One that is locked cannot change.
            if not thing.flags.writeable:
                return False
            if thing.nbytes > self._bytes_left:
                self._bytes_left_out += thing.nbytes
                return False
            self._bytes_left -= thing.nbytes
        return True

    def left(self) -> list[str]:
        """Return in sentences what is not kept."""
        left = []
        if self._objects_left_out:
            left.append(
                f"the model and its inputs lead to more than {MOST_OBJECTS:,} objects: what the "
                "run changed in the others is not put back"
            )
        if self._bytes_left_out:
            left.append(
                f"{self._bytes_left_out:,} bytes in arrays of numpy were not copied: what the "
                "run wrote into them is not put back"
            )
        return left

    def restore(self, report: Report) -> None:
        """Put everything back."""
        for container in filter(None, self._empty):
            container.clear()
        # The last first: those that came later may have been changed already.
        for thing, part, before in reversed(self._kept):
            try:
                part.put(thing, before)
            except Exception as error:  # noqa: BLE001 (reported)
                kind, name = self._kinds[type(thing)], type(thing).__name__
                named = {"module": "the attributes of", "generator": "the generator"}
                report(f"{named.get(kind.sort if kind else '', 'a')} {name}", error)
