"""Makes local functions of regions of an ONNX graph; equal ones are one function."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tbscope.sources.onnx.export.subgraph_extract import Region, reads
from tbscope.sources.onnx.metadata import (
    FOLDED,
    NAMESPACE,
    Level,
    Origin,
    origin_by_metadata,
    texts_of,
    written,
)
from tbscope.sources.onnx.optional_deps import need
from tbscope.sources.onnx.origins import OF_MODULE
from tbscope.sources.onnx.scoping import label_of
from tbscope.sources.onnx.tensors import is_made_up

__all__ = ["Functions", "Made", "Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a function is made of.

    Attributes:
        region: The nodes, with inputs and outputs in the order of the call.
        names: The names of the inputs, by value, as far as they are known.
        levels: The modules around, down to the one that becomes a function.
        attributes: Its hyper-parameters.
    """

    region: Region
    names: Mapping[Any, str]
    levels: tuple[Level, ...]
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class Made:
    """A function that was made, with how often it is called.

    Attributes:
        function: The function of `onnx_ir`.
        uses: The qualified names of the modules that it stands for, one for each call.
    """

    function: Any
    uses: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        function = self.function
        inputs = ", ".join(f"%{value.name}" for value in function.inputs)
        outputs = ", ".join(f"%{value.name}" for value in function.outputs)
        names = ", ".join(function.attributes)
        inside = f"{inputs}; {names}" if names else inputs
        uses = "1 use" if len(self.uses) == 1 else f"{len(self.uses)} uses"
        return f"{function.domain}::{function.name}({inside}) -> ({outputs}), {uses}"


