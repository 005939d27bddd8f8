"""The builder with which every source makes a graph: it names, numbers and verifies.

    build = GraphBuilder("Net")
    x = build.add_input("x", (1, 2), "float32")
    scope = build.new_scope("Linear", "fc", parent=None, qualified_name="fc")
    call = build.add_call(scope, class_name="nets.Linear", arguments=[x])
    weight = build.add_value(build.append_source("parameter", "fc.weight", scope), (3, 2))
    call.results = build.add_op("matmul", [x, weight], (1, 3), scope=scope)
    build.add_output("out", call.results)
    graph = build.finish()

docs/how-to-add.md contains the rules for sources.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

from tbscope.ir.graph import (
    Argument,
    Call,
    Graph,
    Nest,
    Node,
    NodeKind,
    Output,
    Shape,
    Source,
    Value,
)
from tbscope.ir.invariants import check_invariants
from tbscope.ir.pytree import values_in
from tbscope.ir.scopes import Scope, ScopeKind, ScopePart

SourceKind: TypeAlias = Literal["input", "parameter", "buffer", "constant"]
"""The kind of a node that is not an operation: a source of values."""


def claim_name(name: str, taken: set[str], *, sign: str = "~") -> str:
    """Return a name unchanged, or with the first number from 2 on that makes it unique.

    Args:
        name: The name.
        taken: The names in use; the new name is added.
        sign: The text between the name and its number.
    """
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}{sign}{number}", number + 1
    taken.add(unique)
    return unique


class Names:
    """Unique names for the nodes of one graph, from running numbers and from paths."""

    def __init__(self) -> None:
        self._count = 0
        # For each name in use, the next number to try.
        self._next: dict[str, int] = {}

    def number(self) -> str:
        """Return the next running number that is not yet a name."""
        self._count += 1
        name = str(self._count)
        return self.number() if name in self._next else name

    def unique(self, name: str) -> str:
        """Return a name unchanged, or with the first `~number` that makes it unique."""
        # Running numbers up to `_count` are names already, although not in `_next`.
        if name.isdecimal() and int(name) <= self._count:
            name = f"{name}~"
        names, unique = self._next, name
        if name in names:
            number = names[name]
            while (unique := f"{name}~{number}") in names:
                number += 1
            names[name] = number + 1
        names[unique] = 2
        return unique


class GraphBuilder:
    """Builds one graph.

    Args:
        name: The name of the graph: the class of the model.
        rank: The rank of the process in a distributed run.

    Attributes:
        graph: The graph so far.
        operations: The number of its operations.
    """

    def __init__(self, name: str, *, rank: int = 0) -> None:
        self.graph = Graph(name, rank=rank)
        self.operations = 0
        self._names = Names()
        # The next number for each parent, label and attribute.
        self._numbers: dict[tuple[Scope | None, str, str | None], int] = {}
        # The numbers in use, some of them chosen by the source.
        self._taken: set[tuple[tuple[Scope | None, str, str | None], int]] = set()
        self._output_names: set[str] = set()
        self._append = self.graph.nodes.append
        self._number = self._names.number

    # -- scopes -----------------------------------------------------------------------

    def new_scope(
        self,
        label: str,
        attribute: str | None = None,
        *,
        parent: Scope | None,
        kind: ScopeKind = "module",
        qualified_name: str | None = None,
        index: int | None = None,
    ) -> Scope:
        """Return a new scope, whose number distinguishes it from scopes with equal names.

        Args:
            label: The class of the module, or the name of the block.
            attribute: The attribute of the module in its parent.
            parent: The enclosing scope.
            kind: The kind of the scope.
            qualified_name: The name in `named_modules()`.
            index: The number, if the source chooses it; None for the next number.
        """
        alike = (parent, label, attribute)
        if index is None:
            index = self._numbers.get(alike, 0)
            while (alike, index) in self._taken:
                index += 1
            self._numbers[alike] = index + 1
        self._taken.add((alike, index))
        part = ScopePart(label, attribute, index)
        return Scope(part, parent=parent, kind=kind, qualified_name=qualified_name)

    def is_free(self, part: ScopePart, parent: Scope | None) -> bool:
        """Whether no scope has been opened with this label, attribute and number."""
        return ((parent, part.label, part.attribute), part.index) not in self._taken

    def add_call(
        self, scope: Scope, *, class_name: str, arguments: Sequence[Nest] = (), **facts: Any
    ) -> Call:
        """Add the call of a module whose scope exists already."""
        facts.setdefault("qualified_name", scope.qualified_name)
        call = Call(
            scope=scope, class_name=class_name, arguments=list(map(_argument, arguments)), **facts
        )
        self.graph.calls.append(call)
        return call

    # -- nodes ------------------------------------------------------------------------

    def append_op(
        self,
        op: str,
        scope: Scope | None,
        inputs: list[Value],
        arguments: list[Argument],
        control_inputs: list[Node],
        source: Source | None,
        kernels: list[str],
    ) -> Node:
        """Append an operation without outputs, unchecked: for sources that observe each one."""
        self.operations += 1
        # By position, as this runs once for each operation of a trace.
        node = Node(
            self._number(),
            op,
            "op",
            scope,
            inputs,
            [],
            arguments,
            control_inputs,
            source,
            kernels,
        )
        self._append(node)
        return node

    def append(self, node: Node) -> None:
        """Append an existing operation, which receives its number now."""
        node.name = self._number()
        self.operations += 1
        self._append(node)

    def add_node(
        self,
        op: str,
        arguments: Iterable[Nest] = (),
        outputs: Sequence[Shape | None] = (),
        *,
        dtype: str = "float32",
        device: str = "cpu",
        name: str | None = None,
        kind: NodeKind = "op",
        scope: Scope | None = None,
        **facts: Any,
    ) -> Node:
        """Add a node that reads the values in its arguments, and has one output per shape.

        Args:
            op: The name of the operation.
            arguments: The arguments: values, constants, pytrees of these; an `Argument` for
                a keyword argument.
            outputs: The shape of each output.
            dtype: The element type of the outputs.
            device: The device of the outputs.
            name: The name, which is made unique; None for a running number.
            kind: The kind of the node.
            scope: The scope; None for the top level.
            facts: Further fields of `Node`.
        """
        named = [_argument(entry) for entry in arguments]
        node = Node(
            name="",
            op=op,
            kind=kind,
            scope=scope,
            inputs=[value for argument in named for value in values_in(argument.nest)],
            arguments=named,
            **facts,
        )
        for shape in outputs:
            self.add_value(node, shape, dtype, device)
        node.name = self._number() if name is None else self._names.unique(name)
        self.operations += kind == "op"
        self._append(node)
        return node

    def add_op(
        self, op: str, arguments: Iterable[Nest], output: Shape | None, **facts: Any
    ) -> Value:
        """Add an operation with one output, and return its value (see `add_node`)."""
        return self.add_node(op, arguments, [output], **facts).outputs[0]

    def add_value(
        self, node: Node, shape: Shape | None, dtype: str = "float32", device: str = "cpu"
    ) -> Value:
        """Add an output to a node."""
        value = Value(
            producer=node, index=len(node.outputs), shape=shape, dtype=dtype, device=device
        )
        node.outputs.append(value)
        return value

    def append_source(
        self, kind: SourceKind, name: str | None = None, scope: Scope | None = None
    ) -> Node:
        """Append an input, parameter, buffer or constant without outputs, unchecked.

        Args:
            kind: The kind of the node.
            name: The name, which is made unique; None for a running number.
            scope: The scope of the node.
        """
        unique = self._number() if name is None else self._names.unique(name)
        node = Node(unique, kind, kind, scope)
        self._append(node)
        if kind == "input":
            self.graph.inputs.append(node)
        return node

    def add_input(
        self, name: str, shape: Shape | None, dtype: str = "float32", device: str = "cpu"
    ) -> Value:
        """Add an input of the model under its path (`past.0.key`), and return its value."""
        return self.add_value(self.append_source("input", name), shape, dtype, device)

    def add_output(self, name: str, value: Value, *, control_inputs: Iterable[Node] = ()) -> Output:
        """Add an output of the model under its path in the result (`logits`), made unique."""
        unique = claim_name(name, self._output_names)
        output = Output(name=unique, value=value, control_inputs=tuple(control_inputs))
        self.graph.outputs.append(output)
        return output

    def finish(self) -> Graph:
        """Return the graph, after a check of all invariants.

        Raises:
            GraphError: The graph breaks an invariant.
        """
        check_invariants(self.graph)
        return self.graph


def _argument(nest: Nest) -> Argument:
    return nest if type(nest) is Argument else Argument(name=None, nest=nest)
