"""Nests: the tensors inside a model's arguments or results, each with its path.

A nest is any Python value: a container of this kind or that, an object that
holds tensors in its attributes, a lone tensor, or nothing of the sort. Walking
one reads plain data only: no property is evaluated, no iterator consumed, no
module entered.
"""

import sys
import types
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Set,
    ValuesView,
)
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch

from tbscope.checks import table_of
from tbscope.sources.torch.nest_internals import is_registered
from tbscope.words import text_of

__all__ = [
    "INSIDE",
    "children",
    "fields_of",
    "is_walked",
    "key_text",
    "leaves_in",
    "rebuilt",
    "result_leaves",
    "slots_of",
    "tensor_leaves",
]

_Children: TypeAlias = Iterable[tuple[Any, Any]]
_Made: TypeAlias = dict[int, tuple[Any, Any]]
_Opener: TypeAlias = Callable[[Any], _Children]

# Classes of the standard library that carry the user's data; every other one
# (loggers, locks, paths, queues) holds no tensor worth a walk through its insides.
_DATA_CLASSES = frozenset({("types", "SimpleNamespace"), ("argparse", "Namespace")})

# Whole numbers from here on may be addresses.
_ADDRESSES = 2**32
# Keys that print the same in every process.
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None), torch.dtype, torch.device)


def tensor_leaves(nest: Any, name: str, *, public: bool = False) -> list[tuple[str, torch.Tensor]]:
    """Return every tensor inside a nest, with its dotted path, in the nest's order.

    Mappings are walked by key, named tuples by field, other tuples, lists, deques,
    sets and dictionary views by index, slices by their three ends, and any other
    object by its attributes. Left alone: modules, functions, classes, iterators,
    numpy arrays, and objects of the standard library. A tensor that stands in
    several places is returned for each. A container met again is walked again only if
    it holds no other container, so a cycle ends and a shared nest costs no more
    than its size.

    Args:
        nest: Anything.
        name: The path of the nest itself (`past_key_values`); empty for none.
        public: Whether the private attributes of an object (`_offset`) are left out, where
            public ones lead to tensors: they are how it works, not what it holds.
    Returns:
        Pairs of path (`past_key_values.layers.0.keys`) and tensor.
    """
    if isinstance(nest, torch.Tensor):
        return [(name, nest)]
    opener = _opener_of(type(nest))
    return _walk(nest, name, opener, public=public) if opener else []


def result_leaves(result: Any) -> list[tuple[str, torch.Tensor]]:
    """Return every tensor of a model's result, named as its user would name it.

    Args:
        result: The value that the model returned.
    Returns:
        Pairs of path and tensor: `out` for a lone tensor, `out.0`, `out.1` for a
        tuple or list, and `logits`, `past.0` for a mapping, a named tuple, a data
        class or any other object. Private attributes count only where an object has no
        public one that leads to a tensor.
    """
    if isinstance(result, torch.Tensor):
        return [("out", result)]
    opener = _opener_of(type(result))
    if not opener:
        return []
    named = all(type(key) is str and key for key, _ in opener(result))
    return _walk(result, "" if named else "out", opener, public=True)


def fields_of(thing: Any) -> list[tuple[Any, Any]] | None:
    """Return the fields of a record by name, or None for any other object.

    Records are the instances of dataclasses and of classes that torch's pytree flattens; their
    fields are the attributes that `tensor_leaves` walks.
    """
    cls = type(thing)
    if not (is_dataclass(cls) or is_registered(cls)) or _opener_of(cls) is not _open_object:
        return None
    return list(_open_public(thing))


def is_walked(cls: type) -> bool:
    """Tell whether the walk goes into the instances of a class."""
    return _opener_of(cls) is not None