class Functions:
    """The functions of one model.

    Args:
        model: The model of `onnx_ir` that gets them.
        domain: Their domain.
    """

    def __init__(self, model: Any, domain: str) -> None:
        self._ir = need("onnx_ir")
        self._model = model
        self._domain = domain
        self._by_key: dict[Any, Made] = {}
        self._names = {name for _, name, _ in model.functions}
        self._calls: set[Any] = set()
        self._node_names = {str(node.name) for node in model.graph}

    @property
    def made(self) -> list[Made]:
        """The functions that were made, in order."""
        return list(self._by_key.values())

    def call(self, wanted: Wanted) -> Any:
        """Return a node that calls the function of a region; nothing is replaced yet."""
        key = self._key(wanted)
        made = self._by_key.get(key)
        if made is None:
            class_name = wanted.levels[-1].class_name or "Module"
            made = self._by_key[key] = Made(self._function(wanted, class_name))
        else:
            _keep_common_types(made.function, wanted.region.nodes)
        made.uses.append(wanted.levels[-1].name)
        return self._node(made, wanted, wanted.region)

    def _function(self, wanted: Wanted, class_name: str) -> Any:
        """Return a function with a copy of the nodes of a region."""
        region = wanted.region
        versions = self._model.graph.opset_imports
        domains = {""}
        for each in region.nodes:
            domains.update([each.domain, *(inner.domain for inner, _, _ in reads(each))])
        graph = self._ir.GraphView(
            [*region.inputs, *region.held],
            region.outputs,
            nodes=region.nodes,
            name=_unique(re.sub(r"\W", "_", label_of(class_name)), self._names),
            opset_imports={domain: versions.get(domain, 1) for domain in domains},
        ).clone()
        for value, name in zip(graph.inputs, self._input_names(wanted), strict=True):
            # Each call may give it something of another type; a tensor would be renamed with it.
            value.const_value = value.type = value.shape = None
            value.name = name
            value.metadata_props.clear()
        for ours, copied in zip(region.nodes, graph, strict=True):
            self._make_relative(copied, wanted.levels, calls=ours in self._calls)
            for value in copied.outputs:
                value.metadata_props.clear()
        attributes = self._ir.convenience.convert_attributes(wanted.attributes)
        function = self._ir.Function(
            self._domain,
            graph.name,
            graph=graph,
            attributes=[self._ir.Attr(each.name, each.type, None) for each in attributes],
        )
        function.metadata_props[OF_MODULE] = class_name
        self._model.functions[function.identifier()] = function
        versions.setdefault(self._domain, 1)
        return function

    # -- the call -----------------------------------------------------------------------

    def _node(self, made: Made, wanted: Wanted, region: Region) -> Any:
        ir = self._ir
        level = wanted.levels[-1]
        outputs = []
        for value in region.outputs:
            twin = ir.Value(name=value.name, shape=value.shape, type=value.type)
            twin.metadata_props.update(value.metadata_props)
            outputs.append(twin)
        origin = Origin(tuple(wanted.levels[:-1]), level.name, level.class_name or "")
        node = ir.Node(
            self._domain,
            made.function.name,
            [*region.inputs, *region.held],
            ir.convenience.convert_attributes(wanted.attributes),
            outputs=outputs,
            name=_unique(level.name or made.function.name, self._node_names),
            metadata_props=written(origin),
        )
        self._calls.add(node)
        return node

    def _input_names(self, wanted: Wanted) -> list[str]:
        """Return the names of the inputs of a function, of which its first call tells."""
        region = wanted.region
        taken = {value.name for node in region.nodes for value in node.outputs}
        for node in region.nodes:
            taken.update(value.name for inner, _, _ in reads(node) for value in inner.outputs)
        prefix = f"{wanted.levels[-1].name}." if wanted.levels[-1].name else ""
        return [
            _unique(wanted.names.get(value) or _local_name(value, prefix), taken)
            for value in (*region.inputs, *region.held)
        ]

    def _make_relative(self, node: Any, levels: Sequence[Level], *, calls: bool) -> None:
        """Have the metadata of a node count its modules from the one that becomes a function."""
        origin = origin_by_metadata(node.metadata_props)
        name = levels[-1].name
        for key in list(node.metadata_props):
            if key.startswith("pkg.torch") or key == NAMESPACE:
                del node.metadata_props[key]
        if origin is None:
            return
        inner = tuple(
            level._replace(name=_relative(level.name, name))
            for level in origin.levels[len(levels) :]
        )
        own = _relative(origin.name, name) if calls else origin.name
        top = Level("", levels[-1].class_name)
        node.metadata_props.update(written(Origin((top, *inner), own, origin.target)))

    # -- what is equal --------------------------------------------------------------------

    def _key(self, wanted: Wanted) -> Any:
        region = wanted.region
        ids = {value: ("in", place) for place, value in enumerate((*region.inputs, *region.held))}
        body = tuple(self._node_key(node, ids, wanted.levels) for node in region.nodes)
        outputs = tuple(ids[value] for value in region.outputs)
        # Of which types they are is no matter of the body, but of the call.
        attributes = tuple((name, type(value)) for name, value in wanted.attributes.items())
        class_name = wanted.levels[-1].class_name
        return class_name, len(region.inputs), len(ids), body, outputs, attributes

    def _node_key(self, node: Any, ids: dict[Any, Any], levels: Sequence[Level]) -> Any:
        name = levels[-1].name
        read = tuple(None if value is None else ids.get(value, "free") for value in node.inputs)
        attributes = tuple(
            (key, self._attribute_key(attribute, ids, levels))
            for key, attribute in sorted(node.attributes.items())
        )
        for place, value in enumerate(node.outputs):
            ids[value] = ("node", len(ids), place)
        origin = origin_by_metadata(node.metadata_props)
        inner = origin.levels[len(levels) :] if origin else ()
        scopes = tuple((_relative(level.name, name), level.class_name) for level in inner)
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

    def _attribute_key(self, attribute: Any, ids: dict[Any, Any], levels: Sequence[Level]) -> Any:
        if attribute.type.name == "GRAPH" and not attribute.is_ref():
            return self._graph_key(attribute.as_graph(), ids, levels)
        message = self._ir.to_proto(attribute)
        # Tensors have names that tell nothing.
        message.t.name = ""
        return message.SerializeToString(deterministic=True)

    def _graph_key(self, graph: Any, ids: dict[Any, Any], levels: Sequence[Level]) -> Any:
        for value in (*graph.inputs, *graph.initializers.values()):
            ids[value] = ("node", len(ids), 0)
        # A body tells the types of what it is given and gives: those must be the same.
        types = tuple((str(one.type), str(one.shape)) for one in (*graph.inputs, *graph.outputs))
        held = tuple(
            value.const_value.tobytes() if value.const_value is not None else b""
            for value in graph.initializers.values()
        )
        nodes = tuple(self._node_key(node, ids, levels) for node in graph)
        return types, held, nodes, tuple(ids.get(value) for value in graph.outputs)


def _unique(name: str, taken: set[str]) -> str:
    """Return a name, numbered where it is taken, and take it."""
    wish = name
    for number in itertools.count(1):
        if wish not in taken:
            break
        wish = f"{name}_{number}"
    taken.add(wish)
    return wish


def _relative(name: str, outer: str) -> str:
    """Return a qualified name as it is inside of a module."""
    if name == outer:
        return ""
    return name.removeprefix(f"{outer}.") if outer else name


def _keep_common_types(function: Any, nodes: Sequence[Any]) -> None:
    """Leave out the types of a function's values that differ in one more call.

    Operators that are functions themselves (`Gelu`) run by the types of their inputs alone.
    """
    for ours, theirs in zip(function, nodes, strict=True):
        for value, other in zip(ours.outputs, theirs.outputs, strict=True):
            if value.type != other.type:
                value.type = None
            if value.shape != other.shape:
                value.shape = None


def _local_name(value: Any, prefix: str) -> str:
    """Return what a value is called in a function: a parameter by its name in the module."""
    name = str(value.name)
    origins = texts_of(value.metadata_props.get(FOLDED, ""))
    if len(origins) == 1:
        name = origins[0] if is_made_up(origins[0]) else f"{origins[0]}_folded"
    if name.startswith(prefix):
        return name[len(prefix) :]
    # That of another module: equal tensors may be one in the file.
    return name.rpartition(".")[2]
