"""Schema of plain data: kinds of fields and records of them, each with a writer and a reader.

Writers produce plain data of JSON's types. Readers accept any plain data, and report the place and
the reason of an error. This file is independent of graphs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, signature
from itertools import chain, islice
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from tbscope.messages import shown

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""Plain data of JSON's types; its lists may be tuples when they are written."""

Values: TypeAlias = Sequence[Any]
"""Fields of one kind, of several instances."""

# The limit for integers: a float can represent it, with room for sums and products.
_MOST = 2**100


class FieldError(Exception):
    """Plain data that violates the schema; `str` is the place and the reason."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path} {why}".lstrip())
        self._why = why
        self._path = path

    def within(self, path: str) -> "FieldError":
        """Return the error with a path in front: the field that contains the data."""
        return FieldError(self._why, f"{path}.{self._path}" if self._path else path)


class FieldKind(NamedTuple):
    """A kind of field.

    Attributes:
        write: Returns the plain data for a list of such fields, from a writer and the list; None if
            the fields are plain data already. A call for each field would take twice the time.
        read: Returns the field, from a reader and plain data, or raises FieldError.
        writes_none: Whether `write` accepts None among the fields.
    """

    write: Callable[[Any, Any], Sequence[Json]] | None
    read: Callable[[Any, Json], object]
    writes_none: bool = False


class Schema:
    """The fields of one class: an instance is written as a row, a list of them as columns.

    Args:
        make: The class; its signature contains the defaults.
        kinds: The kinds of its attributes, in the order of a row.
    """

    def __init__(self, make: Callable[..., object], kinds: Mapping[str, FieldKind]) -> None:
        self._make = make
        self._kinds = kinds
        self._columns = _reader_of_columns(kinds)
        self._defaults = {
            name: parameter.default for name, parameter in signature(make).parameters.items()
        }
        if is_dataclass(make):
            for field in fields(make):
                if field.default_factory is not MISSING:
                    self._defaults[field.name] = field.default_factory()

    def row(self) -> FieldKind:
        """Return the kind of a field that is one instance."""
        is_row = isinstance(self._make, type) and issubclass(self._make, tuple)
        if is_row and not any(kind.write for kind in self._kinds.values()):
            return FieldKind(None, self._read_row)
        return FieldKind(self._write_rows, self._read_row)

    def _write_rows(self, writer: object, things: Values) -> Sequence[Json]:
        columns = zip(self._kinds.values(), self._columns(things), strict=True)
        written = [_written(kind, writer, values) for kind, values in columns]
        return [*zip(*written, strict=True)]

    def _read_row(self, reader: object, data: Json) -> object:
        if type(data) is not list or len(data) != len(self._kinds):
            raise FieldError(f"is {shown(data)}, and should be a list of {len(self._kinds)}")
        return self._made(reader, dict(zip(self._kinds, data, strict=True)))

    def write(self, writer: object, things: Sequence[object]) -> dict[str, Sequence[Json]]:
        """Return the plain data of instances by columns, without fields that are default in all.

        Columns take half the time of rows, and a fifth less text.
        """
        columns = {}
        for (name, kind), values in zip(self._kinds.items(), self._columns(things), strict=True):
            if values != (self._defaults[name],) * len(values):
                columns[name] = _written(kind, writer, values)
        return columns

    def read(self, reader: object, data: Json) -> Iterator[Any]:
        """Yield the instances that columns describe; each is built after its predecessor is used.

        Raises:
            FieldError: The data does not describe instances of the class.
        """
        if type(data) is not dict:
            raise FieldError(f"is {shown(data)}, and should be an object")
        length = -1
        for name, column in data.items():
            if name not in self._kinds:
                raise FieldError("is no field that this version has", shown(name)[1:-1])
            length = len(column) if type(column) is list and length < 0 else length
            if type(column) is not list or len(column) != length:
                expected = "a list" if length < 0 else f"a list of {length}"
                raise FieldError(f"is {shown(column)}, and should be {expected}", name)
        for row in zip(*data.values(), strict=True):
            yield self._made(reader, dict(zip(data, row, strict=True)))

    def _made(self, reader: object, row: dict[str, Json]) -> object:
        """Return the instance of a row by the names of its fields, or raise FieldError."""
        values = {}
        for name, kind in self._kinds.items():
            if name in row or self._defaults[name] is Parameter.empty:
                try:
                    values[name] = kind.read(reader, row.get(name))
                except FieldError as error:
                    raise error.within(name) from None
        return self._make(**values)


def _reader_of_columns(names: Iterable[str]) -> Callable[[Sequence[object]], Iterable[Values]]:
    """Return a function that reads some attributes of each instance, and yields them by attribute.

    It is compiled, as a named tuple is, because `attrgetter` takes three times as long.
    """
    row = "".join([f"item.{name}, " for name in names])
    code = f"lambda items: zip(*[({row}) for item in items], strict=True)"
    columns: Callable[[Sequence[object]], Iterable[Values]] = eval(code)  # noqa: S307 (our names)
    return columns


def _written(kind: FieldKind, writer: object, values: Values) -> Sequence[Json]:
    """Return the plain data of a list of fields of one kind."""
    return values if kind.write is None else kind.write(writer, values)


# -- kinds ----------------------------------------------------------------------------------


def _plain(wanted: str, *types: type) -> FieldKind:
    """Return the kind of a field of JSON's own types."""

    def read(_: object, data: Json) -> object:
        if type(data) in types:
            return data
        raise FieldError(f"is {shown(data)}, and should be {wanted}")

    return FieldKind(None, read)


