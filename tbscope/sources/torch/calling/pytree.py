"""Pytrees: the tensors inside a model's arguments or results, each with its path.

A pytree here is any Python value: a container, an object with tensors in its attributes, a single
tensor, or a value without any. A walk reads plain data only: it evaluates no property, consumes no
iterator and enters no module.
"""

import functools
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

_Leaves: TypeAlias = list[tuple[str, Any]]
_Children: TypeAlias = Iterable[tuple[Any, Any]]
_Opener: TypeAlias = Callable[[Any], _Children]

# Classes of the standard library that carry the user's data. Instances of the others (loggers,
# locks, paths, queues) are not walked.
_DATA_CLASSES = ("SimpleNamespace", "Namespace")

# Integers from here on may be addresses.
_ADDRESSES = 2**32
# Keys that print the same in every process.
_PLAIN_KEYS = (str, int, float, bool, bytes, type(None), torch.dtype, torch.device)


def tensor_leaves(
    nest: object, name: str, *, public: bool = False, kind: type = torch.Tensor
) -> _Leaves:
    """Return every tensor inside a pytree, with its dotted path, in the order of the pytree.

    Mappings are walked by key, named tuples by field, other tuples, lists, deques, sets and
    dictionary views by index, slices by their three bounds, and any other object by its
    attributes. Modules, functions, classes, iterators, numpy arrays and objects of the standard
    library are not walked. A tensor in several places is returned for each place. A shared
    container is walked again only if no other container is inside it, so a cycle ends and a
    shared pytree costs no more than its size.

    Args:
        nest: The pytree.
        name: The path of the pytree itself (`past_key_values`); empty for none.
        public: Whether to skip the private attributes of an object (`_offset`) if its public ones
            lead to tensors: private ones are its implementation, not its data.
        kind: The class of the leaves, if they represent tensors.
    Returns:
        Pairs of path (`past_key_values.layers.0.keys`) and tensor.
    """
    if isinstance(nest, kind):
        return [(name, nest)]
    return _walk(nest, name, public=public, kind=kind)


def result_leaves(result: object, kind: type = torch.Tensor) -> _Leaves:
    """Return every tensor of a model's result, named as its user would name it.

    Args:
        result: The value that the model returned.
        kind: The class of the leaves, if they represent tensors.
    Returns:
        Pairs of path and tensor: `out` for a single tensor, `out.0`, `out.1` for a tuple or list,
        and `logits`, `past.0` for a mapping, a named tuple, a data class or any other object.
        Private attributes count only if no public attribute of an object leads to a tensor.
    """
    if isinstance(result, kind):
        return [("out", result)]
    has_names = all(type(key) is str and key for key, _ in children(result))
    return _walk(result, "" if has_names else "out", public=True, kind=kind)


def fields_of(obj: object) -> list[tuple[object, object]] | None:
    """Return names and values of the fields of a record, or None for any other object.

    Records are instances of dataclasses and of classes that are registered with torch's pytree,
    except containers. Their fields are the attributes that `tensor_leaves` walks.
    """
    cls = type(obj)
    if not (is_dataclass(cls) or is_registered(cls)) or _opener_of(cls) is not _open_object:
        return None
    return list(_open_public(obj))


def is_walked(cls: type) -> bool:
    """Whether `tensor_leaves` walks into the instances of a class."""
    return _opener_of(cls) is not None


def children(container: object) -> list[tuple[object, object]]:
    """Return the entries of a container with their keys, fields, attributes or positions."""
    opener = _opener_of(type(container))
    return [] if opener is None else list(opener(container))


def leaves_in(nest: object, kind: type, entered: frozenset[int] = frozenset()) -> Iterator[Any]:
    """Yield the instances of a class in a pytree, from left to right, as in `rebuilt`."""
    if isinstance(nest, kind):
        yield nest
        return
    opener = _opener_of(type(nest))
    if opener is not None and id(nest) not in entered:
        entered |= {id(nest)}
        for _, entry in opener(nest):
            yield from leaves_in(entry, kind, entered)


DESCEND: object = object()
"""The result with which `change` makes `rebuilt` enter a container."""


def rebuilt(
    nest: Any, change: Callable[[object], Any], made: dict[int, tuple[object, object]] | None = None
) -> object:
    """Return a copy of a pytree with its leaves replaced.

    A container keeps its class, but none of its class's code runs: neither the constructor nor
    hooks for copies. Views of dictionaries and sets become lists. If Python cannot make an empty
    instance of a class, or if the class has `__del__`, the copy is a `SimpleNamespace`.

    Args:
        nest: The pytree.
        change: Returns the replacement of an entry, or `DESCEND` for a container whose entries
            are to be replaced.
        made: Containers with their copies, by `id`: a pytree may have one in several places.
    """
    cls = type(nest)
    made = {} if made is None else made
    if id(nest) in made:
        return made[id(nest)][1]
    copy = change(nest)
    if copy is not DESCEND:
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
                raise TypeError  # The end of a copy would close the resources of the original.
            copy = base.__new__(cls)
        except TypeError:
            copy, add = types.SimpleNamespace(), None
        made[id(nest)] = nest, copy
        changed_entries: dict[int, object] = {}
        if add is not None:
            for key, entry in children(nest):
                changed_entries[id(entry)] = changed = rebuilt(entry, change, made)
                add(copy, key, changed)
        table, slots = table_of(copy), dict(slots_of(type(copy)))
        for name, attribute in _open_object(nest):
            # An object that is an entry and an attribute stays one object. The other attributes
            # of a container with entries are copied unchanged.
            changed = (
                rebuilt(attribute, change, made)
                if add is None
                else changed_entries.get(id(attribute), attribute)
            )
            if name in slots:
                slots[name].__set__(copy, changed)
            elif table is not None:
                table[name] = changed
    made[id(nest)] = nest, copy
    return copy


