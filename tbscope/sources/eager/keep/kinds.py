"""What the instances of a class hold that a run may change, and how that is put back.

Nothing that a class may have overridden is asked: a copy is made, compared and put back
by the methods of the plain container below it, and by plain attribute access.
"""

import functools
import gc
import io
import random
import sys
import threading
import types
import weakref
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from operator import is_
from typing import Any, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch

from tbscope.checks import table_of
from tbscope.sources.eager.keep.witnesses import witness_of
from tbscope.sources.torch.nests import slots_of

__all__ = [
    "OBJECT",
    "PLAIN",
    "SLOTS",
    "Kind",
    "Part",
    "contents_of",
    "is_foreign",
    "is_installed",
    "kind_of",
    "refill",
    "same",
]

_Sort: TypeAlias = Literal[
    "data", "array", "tensor", "generator", "module", "function", "machine", "witness"
]


class Part(NamedTuple):
    """One thing that an instance holds.

    Attributes:
        take: Returns a copy of it.
        same: Tells whether an instance still holds what was copied.
        put: Makes an instance hold again what was copied.
        entries: Returns what is in a copy.
    """

    take: Callable[[Any], Any]
    same: Callable[[Any, Any], bool]
    put: Callable[[Any, Any], None]
    entries: Callable[[Any], Iterable[Any]]


class Kind(NamedTuple):
    """What the instances of a class are, as far as a run may change them.

    Attributes:
        sort: How they are treated: "machine" for what other threads or processes work with
            (queues, pools), which nobody puts back; "witness" for what can only be asked
            whether it has changed (iterators, files, locks).
        parts: What they hold.
        inside: Returns what they hold that never changes; None for nothing.
    """

    sort: _Sort
    parts: tuple[Part, ...] = ()
    inside: Callable[[Any], Iterable[Any]] | None = None


# The plain containers, each with the methods that no subclass has overridden.
PLAIN: tuple[Any, ...] = (OrderedDict, dict, list, set, deque, bytearray)


def _base_of(cls: type) -> Any:
    return next(base for base in PLAIN if issubclass(cls, base))


def contents_of(container: Any) -> Any:
    """Copy a container to a plain one."""
    base = _base_of(type(container))
    if type(container) is dict:
        # The hashes of the keys are copied, too: no key is asked for its own.
        return container.copy()
    if issubclass(base, dict):
        return dict(base.items(container))
    if base is bytearray:
        return bytes(container)
    return [*base.__iter__(container)]


def same(container: Any, contents: Any) -> bool:
    """Tell whether a container holds what it held, in the same order."""
    # By identity: whether two tensors are equal is no yes or no.
    base = _base_of(type(container))
    if base.__len__(container) != len(contents):
        return False
    if base is bytearray:
        return bool(container == contents)
    if base is set:
        return set(map(id, base.__iter__(container))) == set(map(id, contents))
    if not all(map(is_, base.__iter__(container), contents)):
        return False
    return not isinstance(contents, dict) or all(
        map(is_, base.values(container), contents.values())
    )


def refill(container: Any, contents: Any) -> None:
    """Make a container hold what it held, in the same order."""
    base = _base_of(type(container))
    if base is bytearray:
        # One that shows its memory to others cannot be cleared, only overwritten.
        base.__setitem__(container, slice(None), contents)
        return
    base.clear(container)
    if base is OrderedDict:
        for key, value in contents.items():
            base.__setitem__(container, key, value)
    elif base is dict or base is set:
        base.update(container, contents)
    else:
        base.extend(container, contents)


def _entries_of(contents: Any) -> Iterable[Any]:
    if isinstance(contents, dict):
        return (*contents, *contents.values())
    return () if isinstance(contents, bytes) else contents


_CONTAINER = Part(contents_of, same, refill, _entries_of)
# What makes the missing values of a defaultdict, by no method of a class below it.
_factory: Any = vars(defaultdict)["default_factory"]
_FACTORY = Part(
    _factory.__get__,
    lambda thing, held: _factory.__get__(thing) is held,
    _factory.__set__,
    lambda held: (held,),
)


# -- objects -------------------------------------------------------------------------------

_MISSING = object()


class _Insides(NamedTuple):
    """An object's class, its table of attributes, and a copy of that."""

    cls: type
    table: Any
    attributes: dict[str, Any]


def _take_object(thing: Any) -> _Insides:
    table = table_of(thing)
    return _Insides(type(thing), table, {} if table is None else {**table})


def _same_object(thing: Any, held: _Insides) -> bool:
    if type(thing) is not held.cls or table_of(thing) is not held.table:
        return False
    return held.table is None or same(held.table, held.attributes)


