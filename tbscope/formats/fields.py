"""Reads plain data, of which anything may be wrong; the error says where and what.

A reader checks one kind of field. It gets the name of the field, for the error; the plain data;
and the entries of the tables that are read by then, by the names of these.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tbscope.words import shown

__all__ = [
    "FieldError",
    "Fields",
    "Reader",
    "Tables",
    "at",
    "entry_of",
    "integer",
    "listed",
    "mapping",
    "number",
    "optional",
    "optional_text",
    "several",
    "sizes",
    "text",
    "truth",
    "whole",
    "word",
]

Tables: TypeAlias = Mapping[str, Sequence[Any]]
"""The entries of tables, by the names of these."""

Reader: TypeAlias = Callable[[str, Any, Tables], Any]
"""Returns what plain data of a name describes, or raises FieldError."""

_NEEDED = object()
# Python prints no number of more digits; as hexadecimal it has no more than so many.
_TOO_LONG = 10**4300
_MOST_HEX = len(hex(-_TOO_LONG))
# What torch counts sizes with; and what a float holds, with room for sums.
_MOST_SIZE = 2**63
_MOST_COUNT = 2**1000
# So many sizes come to less.
_FEW = 15


class FieldError(Exception):
    """Something in plain data that is not as the schema has it; `str` tells where and what."""


def _wrong(what: str, told: Any, wanted: str) -> FieldError:
    return FieldError(f"{what} is {shown(told)}, and should be {wanted}")


class Fields:
    """The fields of one object.

    Args:
        data: What should be an object.
        known: The keys that it may have.
        tables: The tables that are read by then.
    Raises:
        FieldError: It is none, or it has another key.
    """

    __slots__ = ("_data", "_tables")

    def __init__(self, data: Any, known: frozenset[str], tables: Tables) -> None:
        if type(data) is not dict:
            raise FieldError(f"is {shown(data)}, and should be an object")
        if not known.issuperset(data):
            other = next(key for key in data if key not in known)
            raise FieldError(f"{shown(other)[1:-1]} is no field that this version has")
        self._data: dict[str, Any] = data
        self._tables = tables

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def raw(self, key: str) -> Any:
        """Return a field unchecked, or None if it is missing."""
        return self._data.get(key)

    def get(self, key: str, read: Reader, default: Any = _NEEDED) -> Any:
        """Return a field as a reader gives it, or the default if it is missing."""
        if default is not _NEEDED and key not in self._data:
            return default
        return read(key, self._data.get(key), self._tables)


# -- readers --------------------------------------------------------------------------------


def _plain(wanted: str, *kinds: type) -> Reader:
    """Return the reader of data of some types."""

    def read(what: str, told: Any, _: Tables) -> Any:
        if type(told) not in kinds:
            raise _wrong(what, told, wanted)
        return told

    return read


text = _plain("a text", str)
optional_text = _plain("a text or null", str, type(None))
truth = _plain("true or false", bool)
integer = _plain("a whole number", int)
listed = _plain("a list", list)
mapping = _plain("an object", dict)


def word(*words: str | None) -> Reader:
    """Return the reader of one of some words."""

    def read(what: str, told: Any, _: Tables) -> Any:
        if told not in words:
            raise _wrong(what, told, f"one of {', '.join(map(str, words))}")
        return told

    return read


def optional(read: Reader) -> Reader:
    """Return the reader of what may be null."""
    return lambda what, told, tables: None if told is None else read(what, told, tables)


def several(read: Reader) -> Reader:
    """Return the reader of a list, as a tuple."""

    def read_each(what: str, told: Any, tables: Tables) -> tuple[Any, ...]:
        entries = enumerate(listed(what, told, tables))
        return tuple([read(f"{what}[{place}]", entry, tables) for place, entry in entries])

    return read_each


def entry_of(key: str) -> Reader:
    """Return the reader of the number of an entry of a table, which gives the entry."""

    def read(what: str, told: Any, tables: Tables) -> Any:
        table = tables[key]
        return table[at(what, told, 0, len(table))]

    return read


def number(what: str, told: Any, _: Tables) -> Any:
    """Return a number that JSON holds: as it is, or one of those that are told as a text."""
    if type(told) is int or type(told) is float:
        return told
    if type(told) is dict and len(told) == 1:
        ((kind, digits),) = told.items()
        if kind == "float" and digits in ("nan", "inf", "-inf"):
            return float(digits)
        if kind == "int" and type(digits) is str and len(digits) <= _MOST_HEX:
            try:
                found = int(digits, 16)
                if abs(found) < _TOO_LONG:
                    return found
            except ValueError:
                pass
    raise _wrong(what, told, "a number")


def whole(what: str, told: Any, tables: Tables) -> int:
    """Return a whole number from 0 up."""
    found = told if type(told) is int else number(what, told, tables)
    if type(found) is not int or found < 0:
        raise _wrong(what, told, "a whole number from 0 up")
    if found > _MOST_COUNT:
        raise FieldError(f"{what} is {shown(told)}, more than can be counted with")
    return found


def sizes(_: str, told: Any, tables: Tables) -> tuple[int | None, ...] | None:
    """Return a shape; None for an unknown rank."""
    if told is None:
        return None
    if type(told) is not list:
        raise FieldError(f"is {shown(told)}, and should be a list of sizes, or null")
    found = tuple([None if size is None else _size(size, tables) for size in told])
    if len(found) > _FEW and math.prod([size or 1 for size in found]) > _MOST_COUNT:
        raise FieldError(f"{len(found)} sizes come to more than can be counted with")
    return found


def _size(told: Any, tables: Tables) -> int:
    size = whole("a size", told, tables)
    if size >= _MOST_SIZE:
        raise _wrong("a size", told, "less than 2**63")
    return size


def at(place: str, told: Any, least: int, below: int) -> int:
    """Return a number that names an entry of a table, or the like.

    Args:
        place: What names it.
        told: The number.
        least: The lowest that there is.
        below: One more than the highest.
    Raises:
        FieldError: It is none, or names nothing.
    """
    if type(told) is not int or not least <= told < below:
        known = f"there are {below}" if below else "there is none"
        raise FieldError(f"{place} is {shown(told)}, which names nothing: {known}")
    return told
