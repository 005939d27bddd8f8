"""Writes a graph as plain data, as docs/formats.md describes it, and reads it back.

What many nodes share (types, scopes, places in the code) stands once, in a table, and is named by
its number there. The classes of a graph say which fields they have, and of which types.
"""

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from tbscope.errors import ArgumentError, GraphError
from tbscope.formats.fields import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    FieldError,
    Kind,
    Record,
    mapping,
    optional,
    several,
    word,
)
from tbscope.ir.facts import Function, Run
from tbscope.ir.graph import (
    Argument,
    Call,
    Collective,
    Constant,
    Graph,
    Module,
    Nest,
    Node,
    NodeKind,
    Note,
    Output,
    Parameter,
    Shape,
    Sharding,
    Source,
    Value,
)
from tbscope.ir.invariants import check_invariants
from tbscope.ir.scopes import Scope
from tbscope.words import shown

__all__ = ["FORMAT", "decode_graph", "encode_graph"]

FORMAT = "tbscope.Graph"
"""What a graph says that it is, under the key "format"."""

_VERSION = 4
# Beyond, many readers of JSON lose digits.
_EXACT = 2**53
_MOST_TEXT = 1000
# By which attribute a row names the one around it, which comes before it.
_AROUND: dict[str, Callable[[Any], Any]] = {
    "scopes": attrgetter("parent"),
    "runs": attrgetter("around"),
}
_OF_TEXT: dict[str, Callable[[str], Any]] = {"constant": Constant, "float": float}
_OF_ENTRIES: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple}


class _Type(NamedTuple):
    """What values have in common: all but the node that gives them."""

    shape: Shape | None
    dtype: str
    device: str
    sharding: Sharding | None


def encode_graph(graph: Graph) -> dict[str, Any]:
    """Return a graph as plain data.

    Args:
        graph: Any graph; it stays as it is.
    Returns:
        For each key of docs/formats.md what JSON has for it. A constant of a class of the user's
        becomes its text.
    """
    writer = _Writer(graph)
    written: dict[str, Any] = {}
    # What names others is written before these, and stands behind them.
    for name, record in reversed(_TABLES.items()):
        if writer.tables[name]:
            written[name] = record.write(writer, writer.tables[name])
    written |= {"version": _VERSION, "format": FORMAT}
    return dict(reversed(written.items()))


def decode_graph(data: Any) -> Graph:
    """Return the graph that plain data describes.

    Args:
        data: What JSON has for what `encode_graph` gives; anything else is refused.
    Returns:
        A graph that keeps every invariant.
    Raises:
        ArgumentError: It describes none, or is of another version.
    """
    try:
        _check_version(data)
        graph: Graph = _Reader().graph(data)
        check_invariants(graph)
    except (FieldError, RecursionError, GraphError) as error:
        why = error.why if isinstance(error, GraphError) else str(error)
        if isinstance(error, RecursionError):
            why = "its lists stand in each other too deep"
        raise ArgumentError(
            "this describes no graph", why=why, fix="docs/formats.md tells what a graph looks like"
        ) from error
    return graph


def _check_version(data: Any) -> None:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise FieldError(f'format is not "{FORMAT}"')
    version = data.get("version")
    if type(version) is not int:
        raise FieldError(f"version is {shown(version)}, and should be a number")
    if version != _VERSION:
        newer = version > _VERSION
        raise ArgumentError(
            f"this graph is of version {version} of its format",
            why=f"this tbscope reads version {_VERSION}",
            fix="pip install --upgrade tbscope" if newer else "write the graph anew",
        )


