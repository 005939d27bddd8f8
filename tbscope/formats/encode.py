"""Encodes a graph as plain data: dicts, lists, texts and numbers, as docs/formats.md describes.

What many nodes share (types, scopes, places in the code) stands once, in a table, and is named by
its number there. A field that holds its default is left out.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from tbscope.ir.graph import Call, Constant, Graph, Nest, Node, Note, Output, Parameter, Value
from tbscope.ir.scopes import Scope
from tbscope.words import shown

__all__ = ["FORMAT", "VERSION", "encode_graph"]

FORMAT = "tbscope.Graph"
"""What a graph says that it is, under the key "format"."""

VERSION = 1
"""The version of the schema, under the key "version"."""

_PLAIN = frozenset({str, bool, type(None)})
# Beyond, many readers of JSON lose digits, and Python prints no more than 4,300 of them.
_EXACT = 2**53

_Item = TypeVar("_Item", bound=Hashable)


def encode_graph(graph: Graph) -> dict[str, Any]:
    """Return a graph as plain data that `json.dumps` takes.

    Args:
        graph: Any graph; it stays as it is.
    Returns:
        What docs/formats.md describes. A constant of a class of the user's becomes its text.
    """
    return _Encoder(graph).encode()


class _Table:
    """Things that are named by their number, each once, as they come."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self._encode = encode
        self._numbers: dict[Any, int] = {}
        self.rows: list[Any] = []

    def number(self, item: Hashable) -> int:
        number = self._numbers.get(item)
        if number is None:
            row = self._encode(item)
            # The row of a scope comes after that of the scope around it.
            number = self._numbers[item] = len(self.rows)
            self.rows.append(row)
        return number


