"""The GraphDef: one NodeDef for each node of a graph, each of its outputs, and each info card.

It is built as bytes, since a log needs no protobuf message.
"""

from collections import Counter
from collections.abc import Mapping

from tbscope.analysis.costs import uncounted_kernels
from tbscope.drawing.color_seeds import NodeHead
from tbscope.drawing.info_cards import uncounted_text
from tbscope.drawing.layout import Layout
from tbscope.drawing.naming import attribute_of, parameters_by_place
from tbscope.graphdef.attr_bytes import (
    FactEntries,
    Once,
    device_to_text,
    kernels_entry,
    label_entry,
    outputs_entries,
    scope_entry,
    source_entry,
    too_large_entry,
)
from tbscope.graphdef.wire import delimited, field, varint
from tbscope.ir.graph import Graph, Nest, Node, Output, Shape, Value
from tbscope.ir.pytree import PLAIN
from tbscope.ir.scope_io import OPERATIONS, STATE
from tbscope.ir.scopes import Scope

__all__ = ["graph_def_bytes"]

# The producer version in torch's graphs, and in TensorFlow's graphs of this form.
_PRODUCER = 22
# Facts that differ between nearly all nodes, so that a cache of their entries would not help.
_OWN = ("module", "name")
# The start of the field `name` (tensorboard/compat/proto/node_def.proto).
_NAME = b"\x0a"
# The start of the field `input`, of which a node has any number.
_INPUT = b"\x1a"
# The number of the field `node` (tensorboard/compat/proto/graph.proto).
_NODE = 1
# The whole field `versions`, with its `producer` (tensorboard/compat/proto/versions.proto).
_VERSIONS = field(4, b"\x08" + varint(_PRODUCER))


def graph_def_bytes(
    graph: Graph, layout: Layout, *, labels: Mapping[Node, str] | None = None
) -> bytes:
    """Return the serialised GraphDef of a graph that keeps the invariants.

    Args:
        graph: The graph; its leaf modules may be nodes of kind "module".
        layout: Names, op types, inputs, info cards and colour seeds.
        labels: The label by which each node is coloured; nodes may be missing.
    Returns:
        The colour seeds, the nodes in the order of the graph, its outputs, and the info cards
        of its modules, as one message.
    Raises:
        ConversionError: A shape has a negative size.

    Source: tensorboard/compat/proto/node_def.proto
    """
    return _Builder(graph, layout, labels or {}).build()


