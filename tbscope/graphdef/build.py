"""The GraphDef: one NodeDef for each node of a graph, and one for each of its outputs."""

from collections.abc import Iterable

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.graph import Graph, Nest, Node, Output, Parameter, Shape, Value
from tbscope.graphdef.circles import parameters_to_draw
from tbscope.graphdef.entries import (
    FactEntries,
    Once,
    kernels_entry,
    outputs_entries,
    scope_entry,
    source_entry,
    too_large_entry,
)
from tbscope.graphdef.naming import Names, Style, attribute_of, name_graph
from tbscope.graphdef.ops import op_type
from tbscope.graphdef.series import op_types_apart
from tbscope.graphdef.shapes import device_to_text, item_size_bytes
from tbscope.graphdef.wire import delimited, field
from tbscope.scopes import Scope

__all__ = ["build_graph_def"]

# What torch's graphs, and TensorFlow's of this form, say they were made by.
_PRODUCER = 22
_OP_TYPES = {"input": "Input", "parameter": "Parameter", "buffer": "Buffer", "constant": "Const"}
# TensorBoard draws what has `Const` in its op type as a small circle.
_CIRCLES = {"parameter": "ParameterConst", "buffer": "BufferConst"}
# Facts that hardly two nodes share.
_OWN = ("module", "name")
# The start of a field (tensorboard/compat/proto/node_def.proto: `name`, `input`), and an
# input that is empty.
_NAME = b"\x0a"
_INPUT = b"\x1a"
_EMPTY_INPUT = b"\x1a\x00"
# The number of the field `node` (tensorboard/compat/proto/graph.proto).
_NODE = 1
_OPERATIONS = ("op", "module")
_PARAMETERS = ("parameter", "buffer")


def build_graph_def(
    graph: Graph, *, style: Style = "tf", root: bool | None = None, circles: bool = True
) -> GraphDef:
    """Give the GraphDef of a graph that keeps the invariants.

    Args:
        graph: The graph; where leaf modules are nodes of kind "module", they are drawn so.
        style: How scopes are named.
        root: Whether all names begin with the one scope that holds all (see `name_graph`).
        circles: Whether parameters and buffers are small circles beside what reads them,
            wherever that can be drawn, or nodes like others.
    Returns:
        A new message: nodes in the order of the graph, then the outputs.
    Raises:
        ArgumentError: The style is none.
        ConversionError: A shape has a negative size.

    Source: tensorboard/compat/proto/node_def.proto
    """
    return _Builder(graph, name_graph(graph, style, root=root), circles=circles).build()