class _Writer:
    """One graph while it is written.

    Attributes:
        tables: What nodes share, what the graph lists, and what something else alone names.
        known: For each table the numbers in it, by the identity of what the graph holds: to
            compare it costs as much as to write it.
        types: The numbers of types.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = [*_with_inner(graph.nodes)]
        self.tables: dict[str, list[Any]] = {name: [] for name in _TABLES}
        self.tables |= {"nodes": nodes, "calls": graph.calls, "modules": graph.modules}
        self.tables |= {"outputs": graph.outputs, "notes": graph.notes, "graph": [graph]}
        self.known: dict[str, dict[int, int]] = {name: {} for name in _TABLES}
        self._numbers: dict[str, dict[Any, int]] = {name: {} for name in _TABLES}
        values = [value for node in nodes for value in node.outputs]
        self._nodes = dict(zip(nodes, range(len(nodes)), strict=True))
        self._values = dict(zip(values, range(len(values)), strict=True))

    def add(self, table: str, item: Any) -> int:
        """Put into a table what the graph holds, behind all around it; return its number."""
        numbers = self._numbers[table]
        number = numbers.get(item)
        if number is None:
            pending, around = [item], _AROUND.get(table)
            while around and (outer := around(pending[-1])) is not None and outer not in numbers:
                pending.append(outer)
            for each in reversed(pending):
                number = numbers[each] = len(numbers)
                self.tables[table].append(each)
        assert number is not None
        self.known[table][id(item)] = number
        return number

    def type_of(self, value: Value) -> int:
        """Return the number of the type of a value."""
        kind = (value.shape, value.dtype, value.device, value.sharding)
        number = self._numbers["types"].get(kind)
        return self.add("types", _Type(*kind)) if number is None else number

    def node(self, node: Node) -> int:
        """Return the number of a node; below 0 for one that the graph does not hold."""
        number = self._nodes.get(node)
        return self._other("other_nodes", node, self._nodes) if number is None else number

    def value(self, value: Value) -> int:
        """Return the number of a value; below 0 for one that no node of the graph gives."""
        number = self._values.get(value)
        return self._other("other_values", value, self._values) if number is None else number

    def _other(self, table: str, item: Any, numbers: dict[Any, int]) -> int:
        number = numbers[item] = ~len(self.tables[table])
        self.tables[table].append(item)
        return number

    def argument(self, argument: Argument) -> Any:
        """Return a value or a constant, with its name where it has one."""
        name, nest = argument
        written = self.nest(nest)
        return written if name is None else {f"={name}": written}

    def nest(self, nest: Nest) -> Any:
        """Return a nest; what JSON has not becomes a list or an object with one key."""
        kind = type(nest)
        if kind is Value:
            return [self.value(nest)]
        if kind is str or kind is bool or nest is None:
            return nest
        if kind is int:
            return nest if -_EXACT <= nest <= _EXACT else {"int": hex(nest)}
        if kind is float:
            return nest if isfinite(nest) else {"float": repr(nest)}
        if kind is Constant:
            return {"constant": nest.text}
        if kind is tuple or kind is list:
            return {kind.__name__: [self.nest(entry) for entry in nest]}
        if kind is dict:
            return {"dict": [[self.nest(key), self.nest(entry)] for key, entry in nest.items()]}
        if kind is complex:
            return {"complex": [self.nest(nest.real), self.nest(nest.imag)]}
        plain: type[Any]
        for plain in (str, int, float, complex, tuple, list, dict):
            if isinstance(nest, plain):
                return self.nest(str.__str__(nest) if plain is str else plain(nest))
        return {"constant": shown(nest, _MOST_TEXT)}


def _with_inner(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield nodes, those in a body before the one that it is the body of."""
    for node in nodes:
        if node.body is not None:
            yield from _with_inner(node.body.nodes)
        yield node


class _Reader:
    """One graph while it is read.

    Attributes:
        tables: What is read of each table.
    """

    def __init__(self) -> None:
        self.tables: dict[str, list[Any]] = {name: [] for name in _TABLES}
        self._values: list[Value] = []

    def graph(self, data: dict[str, Any]) -> Any:
        """Return the graph of tables, or raise FieldError."""
        for name, record in _TABLES.items():
            try:
                for item in record.read(self, data.get(name, {})):
                    self.tables[name].append(item)
                    if name == "nodes":
                        item.outputs = [
                            Value(item, index, *kind) for index, kind in enumerate(item.outputs)
                        ]
                        self._values += item.outputs
            except FieldError as error:
                raise error.within(name) from None
        for name in data:
            if name not in (*_TABLES, "format", "version"):
                raise FieldError("is no field that this version has", shown(name)[1:-1])
        if len(self.tables["graph"]) != 1:
            raise FieldError(f"graph has {len(self.tables['graph'])} rows, and should have one")
        (graph,) = self.tables["graph"]
        bodies = [node.body.nodes for node in self.tables["nodes"] if node.body is not None]
        inner = {node for body in bodies for node in body}
        graph.nodes = [node for node in self.tables["nodes"] if node not in inner]
        graph.calls, graph.modules = self.tables["calls"], self.tables["modules"]
        graph.outputs, graph.notes = self.tables["outputs"], self.tables["notes"]
        return graph

    def node(self, number: Any) -> Any:
        """Return the node of a number."""
        return _entry(number, self.tables["nodes"], self.tables["other_nodes"])

    def value(self, number: Any) -> Any:
        """Return the value of a number."""
        return _entry(number, self._values, self.tables["other_values"])

    def argument(self, data: Any) -> Argument:
        """Return an argument."""
        if type(data) is dict and len(data) == 1:
            ((name, nest),) = data.items()
            if name.startswith("="):
                return Argument(name[1:], self.nest(nest))
        return Argument(None, self.nest(data))

    def nest(self, data: Any) -> Nest:
        """Return a nest."""
        if type(data) is list and len(data) == 1:
            return self.value(data[0])
        if not isinstance(data, dict | list):
            return data
        try:
            ((form, held),) = dict(data).items()
            return self._constant(form, held)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise FieldError(f"is {shown(data)}, which is no value and no constant") from error

    def _constant(self, form: str, held: Any) -> Nest:
        """Return a constant that JSON has not; Python raises where it is none."""
        if type(held) is str:
            return int(held, 16) if form == "int" else _OF_TEXT[form](held)
        if form == "dict":
            return {self.nest(key): self.nest(entry) for key, entry in held}
        entries = [self.nest(entry) for entry in held]
        return complex(*entries) if form == "complex" else _OF_ENTRIES[form](entries)


