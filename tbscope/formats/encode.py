"""Encodes a graph as the rows of a JSON text, as docs/formats.md describes it.

What many nodes share (types, scopes, places in the code) stands once, in a table, and is named by
its number there. A field that holds its default is left out. Text is made right away: with objects
in between, it would take twice as long, and every graph that is drawn is encoded.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from tbscope.ir.graph import (
    Call,
    Collective,
    Constant,
    Graph,
    Nest,
    Node,
    Note,
    Output,
    Parameter,
    Part,
    Sharding,
    Value,
)
from tbscope.ir.runs import Function, Run
from tbscope.ir.scopes import Scope
from tbscope.words import shown

__all__ = ["FORMAT", "VERSION", "encode_graph"]

FORMAT = "tbscope.Graph"
"""What a graph says that it is, under the key "format"."""

VERSION = 2
"""The version of the schema, under the key "version"."""

# Beyond, many readers of JSON lose digits, and Python prints no more than 4,300 of them.
_EXACT = 2**53
_MOST_TEXT = 1000


def encode_graph(graph: Graph) -> dict[str, str | list[str]]:
    """Return a graph as texts in JSON, by the keys that they stand under.

    Args:
        graph: Any graph; it stays as it is.
    Returns:
        For each key of docs/formats.md its text, or the texts of the entries of its list. A
        constant of a class of the user's becomes its text.
    """
    encoder = _Encoder(graph)
    told = encoder.encode()
    # It and its tables refer to each other: else the garbage collector alone would find them.
    vars(encoder).clear()
    return told


class _Texts(dict[str, str]):
    """Texts as JSON has them, each made once."""

    def __missing__(self, text: str) -> str:
        made = self[text] = encode_basestring_ascii(text)
        return made


class _Table(dict[Any, int]):
    """Things that are named by their number, each once, as they come; `rows` has their texts."""

    def __init__(self, encode: Callable[[Any], str]) -> None:
        self._encode = encode
        self.rows: list[str] = []

    def __missing__(self, item: Hashable) -> int:
        # The row of a scope comes after that of the scope around it.
        row = self._encode(item)
        number = self[item] = len(self.rows)
        self.rows.append(row)
        return number


class _Encoder:
    """One graph while it is encoded."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._texts = texts = _Texts()
        self._types = _Table(self._type)
        self._shardings = _Table(self._sharding)
        self._groups = _Table(self._group)
        self._collectives = _Table(self._collective)
        self._sources = _Table(
            lambda one: f"[{texts[one.file]},{_number(one.line)},{texts[one.function]}]"
        )
        self._parameters = _Table(self._parameter)
        self._scopes = _Table(self._scope)
        self._functions = _Table(self._function)
        self._runs = _Table(self._run)
        self._nodes: dict[Node, int] = {}
        self._values: dict[Value, int] = {}
        # Nodes and values that something names and that no list holds.
        self._other_nodes: list[str] = []
        self._other_values: list[str] = []
        # The values in the arguments that were encoded last.
        self._read: list[int] = []

    def encode(self) -> dict[str, str | list[str]]:
        graph, texts = self._graph, self._texts
        self._count(graph.nodes)
        rows: dict[str, list[str]] = {
            "nodes": [self._node(node) for node in graph.nodes],
            "inputs": [str(self._node_number(node)) for node in graph.inputs],
            "outputs": [self._output(output) for output in graph.outputs],
            "calls": [self._call(call) for call in graph.calls],
            "notes": [self._note(note) for note in graph.notes],
            "modules": [
                f"[{texts[one.name]},{texts[one.class_name]},{self._owned(one.parameters)}]"
                for one in graph.modules
            ],
        }
        # Tables stand first: whoever reads on knows all that is named.
        tables = {
            "shardings": self._shardings.rows,
            "types": self._types.rows,
            "groups": self._groups.rows,
            "collectives": self._collectives.rows,
            "scopes": self._scopes.rows,
            "sources": self._sources.rows,
            "parameters": self._parameters.rows,
            "functions": self._functions.rows,
            "runs": self._runs.rows,
            "other_nodes": self._other_nodes,
            "other_values": self._other_values,
        }
        told: dict[str, str | list[str]] = {
            "format": texts[FORMAT],
            "version": str(VERSION),
            "name": texts[graph.name],
        }
        if graph.rank:
            told["rank"] = _number(graph.rank)
        if graph.world_size != 1:
            told["world_size"] = _number(graph.world_size)
        if graph.mesh:
            rows["mesh"] = [
                f"[{texts[one.name]},{_number(one.size)},{_number(one.coordinate)}]"
                for one in graph.mesh
            ]
        if graph.parts:
            rows["parts"] = [self._part(one) for one in graph.parts]
        told |= {key: held for key, held in (tables | rows).items() if held}
        if graph.signatures:
            told["signatures"] = self._mapping(
                (op, f"[{','.join(map(self._plain, names))}]")
                for op, names in graph.signatures.items()
            )
        if graph.uncounted:
            told["uncounted"] = self._mapping(
                (kernel, texts[why]) for kernel, why in graph.uncounted.items()
            )
        profile = graph.profile
        if profile is not None:
            told["profile"] = self._mapping(
                (name, self._plain(getattr(profile, name))) for name in profile.__dataclass_fields__
            )
        return told

    def _count(self, nodes: list[Node]) -> None:
        numbers, values = self._nodes, self._values
        for node in nodes:
            numbers[node] = len(numbers)
            for value in node.outputs:
                values[value] = len(values)
            if node.body is not None:
                self._count(node.body.nodes)

    def _mapping(self, entries: Iterable[tuple[str, str]]) -> str:
        texts = self._texts
        return f"{{{','.join([f'{texts[key]}:{entry}' for key, entry in entries])}}}"

    # -- nodes ------------------------------------------------------------------------

    def _node(self, node: Node) -> str:
        texts = self._texts
        row = f'{{"name":{encode_basestring_ascii(node.name)},"op":{texts[node.op]}'
        if node.kind != "op":
            row += f',"kind":{texts[node.kind]}'
        if node.scope is not None:
            row += f',"scope":{self._scopes[node.scope]}'
        read: list[int] = []
        self._read = read
        if node.arguments:
            row += f',"arguments":{self._arguments(node.arguments)}'
        values = self._values
        inputs = [
            values[value] if value in values else self._value_number(value) for value in node.inputs
        ]
        if inputs != read:
            row += f',"inputs":{_numbers(inputs)}'
        outputs = node.outputs
        if outputs:
            types = self._types
            listed = [
                types[value.shape, value.dtype, value.device, value.sharding] for value in outputs
            ]
            row += f',"outputs":{_numbers(listed)}'
        if node.control_inputs:
            row += f',"after":{self._node_numbers(node.control_inputs)}'
        if node.source is not None:
            row += f',"source":{self._sources[node.source]}'
        if node.run is not None:
            row += f',"run":{self._runs[node.run]}'
        if node.step:
            row += f',"step":{_number(node.step)}'
        if node.kernels:
            row += f',"kernels":[{",".join([texts[kernel] for kernel in node.kernels])}]'
        if node.attributes:
            row += f',"attributes":{self._facts(node.attributes)}'
        if node.flops is not None:
            row += f',"flops":{_number(node.flops)}'
        if node.allocated_bytes:
            row += f',"allocated_bytes":{_number(node.allocated_bytes)}'
        return f"{row}{self._rare(node)}}}"

    def _rare(self, node: Node) -> str:
        row = ""
        if node.gradients:
            listed = [f"[{_number(one.flops)},{_numbers(one.inputs)}]" for one in node.gradients]
            row += f',"gradients":[{",".join(listed)}]'
        if node.role is not None:
            row += f',"role":{self._texts[node.role]}'
        if node.random:
            row += ',"random":true'
        if node.writes:
            row += f',"writes":{_numbers(node.writes)}'
        if node.phase != "forward":
            row += f',"phase":{self._texts[node.phase]}'
        if node.collective is not None:
            row += f',"collective":{self._collectives[node.collective]}'
        measured = node.measured
        if measured is not None:
            plain = self._plain
            row += f',"measured":[{plain(measured.duration_us)},{plain(measured.peak_bytes)}'
            row += "]" if measured.at_peak_bytes is None else f",{_number(measured.at_peak_bytes)}]"
        body = node.body
        if body is not None:
            nodes = ",".join([self._node(inner) for inner in body.nodes])
            results = _numbers([self._value_number(value) for value in body.results])
            writers = self._node_numbers(body.writers)
            row += f',"body":{{"nodes":[{nodes}],"results":{results},"writers":{writers}}}'
        return row

    def _node_numbers(self, nodes: Iterable[Node]) -> str:
        return _numbers([self._node_number(node) for node in nodes])

    def _node_number(self, node: Node) -> int:
        number = self._nodes.get(node)
        if number is None:
            number = self._nodes[node] = len(self._nodes)
            told = (("name", node.name), ("op", node.op), ("kind", node.kind))
            self._other_nodes.append(self._mapping((key, self._texts[one]) for key, one in told))
        return number

    def _value_number(self, value: Value) -> int:
        number = self._values.get(value)
        if number is None:
            number = self._values[value] = len(self._values)
            kind = self._types[value.shape, value.dtype, value.device, value.sharding]
            row = [self._node_number(value.producer), value.index, kind]
            self._other_values.append(_numbers(row))
        return number

    # -- nests ------------------------------------------------------------------------

    def _arguments(self, arguments: Iterable[tuple[str | None, Nest]]) -> str:
        """Return a list: a value or constant as such, with its name where it has one."""
        nest, texts = self._nest, self._texts
        listed = [
            nest(given) if name is None else f'{{"name":{texts[name]},"is":{nest(given)}}}'
            for name, given in arguments
        ]
        return f"[{','.join(listed)}]"

    def _facts(self, facts: Any) -> str:
        """Return a mapping from texts to nests; one from anything else as its entries."""
        nest, texts = self._nest, self._texts
        listed = []
        for key, entry in facts.items():
            if type(key) is not str:
                return self._entries(facts)
            listed.append(f"{texts[key]}:{nest(entry)}")
        return f"{{{','.join(listed)}}}"

    def _entries(self, held: Any) -> str:
        nest = self._nest
        return f"[{','.join([f'[{nest(key)},{nest(entry)}]' for key, entry in held.items()])}]"

    def _nest(self, nest: Nest) -> str:
        kind = type(nest)
        if kind is Value:
            number = self._values.get(nest)
            if number is None:
                number = self._value_number(nest)
            self._read.append(number)
            return f"[{number}]"
        if kind is str:
            return self._texts[nest]
        if nest is None or kind is bool or kind is int or kind is float:
            return self._plain(nest)
        if kind is Constant:
            return f'{{"constant":{self._texts[nest.text]}}}'
        if kind is tuple or kind is list:
            word = "tuple" if kind is tuple else "list"
            return f'{{"{word}":[{",".join([self._nest(entry) for entry in nest])}]}}'
        if kind is dict:
            return f'{{"dict":{self._entries(nest)}}}'
        if kind is complex:
            return f'{{"complex":[{_number(nest.real)},{_number(nest.imag)}]}}'
        return self._nest(_nearest(nest))

    def _plain(self, plain: Any) -> str:
        """Return a text, a number, a truth or None."""
        if plain is None:
            return "null"
        if plain is True or plain is False:
            return "true" if plain else "false"
        return self._texts[plain] if isinstance(plain, str) else _number(plain)

    # -- the rest ---------------------------------------------------------------------

    def _scope(self, scope: Scope) -> str:
        above: int | str = "null"
        if scope.parent is not None:
            # Outermost first: no depth needs recursion.
            for outer in reversed([scope.parent, *scope.parent.ancestors()]):
                above = self._scopes[outer]
        part, texts, plain = scope.part, self._texts, self._plain
        row = f"[{above},{texts[part.label]},{plain(part.attribute)},{part.index}"
        row += f",{texts[scope.kind]},{plain(scope.qualified_name)}"
        return f"{row},{texts[scope.phase]}]" if scope.phase != "forward" else f"{row}]"

    def _type(self, one: tuple[Any, ...]) -> str:
        shape, dtype, device, sharding = one
        row = f"[{_sizes(shape)},{self._texts[dtype]},{self._texts[device]}"
        return f"{row}]" if sharding is None else f"{row},{self._shardings[sharding]}]"

    def _sharding(self, one: Sharding) -> str:
        lies = [
            ",".join([self._texts[word] for word in told]) for told in (one.placements, one.mesh)
        ]
        return f"[{_sizes(one.shape)},[{lies[0]}],[{lies[1]}]]"

    def _group(self, one: tuple[Any, ...]) -> str:
        ranks, mesh, name = one
        return f"[{_numbers(ranks)},{self._texts[mesh]},{self._texts[name]}]"

    def _collective(self, one: Collective) -> str:
        plain, group = self._plain, self._groups[one.ranks, one.mesh, one.group]
        row = f"[{self._texts[one.kind]},{plain(one.reduction)},{group},{_number(one.input_bytes)}"
        row += f",{_number(one.output_bytes)},{plain(one.peer)},{_number(one.sequence)}"
        return f"{row},{plain(one.asynchronous)},{_number(one.tensors)}]"

    def _part(self, one: Part) -> str:
        figures = self._mapping((name, _number(count)) for name, count in one.figures.items())
        row = f"[{_numbers(one.ranks)},{self._texts[one.scope]},{self._plain(one.stage)}"
        return f"{row},{figures}]"

    def _function(self, one: Function) -> str:
        loops = ",".join([f"[{_number(first)},{_number(last)}]" for first, last in one.loops])
        return f"[{self._texts[one.name]},{self._plain(one.nested)},[{loops}]]"

    def _run(self, run: Run) -> str:
        above: int | str = "null"
        if run.around is not None:
            for outer in run.around.chain():
                above = self._runs[outer]
        return f"[{self._functions[run.function]},{above},{_number(run.step)}]"

    def _parameter(self, one: Parameter) -> str:
        texts, plain = self._texts, self._plain
        row = f"[{texts[one.name]},{texts[one.kind]},{_sizes(one.shape)},{texts[one.dtype]}"
        row += f",{_number(one.size_bytes)},{plain(one.requires_grad)}"
        if one.sharding is not None:
            row += f",{texts[one.device]},{_number(one.number)}"
            return f"{row},{self._shardings[one.sharding]}]"
        if one.number != -1:
            return f"{row},{texts[one.device]},{_number(one.number)}]"
        return f"{row},{texts[one.device]}]" if one.device != "cpu" else f"{row}]"

    def _owned(self, parameters: Iterable[Parameter]) -> str:
        return _numbers([self._parameters[each] for each in parameters])

    def _output(self, output: Output) -> str:
        row = f'{{"name":{self._texts[output.name]},"value":{self._value_number(output.value)}'
        if output.control_inputs:
            row += f',"after":{self._node_numbers(output.control_inputs)}'
        if output.given is not None:
            row += f',"given":{self._value_number(output.given)}'
        if output.via:
            row += f',"via":{self._texts[output.via]}'
        return f"{row}}}"

    def _call(self, call: Call) -> str:
        row = f'{{"scope":{self._scopes[call.scope]},"class":{self._texts[call.class_name]}'
        if call.qualified_name != call.scope.qualified_name:
            row += f',"qualified_name":{self._plain(call.qualified_name)}'
        if call.arguments:
            row += f',"arguments":{self._arguments(call.arguments)}'
        if call.results is not None:
            row += f',"results":{self._nest(call.results)}'
        if call.hyperparameters:
            row += f',"hyperparameters":{self._facts(call.hyperparameters)}'
        if call.training:
            row += ',"training":true'
        if call.parameters:
            row += f',"parameters":{self._owned(call.parameters)}'
        if call.source is not None:
            row += f',"source":{self._sources[call.source]}'
        if call.defined is not None:
            row += f',"defined":{self._sources[call.defined]}'
        if call.number:
            row += f',"number":{_number(call.number)}'
        if call.run is not None:
            row += f',"run":{self._runs[call.run]}'
        if call.step:
            row += f',"step":{_number(call.step)}'
        return f"{row}}}"

    def _note(self, note: Note) -> str:
        row = f'{{"text":{self._texts[note.text]}'
        if note.source is not None:
            row += f',"source":{self._sources[note.source]}'
        if note.node is not None:
            row += f',"node":{self._node_number(note.node)}'
        if note.topic != "run":
            row += f',"topic":{self._texts[note.topic]}'
        return f"{row}}}"


def _numbers(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _sizes(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "null"
    return f"[{','.join(['null' if size is None else _number(size) for size in shape])}]"


def _number(number: Any) -> str:
    """Return a number as JSON has it: one that is not finite, or too large, as a text."""
    if type(number) is int:
        if -_EXACT <= number <= _EXACT:
            return str(number)
        return f'{{"int":"{hex(number)}"}}'
    if isinstance(number, float):
        plain = float(number)
        return repr(plain) if math.isfinite(plain) else f'{{"float":"{plain!r}"}}'
    return _number(int(number))


def _nearest(thing: Any) -> Nest:
    """Return what no schema has, as the nearest thing that it has."""
    kinds: tuple[type, ...] = (int, float, complex, tuple, list, dict)
    if isinstance(thing, str):
        return str.__str__(thing)
    for kind in kinds:
        if isinstance(thing, kind):
            return kind(thing)
    return Constant(shown(thing, _MOST_TEXT))
