"""Plain data of a graph: a writer and a reader for the format of docs/forms.md.

Items that many nodes share (types, scopes, source lines) are written once, in a table, and
referred to by their row number. The fields and their types come from the classes of the graph.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import starmap
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from tbscope.errors import ArgumentError, GraphError
from tbscope.formats.checked_fields import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    TEXT,
    FieldError,
    FieldKind,
    Json,
    Schema,
    Values,
    literal,
    mapping,
    optional,
    sequence,
)
from tbscope.ir.graph import (
    Argument,
    Call,
    Collective,
    Constant,
    Gradient,
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
from tbscope.ir.metadata import CallFrame, Function
from tbscope.ir.pytree import form_of
from tbscope.ir.scopes import Scope
from tbscope.messages import shown

_T = TypeVar("_T")

FORMAT = "tbscope.Graph"
"""The value of the key "format" in the data of a graph."""

_VERSION = 5
# The largest integer that all readers of JSON represent exactly.
_EXACT = 2**53
_MOST_TEXT = 1000
# JSON represents all constants of these types; most constants need no call of `nest`.
_PLAIN = frozenset({str, bool, NoneType})
# The attribute of a row that refers to its parent row, which comes before it.
_AROUND: dict[str, Callable[[object], object]] = {
    "scopes": attrgetter("parent"),
    "runs": attrgetter("around"),
}
_OF_TEXT: dict[str, Callable[[str], Nest]] = {"constant": Constant, "float": float}
_OF_ENTRIES: dict[str, Callable[[list[Nest]], Nest]] = {"list": list, "tuple": tuple}


class _Type(NamedTuple):
    """The type of a value: all of its fields except producer and index."""

    shape: Shape | None
    dtype: str
    device: str
    sharding: Sharding | None


def encode_graph(graph: Graph) -> dict[str, Json]:
    """Return a graph as plain data.

    Args:
        graph: Any graph; it is not changed.
    Returns:
        The JSON value for each key of docs/forms.md. A constant of a user's class is written as
        its text.
    """
    writer = _GraphWriter(graph)
    written: dict[str, Json] = {}
    # Rows add the rows that they refer to, so tables are written last to first, then reversed.
    for name, record in reversed(_TABLES.items()):
        if items := writer.tables[name] or [*writer.shared[name]]:
            written[name] = record.write(writer, items)
    written |= {"version": _VERSION, "format": FORMAT}
    return dict(reversed(written.items()))


def decode_graph(data: Json) -> Graph:
    """Return the graph that plain data describes.

    Args:
        data: JSON data in the format of `encode_graph`; any other data is rejected.
    Returns:
        A graph that satisfies every invariant.
    Raises:
        ArgumentError: The data does not describe a graph, or is of another version.
    """
    try:
        graph = _GraphReader().graph(_checked(data))
        check_invariants(graph)
    except (FieldError, RecursionError, GraphError) as error:
        why = error.why if isinstance(error, GraphError) else str(error)
        if isinstance(error, RecursionError):
            why = "its lists are nested too deep"
        raise ArgumentError(
            "this describes no graph",
            why=why,
            fix="docs/forms.md describes the format of a graph",
        ) from error
    return graph


def _checked(data: Json) -> Mapping[str, Json]:
    """Return the tables of a graph; raise an error for other data and for another version."""
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
            fix="pip install --upgrade tbscope" if newer else "write the graph again",
        )
    return data


class _GraphWriter:
    """The state of the writer for one graph.

    Attributes:
        tables: The items that the graph lists, and items that only a reference outside of the
            graph's lists mentions.
        shared: The tables of items that nodes share, with their row numbers.
        known: For each table the row numbers by the identity of the graph's objects, since a
            comparison of objects costs as much as writing them.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = [*_with_inner(graph.nodes)]
        self.tables: dict[str, list[Any]] = {name: [] for name in _TABLES}
        self.tables |= {"nodes": nodes, "calls": graph.calls, "modules": graph.modules}
        self.tables |= {"outputs": graph.outputs, "notes": graph.notes, "graph": [graph]}
        self.known: dict[str, dict[int, int | None]] = {name: {id(None): None} for name in _TABLES}
        self.shared: dict[str, dict[Any, int]] = {name: {} for name in _TABLES}
        values = [value for node in nodes for value in node.outputs]
        self._nodes = dict(zip(nodes, range(len(nodes)), strict=True))
        self._values = dict(zip(values, range(len(values)), strict=True))

    def rows(self, table: str, items: Values) -> list[int | None]:
        """Return the row numbers of items, which are added to the table after their parents."""
        # Most rows are in the table already, and `map` finds them without a Python step each.
        known, keys = self.known[table], [*map(id, items)]
        numbers, around = self.shared[table], _AROUND.get(table)
        for item, key in zip(items, keys, strict=True):
            if key in known:
                continue
            pending = [item]
            while around and (outer := around(pending[-1])) is not None and outer not in numbers:
                pending.append(outer)
            for ancestor in reversed(pending):
                numbers.setdefault(ancestor, len(numbers))
            known[key] = numbers[item]
        return [*map(known.__getitem__, keys)]

    def types_of(self, values: list[Value]) -> list[int]:
        """Return the row numbers of the types of values."""
        numbers = self.shared["types"]
        kinds = [(value.shape, value.dtype, value.device, value.sharding) for value in values]
        rows = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
        self.tables["types"] = [*starmap(_Type, numbers)]
        return rows

    def nodes(self, nodes: list[Node]) -> list[int]:
        """Return the numbers of nodes; below 0 for nodes that are not in the graph."""
        numbers = self._nodes
        return [
            numbers[node] if node in numbers else self._other("other_nodes", node, numbers)
            for node in nodes
        ]

    def values(self, values: list[Value]) -> list[int]:
        """Return the numbers of values; below 0 for values that no node of the graph outputs."""
        numbers = self._values
        return [
            numbers[value] if value in numbers else self._other("other_values", value, numbers)
            for value in values
        ]

    def _other(self, table: str, item: _T, numbers: dict[_T, int]) -> int:
        number = numbers[item] = ~len(self.tables[table])
        self.tables[table].append(item)
        return number

    def arguments(self, arguments: list[Argument]) -> list[Json]:
        """Return arguments as plain data, with the names of keyword arguments."""
        plain, values, nest = _PLAIN, self._values, self.nest
        written: list[Json] = []
        for name, tree in arguments:
            encoded: Json
            if type(tree) is Value and tree in values:
                encoded = [values[tree]]
            else:
                encoded = tree if type(tree) in plain else nest(tree)
            written.append(encoded if name is None else {f"={name}": encoded})
        return written

    def nests(self, nests: list[Nest]) -> list[Json]:
        """Return pytrees as plain data."""
        plain, nest = _PLAIN, self.nest
        return [tree if type(tree) in plain else nest(tree) for tree in nests]

    def nest(self, nest: Nest) -> Any:
        """Return a pytree; leaves and containers that JSON lacks are tagged lists or objects."""
        kind = type(nest)
        if kind is Value:
            return self.values([nest])
        if kind is str or kind is bool or nest is None:
            return nest
        if kind is int:
            return nest if -_EXACT <= nest <= _EXACT else {"int": hex(nest)}
        if kind is float:
            return nest if isfinite(nest) else {"float": repr(nest)}
        if kind is Constant:
            return {"constant": nest.text}
        if kind is tuple or kind is list:
            return {kind.__name__: self.nests(nest)}
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
    """Yield nodes, each after the nodes of its body."""
    for node in nodes:
        if node.body is not None:
            yield from _with_inner(node.body.nodes)
        yield node


