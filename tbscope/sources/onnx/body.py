"""Nodes of an ONNX model as nodes of a graph: operations, their inputs, functions and bodies.

A `BodyReader` reads one list of nodes (of the model, of a function call, or of the body of an If,
Loop or Scan), with the names of values in it. A missing name is looked up in the enclosing list; a
function finds only its inputs there. The operator of a node decides its role and its FLOPs.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Nest, Role, Shape, Value
from tbscope.ir.scopes import Scope
from tbscope.messages import shown
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType, add_value
from tbscope.sources.onnx.origins import (
    STACK,
    ModuleRef,
    Origin,
    Way,
    any_origin,
    common,
    fill_from_neighbours,
    is_module,
    join_name,
    nodes_in,
    origin_in_function,
    properties,
)
from tbscope.sources.onnx.scoping import CallFinder, ModuleScopes
from tbscope.sources.onnx.types import (
    Initializer,
    attribute_value,
    import_extra,
    infer_function,
    initializers_of,
    type_of,
    types_in,
)
from tbscope.sources.torch.source_location import source_of

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto


# Source: the operator schemas, onnx/defs.
_ROLES: Mapping[str, Role] = {
    **dict.fromkeys(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand"), "view"),
    **dict.fromkeys(("Slice", "DepthToSpace", "SpaceToDepth"), "view"),
    **dict.fromkeys(("Cast", "CastLike"), "cast"),
    "Identity": "copy",
    **dict.fromkeys(("Constant", "ConstantOfShape", "Range", "EyeLike"), "maker"),
}
_RANDOM = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial"),
    }
)
_UNCOUNTED = frozenset(
    {
        *("LSTM", "GRU", "RNN", "Einsum", "Attention", "DeformConv", "DFT", "STFT"),
        *("MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "LinearAttention"),
        *("QAttention", "FusedConv", "MatMulNBits", "MoE", "QMoE", "QLinearMatMul", "QLinearConv"),
        *("MatMulInteger", "FusedMatMul", "MatMulIntegerToFloat", "ConvInteger"),
    }
)
"""Operators that compute much, and have no FLOPs formula here."""

_NO_FORMULA = "there is no formula for this ONNX operator"


def _role_of(operator: str, *, reads: bool) -> Role | None:
    """Return the role of an operator that computes nothing, or None for any other operator.

    A maker reads no tensor; views, casts and copies read one.

    Args:
        operator: Its `op_type`.
        reads: Whether it reads a tensor.
    """
    role = _ROLES.get(operator)
    return None if (role == "maker") == reads else role


def _is_random(operator: str, attributes: Mapping[str, object]) -> bool:
    """Whether an operator draws random numbers; a Dropout does in training mode only."""
    return operator in _RANDOM or (operator == "Dropout" and bool(attributes.get("training_mode")))


def flops_of(
    operator: str,
    inputs: Sequence[Shape | None],
    output: Shape | None,
    attributes: Mapping[str, object],
) -> int | None:
    """Return the FLOPs of a matrix product or a convolution, two for each multiplication.

    Args:
        operator: Its `op_type`.
        inputs: The shapes of its inputs.
        output: The shape of its first output.
        attributes: Its attributes.
    Returns:
        The FLOPs, or None if a size is unknown, and for any other operator.
    """
    if operator in ("Gemm", "MatMul"):
        return _count(output, _size(inputs, 0, 0 if attributes.get("transA") else -1))
    if operator in ("Conv", "ConvTranspose"):
        # A kernel over the channels of one group multiplies each element of the output, or of a
        # ConvTranspose's input.
        weight = inputs[1] if len(inputs) > 1 else None
        larger = output if operator == "Conv" else inputs[0]
        return _count(larger, _product(weight[1:]) if weight else None)
    return None


def _input_names(operator: str, domain: str, version: int, count: int) -> list[str | None]:
    """Return the names of an operator's inputs in its schema; None for an input without a name.

    Args:
        operator: Its `op_type`.
        domain: Its domain, empty for ONNX's own.
        version: The version of that domain.
        count: The number of inputs.
    """
    try:
        names = _names_in_schema(operator, domain, version)
    except import_extra("onnx").defs.SchemaError:
        names = ()
    return [*names, *[None] * count][:count]


@functools.lru_cache(maxsize=4096)
def _names_in_schema(operator: str, domain: str, version: int) -> tuple[str, ...]:
    """Return the names of the inputs before the first variadic one."""
    defs = import_extra("onnx").defs
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    entries = defs.get_schema(operator, version, domain).inputs
    return tuple(
        [entry.name for entry in takewhile(lambda entry: entry.option != variadic, entries)]
    )


def _count(shape: Shape | None, inner: int | None) -> int | None:
    size = _product(shape)
    return None if size is None or inner is None else 2 * size * inner


def _product(shape: Shape | None) -> int | None:
    if shape is None or None in shape:
        return None
    return math.prod(size for size in shape if size is not None)


def _size(inputs: Sequence[Shape | None], index: int, dimension: int) -> int | None:
    shape = inputs[index] if len(inputs) > index else None
    try:
        return None if shape is None else shape[dimension]
    except IndexError:
        return None


FunctionKey: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of a function."""


