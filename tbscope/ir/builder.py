"""The door through which every source makes a graph: it names, numbers and checks.

    build = GraphBuilder("Net")
    x = build.add_input("x", (1, 2), "float32")
    with build.call("Linear", "fc", class_name="nets.Linear", arguments=[x]) as call:
        weight = build.add_parameter("fc.weight", (3, 2), "float32")
        y = build.add_op("matmul", [x, weight], (1, 3))
        call.results = y
    build.add_output("out", y)
    graph = build.finish()

docs/how-to-add-a-source.md tells the rules that a source keeps.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, get_args

from tbscope.errors import GraphError
from tbscope.ir.graph import (
    Argument,
    Call,
    Graph,
    Nest,
    Node,
    NodeKind,
    Output,
    Role,
    Shape,
    Source,
    Value,
)
from tbscope.ir.invariants import verify
from tbscope.ir.nests import values_in
from tbscope.ir.node_names import Names, claim_name
from tbscope.ir.scopes import Scope, ScopeKind, ScopePart

__all__ = ["GraphBuilder", "SourceKind"]

SourceKind: TypeAlias = Literal["input", "parameter", "buffer", "constant"]
"""What a node is that is no operation: a source of values."""

_ROLES = (None, *get_args(Role))


class GraphBuilder:
    """Makes one graph.

    Args:
        name: The name of the graph: the class of the model.
        rank: Which process of a distributed run it ran in.

    Attributes:
        graph: All that was added so far.
        names: The names of its nodes.
        operations: How many operations it has.
        scope: The innermost scope that is open; None at the top level.
    """

    def __init__(self, name: str, *, rank: int = 0) -> None:
        self.graph = Graph(name, rank=rank)
        self.names = Names()
        self.operations = 0
        self.scope: Scope | None = None
        # The next number of the scopes that print alike, by parent, label and attribute.
        self._numbers: dict[tuple[Scope | None, str, str | None], int] = {}
        # Those numbers that a source chose itself.
        self._chosen: set[tuple[tuple[Scope | None, str, str | None], int]] = set()
        self._output_names: set[str] = set()
        self._append = self.graph.nodes.append
        self._number = self.names.number

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
        free = self._numbers.get(alike, 0)
        if index is None:
            index = free
            while self._chosen and (alike, index) in self._chosen:
                index += 1
            self._numbers[alike] = index + 1
        else:
            self._chosen.add((alike, index))
        part = ScopePart(label, attribute, index)
        return Scope(part, parent=parent, kind=kind, qualified_name=qualified_name)

    def is_free(self, part: ScopePart, parent: Scope | None) -> bool:
        """Tell whether no scope has been opened with this label, attribute and number."""
        alike = (parent, part.label, part.attribute)
        return part.index >= self._numbers.get(alike, 0) and (
            (alike, part.index) not in self._chosen
        )

    @contextmanager
    def block(
        self,
        label: str,
        attribute: str | None = None,
        *,
        kind: ScopeKind = "hand",
        qualified_name: str | None = None,
    ) -> Iterator[Scope]:
        """Open a scope in the one that is open, for as long as a block runs."""
        outer = self.scope
        self.scope = inner = self.new_scope(
            label, attribute, parent=outer, kind=kind, qualified_name=qualified_name
        )
        try:
            yield inner
        finally:
            self.scope = outer

    @contextmanager
    def call(
        self,
        label: str,
        attribute: str | None = None,
        *,
        class_name: str,
        arguments: Sequence[Nest] = (),
        qualified_name: str | None = None,
        **facts: Any,
    ) -> Iterator[Call]:
        """Open the scope of a module call for as long as a block runs.

        Args:
            label: The name of the module's class.
            attribute: Under which name its holder has it.
            class_name: The full name of its class.
            arguments: What it was given.
            qualified_name: Its name in `named_modules()`; None to join those of the modules
                around it with `attribute`.
            facts: Further fields of `Call`.
        Returns:
            The call; set its `results` before the block ends.
        """
        if qualified_name is None:
            around = [self.scope.qualified_name if self.scope else None, attribute]
            qualified_name = ".".join(name for name in around if name)
        with self.block(label, attribute, kind="module", qualified_name=qualified_name) as scope:
            yield self.add_call(scope, class_name=class_name, arguments=arguments, **facts)

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
            scope: Where it stands; None for the scope that is open.
            facts: Further fields of `Node`.
        Raises:
            GraphError: It writes into what it does not read, or has a role that is none.
        """
        named = [_argument(given) for given in arguments]
        node = Node(
            name="",
            op=op,
            kind=kind,
            scope=self.scope if scope is None else scope,
            inputs=[value for argument in named for value in values_in(argument.nest)],
            arguments=named,
            **facts,
        )
        _check(node)
        for shape in outputs:
            self.add_value(node, shape, dtype, device)
        node.name = self._number() if name is None else self.names.unique(name)
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
        unique = self._number() if name is None else self.names.unique(name)
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

    def add_parameter(
        self,
        name: str,
        shape: Shape | None,
        dtype: str = "float32",
        device: str = "cpu",
        *,
        scope: Scope | None = None,
        buffer: bool = False,
        **attributes: Any,
    ) -> Value:
        """Add a parameter or buffer under its qualified name; return its value.

        Args:
            name: Its name in `named_parameters()` (`layer1.0.weight`).
            shape: Its sizes.
            dtype: Its element type.
            device: Where it is.
            scope: That of the module which owns it; None for the one that is open.
            buffer: Whether it is a buffer.
            attributes: Further facts, shown on its card.
        """
        kind: SourceKind = "buffer" if buffer else "parameter"
        node = self.append_source(kind, name, self.scope if scope is None else scope)
        node.attributes.update(attributes)
        return self.add_value(node, shape, dtype, device)

    def add_output(self, name: str, value: Value, *, control_inputs: Iterable[Node] = ()) -> Output:
        """Add an output of the model under its path in the result (`logits`), made unique."""
        unique = claim_name(name, self._output_names)
        output = Output(name=unique, value=value, control_inputs=tuple(control_inputs))
        self.graph.outputs.append(output)
        return output

    def finish(self) -> Graph:
        """Return the graph, held against every invariant.

        Raises:
            GraphError: It breaks one, or a scope is still open.
        """
        if self.scope is not None:
            raise GraphError(
                f"the graph of {self.graph.name} is finished in {self.scope}",
                why="a scope is open for as long as its block runs",
                fix="call build.finish() after the outermost block",
            )
        verify(self.graph)
        return self.graph


def _check(node: Node) -> None:
    if not all(0 <= place < len(node.inputs) for place in node.writes):
        raise GraphError(
            f"{node.op} writes into its inputs {node.writes}, of which it has {len(node.inputs)}",
            why="`writes` are positions among the values that it reads",
            fix="count the values in its arguments from 0",
        )
    if node.role not in _ROLES:
        raise GraphError(
            f"{node.op} has the role {node.role!r}, which is none",
            why=f"the roles are {', '.join(map(str, _ROLES[1:]))}",
            fix="leave it out for an operation that computes something",
        )


def _argument(given: Nest) -> Argument:
    return given if type(given) is Argument else Argument(name=None, nest=given)