def _read_whole(_: object, data: Json) -> object:
    # The number of a parameter may be -1 (unknown).
    if type(data) is int and -1 <= data < _MOST:
        return data
    raise FieldError(f"is {shown(data)}, and should be a whole number from 0 up")


TEXT = _plain("a text", str)
BOOLEAN = _plain("true or false", bool)
NUMBER = _plain("a number", int, float)
INTEGER = FieldKind(None, _read_whole)


def literal(words: tuple[str, ...]) -> FieldKind:
    """Return the kind of a field with a fixed set of texts."""

    def read(_: object, data: Json) -> object:
        if data in words:
            return data
        raise FieldError(f"is {shown(data)}, and should be one of {', '.join(words)}")

    return FieldKind(None, read)


def optional(kind: FieldKind) -> FieldKind:
    """Return the kind of a field that is None or of another kind."""

    def read(reader: object, data: Json) -> object:
        return None if data is None else kind.read(reader, data)

    def write(writer: object, values: Values) -> Sequence[Json]:
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            return _written(kind, writer, values)
        encoded = iter(_written(kind, writer, present))
        return [None if value is None else next(encoded) for value in values]

    return FieldKind(kind.write if kind.writes_none else kind.write and write, read)


def sequence(kind: FieldKind, make: type = tuple) -> FieldKind:
    """Return the kind of a field that is a tuple, or a list, of fields of one kind."""

    def write(writer: object, values: Values) -> Sequence[Json]:
        entries = [*chain.from_iterable(values)]
        written = _written(kind, writer, entries)
        if all(map(is_, written, entries)):
            return values
        encoded = iter(written)
        return [[*islice(encoded, len(value))] if value else [] for value in values]

    def read(reader: object, data: Json) -> object:
        if type(data) is not list:
            raise FieldError(f"is {shown(data)}, and should be a list")
        return make([kind.read(reader, entry) for entry in data])

    return FieldKind(kind.write and write, read)


def mapping(kind: FieldKind) -> FieldKind:
    """Return the kind of a field that is a mapping from texts to fields of one kind."""

    def write(writer: object, values: Values) -> Sequence[Json]:
        entries = [item for value in values for item in value.values()]
        written = _written(kind, writer, entries)
        if all(map(is_, written, entries)):
            return values
        # The keys come first in `zip`, so that no entry of the next mapping is consumed.
        encoded = iter(written)
        return [
            dict(zip(map(str, value), encoded, strict=False)) if value else {} for value in values
        ]

    def read(reader: object, data: Json) -> object:
        if type(data) is not dict:
            raise FieldError(f"is {shown(data)}, and should be an object")
        return {key: kind.read(reader, value) for key, value in data.items()}

    return FieldKind(write, read)
