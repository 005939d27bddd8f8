"""Kinds of fields, and records of them: each says once how it is written and how it is read.

What is written is plain data, as JSON has it. Of plain data that is read anything may be wrong: the
error says where and what. This file knows nothing of graphs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from itertools import chain, islice
from operator import attrgetter, is_
from typing import Any, NamedTuple

from tbscope.messages import shown

__all__ = [
    "NUMBER",
    "TEXT",
    "TRUTH",
    "WHOLE",
    "FieldError",
    "Kind",
    "Record",
    "mapping",
    "optional",
    "several",
    "word",
]

# A float holds it, with room for sums and products.
_MOST = 2**100


class FieldError(Exception):
    """Something in plain data that is not as the schema has it; `str` says where and what."""

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(f"{place} {why}".lstrip())
        self._why = why
        self._place = place

    def within(self, place: str) -> "FieldError":
        """Return the error as the field, or the list, around that place has it."""
        joint = "." if self._place and not self._place.startswith("[") else ""
        return FieldError(self._why, f"{place}{joint}{self._place}")


class Kind(NamedTuple):
    """A kind of field.

    Attributes:
        write: Returns the plain data of many such fields, of a writer and the list of them; None if
            they are plain themselves. A call for each would take twice the time.
        read: Returns the field, of a reader and plain data, or raises FieldError.
    """

    write: Callable[[Any, list[Any]], list[Any]] | None
    read: Callable[[Any, Any], Any]


class Record:
    """The fields of one class: those of one instance are a row, those of several are columns.

    Args:
        make: The class; its signature has the defaults.
        kinds: The kinds of its attributes, in the order of a row.
    """

    def __init__(self, make: Callable[..., Any], kinds: Mapping[str, Kind]) -> None:
        self._make = make
        self._kinds = kinds
        self._defaults = {name: one.default for name, one in signature(make).parameters.items()}
        if is_dataclass(make):
            for field in fields(make):
                if field.default_factory is not MISSING:
                    self._defaults[field.name] = field.default_factory()

    def row(self) -> Kind:
        """Return the kind of a field that is one instance."""
        is_row = isinstance(self._make, type) and issubclass(self._make, tuple)
        if is_row and not any(kind.write for kind in self._kinds.values()):
            return Kind(None, self._read_row)
        return Kind(self._write_rows, self._read_row)

    def _write_rows(self, writer: Any, things: list[Any]) -> list[Any]:
        columns = [
            _written(kind, writer, [*map(attrgetter(name), things)])
            for name, kind in self._kinds.items()
        ]
        return [*zip(*columns, strict=True)]

    def _read_row(self, reader: Any, data: Any) -> Any:
        if type(data) is not list or len(data) != len(self._kinds):
            wanted = f"a list of {len(self._kinds)}"
            raise FieldError(f"is {shown(data)}, and should be {wanted}")
        return self._made(reader, dict(zip(self._kinds, data, strict=True)))

    def write(self, writer: Any, things: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the plain data of instances: a column for each field that not all have by default.

        By columns it takes half the time, and a fifth less text.
        """
        columns = {}
        for name, kind in self._kinds.items():
            values = [*map(attrgetter(name), things)]
            if values != [self._defaults[name]] * len(values):
                columns[name] = _written(kind, writer, values)
        return columns

    def read(self, reader: Any, data: Any) -> Iterator[Any]:
        """Yield the instances that columns describe, each once those before it are taken.

        Raises:
            FieldError: They describe none.
        """
        if type(data) is not dict:
            raise FieldError(f"is {shown(data)}, and should be an object")
        length = -1
        for name, column in data.items():
            if name not in self._kinds:
                raise FieldError("is no field that this version has", shown(name)[1:-1])
            length = len(column) if type(column) is list and length < 0 else length
            if type(column) is not list or len(column) != length:
                wanted = "a list" if length < 0 else f"a list of {length}"
                raise FieldError(f"is {shown(column)}, and should be {wanted}", name)
        for place, row in enumerate(zip(*data.values(), strict=True)):
            try:
                yield self._made(reader, dict(zip(data, row, strict=True)))
            except FieldError as error:
                raise error.within(f"[{place}]") from None

    def _made(self, reader: Any, row: dict[str, Any]) -> Any:
        """Return the instance of a row by the names of its fields, or raise FieldError."""
        found = {}
        for name, kind in self._kinds.items():
            if name in row or self._defaults[name] is Parameter.empty:
                try:
                    found[name] = kind.read(reader, row.get(name))
                except FieldError as error:
                    raise error.within(name) from None
        return self._make(**found)


