"""The GraphDef: one NodeDef for each node of a graph, and one for each of its outputs."""

from collections.abc import Iterable

from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.versions_pb2 import VersionDef

from tbscope.graph import Graph, Nest, Node, Output, Parameter, Value
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
from tbscope.graphdef.shapes import device_to_text, item_size_bytes
from tbscope.scopes import Scope

__all__ = ["build_graph_def"]

# What torch's graphs, and TensorFlow's of this form, say they were made by.
_PRODUCER = 22
_OP_TYPES = {"input": "Input", "parameter": "Parameter", "buffer": "Buffer", "constant": "Const"}
# TensorBoard draws what has `Const` in its op type as a small circle.
_CIRCLES = {"parameter": "ParameterConst", "buffer": "BufferConst"}
_OPERATIONS = ("op", "module")
_PARAMETERS = ("parameter", "buffer")


def build_graph_def(graph: Graph, *, style: Style = "tf", circles: bool = True) -> GraphDef:
    """Give the GraphDef of a graph that keeps the invariants.

    Args:
        graph: The graph; where leaf modules are nodes of kind "module", they are drawn so.
        style: How scopes are named.
        circles: Whether parameters and buffers are small circles beside what reads them,
            wherever that can be drawn, or nodes like others.
    Returns:
        A new message: nodes in the order of the graph, then the outputs.
    Raises:
        ArgumentError: The style is none.
        ConversionError: A shape has a negative size.

    Source: tensorboard/compat/proto/node_def.proto
    """
    return _Builder(graph, name_graph(graph, style), circles=circles).build()


class _Builder:
    """Adds nodes to one GraphDef; what many nodes share is converted once."""

    def __init__(self, graph: Graph, names: Names, *, circles: bool) -> None:
        self._graph = graph
        self._names = names
        self._message = GraphDef(versions=VersionDef(producer=_PRODUCER))
        self._parameters = _parameters_by_place(graph)
        self._op_types = _OP_TYPES | _CIRCLES if circles else _OP_TYPES
        self._no_circles = parameters_to_draw(graph, names) if circles else set()
        self._facts = FactEntries()
        self._scopes: Once[Scope | None, bytes] = Once(_scope_entry)
        self._sources = Once(source_entry)
        self._outputs = Once(outputs_entries)
        self._kernels = Once(kernels_entry)
        self._devices = Once(device_to_text)
        self._safe_ops = Once(op_type)

    def build(self) -> GraphDef:
        for node in self._graph.nodes:
            self._add_node(node)
        for name, output in zip(self._names.outputs, self._graph.outputs, strict=True):
            self._add_output(name, output)
        return self._message

    def _add_node(self, node: Node) -> None:
        name = self._names.nodes[node]
        outputs = node.outputs
        values = outputs or node.inputs
        op = self._op_type(node)
        message = self._message.node.add(
            name=name,
            op=op,
            input=self._inputs(node.inputs, node.control_inputs),
            device=self._devices[values[0].device] if values else "",
        )
        entries = [
            self._scopes[node.scope],
            self._outputs[tuple([(out.shape, out.dtype) for out in outputs])],
        ]
        if node.source is not None:
            entries.append(self._sources[str(node.source)])
        too_large = []
        if node.kernels:
            entries.append(self._kernels[tuple(node.kernels)])
            if not entries[-1]:
                too_large.append("kernels")
        self._add_entries(message, entries, too_large, self._facts_of(node, name, op))

    def _add_output(self, name: str, output: Output) -> None:
        value = output.value
        message = self._message.node.add(
            name=name,
            op="Output",
            input=self._inputs([value], output.control_inputs),
            device=self._devices[value.device],
        )
        entries = [self._scopes[None], self._outputs[((value.shape, value.dtype),)]]
        facts = {} if output.name == name else {"name": output.name}
        self._add_entries(message, entries, [], facts)

    def _add_entries(
        self, message: NodeDef, entries: list[bytes], too_large: list[str], facts: dict[str, Nest]
    ) -> None:
        get = self._facts.get
        for key, constant in facts.items():
            entry = get(key, constant)
            if entry:
                entries.append(entry)
            else:
                too_large.append(key)
        if too_large:
            entries.append(too_large_entry(too_large))
        message.MergeFromString(b"".join(entries))

    def _op_type(self, node: Node) -> str:
        op = (_OP_TYPES if node in self._no_circles else self._op_types).get(node.kind)
        if op is None:
            op = self._safe_ops[node.op]
        return op

    def _inputs(self, values: list[Value], control_inputs: Iterable[Node]) -> list[str]:
        """Give the references of a node, data first.

        TensorBoard drops a reference to the same node as the one before it, whatever its
        output (tf_graph_common/graph.ts, `normalizeInputs`); an empty one keeps them apart.
        """
        names = self._names.nodes
        references: list[str] = []
        last: str | None = None
        for value in values:
            name = names[value.producer]
            if name == last:
                references.append("")
            references.append(f"{name}:{value.index}" if value.index else name)
            last = name
        for node in control_inputs:
            name = names[node]
            if name == last:
                references.append("")
            references.append(f"^{name}")
            last = name
        return references

    def _facts_of(self, node: Node, name: str, op: str) -> dict[str, Nest]:
        """Give what the info card tells of a node beyond its edges, by name."""
        facts = dict(node.attributes)
        if node.kind in _OPERATIONS:
            if node.op != op and node.op != op.rstrip():
                facts["op"] = node.op
        elif node.kind in _PARAMETERS:
            self._add_parameter_facts(node, facts)
        elif node.name != name and not node.name.isdigit():
            facts["name"] = node.name
        for position, argument in enumerate(node.arguments):
            nest = argument.nest
            if type(nest) is not Value and _holds_constant(nest):
                facts.setdefault(argument.name or f"arg{position}", nest)
        return facts

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


def _holds_constant(nest: Nest) -> bool:
    if isinstance(nest, list | tuple):
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
