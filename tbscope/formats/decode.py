"""Decodes a graph from plain data, of which anything may be wrong: what `encode_graph` gives."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, get_args

from tbscope.errors import ArgumentError, GraphError
from tbscope.formats.encode import FORMAT, VERSION
from tbscope.formats.fields import (
    FieldError,
    Fields,
    Reader,
    at,
    entry_of,
    listed,
    mapping,
    number,
    optional_text,
    several,
    text,
    truth,
    whole,
    word,
)
from tbscope.formats.rows import GRADIENT, MEASURED, MESH, MODULE, PART, STRAY, TABLES
from tbscope.ir.graph import (
    Argument,
    Body,
    Call,
    Constant,
    Graph,
    Nest,
    Node,
    NodeKind,
    Note,
    Output,
    Profile,
    Role,
    Value,
)
from tbscope.ir.invariants import check_invariants
from tbscope.ir.nests import values_in
from tbscope.ir.scopes import Phase, Scope
from tbscope.words import shown

__all__ = ["decode_graph"]

_MOST_CHARACTERS = 200_000_000
# Containers and bodies in each other. Python's own limit is no measure: it is the process's,
# and others raise it.
_MOST_DEEP = 100
_ROLE, _KIND, _PHASE = (
    word(None, *get_args(Role)),
    word(*get_args(NodeKind)),
    word(*get_args(Phase)),
)
_TOPIC = word("run", "python", "unused", "random", "flops")
_SCOPE, _SOURCE, _RUN = entry_of("scopes"), entry_of("sources"), entry_of("runs")
_PARAMETERS, _GRADIENTS = several(entry_of("parameters")), several(GRADIENT)
_CONTAINERS = ("tuple", "list", "dict")
_GRAPH_KEYS = frozenset(
    {
        *("format", "version", "name", "rank", "world_size", "mesh", "parts", *TABLES),
        *("other_nodes", "other_values", "nodes", "inputs", "outputs", "calls", "notes"),
        *("modules", "signatures", "uncounted", "profile"),
    }
)
_NODE_KEYS = frozenset(
    {
        *("name", "op", "kind", "scope", "arguments", "inputs", "outputs", "after"),
        *("source", "kernels", "attributes", "flops", "allocated_bytes", "gradients"),
        *("role", "random", "writes", "phase", "run", "step", "measured", "body"),
        *("collective",),
    }
)
_STRAY_KEYS = frozenset({"name", "op", "kind"})
_BODY_KEYS = frozenset({"nodes", "results", "writers"})
_ARGUMENT_KEYS = frozenset({"name", "is"})
_OUTPUT_KEYS = frozenset({"name", "value", "after", "given", "via"})
_CALL_KEYS = frozenset(
    {
        *("scope", "class", "qualified_name", "arguments", "results", "hyperparameters"),
        *("training", "parameters", "source", "defined", "number", "run", "step"),
        *("caller", "called_as"),
    }
)
_NOTE_KEYS = frozenset({"text", "source", "node", "topic"})

_Thing = TypeVar("_Thing")


def decode_graph(data: Any) -> Graph:
    """Return the graph that plain data describes.

    Args:
        data: What `encode_graph` gives; anything else is refused.
    Returns:
        A graph that keeps every invariant.
    Raises:
        ArgumentError: It describes none, or is of a version that this one does not know.
    """
    try:
        _check_version(data)
        graph = _Decoder(data).decode()
        check_invariants(graph)
    except (FieldError, RecursionError, GraphError) as error:
        why = _reason(error)
        raise ArgumentError(
            "this describes no graph", why=why, fix="docs/formats.md tells what a graph looks like"
        ) from error
    return graph


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its lists stand in each other too deep"
    return error.why if isinstance(error, GraphError) else str(error)


def _check_version(data: Any) -> None:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise FieldError(f'format is not "{FORMAT}"')
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise FieldError(f"version is {shown(version)}, and should be a number from 1 up")
    if version > VERSION:
        raise ArgumentError(
            f"this graph is of version {version} of its format",
            why=f"this tbscope knows versions up to {VERSION}",
            fix="pip install --upgrade tbscope",
        )


def _each(place: str, entries: Iterable[Any], decode: Callable[[Any], _Thing]) -> list[_Thing]:
    """Decode each entry of a list; a fault tells which one it is in."""
    done: list[_Thing] = []
    try:
        for entry in entries:
            done.append(decode(entry))
    except FieldError as fault:
        text = str(fault)
        # What is wrong with the entry itself, or with a field of it.
        part = " " if text.startswith("is ") else "."
        raise FieldError(f"{place}[{len(done)}]{part}{text}") from None
    return done


class _Decoder:
    """One graph while it is decoded."""

    def __init__(self, data: Any) -> None:
        # Scopes and runs are in tables whose rows name earlier ones.
        self._tables: dict[str, list[Any]] = {key: [] for key in TABLES}
        self._told = self._object(data, _GRAPH_KEYS)
        self._nodes: list[Node] = []
        self._values: list[Value] = []
        self._fields: list[Fields] = []
        # The length of the path of each scope, and of all.
        self._lengths: dict[Scope | None, int] = {None: -1}
        self._characters = 0
        # How many containers and bodies stand around what is decoded.
        self._depth = 0

    def decode(self) -> Graph:
        told = self._told
        for key in TABLES:
            self._each(key, partial(self._add_row, key))
        graph = Graph(told.get("name", text), rank=told.get("rank", whole, 0))
        graph.world_size = told.get("world_size", whole, 1)
        graph.mesh = tuple(self._each("mesh", self._row(MESH)))
        graph.parts = tuple(self._each("parts", self._row(PART)))
        # Each node is there, with what it gives, before one names it.
        graph.nodes = self._each("nodes", self._make)
        made = len(self._fields)
        self._each("other_nodes", self._make_stray)
        self._each("other_values", self._make_other)
        _each("nodes", range(made), self._fill)
        graph.inputs = self._each("inputs", self._node)
        graph.outputs = self._each("outputs", self._output)
        graph.calls = self._each("calls", self._call)
        graph.notes = self._each("notes", self._note)
        graph.modules = self._each("modules", self._row(MODULE))
        names_of = several(optional_text)
        graph.signatures = {
            op: names_of(f"signatures of {shown(op)}", names, self._tables)
            for op, names in told.get("signatures", mapping, {}).items()
        }
        graph.uncounted = {
            kernel: text(f"uncounted of {shown(kernel)}", why, self._tables)
            for kernel, why in told.get("uncounted", mapping, {}).items()
        }
        graph.profile = self._profile(told.raw("profile"))
        return graph

    def _each(self, key: str, decode: Callable[[Any], _Thing]) -> list[_Thing]:
        """Decode each entry of a list of the graph."""
        return _each(key, self._told.get(key, listed, []), decode)

    def _object(self, data: Any, known: frozenset[str]) -> Fields:
        return Fields(data, known, self._tables)

    def _row(self, row: Reader) -> Callable[[Any], Any]:
        return lambda data: row("", data, self._tables)

    def _add_row(self, key: str, row: Any) -> None:
        made = TABLES[key]("", row, self._tables)
        self._tables[key].append(made)
        if key == "scopes":
            # Each path holds those around it.
            length = len(str(made.part)) + self._lengths[made.parent] + 1
            self._lengths[made] = length
            self._characters += length
            if self._characters > _MOST_CHARACTERS:
                raise FieldError(
                    f"is too deep: the paths have {self._characters:,} characters up to here"
                )

    def _profile(self, data: Any) -> Profile | None:
        if data is None:
            return None
        fields = Profile.__dataclass_fields__
        told = self._object(data, frozenset(fields))
        given: dict[str, Any] = {
            name: (text if field.type is str else number)(
                f"profile.{name}", told.raw(name), self._tables
            )
            for name, field in fields.items()
        }
        return Profile(**given)

    # -- nodes ------------------------------------------------------------------------

    def _make(self, data: Any) -> Node:
        told = self._object(data, _NODE_KEYS)
        node = self._head(told)
        self._fields.append(told)
        types = self._tables["types"]
        for kind in told.get("outputs", listed, []):
            value = Value(node, len(node.outputs), *types[at("outputs", kind, 0, len(types))])
            node.outputs.append(value)
            self._values.append(value)
        if "body" in told:
            body = self._object(told.get("body", mapping), _BODY_KEYS)
            self._enter()
            node.body = Body(_each("body.nodes", body.get("nodes", listed, []), self._make), [])
            self._depth -= 1
        return node

    def _head(self, told: Fields) -> Node:
        node = Node(told.get("name", text), told.get("op", text), told.get("kind", _KIND, "op"))
        self._nodes.append(node)
        return node

    def _make_stray(self, data: Any) -> None:
        self._head(self._object(data, _STRAY_KEYS))

    def _make_other(self, row: Any) -> None:
        producer, index, typed = STRAY("", row, self._tables)
        self._values.append(Value(self._node(producer), index, *typed))

    def _fill(self, number: int) -> None:
        node, told = self._nodes[number], self._fields[number]
        node.scope = told.get("scope", _SCOPE, None)
        node.arguments = self._arguments(told)
        if "inputs" in told:
            node.inputs = _each("inputs", told.get("inputs", listed), self._value)
        else:
            node.inputs = [
                value for argument in node.arguments for value in values_in(argument.nest)
            ]
        node.control_inputs = self._after(told)
        node.source = told.get("source", _SOURCE, None)
        node.kernels = list(told.get("kernels", several(text), ()))
        node.attributes = self._facts("attributes", told)
        node.flops = told.get("flops", whole, None)
        node.allocated_bytes = told.get("allocated_bytes", whole, 0)
        node.gradients = told.get("gradients", _GRADIENTS, ())
        node.role = told.get("role", _ROLE, None)
        node.random = told.get("random", truth, default=False)
        node.writes = tuple(
            at("writes", place, 0, len(node.inputs)) for place in told.get("writes", listed, ())
        )
        node.phase = told.get("phase", _PHASE, "forward")
        node.run = told.get("run", _RUN, None)
        node.step = told.get("step", whole, 0)
        node.collective = told.get("collective", entry_of("collectives"), None)
        node.measured = told.get("measured", MEASURED, None)
        if node.body is not None:
            body = self._object(told.raw("body"), _BODY_KEYS)
            results, writers = body.get("results", listed, ()), body.get("writers", listed, ())
            node.body.results = _each("body.results", results, self._value)
            node.body.writers = _each("body.writers", writers, self._node)

    def _node(self, number: Any) -> Node:
        return self._nodes[at("node", number, 0, len(self._nodes))]

    def _value(self, number: Any) -> Value:
        return self._values[at("value", number, 0, len(self._values))]

    def _after(self, told: Fields) -> list[Node]:
        return _each("after", told.get("after", listed, ()), self._node)

    # -- nests ------------------------------------------------------------------------

    def _arguments(self, told: Fields) -> list[Argument]:
        return _each("arguments", told.get("arguments", listed, ()), self._argument)

    def _argument(self, data: Any) -> Argument:
        if type(data) is dict and "is" in data:
            named = self._object(data, _ARGUMENT_KEYS)
            return Argument(named.get("name", text), self._nest(named.raw("is")))
        return Argument(None, self._nest(data))

    def _facts(self, key: str, told: Fields) -> dict[Any, Any]:
        facts = told.raw(key)
        if type(facts) is list:
            return self._dict(facts)
        return {name: self._nest(entry) for name, entry in told.get(key, mapping, {}).items()}

    def _nest(self, data: Any) -> Nest:
        kind = type(data)
        if kind is list:
            return self._value(self._entries(data, 1)[0])
        if kind is not dict:
            return data
        if len(data) != 1:
            raise FieldError(f"is {shown(data)}, and should have one key")
        ((key, held),) = data.items()
        if key == "constant":
            return Constant(text("constant", held, self._tables))
        if key in _CONTAINERS:
            self._enter()
            made = self._dict(held) if key == "dict" else self._nests(held)
            self._depth -= 1
            return tuple(made) if key == "tuple" else made
        if key == "complex":
            parts = [number("a number", part, self._tables) for part in self._entries(held, 2)]
            try:
                return complex(*map(float, parts))
            except OverflowError:
                raise FieldError(f"is {shown(held)}, which no complex number holds") from None
        return number("a number", data, self._tables)

    def _entries(self, data: Any, count: int) -> list[Any]:
        if type(data) is not list or len(data) != count:
            raise FieldError(f"is {shown(data)}, and should be a list of {count}")
        return data

    def _enter(self) -> None:
        """Go into a container or a body."""
        self._depth += 1
        if self._depth > _MOST_DEEP:
            raise RecursionError(f"{_MOST_DEEP} containers or bodies stand in each other")

    def _nests(self, data: Any) -> list[Nest]:
        return [self._nest(entry) for entry in listed("entries", data, self._tables)]

    def _dict(self, data: Any) -> dict[Nest, Nest]:
        made = {}
        for row in listed("entries", data, self._tables):
            key, entry = self._entries(row, 2)
            name = self._nest(key)
            try:
                made[name] = self._nest(entry)
            except TypeError:
                raise FieldError(f"a key is {shown(key)}, and keys hold no lists") from None
        return made

    # -- the rest ---------------------------------------------------------------------

    def _output(self, data: Any) -> Output:
        told = self._object(data, _OUTPUT_KEYS)
        return Output(
            told.get("name", text),
            self._value(told.raw("value")),
            tuple(self._after(told)),
            self._value(told.raw("given")) if "given" in told else None,
            told.get("via", text, ""),
        )

    def _call(self, data: Any) -> Call:
        told = self._object(data, _CALL_KEYS)
        if "scope" not in told:
            raise FieldError("scope is missing")
        scope = told.get("scope", _SCOPE)
        return Call(
            scope,
            told.get("class", text),
            told.get("qualified_name", optional_text, scope.qualified_name),
            self._arguments(told),
            self._nest(told.raw("results")),
            self._facts("hyperparameters", told),
            told.get("training", truth, default=False),
            told.get("parameters", _PARAMETERS, ()),
            told.get("source", _SOURCE, None),
            told.get("defined", _SOURCE, None),
            told.get("number", whole, 0),
            told.get("run", _RUN, None),
            told.get("step", whole, 0),
            told.get("caller", _SCOPE, None),
            told.get("called_as", text, ""),
        )

    def _note(self, data: Any) -> Note:
        told = self._object(data, _NOTE_KEYS)
        return Note(
            told.get("text", text),
            told.get("source", _SOURCE, None),
            self._node(told.raw("node")) if "node" in told else None,
            told.get("topic", _TOPIC, "run"),
        )