class _Builder:
    """Serialises the nodes of one GraphDef; fields that many nodes share are cached."""

    def __init__(self, graph: Graph, layout: Layout, labels: Mapping[Node, str]) -> None:
        self._graph = graph
        self._layout = layout
        self._labels = labels
        self._nodes: list[bytes] = []
        self._parameters = parameters_by_place(graph)
        self._facts = FactEntries()
        self._scopes: Once[Scope | None, bytes] = Once(_scope_entry)
        # Many nodes share a source. The key is its id, since a comparison of sources costs as
        # much as printing one.
        self._sources: dict[int, bytes] = {}
        self._outputs = Once(outputs_entries)
        self._types: Once[tuple[str, Shape | None, str], bytes] = Once(_type_fields)
        self._kernels = Once(kernels_entry)
        self._label_entries = Once(label_entry)
        self._ops: Once[str, bytes] = Once(lambda op: field(2, op.encode()))
        self._inputs: Once[str, bytes] = Once(lambda text: _INPUT + delimited(text.encode()))

    def build(self) -> bytes:
        layout = self._layout
        for seed in layout.seeds:
            self._add(self._start(seed), [])
        for node, head in zip(self._graph.nodes, layout.nodes, strict=True):
            self._add_node(node, head)
        for output, head in zip(self._graph.outputs, layout.outputs, strict=True):
            self._add_output(output, head)
        for card, head in zip(layout.told, layout.cards, strict=True):
            fields = [*self._start(head), self._scopes[card.scope]]
            self._add(fields, self._add_facts(fields, card.facts))
        self._nodes.append(_VERSIONS)
        return b"".join(self._nodes)

    def _start(self, head: NodeHead) -> list[bytes]:
        """Return the fields before the attributes."""
        name, op, inputs = head
        data = delimited(name.encode())
        fields = [_NAME, data, self._ops[op]]
        input_fields = self._inputs
        # Most readers refer to the node by its plain name.
        input_fields[name] = _INPUT + data
        if inputs:
            fields += [input_fields[text] for text in inputs]
        return fields

    def _add_node(self, node: Node, head: NodeHead) -> None:
        fields = self._start(head)
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
            if id(source) not in self._sources:
                self._sources[id(source)] = source_entry(str(source))
            fields.append(self._sources[id(source)])
        if node in self._labels:
            fields.append(self._label_entries[self._labels[node]])
        too_large = []
        if node.kernels:
            fields.append(self._kernels[tuple(node.kernels)])
            if not fields[-1]:
                too_large.append("kernels")
        if node.kind in STATE:
            too_large += self._add_state(fields, node)
        elif facts := self._facts_of(node, head):
            too_large += self._add_facts(fields, facts)
        self._add(fields, too_large)

    def _add_output(self, output: Output, head: NodeHead) -> None:
        value = output.given or output.value
        fields = [*self._start(head), self._types[value.device, value.shape, value.dtype]]
        facts: dict[str, Nest] = {}
        if output.name != head.name:
            facts["name"] = output.name
        if output.via:
            facts["via"] = output.via
        self._add(fields, self._add_facts(fields, facts) if facts else [])

    def _add(self, fields: list[bytes], too_large: list[str]) -> None:
        if too_large:
            fields.append(too_large_entry(too_large))
        self._nodes.append(field(_NODE, b"".join(fields)))

    def _add_facts(self, fields: list[bytes], facts: dict[str, Nest]) -> list[str]:
        """Add the entries of facts, and return the keys of facts that are too large."""
        for name in _OWN:
            # A fact that is too large has no entry, and is reported by `join` below.
            if name in facts and (entry := self._facts.make(name, facts[name])):
                fields.append(entry)
                del facts[name]
        entries, too_large = self._facts.join(facts)
        fields.append(entries)
        return too_large

    def _facts_of(self, node: Node, head: NodeHead) -> dict[str, Nest]:
        """Return the facts that the info card of a node shows beside its edges, by name."""
        module_facts = self._layout.facts.get(node)
        facts = (node.attributes if module_facts is None else module_facts).copy()
        kind = node.kind
        if kind in OPERATIONS:
            if node.op != head.op:
                facts["op"] = node.op
            if module_facts is None and node.flops != 0:
                if node.flops is not None:
                    facts["flops"] = node.flops
                # Kernels without a FLOP formula.
                if kernels := uncounted_kernels(node, self._graph.uncounted):
                    facts["flops_not_counted"] = uncounted_text(Counter(kernels))
        elif node.name != head.name and not node.name.isdigit():
            facts["name"] = node.name
        if node.arguments:
            self._add_arguments(node, facts)
            # Arguments `dtype` and `device` that equal those of the result are left out.
            for value in node.outputs[:1]:
                for name, fact in (("dtype", f"torch.{value.dtype}"), ("device", value.device)):
                    if name in facts and str(facts[name]) == fact:
                        del facts[name]
        return facts

    def _add_arguments(self, node: Node, facts: dict[str, Nest]) -> None:
        """Add the constant arguments to facts, under the names of the operation's parameters.

        Sizes that are separate arguments (`x.expand(2, 3)`) become one list under one name.
        """
        arguments = node.arguments
        names = self._graph.signatures.get(node.attributes.get("operation", node.op), ())
        for position, (keyword, nest) in enumerate(arguments):
            kind = type(nest)
            if kind is Value or (kind not in PLAIN and not _holds_constant(nest)):
                continue
            name = keyword or (names[position] if position < len(names) else None)
            # Only the last parameter can collect several sizes.
            if name and position == len(names) - 1 and kind is int:
                sizes = [size for key, size in arguments[position:] if key is None]
                if len(sizes) > 1 and all(type(size) is int for size in sizes):
                    facts.setdefault(name, sizes)
                    return
            facts.setdefault(name or f"arg{position}", nest)

    def _add_state(self, fields: list[bytes], node: Node) -> list[str]:
        """Add the facts of a parameter or buffer, and return the keys of facts too large."""
        value = node.outputs[0]
        parameter = self._parameters.get((node.scope, attribute_of(node)))
        facts: dict[str, Nest] = {**node.attributes, "name": node.name, "shape": value.shape}
        size_bytes = parameter.size_bytes if parameter else value.size_bytes
        if size_bytes is not None:
            facts["bytes"] = size_bytes
        if parameter and parameter.requires_grad is not None:
            facts["requires_grad"] = parameter.requires_grad
        return self._add_facts(fields, facts)


def _scope_entry(scope: Scope | None) -> bytes:
    return scope_entry(scope.path) if scope else b""


def _device_field(device: str) -> bytes:
    return field(4, device_to_text(device).encode())


def _type_fields(typed: tuple[str, Shape | None, str]) -> bytes:
    """Return the fields of a node with one output of this device, shape and dtype."""
    device, shape, dtype = typed
    return _device_field(device) + outputs_entries(((shape, dtype),))


def _holds_constant(nest: Nest) -> bool:
    if isinstance(nest, (list, tuple)):
        return not nest or any(map(_holds_constant, nest))
    if isinstance(nest, dict):
        return not nest or any(map(_holds_constant, nest.values()))
    return not isinstance(nest, Value)
