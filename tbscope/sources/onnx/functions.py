"""Makes local functions of regions of an ONNX graph; equal ones are one function."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tbscope.sources.onnx.cutting import Region, reads
from tbscope.sources.onnx.extra import need
from tbscope.sources.onnx.metadata import (
    FOLDED,
    NAMESPACE,
    Level,
    Origin,
    origin_by_metadata,
    texts_of,
    written,
)
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
        class_name: The full name of the class of the module.
        uses: The qualified names of the modules that it stands for, one for each call.
    """

    function: Any
    class_name: str
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
        region = wanted.region
        key = self._key(wanted)
        made = self._by_key.get(key)
        if made is None:
            class_name = wanted.levels[-1].class_name or "Module"
            name = self._unique(re.sub(r"\W", "_", label_of(class_name)))
            made = self._by_key[key] = Made(
                self._ir.Function(
                    self._domain,
                    name,
                    graph=self._ir.Graph([], [], nodes=[], name=name),
                    attributes=[],
                ),
                class_name,
            )
        made.uses.append(wanted.levels[-1].name)
        return self._node(made, wanted, region)

    def fill(self, node: Any, wanted: Wanted) -> None:
        """Move the nodes of a region, which was replaced by a call, into the function.

        Where another region that is the same was moved there before, they are dropped.
        """
        made = next(one for one in self._by_key.values() if one.function.name == node.op_type)
        region = wanted.region
        if len(made.uses) > 1:
            _keep_common_types(made.function, region.nodes)
            for each in region.nodes:
                for inner, place, _ in list(reads(each)):
                    inner.replace_input_with(place, None)
            return
        given = [*region.inputs, *region.held]
        inputs = self._inputs(wanted)
        for each in region.nodes:
            for inner, place, value in list(reads(each)):
                if value in inputs:
                    inner.replace_input_with(place, inputs[value])
        for each in region.nodes:
            self._make_relative(each, wanted.levels)
            for value in each.outputs:
                value.metadata_props.clear()
        versions = self._model.graph.opset_imports
        domains = {each.domain for each in region.nodes}
        for each in region.nodes:
            domains.update(inner.domain for inner, _, _ in reads(each))
        graph = self._ir.Graph(
            [inputs[value] for value in given],
            list(region.outputs),
            nodes=region.nodes,
            name=node.op_type,
            opset_imports={"": versions.get("", 1), **{d: versions.get(d, 1) for d in domains}},
        )
        function = self._ir.Function(
            self._domain,
            node.op_type,
            graph=graph,
            attributes=[
                self._ir.Attr(name, attribute.type, None)
                for name, attribute in node.attributes.items()
            ],
        )
        function.metadata_props[OF_MODULE] = made.class_name
        made.function = function
        self._model.functions[function.identifier()] = function
        versions.setdefault(self._domain, 1)

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
            name=self._node_name(level.name or made.function.name),
            metadata_props=written(origin),
        )
        self._calls.add(node)
        return node

    def _inputs(self, wanted: Wanted) -> dict[Any, Any]:
        """Return the inputs of a function, by the values that its first call gives it."""
        region = wanted.region
        taken = {value.name for node in region.nodes for value in node.outputs}
        for node in region.nodes:
            taken.update(value.name for inner, _, _ in reads(node) for value in inner.outputs)
        inputs: dict[Any, Any] = {}
        prefix = f"{wanted.levels[-1].name}." if wanted.levels[-1].name else ""
        for value in (*region.inputs, *region.held):
            wish = wanted.names.get(value) or _local_name(value, prefix)
            inputs[value] = self._ir.Value(name=_unique(wish, taken))
        return inputs

    def _unique(self, name: str) -> str:
        return _unique(name, self._names)

    def _node_name(self, name: str) -> str:
        return _unique(name, self._node_names)

    def _make_relative(self, node: Any, levels: Sequence[Level]) -> None:
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
        own = _relative(origin.name, name) if node in self._calls else origin.name
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
        kind = attribute.type.name
        if attribute.is_ref():
            return kind, attribute.ref_attr_name
        if kind == "GRAPH":
            return kind, self._graph_key(attribute.as_graph(), ids, levels)
        if kind == "GRAPHS":
            return kind, tuple(self._graph_key(one, ids, levels) for one in attribute.as_graphs())
        if kind in ("TENSOR", "TENSORS"):
            tensors = [attribute.value] if kind == "TENSOR" else list(attribute.value)
            return kind, tuple(
                (one.dtype.name, tuple(map(str, one.shape)), one.tobytes()) for one in tensors
            )
        value = attribute.value
        return kind, tuple(value) if isinstance(value, list | tuple) else str(value)

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
    """Have a function tell those types of its values that are the same in one more call."""
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
