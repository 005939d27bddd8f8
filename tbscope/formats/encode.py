"""Encodes a graph as the rows of a JSON text, as docs/formats.md describes it.

What many nodes share (types, scopes, places in the code) stands once, in a table, and is named by
its number there (`tables`). A field that holds its default is left out.
"""

from collections.abc import Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from tbscope.formats.tables import Tables, number_text, numbers_text
from tbscope.ir.graph import Call, Constant, Gradient, Graph, Nest, Node, Note, Output, Value
from tbscope.ir.nests import form_of
from tbscope.words import shown

__all__ = ["FORMAT", "VERSION", "encode_graph"]

FORMAT = "tbscope.Graph"
"""What a graph says that it is, under the key "format"."""

VERSION = 3
"""The version of the schema, under the key "version"."""

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
    encoder.tables.forget()
    return told


class _Encoder:
    """One graph while it is encoded.

    Attributes:
        tables: What many of its nodes share.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tables = tables = Tables()
        self._texts, self._types, self._scopes = tables.texts, tables.types, tables.scopes
        self._runs, self._source_number = tables.runs, tables.sources.of
        self._nodes: dict[Node, int] = {}
        # Texts, since each is named several times.
        self._values: dict[Value, str] = {}
        # Nodes and values that something names and that no list holds.
        self._other_nodes: list[str] = []
        self._other_values: list[str] = []
        # The values in the arguments that were encoded last.
        self._read: list[Value] = []
        # Layers of one kind have the same hyper-parameters, and run the same kernels.
        self._known_facts: dict[bytes, str] = {}
        self._known_kernels: dict[tuple[str, ...], str] = {}
        self._known_gradients: dict[tuple[Gradient, ...], str] = {}

    def encode(self) -> dict[str, str | list[str]]:
        graph, tables = self._graph, self.tables
        self._count(graph.nodes)
        rows = self._rows()
        others = {"other_nodes": self._other_nodes, "other_values": self._other_values}
        told = self._head()
        # Tables stand first: whoever reads on knows all that is named.
        told |= {key: held for key, held in (tables.rows() | others | rows).items() if held}
        if graph.signatures:
            told["signatures"] = tables.mapping(
                (op, f"[{','.join(map(tables.plain, names))}]")
                for op, names in graph.signatures.items()
            )
        if graph.uncounted:
            told["uncounted"] = tables.mapping(
                (kernel, self._texts[why]) for kernel, why in graph.uncounted.items()
            )
        profile = graph.profile
        if profile is not None:
            told["profile"] = tables.mapping(
                (name, tables.plain(getattr(profile, name)))
                for name in profile.__dataclass_fields__
            )
        return told

    def _head(self) -> dict[str, str | list[str]]:
        """Return what the graph is, and of which rank."""
        graph, texts = self._graph, self._texts
        told: dict[str, str | list[str]] = {
            "format": texts[FORMAT],
            "version": str(VERSION),
            "name": texts[graph.name],
        }
        if graph.rank:
            told["rank"] = number_text(graph.rank)
        if graph.world_size != 1:
            told["world_size"] = number_text(graph.world_size)
        return told

    def _rows(self) -> dict[str, list[str]]:
        """Return the rows of what the graph lists; on the way the tables are filled."""
        graph, tables, texts = self._graph, self.tables, self._texts
        return {
            "nodes": [self._node(node) for node in graph.nodes],
            "inputs": [str(self._node_number(node)) for node in graph.inputs],
            "outputs": [self._output(output) for output in graph.outputs],
            "calls": [self._call(call) for call in graph.calls],
            "notes": [self._note(note) for note in graph.notes],
            "modules": [
                f"[{texts[one.name]},{texts[one.class_name]},{tables.owned(one.parameters)}"
                + (f",{tables.owned(one.borrowed)}]" if one.borrowed else "]")
                for one in graph.modules
            ],
            "mesh": [
                f"[{texts[one.name]},{number_text(one.size)},{number_text(one.coordinate)}]"
                for one in graph.mesh
            ],
            "parts": [tables.part(one) for one in graph.parts],
        }

    def _count(self, nodes: list[Node]) -> None:
        numbers, values = self._nodes, self._values
        for node in nodes:
            numbers[node] = len(numbers)
            for value in node.outputs:
                values[value] = str(len(values))
            if node.body is not None:
                self._count(node.body.nodes)

    # -- nodes ------------------------------------------------------------------------

    def _node(self, node: Node) -> str:
        texts = self._texts
        row = f'{{"name":{encode_basestring_ascii(node.name)},"op":{texts[node.op]}'
        if node.kind != "op":
            row += f',"kind":{texts[node.kind]}'
        if node.scope is not None:
            row += f',"scope":{self._scopes[node.scope]}'
        read: list[Value] = []
        self._read = read
        if node.arguments:
            row += f',"arguments":{self._arguments(node.arguments)}'
        # Mostly it reads just its arguments.
        if read != node.inputs and read != list(node.inputs):
            row += f',"inputs":{self._value_numbers(node.inputs)}'
        outputs = node.outputs
        if len(outputs) == 1:
            row += f',"outputs":[{self._type_number(outputs[0])}]'
        elif outputs:
            row += f',"outputs":{numbers_text(map(self._type_number, outputs))}'
        if node.control_inputs:
            row += f',"after":{self._node_numbers(node.control_inputs)}'
        if node.source is not None:
            row += f',"source":{self._source_number(node.source)}'
        if node.run is not None:
            row += f',"run":{self._runs[node.run]}'
        if node.step:
            row += f',"step":{number_text(node.step)}'
        if node.kernels:
            row += f',"kernels":{self._kernels(node.kernels)}'
        if node.attributes:
            row += f',"attributes":{self._facts(node.attributes)}'
        if node.flops is not None:
            row += f',"flops":{number_text(node.flops)}'
        if node.allocated_bytes:
            row += f',"allocated_bytes":{number_text(node.allocated_bytes)}'
        return f"{row}{self._rare(node)}}}"

    def _rare(self, node: Node) -> str:
        row = ""
        if node.gradients:
            row += f',"gradients":{self._gradients(node.gradients)}'
        if node.role is not None:
            row += f',"role":{self._texts[node.role]}'
        if node.random:
            row += ',"random":true'
        if node.writes:
            row += f',"writes":{numbers_text(node.writes)}'
        if node.phase != "forward":
            row += f',"phase":{self._texts[node.phase]}'
        if node.collective is not None:
            row += f',"collective":{self.tables.collectives[node.collective]}'
        measured = node.measured
        if measured is not None:
            plain = self.tables.plain
            row += f',"measured":[{plain(measured.duration_us)},{plain(measured.peak_bytes)}'
            row += (
                "]"
                if measured.at_peak_bytes is None
                else f",{number_text(measured.at_peak_bytes)}]"
            )
        body = node.body
        if body is not None:
            nodes = ",".join([self._node(inner) for inner in body.nodes])
            results = self._value_numbers(body.results)
            writers = self._node_numbers(body.writers)
            row += f',"body":{{"nodes":[{nodes}],"results":{results},"writers":{writers}}}'
        return row

    def _gradients(self, gradients: tuple[Gradient, ...]) -> str:
        known = self._known_gradients.get(gradients)
        if known is None:
            listed = [f"[{number_text(one.flops)},{numbers_text(one.inputs)}]" for one in gradients]
            known = self._known_gradients[gradients] = f"[{','.join(listed)}]"
        return known

    def _kernels(self, names: list[str]) -> str:
        key = tuple(names)
        known = self._known_kernels.get(key)
        if known is None:
            texts = self._texts
            known = self._known_kernels[key] = f"[{','.join([texts[name] for name in names])}]"
        return known

    def _type_number(self, value: Value) -> int:
        return self._types[value.shape, value.dtype, value.device, value.sharding]

    def _node_numbers(self, nodes: Iterable[Node]) -> str:
        return numbers_text([self._node_number(node) for node in nodes])

    def _node_number(self, node: Node) -> int:
        number = self._nodes.get(node)
        if number is None:
            number = self._nodes[node] = len(self._nodes)
            told = (("name", node.name), ("op", node.op), ("kind", node.kind))
            self._other_nodes.append(
                self.tables.mapping((key, self._texts[one]) for key, one in told)
            )
        return number

    def _value_numbers(self, values: Iterable[Value]) -> str:
        return f"[{','.join(map(self._value_number, values))}]"

    def _value_number(self, value: Value) -> str:
        number = self._values.get(value)
        if number is None:
            number = self._values[value] = str(len(self._values))
            row = [self._node_number(value.producer), value.index, self._type_number(value)]
            self._other_values.append(numbers_text(row))
        return number

    # -- nests ------------------------------------------------------------------------

    def _arguments(self, arguments: Iterable[tuple[str | None, Nest]]) -> str:
        """Return a list: a value or constant as such, with its name where it has one."""
        nest, texts, values, read = self._nest, self._texts, self._values, self._read
        listed = []
        for name, given in arguments:
            # Most are values that a node of the graph gives.
            if type(given) is Value and given in values:
                read.append(given)
                text = f"[{values[given]}]"
            else:
                text = nest(given)
            listed.append(text if name is None else f'{{"name":{texts[name]},"is":{text}}}')
        return f"[{','.join(listed)}]"

    def _facts(self, facts: Any) -> str:
        """Return a mapping from texts to nests; one from anything else as its entries."""
        form = form_of(facts)
        if form is None:
            return self._fact_entries(facts)
        known = self._known_facts.get(form)
        if known is None:
            known = self._known_facts[form] = self._fact_entries(facts)
        return known

    def _fact_entries(self, facts: Any) -> str:
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
            self._read.append(nest)
            return f"[{self._value_number(nest)}]"
        if kind is str:
            return self._texts[nest]
        if nest is None:
            return "null"
        if kind is bool:
            return "true" if nest else "false"
        if kind is int or kind is float:
            return number_text(nest)
        if kind is Constant:
            return f'{{"constant":{self._texts[nest.text]}}}'
        if kind is tuple or kind is list:
            word = "tuple" if kind is tuple else "list"
            return f'{{"{word}":[{",".join([self._nest(entry) for entry in nest])}]}}'
        if kind is dict:
            return f'{{"dict":{self._entries(nest)}}}'
        if kind is complex:
            return f'{{"complex":[{number_text(nest.real)},{number_text(nest.imag)}]}}'
        return self._nest(_nearest(nest))

    # -- the rest ---------------------------------------------------------------------

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
            row += f',"qualified_name":{self.tables.plain(call.qualified_name)}'
        if call.arguments:
            row += f',"arguments":{self._arguments(call.arguments)}'
        if call.results is not None:
            row += f',"results":{self._nest(call.results)}'
        if call.hyperparameters:
            row += f',"hyperparameters":{self._facts(call.hyperparameters)}'
        if call.training:
            row += ',"training":true'
        if call.parameters:
            row += f',"parameters":{self.tables.owned(call.parameters)}'
        if call.source is not None:
            row += f',"source":{self._source_number(call.source)}'
        if call.defined is not None:
            row += f',"defined":{self._source_number(call.defined)}'
        if call.number:
            row += f',"number":{number_text(call.number)}'
        if call.run is not None:
            row += f',"run":{self._runs[call.run]}'
        if call.step:
            row += f',"step":{number_text(call.step)}'
        if call.caller is not None:
            row += f',"caller":{self._scopes[call.caller]}'
        if call.called_as:
            row += f',"called_as":{self._texts[call.called_as]}'
        return f"{row}}}"

    def _note(self, note: Note) -> str:
        row = f'{{"text":{self._texts[note.text]}'
        if note.source is not None:
            row += f',"source":{self._source_number(note.source)}'
        if note.node is not None:
            row += f',"node":{self._node_number(note.node)}'
        if note.topic != "run":
            row += f',"topic":{self._texts[note.topic]}'
        return f"{row}}}"


def _nearest(thing: Any) -> Nest:
    """Return what no schema has, as the nearest thing that it has."""
    kinds: tuple[type, ...] = (int, float, complex, tuple, list, dict)
    if isinstance(thing, str):
        return str.__str__(thing)
    for kind in kinds:
        if isinstance(thing, kind):
            return kind(thing)
    return Constant(shown(thing, _MOST_TEXT))
