"""The GraphDef: one NodeDef for each node of a graph, each of its outputs, and each info card.

It is built as bytes, since a log needs no protobuf message.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tbscope.analysis.costs import uncounted_kernels
from tbscope.drawing.color_seeds import NodeHead
from tbscope.drawing.info_cards import uncounted_text
from tbscope.drawing.layout import Layout
from tbscope.drawing.naming import state_parameters
from tbscope.graphdef.attr_bytes import (
    FactEntries,
    device_to_text,
    kernels_entry,
    label_entry,
    outputs_entries,
    scope_entries,
    source_entry,
    text_entries,
    too_large_entry,
)
from tbscope.graphdef.wire import Once, delimited, delimited_each, field, repeated, varint
from tbscope.ir.graph import Graph, Nest, Node, Output, Shape, Value
from tbscope.ir.pytree import PLAIN
from tbscope.ir.scope_io import OPERATIONS, STATE

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


# The producer version in torch's graphs, and in TensorFlow's graphs of this form.
_PRODUCER = 22
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
        self._parameters = state_parameters(graph)
        scopes = [node.scope for node in graph.nodes] + [card.scope for card in layout.info_cards]
        paths = {scope: scope.path for scope in dict.fromkeys(scopes) if scope}
        self._scopes: dict[Scope | None, bytes] = {
            None: b"",
            **dict(zip(paths, scope_entries(paths.values()), strict=True)),
        }
        # Many nodes share a source. The key is its id, since a comparison of sources costs as
        # much as printing one.
        self._sources: dict[int, bytes] = {}
        self._outputs = Once(outputs_entries)
        self._types: Once[tuple[str, Shape | None, str], bytes] = Once(_type_fields)
        self._kernels = Once(kernels_entry)
        self._label_entries = Once(label_entry)
        self._starts = _starts([*layout.seeds, *layout.nodes, *layout.outputs, *layout.cards])
        self._facts = FactEntries()
        # These facts differ between nearly all nodes, so they are made together instead of cached.
        state = [node for node in graph.nodes if node.kind in STATE]
        cards = [*layout.facts.values(), *[card.facts for card in layout.info_cards]]
        self._own = {
            "module": _made_entries("module", [facts.get("module") for facts in cards]),
            "name": _made_entries("name", [node.name for node in state]),
        }

    def build(self) -> bytes:
        layout = self._layout
        bodies = [self._starts[seed.name] for seed in layout.seeds]
        nodes = zip(self._graph.nodes, layout.nodes, strict=True)
        bodies += [self._node(node, head) for node, head in nodes]
        outputs = zip(self._graph.outputs, layout.outputs, strict=True)
        bodies += [self._output(output, head) for output, head in outputs]
        cards = zip(layout.info_cards, layout.cards, strict=True)
        bodies += [
            self._joined([self._starts[head.name], self._scopes[card.scope]], card.facts)
            for card, head in cards
        ]
        return b"".join([*repeated(_NODE, bodies), _VERSIONS])

    def _node(self, node: Node, head: NodeHead) -> bytes:
        fields = [self._starts[head.name]]
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
        facts = self._state_facts(node) if node.kind in STATE else self._facts_of(node, head)
        return self._joined(fields, facts, too_large)

    def _output(self, output: Output, head: NodeHead) -> bytes:
        value = output.given or output.value
        facts: dict[str, Nest] = {}
        if output.name != head.name:
            facts["name"] = output.name
        if output.via:
            facts["via"] = output.via
        fields = [self._starts[head.name], self._types[value.device, value.shape, value.dtype]]
        return self._joined(fields, facts)

    def _joined(
        self, fields: list[bytes], facts: dict[str, Nest], too_large: Sequence[str] = ()
    ) -> bytes:
        """Return fields, the entries of facts, and the keys of attributes that are too large."""
        for name, entries in self._own.items():
            # A fact that is too large has no entry, and is reported by `join` below.
            if name in facts and type(facts[name]) is str and (entry := entries[facts[name]]):
                fields.append(entry)
                del facts[name]
        if facts:
            joined, large = self._facts.join(facts)
            fields.append(joined)
            if large:
                too_large = [*too_large, *large]
        if too_large:
            fields.append(too_large_entry(too_large))
        return b"".join(fields)

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

    def _state_facts(self, node: Node) -> dict[str, Nest]:
        """Return the facts of a parameter or buffer."""
        value = node.outputs[0]
        parameter = self._parameters.get(node)
        facts: dict[str, Nest] = {**node.attributes, "name": node.name, "shape": value.shape}
        size_bytes = parameter.size_bytes if parameter else value.size_bytes
        if size_bytes is not None:
            facts["bytes"] = size_bytes
        if parameter and parameter.requires_grad is not None:
            facts["requires_grad"] = parameter.requires_grad
        return facts


def _made_entries(name: str, constants: list[Nest]) -> Once[str, bytes]:
    """Return the entries of a fact for any text, made already for these constants."""
    entries: Once[str, bytes] = Once(lambda text: text_entries(name, [text])[0])
    texts = [constant for constant in constants if type(constant) is str]
    entries.update(zip(texts, text_entries(name, texts), strict=True))
    return entries


def _starts(heads: list[NodeHead]) -> dict[str, bytes]:
    """Return the fields of each NodeDef before its attributes, by its name."""
    names = delimited_each([head.name.encode() for head in heads])
    ops: Once[str, bytes] = Once(lambda op: field(2, op.encode()))
    inputs: Once[str, bytes] = Once(lambda text: _INPUT + delimited(text.encode()))
    # Most readers refer to a node by its plain name.
    inputs.update({head.name: _INPUT + name for head, name in zip(heads, names, strict=True)})
    return {
        name: b"".join([_NAME, encoded, ops[op], *map(inputs.__getitem__, texts)])
        for encoded, (name, op, texts) in zip(names, heads, strict=True)
    }


def _device_field(device: str) -> bytes:
    return field(4, device_to_text(device).encode())


def _type_fields(typed: tuple[str, Shape | None, str]) -> bytes:
    """Return the fields of a node with one output of this device, shape and dtype."""
    device, shape, dtype = typed
    return _device_field(device) + outputs_entries(((shape, dtype),))


def _holds_constant(nest: Nest) -> bool:
    if isinstance(nest, dict):
        nest = [*nest.values()]
    if isinstance(nest, (list, tuple)):
        return not nest or any(map(_holds_constant, nest))
    return not isinstance(nest, Value)
