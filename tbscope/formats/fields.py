"""Asks plain data for its fields, one by one, and says what is wrong with one that does not fit."""

import math
from collections.abc import Iterable
from typing import Any

from tbscope.words import shown

__all__ = ["FieldError", "Fields", "at", "number_of", "row_of", "sizes_of"]


class FieldError(Exception):
    """Something in plain data that is not as the schema has it; `str` tells where and what."""


class Fields:
    """The fields of one object.

    Args:
        data: What should be an object.
        known: The keys that it may have.
    Raises:
        FieldError: It is none, or it has another key.
    """

    __slots__ = ("_data",)

    def __init__(self, data: Any, known: frozenset[str]) -> None:
        if type(data) is not dict:
            raise FieldError(f"is {shown(data)}, and should be an object")
        if not known.issuperset(data):
            other = next(key for key in data if key not in known)
            raise FieldError(f"{shown(other)[1:-1]} is no field that this version has")
        self._data: dict[str, Any] = data

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def raw(self, key: str, default: Any = None) -> Any:
        """Return a field unchecked."""
        return self._data.get(key, default)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a field that is a text."""
        told = self._data.get(key, default)
        if type(told) is not str:
            raise FieldError(f"{key} is {shown(told)}, and should be a text")
        return told

    def optional_text(self, key: str, default: str | None) -> str | None:
        """Return a field that is a text, or null."""
        told = self._data.get(key, default)
        return None if told is None else self.text(key, default)

    def word(self, key: str, default: Any, words: Iterable[Any]) -> Any:
        """Return a field that is one of some words."""
        told = self._data.get(key, default)
        if type(told) not in (str, type(None)) or told not in words:
            raise FieldError(
                f"{key} is {shown(told)}, and should be one of {', '.join(map(str, words))}"
            )
        return told

    def truth(self, key: str) -> bool:
        """Return a field that is true or false; false where it is missing."""
        told = self._data.get(key, False)
        if type(told) is not bool:
            raise FieldError(f"{key} is {shown(told)}, and should be true or false")
        return told

    def whole(self, key: str, default: Any = 0) -> Any:
        """Return a field that is a whole number from 0 up; the default where it is missing."""
        if key not in self._data:
            return default
        return _at_key(key, self._data[key])

    def entries(self, key: str) -> list[Any]:
        """Return a field that is a list; an empty one where it is missing."""
        told = self._data.get(key, _NONE)
        if type(told) is not list:
            raise FieldError(f"{key} is {shown(told)}, and should be a list")
        return told

    def texts(self, key: str) -> list[str]:
        """Return a field that is a list of texts."""
        told = self.entries(key)
        for place, entry in enumerate(told):
            if type(entry) is not str:
                raise FieldError(f"{key}[{place}] is {shown(entry)}, and should be a text")
        return list(told)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a field that is an object; an empty one where it is missing."""
        told = self._data.get(key, _EMPTY)
        if type(told) is not dict:
            raise FieldError(f"{key} is {shown(told)}, and should be an object")
        return told


_NONE: list[Any] = []
_EMPTY: dict[str, Any] = {}


def row_of(data: Any, least: int, most: int) -> list[Any]:
    """Return a row of a table: a list of so many entries, filled up with None."""
    if type(data) is not list or not least <= len(data) <= most:
        many = str(most) if least == most else f"{least} to {most}"
        raise FieldError(f"is {shown(data)}, and should be a list of {many}")
    return [*data, *([None] * (most - len(data)))]


def number_of(told: Any) -> Any:
    """Return a number that JSON holds: as it is, or one of those that are told as a text."""
    if type(told) is int or type(told) is float:
        return told
    if type(told) is dict and len(told) == 1:
        ((kind, text),) = told.items()
        if kind == "float" and text in ("nan", "inf", "-inf"):
            return float(text)
        if kind == "int" and type(text) is str and len(text) <= _MOST_HEX:
            try:
                number = int(text, 16)
                if abs(number) < _TOO_LONG:
                    return number
            except ValueError:
                pass
    raise FieldError(f"is {shown(told)}, and should be a number")


# Python prints no number of more digits; as hexadecimal it has no more than so many.
_TOO_LONG = 10**4300
_MOST_HEX = len(hex(-_TOO_LONG))
# What torch counts sizes with; and what a float holds, with room for sums.
_MOST_SIZE = 2**63
_MOST_COUNT = 2**1000
# So many sizes come to less.
_FEW = 15


def sizes_of(told: Any) -> tuple[int | None, ...] | None:
    """Return a shape; None for an unknown rank."""
    if told is None:
        return None
    if type(told) is not list:
        raise FieldError(f"is {shown(told)}, and should be a list of sizes, or null")
    sizes = tuple([None if size is None else _size(size) for size in told])
    if len(sizes) > _FEW and math.prod([size or 1 for size in sizes]) > _MOST_COUNT:
        raise FieldError(f"{len(sizes)} sizes come to more than can be counted with")
    return sizes


def _size(told: Any) -> int:
    size = _at_key("a size", told)
    if size >= _MOST_SIZE:
        raise FieldError(f"a size is {shown(told)}, and should be less than 2**63")
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


def _at_key(key: str, told: Any) -> int:
    number = told if type(told) is int else _whole(key, told)
    if number < 0:
        raise FieldError(f"{key} is {shown(told)}, and should be a whole number from 0 up")
    if number > _MOST_COUNT:
        raise FieldError(f"{key} is {shown(told)}, more than can be counted with")
    return number


def _whole(key: str, told: Any) -> int:
    try:
        number = number_of(told)
    except FieldError as fault:
        raise FieldError(f"{key} {fault}") from None
    if type(number) is not int:
        raise FieldError(f"{key} is {shown(told)}, and should be a whole number from 0 up")
    return number