def children(container: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a container with their keys, fields, attributes or places."""
    opener = _opener_of(type(container))
    return [] if opener is None else list(opener(container))


def leaves_in(nest: Any, kind: type, entered: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Yield the instances of a class in a nest, from left to right, as `rebuilt` finds them."""
    cls = type(nest)
    if isinstance(nest, kind):
        yield nest
    elif cls not in _OPENERS or _OPENERS[cls] is not None:
        opener = _opener_of(cls)
        if opener is not None and id(nest) not in entered:
            entered |= {id(nest)}
            for _, entry in opener(nest):
                yield from leaves_in(entry, kind, entered)


INSIDE: Any = object()
"""The answer that has `rebuilt` enter a container."""


def rebuilt(nest: Any, change: Callable[[Any], Any], made: _Made | None = None) -> Any:
    """Return a copy of a nest with something else for each entry that is no container.

    A container is of the same class, and made without the code of that class: neither its
    constructor nor its hooks for copies run. A view of a dictionary is a list.

    Args:
        nest: Anything.
        change: Returns what replaces a tensor, or another entry that holds nothing; `INSIDE` for
            a container whose entries are to be changed.
        made: Containers with their copies, by `id`: a nest may have one in several places.
    """
    cls = type(nest)
    made = {} if made is None else made
    if id(nest) in made:
        return made[id(nest)][1]
    replaced = change(nest)
    if replaced is not INSIDE:
        return replaced
    if isinstance(nest, tuple):
        entries = [rebuilt(entry, change, made) for entry in nest]
        structure = hasattr(cls, "n_sequence_fields")
        copy = cls(entries) if structure else tuple.__new__(cls, entries)
    elif cls is slice:
        copy = slice(*[rebuilt(end, change, made) for _, end in _open_slice(nest)])
    elif isinstance(nest, ValuesView | KeysView | ItemsView | Set):
        copy = [rebuilt(entry, change, made) for entry in nest]
    else:
        copy = _shell_of(nest)
        made[id(nest)] = nest, copy
        _fill(copy, nest, change, made)
    made[id(nest)] = nest, copy
    return copy


# Classes in C whose instances have entries beside attributes, with how an entry is added.
_BASES: dict[type, Callable[[Any, Any, Any], Any]] = {
    list: lambda copy, _, entry: list.append(copy, entry),
    deque: lambda copy, _, entry: deque.append(copy, entry),
    OrderedDict: OrderedDict.__setitem__,
    defaultdict: dict.__setitem__,
    dict: dict.__setitem__,
}
# What a dictionary may make by itself for a key that it lacks.
_FACTORIES = (list, dict, set, tuple, int, float, str)


def _shell_of(container: Any) -> Any:
    """Return an empty container of the same class, or of a plain one if that cannot be made."""
    cls = type(container)
    base: Any = next((base for base in _BASES if issubclass(cls, base)), object)
    try:
        if hasattr(cls, "__del__"):
            raise TypeError  # A copy that ends would close what the container has open.
        shell: Any = base.__new__(cls)
    except TypeError:
        return {} if isinstance(container, Mapping) else types.SimpleNamespace()
    if base is deque:
        deque.__init__(shell, (), container.maxlen)
    if base is defaultdict and container.default_factory in _FACTORIES:
        shell.default_factory = container.default_factory
    return shell


def _fill(copy: Any, container: Any, change: Callable[[Any], Any], made: _Made) -> None:
    """Fill an empty container with the changed entries and attributes of another one."""
    same: dict[int, Any] = {}
    add = next((add for base, add in _BASES.items() if isinstance(copy, base)), None)
    if add is not None:
        for key, entry in children(container):
            same[id(entry)] = changed = rebuilt(entry, change, made)
            add(copy, key, changed)
    table, slots = table_of(copy), dict(slots_of(type(copy)))
    for name, held in _open_object(container):
        # An entry that is an attribute, too, stays one thing; other tensors are no entries.
        changed = same.get(id(held), held) if add is not None else rebuilt(held, change, made)
        if name in slots:
            slots[name].__set__(copy, changed)
        elif table is not None:
            table[name] = changed


class _Frame:
    """One container that is being walked; the stack of them replaces recursion."""

    __slots__ = ("container", "flat", "items", "key", "outer", "path", "position")

    def __init__(self, container: Any, items: _Children, outer: "_Frame | None", key: str) -> None:
        self.container = container
        self.items = iter(items)
        self.outer = outer
        self.key = key
        self.path: str | None = None
        self.position = 0
        self.flat = True


def _walk(nest: Any, name: str, opener: _Opener, *, public: bool) -> list[tuple[str, torch.Tensor]]:
    """Return the leaves of a container, each with its path."""
    leaves: list[tuple[str, torch.Tensor]] = []
    # By identity the containers, and whether each is flat.
    entered: dict[int, tuple[Any, bool]] = {id(nest): (nest, False)}
    if public and opener is _open_object:
        opener = _open_public
    frame: _Frame | None = _Frame(nest, opener(nest), None, name)
    while frame:
        deeper = None
        for key, child in frame.items:
            frame.position += 1
            if isinstance(child, torch.Tensor):
                path = frame.path
                if path is None:
                    path = frame.path = _path_of(frame)
                step = key if type(key) is str else key_text(key, frame.position - 1)
                leaves.append((f"{path}.{step}" if path else step, child))
                continue
            kind = type(child)
            open_child = _OPENERS[kind] if kind in _OPENERS else _opener_of(kind)
            if open_child is None:
                continue
            frame.flat = False
            met = entered.get(id(child))
            if met and not met[1]:
                continue
            entered[id(child)] = (child, False)
            if public and open_child is _open_object:
                open_child = _open_public
            step = key if type(key) is str else key_text(key, frame.position - 1)
            deeper = _Frame(child, open_child(child), frame, step)
            break
        if deeper is None:
            entered[id(frame.container)] = (frame.container, frame.flat)
            frame = frame.outer
        else:
            frame = deeper
    return leaves


def _path_of(frame: _Frame) -> str:
    steps = []
    at: _Frame | None = frame
    while at:
        if at.path is not None:
            steps.append(at.path)
            break
        steps.append(at.key)
        at = at.outer
    return ".".join(step for step in reversed(steps) if step)


def key_text(key: Any, position: int) -> str:
    """Return a key's text, or its position if that differs from process to process.

    So does the text of an object, which is its address, and an `id`, which is one, too.
    """
    if isinstance(key, Enum):
        return key.name
    if isinstance(key, tuple) and all(map(_is_plain_key, key)):
        return ",".join(map(text_of, key))
    return text_of(key) if _is_plain_key(key) else str(position)


def _is_plain_key(key: Any) -> bool:
    return isinstance(key, _PLAIN_KEYS) and not (isinstance(key, int) and abs(key) >= _ADDRESSES)


def _open_mapping(mapping: Any) -> _Children:
    """Return a foreign mapping's items, or its attributes where it cannot list them."""
    try:
        return list(mapping.items())
    except Exception:  # noqa: BLE001 (foreign code: what it cannot tell is read from it)
        return _open_object(mapping)


def _open_named_tuple(record: Any) -> _Children:
    return zip(record._fields, record, strict=False)


def _open_struct_sequence(record: Any) -> _Children:
    return zip(type(record).__match_args__, record, strict=False)


def _open_slice(ends: slice) -> _Children:
    return (("start", ends.start), ("stop", ends.stop), ("step", ends.step))


def _open_object(thing: Any) -> _Children:
    """Return an object's own attributes: those in `__dict__`, then those in `__slots__`."""
    pairs: list[tuple[Any, Any]] = []
    table = table_of(thing)
    if table:
        pairs.extend(table.items())
    for name, slot in slots_of(type(thing)):
        try:
            pairs.append((name, slot.__get__(thing)))
        except AttributeError:  # A slot that was never filled.
            continue
    return pairs


def _open_public(thing: Any) -> _Children:
    """Return an object's public attributes; all of them where these lead to no tensor."""
    pairs = list(_open_object(thing))
    public = [(name, held) for name, held in pairs if not name.startswith("_")]
    if len(public) < len(pairs) and any(tensor_leaves(held, "") for _, held in public):
        return public
    return pairs


def slots_of(cls: type) -> list[tuple[str, types.MemberDescriptorType]]:
    """Return the slots that a class and its bases declare, by name, in their order."""
    if cls not in _SLOTS:
        _SLOTS[cls] = [slot for base in reversed(cls.__mro__) for slot in _own_slots(base)]
    return _SLOTS[cls]


def _own_slots(cls: type) -> list[tuple[str, types.MemberDescriptorType]]:
    declared = vars(cls).get("__slots__")
    if declared is None:
        return []
    rank: dict[str, int] = {}
    for name in [declared] if isinstance(declared, str) else declared:
        # A private slot's member carries the mangled name, `_Class__name`.
        rank[name] = rank[f"_{cls.__name__.lstrip('_')}{name}"] = len(rank)
    members = [
        (name, member)
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType)
    ]
    return sorted(members, key=lambda slot: rank.get(slot[0], -1))


