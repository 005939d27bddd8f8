"""Local functions made of regions of an ONNX graph; equal regions share one function.

A region has inputs, outputs and maybe cycles, and is replaced by a node that calls the function.
"""

import itertools
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from tbscope.sources.onnx.origins import (
    FOLDED,
    NAMESPACE,
    OF_MODULE,
    ModuleRef,
    Origin,
    origin_by_metadata,
    origin_metadata,
    texts_of,
)
from tbscope.sources.onnx.scoping import label_of
from tbscope.sources.onnx.types import import_extra, is_made_up

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class NodeRegion:
    """Nodes of a graph that one node may replace.

    Attributes:
        nodes: The nodes, in order.
        inputs: The values that they read from outside, except initializers, in the order of their
            first _reads.
        initializers: The initializers that they read, in the order of their first _reads.
        outputs: The values that they compute and that are read outside, in the order of the nodes.
        cycle: The name of a value that leaves the region and comes back to it through nodes
            outside; None if there is none. A region with a cycle cannot be replaced.
    """

    nodes: list["ir.Node"]
    inputs: list["ir.Value"]
    initializers: list["ir.Value"]
    outputs: list["ir.Value"]
    cycle: str | None


def _reads(node: "ir.Node") -> "Iterator[tuple[ir.Node, int, ir.Value]]":
    """Yield each input of a node and its bodies: the reading node, the position, the value."""
    for index, value in enumerate(node.inputs):
        if value is not None:
            yield node, index, value
    for graph in _graphs(node):
        for inner in graph:
            yield from _reads(inner)