class _Builder:
    """Joins the bytes of nodes to those of one GraphDef; what many nodes share is made once."""

    def __init__(self, graph: Graph, names: Names, *, circles: bool) -> None:
        self._graph = graph
        self._names = names
        # As the value of a field: its length, and the name.
        self._named = {node: delimited(name.encode()) for node, name in names.nodes.items()}
        self._nodes: list[bytes] = []
        self._parameters = _parameters_by_place(graph)
        self._op_types = _OP_TYPES | _CIRCLES if circles else _OP_TYPES
        self._no_circles = parameters_to_draw(graph, names) if circles else set()
        self._apart = op_types_apart(graph, names)
        self._facts = FactEntries()
        self._scopes: Once[Scope | None, bytes] = Once(_scope_entry)
        self._sources: dict[int, bytes] = {}
        self._outputs = Once(outputs_entries)
        self._types: Once[tuple[str, Shape | None, str], bytes] = Once(_type_fields)
        self._kernels = Once(kernels_entry)
        self._safe_ops = Once(op_type)
        self._ops = Once(_op_field)

    def build(self) -> GraphDef:
        for node in self._graph.nodes:
            self._add_node(node)
        for name, output in zip(self._names.outputs, self._graph.outputs, strict=True):
            self._add_output(name, output)
        message = GraphDef.FromString(b"".join(self._nodes))
        message.versions.producer = _PRODUCER
        return message

    def _add_node(self, node: Node) -> None:
        op = self._op_type(node)
        fields = [_NAME, self._named[node], self._ops[op]]
        if node.inputs or node.control_inputs:
            self._add_inputs(fields, node.inputs, node.control_inputs)
        outputs = node.outputs
        if len(outputs) == 1:
            value = outputs[0]
            fields.append(self._types[value.device, value.shape, value.dtype])
        else:
            for value in (outputs or node.inputs)[:1]:
                fields.append(_device_field(value.device))
            fields.append(self._outputs[tuple([(out.shape, out.dtype) for out in outputs])])
        fields.append(self._scopes[node.scope])
        source = node.source
        if source is not None:
            # To compare a source costs as much as to print it.
            entry = self._sources.get(id(source))
            if entry is None:
                entry = self._sources[id(source)] = source_entry(str(source))
            fields.append(entry)
        too_large = []
        if node.kernels:
            fields.append(self._kernels[tuple(node.kernels)])
            if not fields[-1]:
                too_large.append("kernels")
        facts = self._facts_of(node, op)
        if facts:
            too_large += self._add_facts(fields, facts)
        if too_large:
            fields.append(too_large_entry(too_large))
        self._nodes.append(field(_NODE, b"".join(fields)))

    def _add_output(self, name: str, output: Output) -> None:
        value = output.value
        op = self._apart.get(output, "Output") if self._apart else "Output"
        fields = [_NAME, delimited(name.encode()), self._ops[op]]
        self._add_inputs(fields, [value], output.control_inputs)
        fields.append(self._types[value.device, value.shape, value.dtype])
        fields.append(self._scopes[None])
        if output.name != name:
            too_large = self._add_facts(fields, {"name": output.name})
            if too_large:
                fields.append(too_large_entry(too_large))
        self._nodes.append(field(_NODE, b"".join(fields)))

    def _add_facts(self, fields: list[bytes], facts: dict[str, Nest]) -> list[str]:
        """Add the entries of facts, and give the names of those that are too large."""
        for name in _OWN:
            # What is too large stays among the others, to be named in its place.
            if name in facts and (entry := self._facts.make(name, facts[name])):
                fields.append(entry)
                del facts[name]
        entries, too_large = self._facts.join(facts)
        fields.append(entries)
        return too_large

    def _op_type(self, node: Node) -> str:
        kind = node.kind
        if self._apart and node in self._apart:
            return self._safe_ops[self._apart[node]]
        if kind in _OPERATIONS:
            return self._safe_ops[node.op]
        return (_OP_TYPES if node in self._no_circles else self._op_types)[kind]

    def _add_inputs(
        self, fields: list[bytes], values: list[Value], control_inputs: Iterable[Node]
    ) -> None:
        """Add the references of a node, data first.

        TensorBoard drops a reference to the same node as the one before it, whatever its
        output (tf_graph_common/graph.ts, `normalizeInputs`); an empty one keeps them apart.
        """
        last: Node | None = None
        for value in values:
            node = value.producer
            if node is last:
                fields.append(_EMPTY_INPUT)
            fields.append(_INPUT)
            if value.index:
                fields.append(delimited(f"{self._names.nodes[node]}:{value.index}".encode()))
            else:
                fields.append(self._named[node])
            last = node
        for node in control_inputs:
            if node is last:
                fields.append(_EMPTY_INPUT)
            fields += (_INPUT, delimited(f"^{self._names.nodes[node]}".encode()))
            last = node

    def _facts_of(self, node: Node, op: str) -> dict[str, Nest]:
        """Give what the info card tells of a node beyond its edges, by name."""
        facts = node.attributes.copy()
        kind = node.kind
        if kind in _OPERATIONS:
            if node.op != op:
                facts["op"] = node.op
        elif kind in _PARAMETERS:
            self._add_parameter_facts(node, facts)
        elif node.name != self._names.nodes[node] and not node.name.isdigit():
            facts["name"] = node.name
        if node.arguments:
            self._add_arguments(node, facts)
        return facts

    def _add_arguments(self, node: Node, facts: dict[str, Nest]) -> None:
        """Tell the constants among the arguments, by the names of the operation's parameters.

        Sizes that were given one by one (`x.expand(2, 3)`) are told under one name.
        """
        arguments = node.arguments
        names = self._graph.signatures.get(node.attributes.get("operation", node.op), ())
        for position, (keyword, nest) in enumerate(arguments):
            if type(nest) is Value or not _holds_constant(nest):
                continue
            name = keyword or (names[position] if position < len(names) else None)
            if name and position == len(names) - 1 and type(nest) is int:
                more = [given for key, given in arguments[position:] if key is None]
                if len(more) > 1 and all(type(given) is int for given in more):
                    facts.setdefault(name, more)
                    return
            facts.setdefault(name or f"arg{position}", nest)

    def _add_parameter_facts(self, node: Node, facts: dict[str, Nest]) -> None:
        value = node.outputs[0]
        facts["name"] = node.name
        facts["shape"] = value.shape
        known = self._parameters.get((node.scope, attribute_of(node)))
        size_bytes = known.size_bytes if known else _size_bytes(value)
        if size_bytes is not None:
            facts["bytes"] = size_bytes
        if known:
            facts["requires_grad"] = known.requires_grad


def _scope_entry(scope: Scope | None) -> bytes:
    return scope_entry(scope.path if scope else "")


def _op_field(op: str) -> bytes:
    return field(2, op.encode())


def _device_field(device: str) -> bytes:
    return field(4, device_to_text(device).encode())


def _type_fields(typed: tuple[str, Shape | None, str]) -> bytes:
    """Give all that a device, a shape and a dtype tell of a node with one output."""
    device, shape, dtype = typed
    return _device_field(device) + outputs_entries(((shape, dtype),))


def _holds_constant(nest: Nest) -> bool:
    if isinstance(nest, (list, tuple)):
        return not nest or any(map(_holds_constant, nest))
    if isinstance(nest, dict):
        return not nest or any(map(_holds_constant, nest.values()))
    return not isinstance(nest, Value)


def _parameters_by_place(graph: Graph) -> dict[tuple[Scope | None, str], Parameter]:
    return {
        (call.scope, parameter.name): parameter
        for call in graph.calls
        for parameter in call.parameters
    }


def _size_bytes(value: Value) -> int | None:
    """Give the bytes of a tensor; None where its sizes or its dtype do not tell."""
    size = item_size_bytes(value.dtype)
    for length in (None,) if value.shape is None else value.shape:
        size = None if size is None or length is None else size * length
    return size