# Built-in classes with entries beside attributes, each with a function that adds an entry.
_BASES: dict[Any, Callable[[Any, object, object], object]] = {
    list: lambda copy, _, entry: list.append(copy, entry),
    deque: lambda copy, _, entry: deque.append(copy, entry),
    OrderedDict: OrderedDict.__setitem__,
    defaultdict: dict.__setitem__,
    dict: dict.__setitem__,
}


def _walk(nest: object, name: str, *, public: bool, kind: type) -> _Leaves:
    """Return the tensors in a container, each with its path; empty for any other object."""
    leaves: _Leaves = []
    # By `id`, the containers that were entered, and those with other containers inside.
    entered: dict[int, object] = {}
    outer_containers: set[int] = set()
    # A stack in place of recursion: pytrees may be deep.
    pending: list[tuple[object, str, Iterator[tuple[int, tuple[object, Any]]]]] = []

    def enter(container: object, path: str, opener: _Opener) -> None:
        entered[id(container)] = container
        if public and opener is _open_object:
            opener = functools.partial(_open_public, kind=kind)
        pending.append((container, path, iter(enumerate(opener(container)))))

    outermost = _opener_of(type(nest))
    if outermost is not None:
        enter(nest, name, outermost)
    while pending:
        container, path, entries = pending[-1]
        for position, (key, child) in entries:
            is_leaf = isinstance(child, kind)
            opener = None if is_leaf else _opener_of(type(child))
            if opener is None and not is_leaf:
                continue
            component = key if type(key) is str else key_text(key, position)
            below = f"{path}.{component}" if path else component
            if opener is None:
                leaves.append((below, child))
                continue
            outer_containers.add(id(container))
            if id(child) not in entered:
                enter(child, below, opener)
                break
        else:
            pending.pop()
            if id(container) not in outer_containers:
                # A container without others inside is walked again at its next place.
                del entered[id(container)]
    return leaves


def key_text(key: object, position: int) -> str:
    """Return a key's text, or its position if the text differs from process to process.

    The text of an object may be its address, and a large integer may be an `id`.
    """
    if isinstance(key, Enum):
        return key.name
    if isinstance(key, tuple) and all(map(_is_plain_key, key)):
        return ",".join(map(text_of, key))
    return text_of(key) if _is_plain_key(key) else str(position)


def _is_plain_key(key: object) -> bool:
    return isinstance(key, _PLAIN_KEYS) and not (isinstance(key, int) and abs(key) >= _ADDRESSES)


def _open_mapping(mapping: Any) -> _Children:
    """Return the items of a mapping, or its attributes if `items()` raises."""
    try:
        return list(mapping.items())
    except Exception:  # noqa: BLE001 (foreign code: its attributes are read instead)
        return _open_object(mapping)


def _open_record(record: Any) -> _Children:
    """Return names and entries of a named tuple or C struct sequence (`torch.return_types`)."""
    return zip(getattr(record, "_fields", None) or record.__match_args__, record, strict=False)


def _open_object(obj: object) -> _Children:
    """Return an object's own attributes: first the `__dict__`, then the `__slots__`."""
    pairs: list[tuple[object, object]] = []
    table = table_of(obj)
    if table:
        pairs.extend(table.items())
    for name, slot in slots_of(type(obj)):
        try:
            pairs.append((name, slot.__get__(obj)))
        except AttributeError:  # A slot that was never filled.
            continue
    return pairs


def _open_public(obj: object, kind: type = torch.Tensor) -> _Children:
    """Return an object's public attributes, or all attributes if those lead to no tensor."""
    pairs = list(_open_object(obj))
    public = [(name, entry) for name, entry in pairs if not name.startswith("_")]
    if len(public) < len(pairs) and any(tensor_leaves(entry, "", kind=kind) for _, entry in public):
        return public
    return pairs


_SLOTS: dict[type, list[tuple[str, types.MemberDescriptorType]]] = {}


def slots_of(cls: type) -> list[tuple[str, types.MemberDescriptorType]]:
    """Return the names and descriptors of the slots of a class and its bases, bases first."""
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
# Packages without containers: torch copies numpy's arrays, and ours represent tensors.
_NO_CONTAINERS = frozenset({"numpy", "tbscope"})
_BY_INDEX = (list, tuple, deque, UserList, Set, ValuesView, KeysView, ItemsView)


def _find_opener(cls: type) -> _Opener | None:
    package = cls.__module__.partition(".")[0]
    if issubclass(cls, _SKIPPED) or package in _NO_CONTAINERS:
        return None
    if issubclass(cls, Mapping):
        return _open_mapping
    if issubclass(cls, tuple) and (hasattr(cls, "_fields") or hasattr(cls, "n_sequence_fields")):
        return _open_record
    if issubclass(cls, _BY_INDEX):
        return enumerate
    if cls is slice:
        return lambda bounds: (
            ("start", bounds.start),
            ("stop", bounds.stop),
            ("step", bounds.step),
        )
    if package in sys.stdlib_module_names and cls.__qualname__ not in _DATA_CLASSES:
        return None
    return _open_object if cls.__dictoffset__ or slots_of(cls) else None


_opener_of: Callable[[type], _Opener | None] = functools.cache(_find_opener)
"""Returns the function that lists the entries of a class's instances, or None for leaves."""
