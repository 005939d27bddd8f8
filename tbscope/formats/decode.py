"""Decodes a graph from plain data, of which anything may be wrong: what `encode_graph` gives."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar, get_args

from tbscope.errors import ArgumentError, GraphError
from tbscope.formats.encode import FORMAT, VERSION
from tbscope.formats.fields import FieldError, Fields, at, number_of, row_of
from tbscope.formats.rows import (
    check_kind,
    collective_of_row,
    function_of_row,
    gradient_of_row,
    group_of_row,
    mesh_dimension_of_row,
    parameter_of_row,
    part_of_row,
    profile_of,
    sharding_of_row,
    signature_of,
    source_of_row,
    texts_of,
    type_of_row,
)
from tbscope.ir.graph import (
    Argument,
    Body,
    Call,
    Collective,
    Constant,
    Graph,
    Measured,
    Module,
    Nest,
    Node,
    NodeKind,
    Note,
    Output,
    Parameter,
    Role,
    Shape,
    Sharding,
    Source,
    Value,
)
from tbscope.ir.invariants import check_invariants
from tbscope.ir.nests import values_in
from tbscope.ir.runs import Function, Run
from tbscope.ir.scopes import Phase, Scope, ScopeKind, ScopePart
from tbscope.words import shown

__all__ = ["decode_graph"]

_MOST_CHARACTERS = 200_000_000
# Containers and bodies in each other. Python's own limit is no measure: it is the process's,
# and others raise it.
_MOST_DEEP = 100
_ROLES = (None, *get_args(Role))
_KINDS, _PHASES, _SCOPE_KINDS = get_args(NodeKind), get_args(Phase), get_args(ScopeKind)
_CONTAINERS = ("tuple", "list", "dict")
_TOPICS = ("run", "python", "unused", "random", "flops")
_GRAPH_KEYS = frozenset(
    {
        *("format", "version", "name", "rank", "types", "scopes", "sources"),
        *("parameters", "functions", "runs", "other_nodes", "other_values", "nodes"),
        *("inputs", "outputs", "calls", "notes", "modules", "signatures", "uncounted"),
        *("profile", "world_size", "mesh", "shardings", "groups", "collectives"),
        "parts",
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
_SCOPE_WORDS = frozenset({"kind", "phase"})
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
        graph = _Decoder(Fields(data, _GRAPH_KEYS)).decode()
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

    def __init__(self, told: Fields) -> None:
        self._told = told
        self._nodes: list[Node] = []
        self._values: list[Value] = []
        self._fields: list[Fields] = []
        self._types: list[tuple[Shape | None, str, str, Sharding | None]] = []
        self._collectives: list[Collective] = []
        self._scopes: list[Scope] = []
        # The length of the path of each, and of all.
        self._lengths: list[int] = []
        self._characters = 0
        self._sources: list[Source] = []
        self._functions: list[Function] = []
        self._runs: list[Run] = []
        self._parameters: list[Parameter] = []
        # How many containers and bodies stand around what is decoded.
        self._depth = 0

    def decode(self) -> Graph:
        told = self._told
        shardings = _each("shardings", told.entries("shardings"), sharding_of_row)
        of_type = partial(type_of_row, shardings=shardings)
        self._types = _each("types", told.entries("types"), of_type)
        groups = _each("groups", told.entries("groups"), group_of_row)
        of_collective = partial(collective_of_row, groups=groups)
        self._collectives = _each("collectives", told.entries("collectives"), of_collective)
        _each("scopes", told.entries("scopes"), self._add_scope)
        self._sources = _each("sources", told.entries("sources"), source_of_row)
        of_parameter = partial(parameter_of_row, shardings=shardings)
        self._parameters = _each("parameters", told.entries("parameters"), of_parameter)
        self._functions = _each("functions", told.entries("functions"), function_of_row)
        _each("runs", told.entries("runs"), self._add_run)
        graph = Graph(told.text("name"), rank=told.whole("rank"))
        graph.world_size = told.whole("world_size", 1)
        graph.mesh = tuple(_each("mesh", told.entries("mesh"), mesh_dimension_of_row))
        graph.parts = tuple(_each("parts", told.entries("parts"), part_of_row))
        # Each node is there, with what it gives, before one names it.
        graph.nodes = _each("nodes", told.entries("nodes"), self._make)
        made = len(self._fields)
        _each("other_nodes", told.entries("other_nodes"), self._make_stray)
        _each("other_values", told.entries("other_values"), self._make_other)
        _each("nodes", range(made), self._fill)
        graph.inputs = _each("inputs", told.entries("inputs"), self._node)
        graph.outputs = _each("outputs", told.entries("outputs"), self._output)
        graph.calls = _each("calls", told.entries("calls"), self._call)
        graph.notes = _each("notes", told.entries("notes"), self._note)
        graph.modules = _each("modules", told.entries("modules"), self._module)
        graph.signatures = {
            op: signature_of(op, names) for op, names in told.mapping("signatures").items()
        }
        graph.uncounted = texts_of("uncounted", told.mapping("uncounted"))
        graph.profile = profile_of(told.raw("profile"))
        return graph

    def _add_scope(self, row: Any) -> None:
        above, label, attribute, index, kind, name, phase = row_of(row, 6, 7)
        parent = None
        if above is not None:
            parent = self._scopes[at("the scope around it", above, 0, len(self._scopes))]
        check_kind("label", label, str)
        check_kind("attribute", attribute, str, type(None))
        check_kind("qualified name", name, str, type(None))
        at("number", index, 0, 2**63)
        words = Fields({"kind": kind, "phase": phase or "forward"}, _SCOPE_WORDS)
        part = ScopePart(label, attribute, index)
        # Each path holds those around it.
        length = len(str(part)) + (0 if above is None else self._lengths[above] + 1)
        self._lengths.append(length)
        self._characters += length
        if self._characters > _MOST_CHARACTERS:
            raise FieldError(
                f"is too deep: the paths have {self._characters:,} characters up to here"
            )
        kind, opened = words.word("kind", None, _SCOPE_KINDS), words.word("phase", None, _PHASES)
        self._scopes.append(
            Scope(part, parent=parent, kind=kind, qualified_name=name, phase=opened)
        )

    def _add_run(self, row: Any) -> None:
        function, above, step = row_of(row, 3, 3)
        around = None
        if above is not None:
            around = self._runs[at("the run around it", above, 0, len(self._runs))]
        known = self._functions[at("function", function, 0, len(self._functions))]
        self._runs.append(Run(known, around, number_of(step)))

    # -- nodes ------------------------------------------------------------------------

    def _make(self, data: Any) -> Node:
        told = Fields(data, _NODE_KEYS)
        node = Node(told.text("name"), told.text("op"), told.word("kind", "op", _KINDS))
        self._nodes.append(node)
        self._fields.append(told)
        for kind in told.entries("outputs"):
            value = Value(
                node, len(node.outputs), *self._types[at("outputs", kind, 0, len(self._types))]
            )
            node.outputs.append(value)
            self._values.append(value)
        if "body" in told:
            body = Fields(told.mapping("body"), _BODY_KEYS)
            self._enter()
            node.body = Body(_each("body.nodes", body.entries("nodes"), self._make), [])
            self._depth -= 1
        return node

    def _make_stray(self, data: Any) -> None:
        told = Fields(data, _STRAY_KEYS)
        self._nodes.append(
            Node(told.text("name"), told.text("op"), told.word("kind", "op", _KINDS))
        )

    def _make_other(self, row: Any) -> None:
        producer, index, kind = row_of(row, 3, 3)
        typed = self._types[at("type", kind, 0, len(self._types))]
        index = at("index", index, 0, 2**31)
        self._values.append(Value(self._node(producer), index, *typed))

    def _fill(self, number: int) -> None:
        node, told = self._nodes[number], self._fields[number]
        node.scope = self._one("scope", told, self._scopes)
        node.arguments = self._arguments(told)
        if "inputs" in told:
            node.inputs = _each("inputs", told.entries("inputs"), self._value)
        else:
            node.inputs = [
                value for argument in node.arguments for value in values_in(argument.nest)
            ]
        node.control_inputs = _each("after", told.entries("after"), self._node)
        node.source = self._one("source", told, self._sources)
        node.kernels = told.texts("kernels")
        node.attributes = self._facts("attributes", told)
        node.flops = told.whole("flops", None)
        node.allocated_bytes = told.whole("allocated_bytes")
        node.gradients = tuple(_each("gradients", told.entries("gradients"), gradient_of_row))
        node.role = told.word("role", None, _ROLES)
        node.random = told.truth("random")
        node.writes = tuple(
            at("writes", place, 0, len(node.inputs)) for place in told.entries("writes")
        )
        node.phase = told.word("phase", "forward", _PHASES)
        node.run = self._one("run", told, self._runs)
        node.step = told.whole("step")
        node.collective = self._one("collective", told, self._collectives)
        if "measured" in told:
            numbers = row_of(told.raw("measured"), 2, 3)
            node.measured = Measured(*[one if one is None else number_of(one) for one in numbers])
        if node.body is not None:
            body = Fields(told.raw("body"), _BODY_KEYS)
            node.body.results = _each("body.results", body.entries("results"), self._value)
            node.body.writers = _each("body.writers", body.entries("writers"), self._node)

    def _node(self, number: Any) -> Node:
        return self._nodes[at("node", number, 0, len(self._nodes))]

    def _value(self, number: Any) -> Value:
        return self._values[at("value", number, 0, len(self._values))]

    def _one(self, key: str, told: Fields, table: list[_Thing]) -> _Thing | None:
        if key not in told:
            return None
        return table[at(key, told.raw(key), 0, len(table))]

    # -- nests ------------------------------------------------------------------------

    def _arguments(self, told: Fields) -> list[Argument]:
        return _each("arguments", told.entries("arguments"), self._argument)

    def _argument(self, data: Any) -> Argument:
        if type(data) is dict and "is" in data:
            named = Fields(data, _ARGUMENT_KEYS)
            return Argument(named.text("name"), self._nest(named.raw("is")))
        return Argument(None, self._nest(data))

    def _facts(self, key: str, told: Fields) -> dict[Any, Any]:
        facts = told.raw(key, {})
        if type(facts) is list:
            return self._dict(facts)
        return {name: self._nest(entry) for name, entry in told.mapping(key).items()}

    def _nest(self, data: Any) -> Nest:
        kind = type(data)
        if kind is list:
            return self._value(row_of(data, 1, 1)[0])
        if kind is not dict:
            return data
        if len(data) != 1:
            raise FieldError(f"is {shown(data)}, and should have one key")
        ((key, held),) = data.items()
        if key == "constant":
            check_kind("constant", held, str)
            return Constant(held)
        if key in _CONTAINERS:
            self._enter()
            made = self._dict(held) if key == "dict" else self._nests(held)
            self._depth -= 1
            return tuple(made) if key == "tuple" else made
        if key == "complex":
            real, imaginary = row_of(held, 2, 2)
            try:
                return complex(float(number_of(real)), float(number_of(imaginary)))
            except OverflowError:
                raise FieldError(f"is {shown(held)}, which no complex number holds") from None
        return number_of(data)

    def _enter(self) -> None:
        """Go into a container or a body."""
        self._depth += 1
        if self._depth > _MOST_DEEP:
            raise RecursionError(f"{_MOST_DEEP} containers or bodies stand in each other")

    def _nests(self, data: Any) -> list[Nest]:
        check_kind("entries", data, list)
        return [self._nest(entry) for entry in data]

    def _dict(self, data: Any) -> dict[Nest, Nest]:
        check_kind("entries", data, list)
        made = {}
        for row in data:
            key, entry = row_of(row, 2, 2)
            name = self._nest(key)
            try:
                made[name] = self._nest(entry)
            except TypeError:
                raise FieldError(f"a key is {shown(key)}, and keys hold no lists") from None
        return made

    # -- the rest ---------------------------------------------------------------------

    def _output(self, data: Any) -> Output:
        told = Fields(data, _OUTPUT_KEYS)
        return Output(
            told.text("name"),
            self._value(told.raw("value")),
            tuple(_each("after", told.entries("after"), self._node)),
            self._value(told.raw("given")) if "given" in told else None,
            told.text("via", ""),
        )

    def _call(self, data: Any) -> Call:
        told = Fields(data, _CALL_KEYS)
        scope = self._one("scope", told, self._scopes)
        if scope is None:
            raise FieldError("scope is missing")
        return Call(
            scope,
            told.text("class"),
            told.optional_text("qualified_name", scope.qualified_name),
            self._arguments(told),
            self._nest(told.raw("results")),
            self._facts("hyperparameters", told),
            told.truth("training"),
            self._owned(told.entries("parameters")),
            self._one("source", told, self._sources),
            self._one("defined", told, self._sources),
            told.whole("number"),
            self._one("run", told, self._runs),
            told.whole("step"),
            self._one("caller", told, self._scopes),
            told.text("called_as", ""),
        )

    def _owned(self, numbers: Any) -> tuple[Parameter, ...]:
        check_kind("parameters", numbers, list)
        table = self._parameters
        return tuple(table[at("parameters", number, 0, len(table))] for number in numbers)

    def _note(self, data: Any) -> Note:
        told = Fields(data, _NOTE_KEYS)
        return Note(
            told.text("text"),
            self._one("source", told, self._sources),
            self._one("node", told, self._nodes),
            told.word("topic", "run", _TOPICS),
        )

    def _module(self, row: Any) -> Module:
        name, class_name, numbers, borrowed = row_of(row, 3, 4)
        check_kind("name", name, str)
        check_kind("class", class_name, str)
        borrowed = () if borrowed is None else self._owned(borrowed)
        return Module(name, class_name, self._owned(numbers), borrowed)