class RegionIndex:
    """Index of the nodes of one graph, from which regions are extracted and replaced.

    Args:
        graph: A graph of `onnx_ir` in topological order.
    """

    def __init__(self, graph: "ir.Graph") -> None:
        self._graph = graph
        self._index: dict[ir.Node, int] = {}
        self._top: dict[ir.Node, ir.Node] = {}
        for index, node in enumerate(graph):
            self._add(node, index)

    def region(self, nodes: "Sequence[ir.Node]") -> NodeRegion:
        """Return the region of some nodes, with its inputs and outputs."""
        ordered = sorted(nodes, key=self._index.__getitem__)
        inside = set(ordered)
        computed = {value for node in ordered for value in node.outputs}
        values_read: dict[ir.Value, None] = {}
        for node in ordered:
            for _, _, value in _reads(node):
                # Values inside a body belong to the graph of the body.
                if value not in computed and value.graph is self._graph:
                    values_read[value] = None
        outputs = [
            value
            for node in ordered
            for value in node.outputs
            if value.is_graph_output() or self._readers(value, inside)
        ]
        initializers = [value for value in values_read if value.is_initializer()]
        inputs = [value for value in values_read if not value.is_initializer()]
        return NodeRegion(
            ordered, inputs, initializers, outputs, self._cycle(ordered, inside, outputs)
        )

    def replace(self, region: NodeRegion, node: "ir.Node") -> None:
        """Replace a region by one node, whose outputs correspond to the outputs of the region."""
        last = region.nodes[-1]
        between = self._needs_order(region)
        self._graph.insert_after(last, node)
        self._add(node, self._index[last])
        # Old nodes without inputs are no readers of any value any more.
        for old_node in region.nodes:
            for reader, index, _ in list(_reads(old_node)):
                reader.replace_input_with(index, None)
        for old, new in zip(region.outputs, node.outputs, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self._graph.remove(region.nodes)
        if between:
            # Nodes between those of the region that read its outputs must come after the new node.
            self._graph.sort()
            for new_index, old_node in enumerate(self._graph):
                self._index[old_node] = new_index

    def _needs_order(self, region: NodeRegion) -> bool:
        last, inside = self._index[region.nodes[-1]], set(region.nodes)
        return any(
            self._index[reader] < last
            for value in region.outputs
            for reader in self._readers(value, inside)
        )

    def _cycle(
        self, ordered: "Sequence[ir.Node]", inside: "set[ir.Node]", outputs: "Sequence[ir.Value]"
    ) -> str | None:
        """Return the name of an output that comes back through nodes outside, or None."""
        last = self._index[ordered[-1]]
        for output in outputs:
            pending = self._readers(output, inside)
            seen: set[ir.Node] = set()
            while pending:
                node = pending.pop()
                if node in seen or self._index[node] > last:
                    continue
                seen.add(node)
                for value in node.outputs:
                    readers = [self._top[use.node] for use in value.uses()]
                    if any(reader in inside for reader in readers):
                        return str(output.name)
                    pending += readers
        return None

    def _readers(self, value: "ir.Value", inside: "set[ir.Node]") -> "list[ir.Node]":
        readers = (self._top[use.node] for use in value.uses())
        return [node for node in readers if node not in inside]

    def _add(self, node: "ir.Node", index: int) -> None:
        self._index[node] = index
        for inner in _with_inner(node):
            self._top[inner] = node


def _graphs(node: "ir.Node") -> "Iterator[ir.Graph]":
    for attribute in node.attributes.values():
        if attribute.type.name == "GRAPH" and not attribute.is_ref():
            yield attribute.as_graph()


def _with_inner(node: "ir.Node") -> "Iterator[ir.Node]":
    yield node
    for graph in _graphs(node):
        for inner in graph:
            yield from _with_inner(inner)


_Plain: TypeAlias = "tuple[ir.AttributeType, object]"
"""Type and value of an attribute that is a number, a text or a list of these."""

_Call: TypeAlias = tuple[dict[tuple[int, str], _Plain], dict[str, _Plain]]

# Keys of the values of a region, which depend on their positions alone.
_Ids: TypeAlias = "dict[ir.Value | ModuleRef, Hashable]"


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """A module call that is to become a call of a function.

    Attributes:
        region: The nodes, with inputs and outputs in the order of the call.
        names: The argument names of inputs, by value; further inputs have no name.
        levels: The enclosing modules, down to the module that becomes a function.
        attributes: The hyper-parameters of the module.
    """

    region: NodeRegion
    names: "Mapping[ir.Value, str]"
    levels: tuple[ModuleRef, ...]
    attributes: "Sequence[ir.Attr]"


@dataclass(slots=True)
class NewFunction:
    """A new function and its calls.

    Attributes:
        function: The `onnx_ir.Function`.
        calls: For each call the plain attributes in the body, by node and name, and its own.
    """

    function: "ir.Function"
    calls: "list[_Call]" = field(default_factory=list)

    def references(self, call: "_Call") -> dict[tuple[int, str], str] | None:
        """Return the attributes in which the calls and a further call differ, or None.

        Each comes with the name of the attribute that has its value in all of the calls.
        """
        calls = [*self.calls, call]
        references = {}
        for key, value in call[0].items():
            if any(plain[key] != value for plain, _ in calls):
                names = (
                    name for name in call[1] if all(own[name] == plain[key] for plain, own in calls)
                )
                references[key] = next(names, "")
        return None if "" in references.values() else references

    def __str__(self) -> str:
        function = self.function
        inputs = ", ".join(f"%{value.name}" for value in function.inputs)
        outputs = ", ".join(f"%{value.name}" for value in function.outputs)
        names = ", ".join(function.attributes)
        inside = f"{inputs}; {names}" if names else inputs
        uses = "1 use" if len(self.calls) == 1 else f"{len(self.calls)} uses"
        return f"{function.domain}::{function.name}({inside}) -> ({outputs}), {uses}"


class FunctionBuilder:
    """The new functions of one model.

    Args:
        model: The `onnx_ir.Model`, to which functions are added.
        domain: The domain of the functions.

    Attributes:
        made: The new functions, in the order of their first calls.
    """

    def __init__(self, model: "ir.Model", domain: str) -> None:
        self._ir = import_extra("onnx_ir")
        self._model = model
        self._domain = domain
        self._by_key: dict[Hashable, list[NewFunction]] = {}
        self.made: list[NewFunction] = []
        self._names = {name for _, name, _ in model.functions}
        self._calls: set[ir.Node] = set()
        self._node_names = {str(node.name) for node in model.graph}

    def call(self, wanted: FunctionRequest) -> "ir.Node":
        """Return a node that calls the function of a region; the region stays in the graph."""
        alike = self._by_key.setdefault(self._key(wanted), [])
        plain = {
            (index, name): value
            for index, node in enumerate(wanted.region.nodes)
            for name, value in _plain(node.attributes.values()).items()
        }
        call = plain, _plain(wanted.attributes)
        for made in alike:
            references = made.references(call)
            if references is not None:
                for (index, key), name in references.items():
                    kind, _ = plain[index, key]
                    made.function[index].attributes[key] = self._ir.RefAttr(key, name, kind)
                _keep_common_types(made.function, wanted.region.nodes)
                break
        else:
            class_name = wanted.levels[-1].class_name or "Module"
            made = NewFunction(self._function(wanted, class_name))
            alike.append(made)
            self.made.append(made)
        made.calls.append(call)
        return self._node(made, wanted)

    def _function(self, wanted: FunctionRequest, class_name: str) -> "ir.Function":
        """Add a function with a copy of the nodes of a region to the model; return it."""
        region = wanted.region
        versions = self._model.graph.opset_imports
        domains = {""}
        for item in region.nodes:
            domains.update([item.domain, *(node.domain for node, _, _ in _reads(item))])
        graph = self._ir.GraphView(
            [*region.inputs, *region.initializers],
            region.outputs,
            nodes=region.nodes,
            name=_unique(re.sub(r"\W", "_", label_of(class_name)), self._names),
            opset_imports={domain: versions.get(domain, 1) for domain in domains},
        ).clone()
        for value, name in zip(graph.inputs, self._input_names(wanted), strict=True):
            # Input types may differ between calls; an initializer would be renamed with its value.
            value.const_value = value.type = value.shape = None
            value.name = name
            value.metadata_props.clear()
        for ours, copied in zip(region.nodes, graph, strict=True):
            self._make_relative(copied, wanted.levels, calls=ours in self._calls)
            for value in copied.outputs:
                value.metadata_props.clear()
        function: ir.Function = self._ir.Function(
            self._domain,
            graph.name,
            graph=graph,
            attributes=[self._ir.Attr(item.name, item.type, None) for item in wanted.attributes],
        )
        function.metadata_props[OF_MODULE] = class_name
        self._model.functions[function.identifier()] = function
        versions.setdefault(self._domain, 1)
        return function

    # -- the call -----------------------------------------------------------------------

    def _node(self, made: NewFunction, wanted: FunctionRequest) -> "ir.Node":
        """Return a node that calls a function, with copies of the region's outputs."""
        level, region = wanted.levels[-1], wanted.region
        outputs = []
        for value in region.outputs:
            output = self._ir.Value(name=value.name, shape=value.shape, type=value.type)
            output.metadata_props.update(value.metadata_props)
            outputs.append(output)
        origin = Origin(tuple(wanted.levels[:-1]), level.name, level.class_name or "")
        node: ir.Node = self._ir.Node(
            self._domain,
            made.function.name,
            [*region.inputs, *region.initializers],
            wanted.attributes,
            outputs=outputs,
            name=_unique(level.name or made.function.name, self._node_names),
            metadata_props=origin_metadata(origin),
        )
        self._calls.add(node)
        return node

    def _input_names(self, wanted: FunctionRequest) -> list[str]:
        """Return names for the inputs of a function, from its first call."""
        region = wanted.region
        taken = {value.name for node in region.nodes for value in node.outputs}
        for node in region.nodes:
            taken.update(value.name for reader, _, _ in _reads(node) for value in reader.outputs)
        prefix = f"{wanted.levels[-1].name}." if wanted.levels[-1].name else ""
        return [
            _unique(wanted.names.get(value) or _local_name(value, prefix), taken)
            for value in (*region.inputs, *region.initializers)
        ]

    def _make_relative(self, node: "ir.Node", levels: Sequence[ModuleRef], *, calls: bool) -> None:
        """Make the module names in a node's metadata relative to the module of the function.

        Other metadata of torch's exporter is removed.

        Args:
            node: The node, changed in place.
            levels: The enclosing modules, down to the module that becomes a function.
            calls: Whether the node calls a function, so that its name is a module's name.
        """
        origin = origin_by_metadata(node.metadata_props)
        name = levels[-1].name
        for key in list(node.metadata_props):
            if key.startswith("pkg.torch") or key == NAMESPACE:
                del node.metadata_props[key]
        if origin is None:
            return
        inner_levels = tuple(
            level.renamed(partial(_relative, outer=name)) for level in origin.levels[len(levels) :]
        )
        own_name = _relative(origin.name, name) if calls else origin.name
        top = ModuleRef("", levels[-1].class_name)
        node.metadata_props.update(
            origin_metadata(Origin((top, *inner_levels), own_name, origin.target))
        )

    # -- equality of regions --------------------------------------------------------------

    def _key(self, wanted: FunctionRequest) -> Hashable:
        """Return a key that is equal for module calls that can share one function."""
        region = wanted.region
        ids: _Ids = {
            value: ("in", index)
            for index, value in enumerate((*region.inputs, *region.initializers))
        }
        body = tuple(self._node_key(node, ids, wanted.levels) for node in region.nodes)
        outputs = tuple(ids[value] for value in region.outputs)
        # The values of attributes, as the types of inputs, belong to the call.
        attributes = tuple((item.name, item.type) for item in wanted.attributes)
        class_name = wanted.levels[-1].class_name
        return class_name, len(region.inputs), len(ids), body, outputs, attributes

    def _node_key(self, node: "ir.Node", ids: _Ids, levels: Sequence[ModuleRef]) -> Hashable:
        name = levels[-1].name
        read = tuple(None if value is None else ids[value] for value in node.inputs)
        # Calls that differ in a plain attribute may share a function (`references`).
        plain = _plain(node.attributes.values())
        attributes = tuple(
            (key, plain[key][0] if key in plain else self._attribute_key(attribute))
            for key, attribute in sorted(node.attributes.items())
        )
        for index, value in enumerate(node.outputs):
            ids[value] = ("node", len(ids), index)
        origin = origin_by_metadata(node.metadata_props)
        inner_levels = origin.levels[len(levels) :] if origin else ()
        # The number of a scope of the user differs between calls: its order of appearance counts.
        scopes = tuple(
            (level.name, ids.setdefault(level, len(ids)))
            if level.by_hand
            else level.renamed(partial(_relative, outer=name))
            for level in inner_levels
        )
        called = _relative(origin.name, name) if origin and node in self._calls else ""
        return (
            node.domain,
            node.op_type,
            node.overload,
            read,
            len(node.outputs),
            attributes,
            (scopes, called),
        )

    def _attribute_key(self, attribute: "ir.Attr") -> Hashable:
        if attribute.type.name == "GRAPH":
            # A module with a body of an operation shares its function with no other.
            return object()
        message = self._ir.to_proto(attribute)
        # The name of a tensor does not count.
        message.t.name = ""
        serialized: bytes = message.SerializeToString(deterministic=True)
        return serialized


def _plain(attributes: "Iterable[ir.Attr]") -> "dict[str, _Plain]":
    """Return the attributes that are numbers, texts, or lists of these, by name."""
    return {
        attribute.name: (attribute.type, attribute.value)
        for attribute in attributes
        if attribute.type.name.removesuffix("S") in ("INT", "FLOAT", "STRING")
        and not attribute.is_ref()
    }


def _unique(name: str, taken: set[str] | set[str | None]) -> str:
    """Return a name that is not taken yet, numbered if needed, and add it to `taken`."""
    candidate = name
    for number in itertools.count(1):
        if candidate not in taken:
            break
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _relative(name: str, outer: str) -> str:
    """Return a qualified name relative to a module."""
    if name == outer:
        return ""
    return name.removeprefix(f"{outer}.") if outer else name


def _keep_common_types(function: "ir.Function", nodes: "Sequence[ir.Node]") -> None:
    """Remove the types and shapes of a function's values that differ in a further call.

    Common types stay: an operator that is a function itself (`Gelu`) runs by the types of its
    inputs.
    """
    for ours, theirs in zip(function, nodes, strict=True):
        for value, their_value in zip(ours.outputs, theirs.outputs, strict=True):
            if value.type != their_value.type:
                value.type = None
            if value.shape != their_value.shape:
                value.shape = None


def _local_name(value: "ir.Value", prefix: str) -> str:
    """Return the name of a value in a function: a parameter has its name within the module."""
    name = str(value.name)
    origins = texts_of(value.metadata_props.get(FOLDED, ""))
    if len(origins) == 1:
        name = origins[0] if is_made_up(origins[0]) else f"{origins[0]}_folded"
    if name.startswith(prefix):
        return name[len(prefix) :]
    # A parameter of another module: equal tensors may be one in the file.
    return name.rpartition(".")[2]