def _written(kind: Kind, writer: Any, values: list[Any]) -> list[Any]:
    """Return the plain data of fields of one kind."""
    return values if kind.write is None else kind.write(writer, values)


# -- kinds ----------------------------------------------------------------------------------


def _plain(wanted: str, *types: type) -> Kind:
    """Return the kind of a field that JSON has, of some types."""

    def read(_: Any, data: Any) -> Any:
        if type(data) in types:
            return data
        raise FieldError(f"is {shown(data)}, and should be {wanted}")

    return Kind(None, read)


def _read_whole(_: Any, data: Any) -> Any:
    if type(data) is int and -1 <= data < _MOST:
        return data
    raise FieldError(f"is {shown(data)}, and should be a whole number from 0 up")


TEXT = _plain("a text", str)
TRUTH = _plain("true or false", bool)
NUMBER = _plain("a number", int, float)
WHOLE = Kind(None, _read_whole)


def word(words: tuple[str, ...]) -> Kind:
    """Return the kind of a field that is one of some words."""

    def read(_: Any, data: Any) -> Any:
        if data in words:
            return data
        raise FieldError(f"is {shown(data)}, and should be one of {', '.join(words)}")

    return Kind(None, read)


def optional(kind: Kind) -> Kind:
    """Return the kind of a field that is None, or of another kind."""

    def read(reader: Any, data: Any) -> Any:
        return None if data is None else kind.read(reader, data)

    def write(writer: Any, values: list[Any]) -> list[Any]:
        held = [one for one in values if one is not None]
        if len(held) == len(values):
            return _written(kind, writer, values)
        found = iter(_written(kind, writer, held))
        return [None if one is None else next(found) for one in values]

    return Kind(kind.write and write, read)


def several(kind: Kind, make: type = tuple) -> Kind:
    """Return the kind of a field that is a tuple, or a list, of fields of one kind."""

    def write(writer: Any, values: list[Any]) -> list[Any]:
        entries = [*chain.from_iterable(values)]
        written = _written(kind, writer, entries)
        if all(map(is_, written, entries)):
            return values
        found = iter(written)
        return [[*islice(found, len(each))] if each else [] for each in values]

    def read(reader: Any, data: Any) -> Any:
        if type(data) is not list:
            raise FieldError(f"is {shown(data)}, and should be a list")
        found: list[Any] = []
        try:
            for entry in data:
                found.append(kind.read(reader, entry))
        except FieldError as error:
            raise error.within(f"[{len(found)}]") from None
        return make(found)

    return Kind(kind.write and write, read)


def mapping(kind: Kind) -> Kind:
    """Return the kind of a field that is a mapping from texts to fields of one kind."""

    def write(writer: Any, values: list[Any]) -> list[Any]:
        entries = [one for each in values for one in each.values()]
        written = _written(kind, writer, entries)
        if all(map(is_, written, entries)):
            return values
        found = iter(written)
        return [dict(zip(map(str, each), found, strict=False)) if each else {} for each in values]

    def read(reader: Any, data: Any) -> Any:
        if type(data) is not dict:
            raise FieldError(f"is {shown(data)}, and should be an object")
        found = {}
        for key, value in data.items():
            try:
                found[key] = kind.read(reader, value)
            except FieldError as error:
                raise error.within(key) from None
        return found

    return Kind(write, read)