_SKIPPED = (
    torch.Tensor,
    torch.nn.Module,
    torch.Size,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
    Enum,
    type,
    str,
    bytes,
    int,
    float,
    complex,
    BaseException,
    types.ModuleType,
)
# Packages of which no class is a container: numpy's are copied by torch, ours stand for tensors.
_NO_CONTAINERS = frozenset({"numpy", "tbscope"})
_BY_INDEX = (list, tuple, deque, UserList, Set, ValuesView, KeysView, ItemsView)

# By class, how its instances are opened: None where they are no containers. The
# first holds the classes that live for ever, so that the usual lookup is a plain one.
_OPENERS: dict[type, _Opener | None] = {
    dict: dict.items,
    list: enumerate,
    tuple: enumerate,
    slice: _open_slice,
    **dict.fromkeys((int, float, bool, str, bytes, complex, type(None), type(...))),
    **dict.fromkeys((torch.Size, torch.dtype, torch.device, types.FunctionType, range)),
}
_SLOTS: WeakKeyDictionary[type, list[tuple[str, types.MemberDescriptorType]]] = WeakKeyDictionary()
_MORE_OPENERS: WeakKeyDictionary[type, _Opener | None] = WeakKeyDictionary()


def _opener_of(cls: type) -> _Opener | None:
    """Return the function that opens the instances of a class; None if they hold nothing."""
    if cls in _OPENERS:
        return _OPENERS[cls]
    if cls not in _MORE_OPENERS:
        _MORE_OPENERS[cls] = _find_opener(cls)
    return _MORE_OPENERS[cls]


def _find_opener(cls: type) -> _Opener | None:
    if issubclass(cls, _SKIPPED) or cls.__module__.partition(".")[0] in _NO_CONTAINERS:
        return None
    if issubclass(cls, dict | UserDict) or issubclass(cls, Mapping):
        return _open_mapping
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _open_named_tuple
    if issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields"):
        return _open_struct_sequence
    if issubclass(cls, _BY_INDEX):
        return enumerate
    standard = cls.__module__.partition(".")[0] in sys.stdlib_module_names
    if standard and (cls.__module__, cls.__qualname__) not in _DATA_CLASSES:
        return None
    return _open_object if cls.__dictoffset__ or slots_of(cls) else None