class _Encoder:
    """One graph while it is encoded."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._types = _Table(lambda told: [_sizes(told[0]), told[1], told[2]])
        self._sources = _Table(lambda one: [one.file, one.line, one.function])
        self._parameters = _Table(_parameter)
        self._scopes = _Table(self._scope)
        self._nodes: dict[Node, int] = {}
        self._values: dict[Value, int] = {}
        # Nodes and values that something names and that no list holds.
        self._strays: list[dict[str, Any]] = []
        self._other: list[list[Any]] = []
        self._read: list[int] = []

    def encode(self) -> dict[str, Any]:
        graph = self._graph
        self._count(graph.nodes)
        data: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": graph.name}
        tables: dict[str, Any] = {}
        told = {
            "nodes": [self._node(node) for node in graph.nodes],
            "inputs": [self._node_number(node) for node in graph.inputs],
            "outputs": [self._output(output) for output in graph.outputs],
            "calls": [self._call(call) for call in graph.calls],
            "notes": [self._note(note) for note in graph.notes],
            "modules": [
                [one.name, one.class_name, [self._parameters.number(each) for each in one[2]]]
                for one in graph.modules
            ],
            "signatures": {op: list(names) for op, names in graph.signatures.items()},
            "uncounted": dict(graph.uncounted),
        }
        profile = graph.profile
        if profile is not None:
            names = profile.__dataclass_fields__
            told["profile"] = {name: _number(getattr(profile, name)) for name in names}
        tables["types"] = self._types.rows
        tables["scopes"] = self._scopes.rows
        tables["sources"] = self._sources.rows
        tables["parameters"] = self._parameters.rows
        tables["other_nodes"] = self._strays
        tables["other_values"] = self._other
        if graph.rank:
            data["rank"] = graph.rank
        # Tables stand first: whoever reads on knows all that is named.
        for key, entry in (*tables.items(), *told.items()):
            if entry:
                data[key] = entry
        return data

    def _count(self, nodes: list[Node]) -> None:
        numbers, values = self._nodes, self._values
        for node in nodes:
            numbers[node] = len(numbers)
            for value in node.outputs:
                values[value] = len(values)
            if node.body is not None:
                self._count(node.body.nodes)

    # -- nodes ------------------------------------------------------------------------

    def _node(self, node: Node) -> dict[str, Any]:
        told: dict[str, Any] = {"name": node.name, "op": node.op}
        if node.kind != "op":
            told["kind"] = node.kind
        if node.scope is not None:
            told["scope"] = self._scopes.number(node.scope)
        read: list[int] = []
        self._read = read
        if node.arguments:
            told["arguments"] = self._arguments(node.arguments)
        inputs = [self._value_number(value) for value in node.inputs]
        if inputs != read:
            told["inputs"] = inputs
        if node.outputs:
            number = self._types.number
            told["outputs"] = [
                number((value.shape, value.dtype, value.device)) for value in node.outputs
            ]
        if node.control_inputs:
            told["after"] = [self._node_number(other) for other in node.control_inputs]
        if node.source is not None:
            told["source"] = self._sources.number(node.source)
        if node.kernels:
            told["kernels"] = node.kernels
        if node.attributes:
            told["attributes"] = self._facts(node.attributes)
        if node.flops is not None:
            told["flops"] = _number(node.flops)
        if node.allocated_bytes:
            told["allocated_bytes"] = _number(node.allocated_bytes)
        self._add_rare(node, told)
        return told

    def _add_rare(self, node: Node, told: dict[str, Any]) -> None:
        if node.gradients:
            told["gradients"] = [[_number(one.flops), list(one.inputs)] for one in node.gradients]
        if node.role is not None:
            told["role"] = node.role
        if node.random:
            told["random"] = True
        if node.writes:
            told["writes"] = list(node.writes)
        if node.phase != "forward":
            told["phase"] = node.phase
        measured = node.measured
        if measured is not None:
            told["measured"] = [_number(measured.duration_us), _number(measured.peak_bytes)]
        body = node.body
        if body is not None:
            told["body"] = {
                "nodes": [self._node(inner) for inner in body.nodes],
                "results": [self._value_number(value) for value in body.results],
                "writers": [self._node_number(writer) for writer in body.writers],
            }

    def _node_number(self, node: Node) -> int:
        number = self._nodes.get(node)
        if number is None:
            number = self._nodes[node] = len(self._nodes)
            self._strays.append({"name": node.name, "op": node.op, "kind": node.kind})
        return number

    def _value_number(self, value: Value) -> int:
        number = self._values.get(value)
        if number is None:
            number = self._values[value] = len(self._values)
            kind = self._types.number((value.shape, value.dtype, value.device))
            self._other.append([self._node_number(value.producer), value.index, kind])
        return number

    # -- nests ------------------------------------------------------------------------

    def _arguments(self, arguments: Iterable[tuple[str | None, Nest]]) -> list[Any]:
        """Return a list: a value or constant as such, with its name where it has one."""
        nest = self._nest
        return [
            nest(given) if name is None else {"name": name, "is": nest(given)}
            for name, given in arguments
        ]

    def _facts(self, facts: Any) -> Any:
        """Return a mapping from texts to nests; one from anything else as its entries."""
        if all(type(key) is str for key in facts):
            return {key: self._nest(entry) for key, entry in facts.items()}
        return self._nest(dict(facts))["dict"]

    def _nest(self, nest: Nest) -> Any:
        kind = type(nest)
        if kind is Value:
            number = self._value_number(nest)
            self._read.append(number)
            return [number]
        if kind in _PLAIN:
            return nest
        if kind is int or kind is float:
            return _number(nest)
        if kind is Constant:
            return {"constant": nest.text}
        if kind is complex:
            return {"complex": [_number(nest.real), _number(nest.imag)]}
        if kind is tuple:
            return {"tuple": [self._nest(entry) for entry in nest]}
        if kind is list:
            return {"list": [self._nest(entry) for entry in nest]}
        if kind is dict:
            return {"dict": [[self._nest(key), self._nest(entry)] for key, entry in nest.items()]}
        return self._nest(_plain(nest))

    # -- the rest ---------------------------------------------------------------------

    def _scope(self, scope: Scope) -> list[Any]:
        above = None
        if scope.parent is not None:
            # Outermost first: no depth needs recursion.
            missing = [scope.parent, *scope.parent.ancestors()]
            for outer in reversed(missing):
                above = self._scopes.number(outer)
        part = scope.part
        row = [above, part.label, part.attribute, part.index, scope.kind, scope.qualified_name]
        return [*row, scope.phase] if scope.phase != "forward" else row

    def _output(self, output: Output) -> dict[str, Any]:
        told: dict[str, Any] = {"name": output.name, "value": self._value_number(output.value)}
        if output.control_inputs:
            told["after"] = [self._node_number(node) for node in output.control_inputs]
        if output.given is not None:
            told["given"] = self._value_number(output.given)
        if output.via:
            told["via"] = output.via
        return told

    def _call(self, call: Call) -> dict[str, Any]:
        told: dict[str, Any] = {
            "scope": self._scopes.number(call.scope),
            "class": call.class_name,
        }
        if call.qualified_name != call.scope.qualified_name:
            told["qualified_name"] = call.qualified_name
        if call.arguments:
            told["arguments"] = self._arguments(call.arguments)
        if call.results is not None:
            told["results"] = self._nest(call.results)
        if call.hyperparameters:
            told["hyperparameters"] = self._facts(call.hyperparameters)
        if call.training:
            told["training"] = True
        if call.parameters:
            told["parameters"] = [self._parameters.number(each) for each in call.parameters]
        if call.source is not None:
            told["source"] = self._sources.number(call.source)
        if call.defined is not None:
            told["defined"] = self._sources.number(call.defined)
        if call.number:
            told["number"] = call.number
        return told

    def _note(self, note: Note) -> dict[str, Any]:
        told: dict[str, Any] = {"text": note.text}
        if note.source is not None:
            told["source"] = self._sources.number(note.source)
        if note.node is not None:
            told["node"] = self._node_number(note.node)
        if note.topic != "run":
            told["topic"] = note.topic
        return told


def _sizes(shape: tuple[int | None, ...] | None) -> list[Any] | None:
    return None if shape is None else [_number(size) for size in shape]


def _parameter(one: Parameter) -> list[Any]:
    name, kind, shape, dtype, size_bytes, requires_grad, device, number = one
    row = [name, kind, _sizes(shape), dtype, _number(size_bytes), requires_grad]
    if number != -1:
        return [*row, device, number]
    return row if device == "cpu" else [*row, device]


def _number(number: Any) -> Any:
    """Return a number as JSON has it: one that is not finite, or too large, as a text."""
    kind = type(number)
    if kind is int:
        return number if -_EXACT <= number <= _EXACT else {"int": hex(number)}
    if kind is float:
        return number if math.isfinite(number) else {"float": repr(number)}
    return number


def _plain(thing: Any) -> Nest:
    """Return what no schema has, as the nearest thing that it has."""
    kinds: tuple[type, ...] = (int, float, complex, tuple, list, dict)
    if isinstance(thing, str):
        return str.__str__(thing)
    for kind in kinds:
        if isinstance(thing, kind):
            return kind(thing)
    return Constant(shown(thing, _MOST_TEXT))


_MOST_TEXT = 1000
