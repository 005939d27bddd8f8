"""Adds the nodes of an ONNX model to a graph: operations, what they read, functions and bodies."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Nest, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.messages import shown
from tbscope.sources.onnx.call_instances import Places
from tbscope.sources.onnx.metadata import Level, Origin, properties, whole_origin
from tbscope.sources.onnx.operations import (
    NO_FORMULA,
    UNCOUNTED,
    flops_of,
    input_names,
    is_random,
    role_of,
)
from tbscope.sources.onnx.origins import Way, common, filled, is_module, joined, within
from tbscope.sources.onnx.scoping import Scopes
from tbscope.sources.onnx.tensors import Held, attribute_value, held_in
from tbscope.sources.onnx.types import UNKNOWN, ValueType, infer_function, type_of, types_in

__all__ = ["Body", "Reading", "broken", "check_functions", "function_key", "tell_symbols"]

# Functions that call each other twice double with each.
_MOST_NODES = 200_000
_MOST_DEPTH = 100
_FRAME_OF_STACK = re.compile(r'File "(.+)", line ([0-9]+), in (\S+)')
_STACK = "pkg.torch.onnx.stack_trace"


def broken(why: str) -> ArgumentError:
    """Return the error for a model that holds together no more."""
    return ArgumentError(
        "an ONNX model is broken",
        why=why,
        fix="onnx.checker.check_model(path) tells more",
    )


@dataclass(slots=True, eq=False)
class Reading:
    """One model while it is read: all that its lists of nodes share.

    Attributes:
        model: The `ModelProto`.
        build: The graph.
        scopes: Its scopes.
        functions: The functions of the model, by domain, name and overload.
        versions: The versions of the domains of operators.
        calls: The calls of functions: scope, arguments and results.
    """

    model: Any
    build: GraphBuilder
    scopes: Scopes
    functions: Mapping[tuple[str, str, str], Any]
    versions: Mapping[str, int]
    calls: list[tuple[Scope, list[Argument], Nest]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Body:
    """One list of nodes: that of the model, of a function, or of the body of an operation.

    Attributes:
        reading: The model.
        way: Tells the origins of the nodes.
        types: The `TypeProto`s of values, by name.
        held: The tensors that the graph holds, by name.
        values: The values that are known by name.
        around: The scope of the list.
        levels: The modules that this scope stands for.
        outer: The list around it; None for the model.
        given: For a function the names outside of its inputs; None where names are the same.
        base: The qualified name of the module that the function is.
    """

    reading: Reading
    way: Way
    types: Mapping[str, Any]
    held: Mapping[str, Held]
    values: dict[str, Nest] = field(default_factory=dict)
    around: Scope | None = None
    levels: tuple[Level, ...] = ()
    outer: "Body | None" = None
    given: Mapping[str, str] | None = None
    base: str = ""
    _places: Places = field(default_factory=Places)

    def origins(self, nodes: Sequence[Any]) -> list[Origin | None]:
        """Return the origin of each node."""
        return filled([self.way(node) or self._of_call(node) for node in nodes])

    def _of_call(self, node: Any) -> Origin | None:
        """Return the origin of the call of a module, which may stand in no other one."""
        function = self._function(node)
        if function is None or not is_module(function):
            return None
        return whole_origin(properties(node.metadata_props))

    def _function(self, node: Any) -> Any:
        return self.reading.functions.get(function_key(node.domain, node.op_type, node))

    def add(self, nodes: Iterable[Any]) -> None:
        """Add nodes, in order."""
        listed = list(nodes)
        origins = self.origins(listed)
        scopes = self.reading.scopes
        called = [origin for origin in map(self._of_call, listed) if origin]
        # Lists are known by the numbers of the modules in them, also where these are functions.
        scopes.learn(Level(joined(self.base, origin.name), None) for origin in called)
        scopes.learn([level for origin in origins if origin for level in origin.levels])
        for node, origin in zip(listed, origins, strict=True):
            scope, levels = self.around, self.levels
            if origin is not None:
                levels = origin.levels
                own = levels[len(common(levels, self.levels)) :]
                if own:
                    scope = scopes.of(self._places.of(origin._replace(levels=own)), self.around)
            function = self._function(node)
            if function is None:
                self._add(node, scope, levels)
            else:
                self._call(node, function, scope)

    def value(self, name: str, scope: Scope | None) -> Value:
        """Return the value of a name, where no constant can stand instead."""
        nest = self.nest(name, scope)
        if isinstance(nest, Value):
            return nest
        kind = self._type(name)
        made = self.reading.build.add_node(
            "Constant", [nest], [kind.shape], dtype=kind.dtype, scope=scope, role="maker"
        )
        self.values[name] = made.outputs[0]
        return made.outputs[0]

    def nest(self, name: str, scope: Scope | None) -> Nest:
        """Return the value of a name; its content, if that is short; None for an empty name."""
        if name in self.values or not name:
            return self.values.get(name)
        held = self.held.get(name)
        if held is not None:
            constant = held.literal
            self.values[name] = self._hold(held, scope) if constant is None else constant
            return self.values[name]
        outer = self._name_outside(name)
        if self.outer is None or outer is None:
            raise broken(f"{shown(name)} is read, and nothing before gives it")
        return self.outer.nest(outer, scope)

    def _name_outside(self, name: str) -> str | None:
        return name if self.given is None else self.given.get(name)

    def _hold(self, held: Held, reader: Scope | None) -> Value:
        # A constant is its reader's, a parameter that of the module which is named with it.
        scope = reader if held.kind == "constant" else self.reading.scopes.owner(held.name, reader)
        node = self.reading.build.append_source(held.kind, held.name, scope)
        node.attributes.update(held.attributes)
        return self.reading.build.add_value(node, held.shape, held.dtype)

    def _add(self, node: Any, scope: Scope | None, levels: tuple[Level, ...]) -> None:
        reading, build = self.reading, self.reading.build
        attributes = {
            one.name: attribute_value(one) for one in node.attribute if one.type != one.GRAPH
        }
        bodies = [one for one in node.attribute if one.type == one.GRAPH]
        # Files have them in any order; of an If the branch that is taken comes first.
        bodies.sort(key=lambda one: one.name, reverse=True)
        if node.op_type == "Constant" and self._constant(node, attributes):
            return
        if bodies:
            scope = reading.scopes.block(node.op_type, scope)
        read = [self.nest(name, scope) for name in node.input]
        domain = "" if node.domain == "ai.onnx" else node.domain
        # A schema has versions of 32 bits.
        version = max(0, min(reading.versions.get(domain, 1), 2**31 - 1))
        names = input_names(node.op_type, domain, version, len(read))
        arguments = [*read]
        for body in bodies:
            block = reading.scopes.block(body.name, scope)
            arguments.append(Argument(body.name, self._body(node, body.g, read, block, levels)))
        arguments += [Argument(name, value) for name, value in attributes.items()]
        kinds = [self._type(name) for name in node.output]
        kernel = f"{domain or 'onnx'}::{node.op_type}"
        values = [value for value in read if isinstance(value, Value)]
        shapes = [one.shape if isinstance(one, Value) else () for one in read]
        output = kinds[0].shape if kinds else None
        added = build.add_node(
            node.op_type,
            arguments,
            scope=scope,
            kernels=[kernel],
            source=_source(properties(node.metadata_props).get(_STACK, "")),
            role=None if bodies else role_of(node.op_type, reads=bool(values)),
            random=is_random(node.op_type, attributes),
            flops=flops_of(node.op_type, shapes, output, attributes),
        )
        build.graph.signatures.setdefault(node.op_type, tuple(names))
        if node.op_type in UNCOUNTED:
            build.graph.uncounted[kernel] = NO_FORMULA
        if node.name:
            added.attributes["onnx_name"] = node.name
        for name, kind in zip(node.output, kinds, strict=True):
            value = build.add_value(added, kind.shape, kind.dtype)
            if name:
                self.values[name] = value
        added.allocated_bytes = (
            0 if added.role == "view" else sum(one.size_bytes or 0 for one in added.outputs)
        )
        tell_symbols(added.attributes, kinds)

    def _constant(self, node: Any, attributes: Mapping[str, Nest]) -> bool:
        """Take a constant that is short for its content; tell whether it is one."""
        held = next(iter(attributes.values()), None)
        if len(attributes) != 1 or not _is_literal(held):
            return False
        self.values[node.output[0]] = held
        return True

    def _told_type(self, name: str) -> Any:
        """Return the `TypeProto` of a value, or None."""
        found, outer = self.types.get(name), self._name_outside(name)
        if found is None and self.outer is not None and outer is not None:
            return self.outer._told_type(outer)
        return found

    def _type(self, name: str) -> ValueType:
        found = self._told_type(name)
        return UNKNOWN if found is None else type_of(found)

    # -- functions and bodies -----------------------------------------------------------

    def _call(self, node: Any, function: Any, around: Scope | None) -> None:
        """Add the body of a function in a scope of its own."""
        reading, base = self.reading, self.base
        level, way = Level(node.name, f"{function.domain}::{function.name}"), _of_nothing
        origin = self._of_call(node)
        if origin is not None:
            base = joined(self.base, origin.name)
            level, way = Level(base, origin.target), functools.partial(within, base)
        scope = reading.scopes.call(level, around)
        given = dict(zip_longest(function.input, node.input[: len(function.input)], fillvalue=""))
        attributes = {one.name: one for one in (*function.attribute_proto, *node.attribute)}
        nodes = [_resolved(each, attributes) for each in function.node]
        kinds = [self._told_type(name) for name in given.values()]
        inferred = infer_function(reading.model, function, nodes, kinds)
        body = Body(
            reading, way, inferred.types, {}, around=scope, outer=self, given=given, base=base
        )
        body.add(inferred.nodes)
        made = [
            (outer, body.nest(inner, scope))
            for inner, outer in zip(function.output, node.output, strict=False)
            if outer
        ]
        self.values.update(made)
        arguments = [Argument(inner, self.nest(outer, scope)) for inner, outer in given.items()]
        results = [nest for _, nest in made]
        reading.calls.append(
            (scope, arguments, results[0] if len(results) == 1 else tuple(results))
        )

    def _body(
        self,
        node: Any,
        graph: Any,
        read: Sequence[Nest],
        scope: Scope,
        levels: tuple[Level, ...],
    ) -> list[Nest]:
        types = dict(types_in(graph))
        inner = Body(
            self.reading,
            self.way,
            types,
            held_in(graph),
            around=scope,
            levels=levels,
            outer=self,
            base=self.base,
        )
        for place, entry in enumerate(graph.input):
            kind = inner._type(entry.name)
            inner.values[entry.name] = self._given(node.op_type, place, kind, read, scope)
        inner.add(graph.node)
        return [inner.nest(entry.name, scope) for entry in graph.output]

    def _given(
        self, operator: str, place: int, kind: ValueType, read: Sequence[Nest], scope: Scope
    ) -> Value:
        """Add what the body of an operation is given in each of its rounds.

        Source: onnx/defs/controlflow. A Loop gives the number of the round, the condition, and
        what the last round gave, at first the inputs; a Scan the last of the states, and slices.
        """
        about = [read[place]] if place < len(read) and operator in ("Loop", "Scan") else []
        name = "iteration" if operator == "Loop" and place == 0 else "carried"
        return self.reading.build.add_op(
            name,
            [] if name == "iteration" else about,
            kind.shape,
            dtype=kind.dtype,
            scope=scope,
            kernels=[f"onnx::{operator}"],
        )


def function_key(domain: str, name: str, message: Any) -> tuple[str, str, str]:
    """Return the key of a function, from it or from a node that calls it."""
    return "" if domain == "ai.onnx" else domain, name, getattr(message, "overload", "")


def check_functions(nodes: Iterable[Any], functions: Mapping[tuple[str, str, str], Any]) -> None:
    """Refuse functions that call themselves, and such as are too many nodes where they are called.

    Args:
        nodes: The nodes of the model.
        functions: Its functions.
    Raises:
        ArgumentError: One calls itself, or all bodies together are too many nodes.
    """
    sizes: dict[tuple[str, str, str], int] = {}

    def count(nodes: Iterable[Any], inside: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in nodes:
            total += 1
            key = function_key(node.domain, node.op_type, node)
            if key in inside or len(inside) > _MOST_DEPTH:
                raise ArgumentError(
                    f"the function {shown(key[1])} of the ONNX model is called inside of "
                    f"{len(inside)} calls of functions",
                    why="a function calls itself" if key in inside else "the calls have no end",
                    fix="onnx.checker.check_model tells more",
                )
            if key in functions:
                if key not in sizes:
                    sizes[key] = count(functions[key].node, (*inside, key))
                total += sizes[key]
            for attribute in node.attribute:
                total += count(attribute.g.node, inside)
        return total

    if count(nodes, ()) > _MOST_NODES:
        raise ArgumentError(
            f"the functions of the ONNX model have more than {_MOST_NODES:,} nodes where they are "
            "called",
            why="each call draws the body of its function",
            fix="read a part of the model: onnx.utils.extract_model",
        )


def _of_nothing(_: Any) -> Origin | None:
    """Return the origin of a node of a function that is no module."""
    return None


def _resolved(node: Any, given: Mapping[str, Any]) -> Any:
    """Return a copy of a node with what a call gave for the attributes that refer to it."""
    twin = type(node)()
    twin.CopyFrom(node)
    del twin.attribute[:]
    for attribute in node.attribute:
        held = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if held is not None:
            kept = twin.attribute.add()
            kept.CopyFrom(held)
            kept.name = attribute.name
            if kept.HasField("g"):
                inner = [_resolved(each, given) for each in kept.g.node]
                del kept.g.node[:]
                kept.g.node.extend(inner)
    return twin


def _is_literal(nest: Nest) -> bool:
    if isinstance(nest, tuple):
        return len(nest) <= 8 and all(map(_is_literal, nest))
    return isinstance(nest, bool | int | float | str)


def tell_symbols(attributes: dict[str, Any], kinds: Sequence[ValueType]) -> None:
    """Tell the sizes of values that are known by a name."""
    texts = [kind.symbols for kind in kinds]
    if any(texts):
        attributes["symbolic_shape"] = ", ".join(text or "known" for text in texts)


@functools.lru_cache(maxsize=4096)
def _source(stack: str) -> Source | None:
    """Return the innermost line of the user's code that a stack trace tells; torch's is not."""
    lines = _FRAME_OF_STACK.findall(stack)
    own = [line for line in lines if "site-packages/torch/" not in line[0]]
    if not own:
        return None
    file, line, function = own[-1]
    return Source(file, int(line), function)