def _put_object(thing: Any, held: _Insides) -> None:
    if type(thing) is not held.cls:
        object.__setattr__(thing, "__class__", held.cls)
    if held.table is None:
        return
    if table_of(thing) is not held.table:
        object.__setattr__(thing, "__dict__", held.table)
    if not same(held.table, held.attributes):
        refill(held.table, held.attributes)


OBJECT = Part(_take_object, _same_object, _put_object, lambda held: held.attributes.values())


def _take_slots(thing: Any) -> list[Any]:
    return [_get_slot(thing, member) for _, member in slots_of(type(thing))]


def _put_slots(thing: Any, held: list[Any]) -> None:
    for (_, member), before in zip(slots_of(type(thing)), held, strict=True):
        if _get_slot(thing, member) is before:
            continue
        if before is _MISSING:
            member.__delete__(thing)
        else:
            member.__set__(thing, before)


def _get_slot(thing: Any, member: Any) -> Any:
    try:
        return member.__get__(thing)
    except AttributeError:  # It was never filled.
        return _MISSING


SLOTS = Part(
    _take_slots,
    lambda thing, held: all(map(is_, _take_slots(thing), held)),
    _put_slots,
    lambda held: held,
)


# -- numbers in memory ---------------------------------------------------------------------


def _plain_array(thing: Any) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.ndarray.view(thing, numpy.ndarray)


def _take_array(thing: Any) -> Any:
    return _plain_array(thing).copy(order="K")


def _same_array(thing: Any, held: Any) -> bool:
    now = _plain_array(thing)
    if not now.flags.writeable or now.shape != held.shape or now.dtype != held.dtype:
        return False
    if now.dtype.hasobject:
        return all(map(is_, now.flat, held.flat))
    # By their bytes: a number that is none equals nothing, and zeros have signs.
    return bool(now.tobytes() == held.tobytes())


def _put_array(thing: Any, held: Any) -> None:
    # One that was locked before is not copied: nothing could be written into it.
    thing.flags.writeable = True
    if thing.dtype != held.dtype:
        thing.dtype = held.dtype
    if thing.shape != held.shape:
        thing.shape = held.shape
    _plain_array(thing)[...] = held


def _array_entries(held: Any) -> Iterable[Any]:
    return held.ravel().tolist() if held.dtype == object else ()


_ARRAY = Part(_take_array, _same_array, _put_array, _array_entries)


def _put_machine_array(thing: Any, held: Any) -> None:
    thing[:] = held


_MACHINE_ARRAY = Part(
    lambda thing: array(thing.typecode, thing.tobytes()),
    lambda thing, held: bool(thing.tobytes() == held.tobytes()),
    _put_machine_array,
    lambda held: (),
)


def _take_stream(thing: Any) -> Any:
    return None if thing.closed else (thing.getvalue(), thing.tell())


def _put_stream(thing: Any, held: Any) -> None:
    if held is not None:
        thing.seek(0)
        thing.truncate(0)
        thing.write(held[0])
        thing.seek(held[1])


_STREAM = Part(
    _take_stream,
    lambda thing, held: bool(_take_stream(thing) == held),
    _put_stream,
    lambda held: (),
)

# What a weak reference leads to lives on until all is put back: nobody could make it anew.
_WEAK = Part(
    lambda thing: thing(), lambda thing, held: True, lambda thing, held: None, lambda held: (held,)
)


# -- classes -------------------------------------------------------------------------------

# Of the standard library and of torch, the modules whose objects carry data of the user;
# the others work with the world outside (loggers, threads, files) or with code.
_STANDARD_DATA = frozenset(
    {"argparse", "collections", "configparser", "dataclasses", "graphlib", "optparse"}
    | {"statistics", "string", "types", "weakref", "_weakrefset"}
)
_TORCH_DATA = (
    *("torch.amp", "torch.ao", "torch.distributions", "torch.nn", "torch.optim"),
    *("torch.quantization", "torch.quasirandom", "torch.utils.data.dataset"),
    # How a module is sharded: whether its parameters are gathered now.
    *("torch.distributed.fsdp", "torch.distributed._composable"),
)
_MACHINES = frozenset(
    {
        *(("threading", "Thread"), ("concurrent.futures._base", "Executor")),
        *(("queue", "Queue"), ("_queue", "SimpleQueue"), ("multiprocessing.pool", "Pool")),
        *(("multiprocessing.queues", "Queue"), ("multiprocessing.queues", "SimpleQueue")),
        *(("multiprocessing.process", "BaseProcess"), ("subprocess", "Popen")),
        *(("socket", "socket"), ("asyncio.events", "AbstractEventLoop")),
    }
)
_OPAQUE = (
    *(type, types.ModuleType, property, staticmethod, classmethod, weakref.finalize),
    *(Enum, BaseException, str, bytes, int, float, complex, torch.Size),
    *(torch.SymInt, torch.SymFloat, torch.SymBool, random.SystemRandom),
)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))