class _GraphReader:
    """The state of the reader for one graph.

    Attributes:
        tables: The items read so far, by table.
    """

    def __init__(self) -> None:
        self.tables: dict[str, list[Any]] = {name: [] for name in _TABLES}
        self._values: list[Value] = []

    def graph(self, data: Mapping[str, Json]) -> Graph:
        """Return the graph of the tables, or raise FieldError."""
        tables = self.tables
        for name, record in _TABLES.items():
            try:
                for item in record.read(self, data.get(name, {})):
                    tables[name].append(item)
                    # A node is read with the types of its outputs, which become values here.
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
        if len(tables["graph"]) != 1:
            raise FieldError(f"graph has {len(tables['graph'])} rows, and should have one")
        graph: Graph
        (graph,) = tables["graph"]
        # The table contains the kernels of bodies, too, but `Graph.nodes` does not.
        bodies = [node.body.nodes for node in tables["nodes"] if node.body is not None]
        inner = {node for body in bodies for node in body}
        graph.nodes = [node for node in tables["nodes"] if node not in inner]
        graph.calls, graph.modules = tables["calls"], tables["modules"]
        graph.outputs, graph.notes = tables["outputs"], tables["notes"]
        return graph

    def node(self, number: Json) -> object:
        """Return the node with a number."""
        return _entry(number, self.tables["nodes"], self.tables["other_nodes"])

    def value(self, number: Json) -> object:
        """Return the value with a number."""
        return _entry(number, self._values, self.tables["other_values"])

    def argument(self, data: Json) -> Argument:
        """Return an argument from plain data."""
        if type(data) is dict and len(data) == 1:
            ((name, nest),) = data.items()
            if name.startswith("="):
                return Argument(name[1:], self.nest(nest))
        return Argument(None, self.nest(data))

    def nest(self, data: Json) -> Nest:
        """Return a pytree from plain data."""
        if type(data) is list and len(data) == 1:
            return self.value(data[0])
        if not isinstance(data, dict | list):
            return data
        try:
            ((form, contents),) = dict(data).items()
            return self._constant(form, contents)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise FieldError(f"is {shown(data)}, which is no value and no constant") from error

    def _constant(self, form: str, contents: Any) -> Nest:
        """Return a constant that JSON lacks; Python raises an error for any other data."""
        if type(contents) is str:
            return int(contents, 16) if form == "int" else _OF_TEXT[form](contents)
        if form == "dict":
            return {self.nest(key): self.nest(entry) for key, entry in contents}
        entries = [self.nest(entry) for entry in contents]
        return complex(*entries) if form == "complex" else _OF_ENTRIES[form](entries)


