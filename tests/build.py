"""Graphs made by hand, for tests that need no torch.

A linear layer and an activation:

    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1, 2))
    y = build.linear("Net/Linear[fc]", x, 3)
    z = build.op("relu", y, scope=build.call("Net/ReLU[act]"))
    build.output("out", z)
    build.graph
"""

from typing import Any

from tbscope.ir import builder
from tbscope.ir.graph import Argument, Graph, Nest, Node, Parameter, Shape, Value
from tbscope.ir.pytree import values_in
from tbscope.ir.scopes import Scope, ScopeKind, ScopePart

__all__ = ["GraphBuilder", "chain", "values_in"]


class GraphBuilder:
    """Adds to `graph` what each method names, in the order of the calls."""

    def __init__(self, name: str = "Net") -> None:
        self.door = builder.GraphBuilder(name)
        self.graph = self.door.graph
        self._scopes: dict[tuple[ScopePart, ...], Scope] = {}

    def scope(self, path: str, kind: ScopeKind = "container") -> Scope:
        """Give the scope of a printed path; what is missing above it becomes a container."""
        parts = Scope.parse(path)
        scope: Scope | None = None
        for depth in range(1, len(parts) + 1):
            known = self._scopes.get(parts[:depth])
            if known is None:
                part = parts[depth - 1]
                known = self.door.new_scope(
                    part.label,
                    part.attribute,
                    index=part.index,
                    parent=scope,
                    kind=kind if depth == len(parts) else "container",
                    qualified_name=".".join(part.attribute or "" for part in parts[1:depth]),
                )
                self._scopes[parts[:depth]] = known
            scope = known
        assert scope is not None, "an empty path is no scope"
        return scope

    def hand(self, path: str) -> Scope:
        """Open a scope by hand."""
        scope = self.scope(path, "hand")
        scope.qualified_name = None
        return scope

    def call(self, path: str, *given: Nest, **facts: Any) -> Scope:
        """Record the call of a module, given these arguments; `facts` are fields of Call."""
        scope = self.scope(path, "module")
        facts.setdefault("class_name", f"models.{scope.part.label}")
        # It may have stood as the container of what was called in it.
        scope.kind = "module"
        facts.setdefault("arguments", given)
        self.door.add_call(scope, **facts)
        return scope

    def returns(self, scope: Scope, results: Nest) -> None:
        """Note what the call in this scope gave back."""
        (call,) = (call for call in self.graph.calls if call.scope is scope)
        call.results = results

    def node(
        self,
        op: str,
        *given: Nest,
        outputs: tuple[Shape, ...] = (),
        options: dict[str, Nest] | None = None,
        **fields: Any,
    ) -> Node:
        """Add a node with these arguments and one output per shape.

        `options` are arguments by keyword, `fields` are further fields of Node.
        """
        named = [Argument(name, nest) for name, nest in (options or {}).items()]
        return self.door.add_node(op, [*given, *named], outputs, **fields)

    def op(self, op: str, *given: Nest, shape: Shape | None = None, **fields: Any) -> Value:
        """Add an operation with one output, of the first input's shape if none is given."""
        if shape is None:
            shape = values_in(given)[0].shape or ()
        return self.node(op, *given, outputs=(shape,), **fields).outputs[0]

    def input(self, name: str, shape: Shape, **fields: Any) -> Value:
        """Add an input of the model."""
        return self.door.add_input(name, shape, **fields)

    def parameter(
        self, name: str, shape: Shape, scope: Scope | None = None, **fields: Any
    ) -> Value:
        """Add a parameter that the module of a scope owns; `kind="buffer"` for a buffer."""
        kind = fields.pop("kind", "parameter")
        node = self.node(kind, name=name, kind=kind, scope=scope, outputs=(shape,), **fields)
        return node.outputs[0]

    def output(self, name: str, value: Value) -> None:
        """Add an output of the model."""
        self.door.add_output(name, value)

    def linear(self, path: str, x: Value, width: int) -> Value:
        """Add the call of a linear layer with its weight and bias."""
        *batch, features = x.shape or ()
        shapes: dict[str, Shape] = {"weight": (width, features), "bias": (width,)}
        scope = self.call(
            path,
            x,
            class_name="torch.nn.modules.linear.Linear",
            hyperparameters={"in_features": features, "out_features": width, "bias": True},
            parameters=tuple(
                Parameter(name, "parameter", shape, "float32", 4 * width * len(shape), True)
                for name, shape in shapes.items()
            ),
        )
        owned = [
            self.parameter(f"{scope.qualified_name}.{name}".lstrip("."), shape, scope)
            for name, shape in shapes.items()
        ]
        y = self.op("linear", x, *owned, scope=scope, shape=(*batch, width))
        self.returns(scope, y)
        return y


def chain(length: int) -> Graph:
    """Give a graph of `length` linear layers, one after the other."""
    build = GraphBuilder("Chain")
    build.call("Chain")
    value = build.input("x", (1, 2))
    for index in range(length):
        value = build.linear(f"Chain/Linear[{index}]", value, 2)
    build.output("out", value)
    return build.graph