_LASTING: dict[type, Kind | None] = dict.fromkeys(
    (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)
)
# By what is not found by its name, and may go again.
_PASSING: WeakKeyDictionary[type, Kind | None] = WeakKeyDictionary()


def kind_of(cls: type) -> Kind | None:
    """Tell what an instance of a class is; None for what no run can change."""
    try:
        return _LASTING[cls]
    except KeyError:
        pass
    try:
        return _PASSING[cls]
    except KeyError:
        kind = _find_kind(cls)
    home = sys.modules.get(cls.__module__)
    kinds: Any = _LASTING if getattr(home, cls.__qualname__, None) is cls else _PASSING
    kinds[cls] = kind
    return kind


def is_foreign(made: Any) -> bool:
    """Tell whether a class, a function or a module is Python's, torch's, numpy's or ours."""
    home = getattr(made, "__module__", None) or getattr(made, "__name__", None)
    top = str(home).partition(".")[0]
    return top in ("torch", "numpy", "tbscope") or top in sys.stdlib_module_names


def is_installed(made: Any) -> bool:
    """Tell whether a class or a function is that of an installed package."""
    home = sys.modules.get(str(getattr(made, "__module__", None)))
    file = getattr(home, "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _find_kind(cls: type) -> Kind | None:
    if issubclass(cls, _OPAQUE):
        return None
    if issubclass(cls, torch.Tensor):
        return Kind("tensor")
    if issubclass(cls, torch.nn.Module):
        return Kind("module")
    if issubclass(cls, _generators()):
        return Kind("generator")
    if issubclass(cls, types.FunctionType):
        return Kind("function")
    if any((base.__module__, base.__qualname__) in _MACHINES for base in cls.__mro__):
        return Kind("machine")
    return _kind_of_data(cls) or (Kind("witness") if witness_of(cls) else None)


def _generators() -> tuple[type, ...]:
    # Looked up, never imported: what is not loaded is held by nobody.
    numpy = sys.modules.get("numpy.random")
    return (
        torch.Generator,
        random.Random,
        *((numpy.Generator, numpy.RandomState, numpy.BitGenerator) if numpy else ()),
    )


def _kind_of_data(cls: type) -> Kind | None:
    numpy: Any = sys.modules.get("numpy")
    is_array = numpy is not None and issubclass(cls, numpy.ndarray)
    slots = (SLOTS,) if slots_of(cls) else ()
    walked = is_array or _holds_data(cls)
    parts = (OBJECT, *slots) if walked and (cls.__dictoffset__ or slots) else ()
    if is_array:
        return Kind("array", (_ARRAY, *parts))
    if issubclass(cls, array):
        return Kind("array", (_MACHINE_ARRAY, *parts))
    if issubclass(cls, io.BytesIO | io.StringIO):
        return Kind("data", (_STREAM, *parts))
    if issubclass(cls, PLAIN):
        factory = (_FACTORY,) if issubclass(cls, defaultdict) else ()
        return Kind("data", (_CONTAINER, *factory, *parts))
    if issubclass(cls, weakref.ref):
        return Kind("data", (_WEAK,))
    inside = _inside_of(cls)
    if inside is not None:
        return Kind("data", parts, inside)
    return Kind("data", parts) if parts else None


def _inside_of(cls: type) -> Callable[[Any], Iterable[Any]] | None:
    """Return what gives the insides of what leads to others, and holds no others ever."""
    if issubclass(cls, tuple):
        return tuple.__iter__
    if issubclass(cls, frozenset):
        return frozenset.__iter__
    if issubclass(cls, types.MethodType):
        return lambda method: (method.__self__, method.__func__)
    if issubclass(cls, types.BuiltinMethodType):
        return lambda method: (method.__self__,)
    if issubclass(cls, functools.partial):
        return lambda made: (made.func, made.args, made.keywords)
    if issubclass(cls, threading.local):
        return lambda local: (vars(local),)
    if issubclass(cls, types.MappingProxyType):
        return gc.get_referents
    if issubclass(cls, _VIEWS):
        return lambda view: gc.get_referents(view.mapping)
    return (lambda view: (view.obj,)) if issubclass(cls, memoryview) else None


def _holds_data(cls: type) -> bool:
    module = str(cls.__module__)
    top = module.partition(".")[0]
    if top == "torch":
        return module.startswith(_TORCH_DATA)
    if top in sys.stdlib_module_names:
        return top in _STANDARD_DATA
    return top not in ("numpy", "tbscope")