def _entry(number: Json, listed: Sequence[_T], others: Sequence[_T] = ()) -> _T:
    """Return the entry with a number; numbers below 0 count in `others`."""
    if type(number) is not int or not -len(others) <= number < len(listed):
        raise FieldError(f"is {shown(number)}, which names nothing: there are {len(listed)}")
    return listed[number] if number >= 0 else others[~number]


# -- the schema -----------------------------------------------------------------------------


class _Content(NamedTuple):
    """A field that many nodes or calls have alike: their kernels, gradients or facts."""

    content: Any


def _shared(table: str, kind: FieldKind, key: Callable[[Any], Hashable], make: type) -> FieldKind:
    """Return the kind of a field that refers to a row of a table with the contents of such fields.

    Args:
        table: The table.
        kind: The kind of the contents.
        key: Returns a key that differs for different contents, or None for contents with values,
            which are written in place of a row number.
        make: Copies the contents of a row for a node or call.
    """

    def write(writer: _GraphWriter, items: Values) -> Sequence[Json]:
        numbers, contents = writer.shared[table], writer.tables[table]
        rows: list[Json] = []
        for item in items:
            form = key(item)
            if form is None:
                rows += kind.write(writer, [item]) if kind.write else [item]
                continue
            number = numbers.get(form)
            if number is None:
                number = numbers[form] = len(contents)
                contents.append(_Content(item))
            rows.append(number)
        return rows

    def read(reader: _GraphReader, data: Json) -> object:
        if type(data) is int:
            return make(_entry(data, reader.tables[table]).content)
        return kind.read(reader, data)

    return FieldKind(write, read)