def _entry(number: Any, listed: Sequence[Any], others: Sequence[Any] = ()) -> Any:
    """Return the entry of a number; below 0 it is that of other things."""
    if type(number) is not int or not -len(others) <= number < len(listed):
        raise FieldError(f"is {shown(number)}, which names nothing: there are {len(listed)}")
    return listed[number] if number >= 0 else others[~number]


# -- the schema -----------------------------------------------------------------------------


def _row_of(table: str) -> Kind:
    """Return the kind of a field that names a row of a table."""

    def write(writer: _Writer, item: Any) -> int:
        number = writer.known[table].get(id(item))
        return writer.add(table, item) if number is None else number

    def read(reader: _Reader, data: Any) -> Any:
        return _entry(data, reader.tables[table])

    return Kind(write, read)


def _kind_of(hint: Any) -> Kind:
    """Return the kind of the fields of a type."""
    if hint in _KINDS:
        return _KINDS[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return word(inner)
    if origin in (Union, UnionType):
        (one,) = (each for each in inner if each is not NoneType)
        return optional(_kind_of(one))
    if origin in (tuple, list):
        return several(_kind_of(inner[0]), origin)
    return mapping(_kind_of(inner[1])) if inner else _record(hint).row()


def _record(make: Any, **others: Kind | None) -> Record:
    """Return the record of a class; some of its fields are of other kinds, or are left out."""
    hints = get_type_hints(make) or get_type_hints(make.__init__)
    kinds = {name: _kind_of(hints[name]) for name in signature(make).parameters} | others
    return Record(make, {name: kind for name, kind in kinds.items() if kind is not None})


_KINDS: dict[Any, Kind] = {
    str: TEXT,
    int: WHOLE,
    float: NUMBER,
    bool: TRUTH,
    Any: Kind(_Writer.nest, _Reader.nest),
    Node: Kind(_Writer.node, _Reader.node),
    Value: Kind(_Writer.value, _Reader.value),
    Argument: Kind(_Writer.argument, _Reader.argument),
    Sharding: _row_of("shardings"),
    Collective: _row_of("collectives"),
    Scope: _row_of("scopes"),
    Source: _row_of("sources"),
    Parameter: _row_of("parameters"),
    Function: _row_of("functions"),
    Run: _row_of("runs"),
}
_TYPES = several(Kind(_Writer.type_of, _row_of("types").read), list)
# Nothing in a table names a later row, and no table a later one.
_TABLES: dict[str, Record] = {
    "shardings": _record(Sharding),
    "types": _record(_Type),
    "collectives": _record(Collective),
    "scopes": _record(Scope),
    "sources": _record(Source),
    "parameters": _record(Parameter),
    "functions": _record(Function),
    "runs": _record(Run),
    "nodes": _record(Node, outputs=_TYPES),
    "other_nodes": Record(Node, {"name": TEXT, "op": TEXT, "kind": _kind_of(NodeKind)}),
    "other_values": _record(Value),
    "calls": _record(Call),
    "modules": _record(Module),
    "outputs": _record(Output),
    "notes": _record(Note),
    "graph": _record(Graph, nodes=None, calls=None, modules=None, outputs=None, notes=None),
}
