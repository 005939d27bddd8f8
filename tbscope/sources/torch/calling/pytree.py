"""Nests: the tensors inside a model's arguments or results, each with its path.

A nest is any Python value: a container of this kind or that, an object that
holds tensors in its attributes, a lone tensor, or nothing of the sort. Walking
one reads plain data only: no property is evaluated, no iterator consumed, no
module entered.
"""

import sys
import types
from collections import OrderedDict, UserList, defaultdict, deque
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

import torch

from tbscope.messages import text_of
from tbscope.sources.torch.compat.tensors import is_registered
from tbscope.utils.validation import table_of

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
_Opener: TypeAlias = Callable[[Any], _Children]

# Classes of the standard library that carry the user's data; every other one
# (loggers, locks, paths, queues) holds no tensor worth a walk through its insides.
_DATA_CLASSES = ("SimpleNamespace", "Namespace")

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
    return _walk(nest, name, public=public)


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
    named = all(type(key) is str and key for key, _ in children(result))
    return _walk(result, "" if named else "out", public=True)


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
    if isinstance(nest, kind):
        yield nest
        return
    opener = _opener_of(type(nest))
    if opener is not None and id(nest) not in entered:
        entered |= {id(nest)}
        for _, entry in opener(nest):
            yield from leaves_in(entry, kind, entered)


INSIDE: Any = object()
"""The answer that has `rebuilt` enter a container."""


def rebuilt(
    nest: Any, change: Callable[[Any], Any], made: dict[int, tuple[Any, Any]] | None = None
) -> Any:
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
    copy = change(nest)
    if copy is not INSIDE:
        return copy
    if isinstance(nest, tuple | slice | ValuesView | KeysView | ItemsView | Set):
        entries = [rebuilt(entry, change, made) for _, entry in children(nest)]
        if not isinstance(nest, tuple):
            copy = slice(*entries) if isinstance(nest, slice) else entries
        elif hasattr(cls, "n_sequence_fields"):
            copy = cls(entries)
        else:
            copy = tuple.__new__(cls, entries)
    else:
        base = next((base for base in _BASES if issubclass(cls, base)), object)
        add = _BASES.get(base)
        try:
            if hasattr(cls, "__del__"):
                raise TypeError  # A copy that ends would close what the container has open.
            copy = base.__new__(cls)
        except TypeError:
            copy, add = types.SimpleNamespace(), None
        made[id(nest)] = nest, copy
        same: dict[int, Any] = {}
        if add is not None:
            for key, entry in children(nest):
                same[id(entry)] = changed = rebuilt(entry, change, made)
                add(copy, key, changed)
        table, slots = table_of(copy), dict(slots_of(type(copy)))
        for name, held in _open_object(nest):
            # An entry that is an attribute, too, stays one thing; other tensors are no entries.
            changed = rebuilt(held, change, made) if add is None else same.get(id(held), held)
            if name in slots:
                slots[name].__set__(copy, changed)
            elif table is not None:
                table[name] = changed
    made[id(nest)] = nest, copy
    return copy


# Classes in C whose instances have entries beside attributes, with how an entry is added.
_BASES: dict[Any, Callable[[Any, Any, Any], Any]] = {
    list: lambda copy, _, entry: list.append(copy, entry),
    deque: lambda copy, _, entry: deque.append(copy, entry),
    OrderedDict: OrderedDict.__setitem__,
    defaultdict: dict.__setitem__,
    dict: dict.__setitem__,
}


def _walk(nest: Any, name: str, *, public: bool) -> list[tuple[str, torch.Tensor]]:
    """Return the leaves of a container, each with its path; none of anything else."""
    leaves: list[tuple[str, torch.Tensor]] = []
    # By identity the containers that are open, and those in which others are.
    entered: dict[int, Any] = {}
    around: set[int] = set()
    # A stack in place of recursion: nests may be deep.
    pending: list[tuple[Any, str, Iterator[tuple[int, tuple[Any, Any]]]]] = []

    def enter(container: Any, path: str, opener: _Opener) -> None:
        entered[id(container)] = container
        if public and opener is _open_object:
            opener = _open_public
        pending.append((container, path, iter(enumerate(opener(container)))))

    outermost = _opener_of(type(nest))
    if outermost is not None:
        enter(nest, name, outermost)
    while pending:
        container, path, entries = pending[-1]
        for position, (key, child) in entries:
            is_leaf = isinstance(child, torch.Tensor)
            opener = None if is_leaf else _opener_of(type(child))
            if opener is None and not is_leaf:
                continue
            step = key if type(key) is str else key_text(key, position)
            below = f"{path}.{step}" if path else step
            if opener is None:
                leaves.append((below, child))
                continue
            around.add(id(container))
            if id(child) not in entered:
                enter(child, below, opener)
                break
        else:
            pending.pop()
            if id(container) not in around:
                # It may be met, and walked, again.
                del entered[id(container)]
    return leaves


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


def _open_record(record: Any) -> _Children:
    """Return the entries of a named tuple, or of such a one of C, by their names."""
    return zip(getattr(record, "_fields", None) or record.__match_args__, record, strict=False)


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


_SLOTS: dict[type, list[tuple[str, types.MemberDescriptorType]]] = {}


def slots_of(cls: type) -> list[tuple[str, types.MemberDescriptorType]]:
    """Return the slots that a class and its bases declare, by name, in their order."""
    if cls in _SLOTS:
        return _SLOTS[cls]
    slots = _SLOTS[cls] = []
    for base in reversed(cls.__mro__):
        declared = vars(base).get("__slots__", ())
        for name in [declared] if isinstance(declared, str) else declared:
            # A private slot's member carries the mangled name, `_Class__name`.
            for full in (name, f"_{base.__name__.lstrip('_')}{name}"):
                member = vars(base).get(full)
                if isinstance(member, types.MemberDescriptorType):
                    slots.append((full, member))
    return slots


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


_OPENERS: dict[type, _Opener | None] = {}


def _opener_of(cls: type) -> _Opener | None:
    """Return the function that opens the instances of a class; None if they hold nothing."""
    if cls not in _OPENERS:
        _OPENERS[cls] = _find_opener(cls)
    return _OPENERS[cls]


def _find_opener(cls: type) -> _Opener | None:
    home = cls.__module__.partition(".")[0]
    if issubclass(cls, _SKIPPED) or home in _NO_CONTAINERS:
        return None
    if issubclass(cls, dict | Mapping):
        return _open_mapping
    if issubclass(cls, tuple) and (hasattr(cls, "_fields") or hasattr(cls, "n_sequence_fields")):
        return _open_record
    if issubclass(cls, _BY_INDEX):
        return enumerate
    if cls is slice:
        return lambda ends: (("start", ends.start), ("stop", ends.stop), ("step", ends.step))
    if home in sys.stdlib_module_names and cls.__qualname__ not in _DATA_CLASSES:
        return None
    return _open_object if cls.__dictoffset__ or slots_of(cls) else None