def _row_of(table: str) -> FieldKind:
    """Return the kind of a field that refers to a row of a table."""

    def write(writer: _GraphWriter, items: list[object]) -> Sequence[Json]:
        return writer.rows(table, items)

    def read(reader: _GraphReader, data: Json) -> object:
        return _entry(data, reader.tables[table])

    return FieldKind(write, read, writes_none=True)


def _kind_of(hint: object) -> FieldKind:
    """Return the kind of the fields with a type annotation."""
    if hint in _KINDS:
        return _KINDS[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return literal(inner)
    if origin in (Union, UnionType):
        (inner_hint,) = (argument for argument in inner if argument is not NoneType)
        return optional(_kind_of(inner_hint))
    if origin in (tuple, list):
        return sequence(_kind_of(inner[0]), origin)
    return mapping(_kind_of(inner[1])) if inner else _record(hint).row()


def _record(make: Any, **others: FieldKind | None) -> Schema:
    """Return the record of a class; `others` sets kinds of fields, or omits a field (None)."""
    hints = get_type_hints(make) or get_type_hints(make.__init__)
    kinds = {name: _kind_of(hints[name]) for name in signature(make).parameters} | others
    return Schema(make, {name: kind for name, kind in kinds.items() if kind is not None})


_KINDS: dict[object, FieldKind] = {
    str: TEXT,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    Nest: FieldKind(_GraphWriter.nests, _GraphReader.nest),
    Node: FieldKind(_GraphWriter.nodes, _GraphReader.node),
    Value: FieldKind(_GraphWriter.values, _GraphReader.value),
    Argument: FieldKind(_GraphWriter.arguments, _GraphReader.argument),
    Sharding: _row_of("shardings"),
    Collective: _row_of("collectives"),
    Scope: _row_of("scopes"),
    Source: _row_of("sources"),
    Parameter: _row_of("parameters"),
    Function: _row_of("functions"),
    CallFrame: _row_of("runs"),
}
_FACTS = mapping(_KINDS[Nest])
_GRADIENTS = sequence(_record(Gradient).row())
_KERNELS = sequence(TEXT, list)
_SHARED_FACTS = _shared("facts", _FACTS, form_of, dict)
_TYPES = sequence(FieldKind(_GraphWriter.types_of, _row_of("types").read), list)
# Rows refer to earlier rows and to earlier tables only.
_TABLES: dict[str, Schema] = {
    "shardings": _record(Sharding),
    "types": _record(_Type),
    "collectives": _record(Collective),
    "scopes": _record(Scope),
    "sources": _record(Source),
    "parameters": _record(Parameter),
    "functions": _record(Function),
    "runs": _record(CallFrame),
    "facts": Schema(_Content, {"content": _FACTS}),
    "kernels": Schema(_Content, {"content": _KERNELS}),
    "gradients": Schema(_Content, {"content": _GRADIENTS}),
    "nodes": _record(
        Node,
        outputs=_TYPES,
        attributes=_SHARED_FACTS,
        kernels=_shared("kernels", _KERNELS, tuple, list),
        gradients=_shared("gradients", _GRADIENTS, tuple, tuple),
    ),
    "other_nodes": Schema(Node, {"name": TEXT, "op": TEXT, "kind": _kind_of(NodeKind)}),
    "other_values": _record(Value),
    "calls": _record(Call, hyperparameters=_SHARED_FACTS),
    "modules": _record(Module),
    "outputs": _record(Output),
    "notes": _record(Note),
    "graph": _record(Graph, nodes=None, calls=None, modules=None, outputs=None, notes=None),
}