def broken(why: str) -> ArgumentError:
    """Return the error for an inconsistent model."""
    return ArgumentError(
        "an ONNX model is broken",
        why=why,
        fix="onnx.checker.check_model(path) has details",
    )


@dataclass(slots=True, eq=False)
class ModelState:
    """State that all lists of nodes of one model share while it is read.

    Attributes:
        model: The `ModelProto`.
        build: The builder of the graph.
        scopes: The scopes of the graph.
        functions: The functions of the model, by domain, name and overload.
        versions: The opset version of each domain of operators.
        numbers: The numbers of the calls around a node, by its name; None if its metadata has
            its modules.
        calls: The calls of functions: scope, arguments and results.
    """

    model: "ModelProto"
    build: GraphBuilder
    scopes: ModuleScopes
    functions: "Mapping[FunctionKey, FunctionProto]"
    versions: Mapping[str, int]
    numbers: Mapping[str, Sequence[int]] | None
    calls: list[tuple[Scope, list[Argument], Nest]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class BodyReader:
    """One list of nodes: of the model, of a function, or of the body of an operation.

    Attributes:
        reading: The shared state of the model.
        way: Returns the origin of a node.
        types: The `TypeProto`s of values, by name.
        initializers: The initializers of the graph, by name.
        values: The values and constants so far, by name.
        around: The enclosing scope.
        levels: The modules of the enclosing scope; scopes are opened only for modules inside it.
        outer: The enclosing list; None for the model.
        outer_names: The caller's name of each input of a function; None if lists share names.
        base: The qualified name of the module of the innermost module function; else empty.
    """

    reading: ModelState
    way: Way
    types: "Mapping[str, TypeProto]"
    initializers: Mapping[str, Initializer]
    values: dict[str, Nest] = field(default_factory=dict)
    around: Scope | None = None
    levels: tuple[ModuleRef, ...] = ()
    outer: "BodyReader | None" = None
    outer_names: Mapping[str, str] | None = None
    base: str = ""

    def origin(self, node: "NodeProto") -> Origin | None:
        """Return the origin of a node in the file, or None."""
        return self.way(node) or self._of_call(node)

    def _of_call(self, node: "NodeProto") -> Origin | None:
        """Return the origin of a call of a module's function, even outside modules; else None."""
        function = self._function(node)
        if function is None or not is_module(function):
            return None
        return any_origin(properties(node.metadata_props))

    def _function(self, node: "NodeProto") -> "FunctionProto | None":
        return self.reading.functions.get(function_key(node.domain, node.op_type, node))

    def add(self, nodes: "Iterable[NodeProto]") -> None:
        """Add nodes, in order."""
        listed = [node for node in nodes if not self.initializers.keys() & set(node.output)]
        values = [(_names_read(node), node.output) for node in listed]
        origins = fill_from_neighbours([*map(self.origin, listed)], values)
        scopes = self.reading.scopes
        module_calls = [origin for origin in map(self._of_call, listed) if origin]
        # A ModuleList is recognized by the numbers of its modules, some of which may be functions.
        scopes.learn(ModuleRef(join_name(self.base, origin.name), None) for origin in module_calls)
        scopes.learn([level for origin in origins if origin for level in origin.levels])
        inner = [origin or Origin(self.levels, "", "") for origin in origins]
        numbers = self.reading.numbers
        finder = CallFinder(numbers)
        for node, origin, (reads, results) in zip(listed, inner, values, strict=True):
            inside = origin.levels[len(common(origin.levels, self.levels)) :]
            sources = () if numbers is None else reads
            call = finder.of(origin._replace(levels=inside), sources, results)
            scope = scopes.of(call, self.around)
            function = self._function(node)
            if function is None:
                self._add(node, scope, origin.levels)
            else:
                self._call(node, function, scope)

    def value(self, name: str, scope: Scope | None) -> Value:
        """Return the value of a name; a `Constant` node is added for a name that is a constant."""
        nest = self.nest(name, scope)
        if isinstance(nest, Value):
            return nest
        value_type = self._type(name)
        node = self.reading.build.add_node(
            "Constant",
            [nest],
            [value_type.shape],
            dtype=value_type.dtype,
            scope=scope,
            role="maker",
        )
        self.values[name] = node.outputs[0]
        return node.outputs[0]

    def nest(self, name: str, scope: Scope | None) -> Nest:
        """Return the value of a name, its content if it is short, or None for an empty name.

        Raises:
            ArgumentError: No earlier node and no enclosing list has a value of this name.
        """
        if name in self.values or not name:
            return self.values.get(name)
        initializer = self.initializers.get(name)
        if initializer is not None:
            constant = initializer.literal
            self.values[name] = self._hold(initializer, scope) if constant is None else constant
            return self.values[name]
        outer_name = self._name_outside(name)
        if self.outer is None or outer_name is None:
            raise broken(f"{shown(name)} is read, and no earlier node computes it")
        return self.outer.nest(outer_name, scope)

    def _name_outside(self, name: str) -> str | None:
        return name if self.outer_names is None else self.outer_names.get(name)

    def _hold(self, initializer: Initializer, reader: Scope | None) -> Value:
        # A constant is drawn in the scope of its reader, a parameter in the scope of its module.
        scope = (
            reader
            if initializer.kind == "constant"
            else self.reading.scopes.owner(initializer.name, reader)
        )
        node = self.reading.build.append_source(initializer.kind, initializer.name, scope)
        return self.reading.build.add_value(node, initializer.shape, initializer.dtype)

    def _add(self, node: "NodeProto", scope: Scope | None, levels: tuple[ModuleRef, ...]) -> None:
        """Add an operation with its bodies; a short constant is a literal instead."""
        reading, build = self.reading, self.reading.build
        attributes = {
            attr.name: attribute_value(attr) for attr in node.attribute if attr.type != attr.GRAPH
        }
        bodies = [attr for attr in node.attribute if attr.type == attr.GRAPH]
        # Files have bodies in any order; in reverse, `then_branch` comes before `else_branch`.
        bodies.sort(key=lambda attr: attr.name, reverse=True)
        if node.op_type == "Constant" and self._constant(node, attributes):
            return
        if bodies:
            scope = reading.scopes.block(node.op_type, scope)
        read = [self.nest(name, scope) for name in node.input]
        domain = "" if node.domain == "ai.onnx" else node.domain
        # onnx takes versions of 32 bits only.
        version = max(0, min(reading.versions.get(domain, 1), 2**31 - 1))
        names = _input_names(node.op_type, domain, version, len(read))
        arguments = [*read]
        for body in bodies:
            block = reading.scopes.block(body.name, scope)
            arguments.append(Argument(body.name, self._body(node, body.g, read, block, levels)))
        arguments += [Argument(name, value) for name, value in attributes.items()]
        types = [self._type(name) for name in node.output]
        kernel = f"{domain or 'onnx'}::{node.op_type}"
        values = [value for value in read if isinstance(value, Value)]
        shapes = [attr.shape if isinstance(attr, Value) else () for attr in read]
        output = types[0].shape if types else None
        added = build.add_node(
            node.op_type,
            arguments,
            scope=scope,
            kernels=[kernel],
            source=source_of(properties(node.metadata_props).get(STACK, "")),
            role=None if bodies else _role_of(node.op_type, reads=bool(values)),
            random=_is_random(node.op_type, attributes),
            flops=flops_of(node.op_type, shapes, output, attributes),
        )
        build.graph.signatures.setdefault(node.op_type, tuple(names))
        if node.op_type in _UNCOUNTED:
            build.graph.uncounted[kernel] = _NO_FORMULA
        if node.name:
            added.attributes["onnx_name"] = node.name
        for name, value_type in zip(node.output, types, strict=True):
            value = add_value(added, value_type)
            if name:
                self.values[name] = value
        added.allocated_bytes = (
            0 if added.role == "view" else sum(attr.size_bytes or 0 for attr in added.outputs)
        )

    def _constant(self, node: "NodeProto", attributes: Mapping[str, Nest]) -> bool:
        """Record a short constant as a literal, without a node; return whether the node is one."""
        content = next(iter(attributes.values()), None)
        if len(attributes) != 1 or not _is_literal(content):
            return False
        self.values[node.output[0]] = content
        return True

    def _type_proto(self, name: str) -> "TypeProto | None":
        """Return the `TypeProto` of a value, from this or an enclosing list, or None."""
        type_proto, outer_name = self.types.get(name), self._name_outside(name)
        if type_proto is None and self.outer is not None and outer_name is not None:
            return self.outer._type_proto(outer_name)
        return type_proto

    def _type(self, name: str) -> TensorType:
        type_proto = self._type_proto(name)
        return UNKNOWN if type_proto is None else type_of(type_proto)

    # -- functions and bodies -----------------------------------------------------------

    def _call(self, node: "NodeProto", function: "FunctionProto", around: Scope | None) -> None:
        """Add the body of a function in a scope of its own; record its arguments and results."""
        reading, base = self.reading, self.base
        level, way = ModuleRef(node.name, f"{function.domain}::{function.name}"), _of_nothing
        origin = self._of_call(node)
        if origin is not None:
            base = join_name(self.base, origin.name)
            level, way = ModuleRef(base, origin.target), functools.partial(origin_in_function, base)
        scope = reading.scopes.open(level, around)
        # A call may leave out inputs at the end: their outer names are empty.
        outer_names = dict(
            zip_longest(function.input, node.input[: len(function.input)], fillvalue="")
        )
        # Attributes of the call override the defaults of the function.
        attributes = {attr.name: attr for attr in (*function.attribute_proto, *node.attribute)}
        nodes = [_resolved(inner_node, attributes) for inner_node in function.node]
        input_types = [self._type_proto(name) for name in outer_names.values()]
        inferred = infer_function(reading.model, function, nodes, input_types)
        body = BodyReader(
            reading,
            way,
            inferred.types,
            {},
            around=scope,
            outer=self,
            outer_names=outer_names,
            base=base,
        )
        body.add(inferred.nodes)
        results_by_name = [
            (outer_name, body.nest(inner_name, scope))
            for inner_name, outer_name in zip(function.output, node.output, strict=False)
            if outer_name
        ]
        self.values.update(results_by_name)
        arguments = [
            Argument(inner_name, self.nest(outer_name, scope))
            for inner_name, outer_name in outer_names.items()
        ]
        results = [nest for _, nest in results_by_name]
        reading.calls.append(
            (scope, arguments, results[0] if len(results) == 1 else tuple(results))
        )

    def _body(
        self,
        node: "NodeProto",
        graph: "GraphProto",
        read: Sequence[Nest],
        scope: Scope,
        levels: tuple[ModuleRef, ...],
    ) -> list[Nest]:
        """Add a body of an operation in its scope; return the results of the body."""
        types = dict(types_in(graph))
        inner = BodyReader(
            self.reading,
            self.way,
            types,
            initializers_of(graph),
            around=scope,
            levels=levels,
            outer=self,
            base=self.base,
        )
        for index, entry in enumerate(graph.input):
            value_type = inner._type(entry.name)
            inner.values[entry.name] = self._body_input(
                node.op_type, index, value_type, read, scope
            )
        inner.add(graph.node)
        return [inner.nest(entry.name, scope) for entry in graph.output]

    def _body_input(
        self, operator: str, index: int, kind: TensorType, read: Sequence[Nest], scope: Scope
    ) -> Value:
        """Add a node for one input of the body of an operation.

        Source: onnx/defs/controlflow. The inputs of a Loop's body are the iteration number, the
        condition, and the results of the previous iteration, at first the inputs of the Loop; the
        inputs of a Scan's body are the previous states, and slices.
        """
        about = [read[index]] if index < len(read) and operator in ("Loop", "Scan") else []
        name = "iteration" if operator == "Loop" and index == 0 else "carried"
        return self.reading.build.add_op(
            name,
            [] if name == "iteration" else about,
            kind.shape,
            dtype=kind.dtype,
            scope=scope,
            kernels=[f"onnx::{operator}"],
        )


def _names_read(node: "NodeProto") -> list[str]:
    return [name for inner_node in nodes_in([node]) for name in inner_node.input if name]


def function_key(domain: str, name: str, message: object) -> FunctionKey:
    """Return the key of a function, from the function or from a node that calls it."""
    return "" if domain == "ai.onnx" else domain, name, getattr(message, "overload", "")


def check_functions(functions: "Mapping[FunctionKey, FunctionProto]") -> None:
    """Refuse functions that call themselves.

    Args:
        functions: The functions of a model.
    Raises:
        ArgumentError: A function calls itself, maybe through others.
    """
    calls = {
        key: {function_key(node.domain, node.op_type, node) for node in nodes_in(function.node)}
        for key, function in functions.items()
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        raise broken(f"its function {shown(error.args[1][0][1])} calls itself") from error


def _of_nothing(_: object) -> Origin | None:
    """Return no origin: a function that is no module is drawn without modules inside."""
    return None


def _resolved(node: "NodeProto", attributes: "Mapping[str, AttributeProto]") -> "NodeProto":
    """Return a copy of a node with the attributes of a call in the place of references to them.

    Bodies of the node are resolved, too; a reference to a missing attribute is left out.
    """
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        attr = attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if attr is not None:
            new_attr = copy.attribute.add()
            new_attr.CopyFrom(attr)
            new_attr.name = attribute.name
            if new_attr.HasField("g"):
                inner_nodes = [_resolved(inner_node, attributes) for inner_node in new_attr.g.node]
                del new_attr.g.node[:]
                new_attr.g.node.extend(inner_nodes)
    return copy


def _is_literal(nest: Nest) -> bool:
    if isinstance(nest, tuple):
        return len(nest) <= 8 and all(map(_is_literal, nest))
    return isinstance(nest, bool | int | float | str)
