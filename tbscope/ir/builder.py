"""The door through which every source makes a graph: it names, numbers and checks.

    build = GraphBuilder("Net")
    x = build.add_input("x", (1, 2), "float32")
    scope = build.new_scope("Linear", "fc", parent=None, qualified_name="fc")
    call = build.add_call(scope, class_name="nets.Linear", arguments=[x])
    weight = build.add_value(build.append_source("parameter", "fc.weight", scope), (3, 2))
    call.results = build.add_op("matmul", [x, weight], (1, 3), scope=scope)
    build.add_output("out", call.results)
    graph = build.finish()

docs/how-to-add-a-source.md tells the rules that a source keeps.
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
from tbscope.ir.invariants import verify
from tbscope.ir.pytree import values_in
from tbscope.ir.scopes import Scope, ScopeKind, ScopePart

__all__ = ["GraphBuilder", "Names", "SourceKind", "claim_name"]

SourceKind: TypeAlias = Literal["input", "parameter", "buffer", "constant"]
"""What a node is that is no operation: a source of values."""


def claim_name(name: str, taken: set[str], *, sign: str = "~") -> str:
    """Return a name as it is, or with the first number from 2 on that makes it unique.

    Args:
        name: The name.
        taken: The names that are taken; the new one is added.
        sign: The text between the name and its number.
    """
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}{sign}{number}", number + 1
    taken.add(unique)
    return unique


class Names:
    """Names the nodes of one graph, by running numbers and by paths; no name is given twice."""

    def __init__(self) -> None:
        self._count = 0
        # For each name that was given, the number that is tried next.
        self._next: dict[str, int] = {}

    def number(self) -> str:
        """Return the next running number that is nobody's name."""
        self._count += 1
        name = str(self._count)
        return self.number() if name in self._next else name

    def unique(self, name: str) -> str:
        """Return a name as it is, or with the first `~number` that makes it unique."""
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
    """Makes one graph.

    Args:
        name: The name of the graph: the class of the model.
        rank: Which process of a distributed run it ran in.

    Attributes:
        graph: All that was added so far.
        operations: How many operations it has.
    """

    def __init__(self, name: str, *, rank: int = 0) -> None:
        self.graph = Graph(name, rank=rank)
        self.operations = 0
        self._names = Names()
        # The next number of the scopes that print alike, by parent, label and attribute.
        self._numbers: dict[tuple[Scope | None, str, str | None], int] = {}
        # The numbers that are taken: a source may choose its own.
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
        """Return a new scope; its number tells it from all that print alike.

        Args:
            label: The class of the module, or the name of the block.
            attribute: Under which name its holder has it.
            parent: The scope around it.
            kind: What it is.
            qualified_name: Its name in `named_modules()`.
            index: Its number, where the source knows it; None for the next one.
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
        """Add the call of a module whose scope is there already."""
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
        """Append an operation without outputs, unchecked: for a source that watches each one."""
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
        """Append an operation that was made before, under a number that it gets now."""
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
        """Add a node that reads the values in its arguments, and gives one for each shape.

        Args:
            op: What it is called.
            arguments: Its arguments: values, constants, nests of these; an `Argument` for
                one that was given by name.
            outputs: The shape of each value that it gives.
            dtype: The element type of these.
            device: Where they are.
            name: Its name, made unique; None for a running number.
            kind: What it is.
            scope: Where it stands; None for the top level.
            facts: Further fields of `Node`.
        """
        named = [_argument(given) for given in arguments]
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
        """Add an operation that gives one value; return the value (see `add_node`)."""
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
            kind: What it is.
            name: Its name, made unique; None for a running number.
            scope: Where it stands.
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
        """Add an input of the model under its path (`past.0.key`); return its value."""
        return self.add_value(self.append_source("input", name), shape, dtype, device)

    def add_output(self, name: str, value: Value, *, control_inputs: Iterable[Node] = ()) -> Output:
        """Add an output of the model under its path in the result (`logits`), made unique."""
        unique = claim_name(name, self._output_names)
        output = Output(name=unique, value=value, control_inputs=tuple(control_inputs))
        self.graph.outputs.append(output)
        return output

    def finish(self) -> Graph:
        """Return the graph, held against every invariant.

        Raises:
            GraphError: It breaks one.
        """
        verify(self.graph)
        return self.graph


def _argument(given: Nest) -> Argument:
    return given if type(given) is Argument else Argument(name=None, nest=given)
