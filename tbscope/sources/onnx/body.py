"""Adds the nodes of an ONNX model to a graph: operations, what they read, and their bodies."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Nest, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.onnx.operations import (
    NO_FORMULA,
    UNCOUNTED,
    flops_of,
    input_names,
    is_random,
    role_of,
)
from tbscope.sources.onnx.origins import frame_number
from tbscope.sources.onnx.scoping import Scopes
from tbscope.sources.onnx.tensors import Held, attribute_value, held_in
from tbscope.sources.onnx.types import UNKNOWN, ValueType, types_in
from tbscope.words import shown

__all__ = ["Body", "Surroundings", "broken", "tell_symbols"]

_FRAME_OF_STACK = re.compile(r'File "(.+)", line ([0-9]+), in (\S+)')
_STACK = "pkg.torch.onnx.stack_trace"


def broken(why: str) -> ArgumentError:
    """Return the error for a model that holds together no more."""
    return ArgumentError(
        "an ONNX model is broken",
        why=why,
        fix="onnx.checker.check_model(path) tells more",
    )


class Surroundings(Protocol):
    """What the nodes of a model ask of the model."""

    build: GraphBuilder
    scopes: Scopes

    def scope_of(self, node: Any, around: Scope | None, body: int) -> Scope | None:
        """Return the scope in which a node stands."""

    def version(self, domain: str) -> int:
        """Return the version of a domain."""


class Body:
    """One list of nodes: that of the model, or of the body of an operation.

    Args:
        reading: The model.
        values: The values that are known by name.
        held: The tensors that the graph holds, by name.
        types: The types of values, by name.
        around: The scope of the body.
        outer: The list around it; None for the model.
        frame: The number of the call of a function that it came from.
    """

    def __init__(
        self,
        reading: Surroundings,
        values: dict[str, Nest],
        held: Mapping[str, Held],
        types: Mapping[str, ValueType],
        *,
        around: Scope | None = None,
        outer: "Body | None" = None,
        frame: int = 0,
    ) -> None:
        self._reading = reading
        self._build = reading.build
        self._values = values
        self._held = held
        self._types = types
        self._around = around
        self._outer = outer
        self._frame = frame

    def add(self, nodes: Iterable[Any]) -> None:
        """Add nodes, in order."""
        for node in nodes:
            self._add(node, self._reading.scope_of(node, self._around, self._frame))

    def value(self, name: str, scope: Scope | None) -> Value:
        """Return the value of a name, where no constant can stand instead."""
        nest = self.nest(name, scope)
        if isinstance(nest, Value):
            return nest
        kind = self._type(name)
        made = self._build.add_node(
            "Constant", [nest], [kind.shape], dtype=kind.dtype, scope=scope, role="maker"
        )
        self._values[name] = made.outputs[0]
        return made.outputs[0]

    def nest(self, name: str, scope: Scope | None) -> Nest:
        """Return the value of a name; what it holds, if that is short."""
        if name in self._values:
            return self._values[name]
        held = self._held.get(name)
        if held is None:
            if self._outer is not None:
                return self._outer.nest(name, scope)
            raise broken(f"{shown(name)} is read, and nothing before gives it")
        if held.literal is not None:
            self._values[name] = held.literal
        else:
            self._values[name] = self._hold(held, scope)
        return self._values[name]

    def _hold(self, held: Held, reader: Scope | None) -> Value:
        # A constant is its reader's, a parameter that of the module which is named with it.
        scope = reader if held.kind == "constant" else self._reading.scopes.owner(held.name, reader)
        node = self._build.append_source(held.kind, held.name, scope)
        node.attributes.update(held.attributes)
        return self._build.add_value(node, held.shape, held.dtype)

    def _add(self, node: Any, scope: Scope | None) -> None:
        attributes = {
            one.name: attribute_value(one) for one in node.attribute if one.type != one.GRAPH
        }
        bodies = [one for one in node.attribute if one.type == one.GRAPH]
        # Files have them in any order; of an If the branch that is taken comes first.
        bodies.sort(key=lambda one: one.name, reverse=True)
        if node.op_type == "Constant" and self._constant(node, attributes):
            return
        if bodies:
            scope = self._reading.scopes.block(node.op_type, scope)
        read = [self.nest(name, scope) if name else None for name in node.input]
        domain = "" if node.domain == "ai.onnx" else node.domain
        names = input_names(node.op_type, domain, self._reading.version(domain), len(read))
        arguments = [*read]
        for body in bodies:
            block = self._reading.scopes.block(body.name, scope)
            arguments.append(Argument(body.name, self._body(node, body.g, read, block)))
        arguments += [Argument(name, value) for name, value in attributes.items()]
        kinds = [self._type(name) for name in node.output]
        kernel = f"{domain or 'onnx'}::{node.op_type}"
        values = [value for value in read if isinstance(value, Value)]
        shapes = [one.shape if isinstance(one, Value) else () for one in read]
        output = kinds[0].shape if kinds else None
        added = self._build.add_node(
            node.op_type,
            arguments,
            scope=scope,
            kernels=[kernel],
            source=_source(_stack_of(node)),
            role=None if bodies else role_of(node.op_type, reads=bool(values)),
            random=is_random(node.op_type, attributes),
            flops=flops_of(node.op_type, shapes, output, attributes),
        )
        graph = self._build.graph
        graph.signatures.setdefault(node.op_type, tuple(names))
        if node.op_type in UNCOUNTED:
            graph.uncounted[kernel] = NO_FORMULA
        if node.name:
            added.attributes["onnx_name"] = node.name
        for name, kind in zip(node.output, kinds, strict=True):
            value = self._build.add_value(added, kind.shape, kind.dtype)
            if name:
                self._values[name] = value
        added.allocated_bytes = (
            0 if added.role == "view" else sum(one.size_bytes or 0 for one in added.outputs)
        )
        tell_symbols(added.attributes, kinds)

    def _constant(self, node: Any, attributes: Mapping[str, Nest]) -> bool:
        """Take a constant that is short for what it holds; tell whether it is one."""
        held = next(iter(attributes.values()), None)
        if len(attributes) != 1 or not _is_literal(held):
            return False
        self._values[node.output[0]] = held
        return True

    def _type(self, name: str) -> ValueType:
        found = self._types.get(name)
        if found is None and self._outer is not None:
            return self._outer._type(name)
        return UNKNOWN if found is None else found

    # -- bodies -------------------------------------------------------------------------

    def _body(self, node: Any, graph: Any, read: Sequence[Nest], scope: Scope) -> list[Nest]:
        types = dict(types_in(graph))
        values: dict[str, Nest] = {}
        for place, entry in enumerate(graph.input):
            values[entry.name] = self._given(node.op_type, place, types[entry.name], read, scope)
        inner = Body(
            self._reading,
            values,
            held_in(graph),
            types,
            around=scope,
            outer=self,
            frame=frame_number(node),
        )
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
        if name == "iteration":
            about = []
        return self._build.add_op(
            name, about, kind.shape, dtype=kind.dtype, scope=scope, kernels=[f"onnx::{operator}"]
        )


def _is_literal(nest: Nest) -> bool:
    if isinstance(nest, tuple):
        return len(nest) <= 8 and all(map(_is_literal, nest))
    return isinstance(nest, bool | int | float | str)


def tell_symbols(attributes: dict[str, Any], kinds: Sequence[ValueType]) -> None:
    """Tell the sizes of values that are known by a name."""
    texts = [kind.symbols for kind in kinds]
    if any(texts):
        attributes["symbolic_shape"] = ", ".join(text or "known" for text in texts)


def _stack_of(node: Any) -> str:
    """Return the stack trace that a node tells; empty where it tells none."""
    for entry in node.metadata_props:
        if entry.key == _STACK:
            stack: str = entry.value
            return stack
    return ""


@functools.lru_cache(maxsize=4096)
def _source(stack: str) -> Source | None:
    """Return the innermost line of the user's code that a stack trace tells; torch's is not."""
    lines = _FRAME_OF_STACK.findall(stack)
    own = [line for line in lines if "site-packages/torch/" not in line[0]]
    if not own:
        return None
    file, line, function = own[-1]
    return Source(file, int(line), function)
