"""The graph: plain data for the operations that a model executed in one run.

A graph lists scopes, calls, nodes and values in the order in which they ran. It is the center of
tbscope: sources build it, passes simplify it, and converters read it. This file imports nothing of
torch, protobuf or file formats. `str(graph)` prints one node a line:

    graph(%x : Float(1, 2)):
      %1 : Float(1, 2) = linear(%x, %layer1.0.weight, %layer1.0.bias), scope: Net/Linear[fc]
      return (%1)
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from tbscope.errors import ArgumentError, NotFoundError
from tbscope.ir.imported_methods import FunctionsProtocol, SummaryProtocol, late_method
from tbscope.ir.metadata import (
    Collective,
    Constant,
    Gradient,
    Measured,
    MeshDimension,
    Module,
    Parameter,
    Part,
    Profile,
    Shape,
    Sharding,
    Source,
    item_size_bytes,
)
from tbscope.ir.nodes import (
    STATE,
    Argument,
    Body,
    Call,
    Nest,
    Node,
    NodeKind,
    Note,
    Output,
    Role,
    Value,
    copy_arguments,
    node_names,
    node_to_text,
    type_to_text,
    value_name,
)
from tbscope.ir.pytree import Replacements, map_values
from tbscope.ir.scopes import Scope
from tbscope.messages import did_you_mean, one_line, shown

__all__ = [
    "Argument",
    "Body",
    "Call",
    "Collective",
    "Constant",
    "Gradient",
    "Graph",
    "Measured",
    "MeshDimension",
    "Module",
    "Nest",
    "Node",
    "NodeKind",
    "Note",
    "Output",
    "Parameter",
    "Part",
    "Profile",
    "Role",
    "Shape",
    "Sharding",
    "Source",
    "Value",
    "body_to_lines",
    "copy_body",
    "copy_graph",
    "graph_to_text",
    "item_size_bytes",
    "listed",
    "require_graph",
]

# The first or last line of a printed graph that is wider is split, one line for each entry.
_WIDTH = 100

# The name of an output that is a tensor, or an entry of a plain tuple or list: the position in
# the printed `return (...)` already shows it.
_NAME_THAT_IS_A_PLACE = re.compile(r"out(\.[0-9]+)*")


@dataclass(slots=True, eq=False)
class Graph:
    """The nodes that ran, in order, with the calls and scopes that enclose them.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Sequential(torch.nn.Linear(3, 5)), torch.rand(1, 3))
    >>> [str(call.scope) for call in graph.calls]
    ['Sequential', 'Sequential/Linear[0]']
    >>> [node.name for node in graph.nodes if node.kind == "parameter"]
    ['0.weight', '0.bias']
    >>> graph.find("0").results.shape
    (1, 5)

    Attributes:
        name: The class of the model, or the name of the recording.
        nodes: Every node, each after all nodes that it reads.
        inputs: The nodes of kind "input" in the order of the arguments; they are in `nodes`, too.
        outputs: The tensors of the result, by path.
        calls: The module calls in the order in which they began.
        notes: Remarks that the drawing alone does not show.
        signatures: For each operation the names of its positional arguments, as far as
            available; None for an argument that overloads name differently.
        rank: The process of a distributed run that the graph is from; 0 in any other run.
        modules: Every module of the model, called or not, in the order of `named_modules()`.
        uncounted: The kernels that ran and compute, but whose operations are not in
            `Node.flops`, each with the reason.
        profile: The method and totals of the measurement, or None if nothing was measured.
        world_size: The number of processes of the distributed run; 1 for any other run.
        mesh: The dimensions of the device mesh of the run, outermost first; empty without one.
        parts: The ranks whose graphs are merged in this graph, grouped by equal memory and equal
            work; empty for the graph of `rank` alone.
    """

    name: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    signatures: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    rank: int = 0
    modules: list[Module] = field(default_factory=list)
    uncounted: dict[str, str] = field(default_factory=dict)
    profile: Profile | None = None
    world_size: int = 1
    mesh: tuple[MeshDimension, ...] = ()
    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return graph_to_text(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes, {len(self.calls)} calls>"

    def scopes(self) -> Iterator[Scope]:
        """Return each scope that contains a node or a call once, parents first."""
        seen: dict[Scope, None] = {}
        call_scopes = [call.scope for call in self.calls]
        for scope in dict.fromkeys([*call_scopes, *[node.scope for node in self.nodes]]):
            if scope is None or scope in seen:
                continue
            # A scope in `seen` comes after all of its ancestors, so only new ones are added.
            if scope.parent is not None and scope.parent not in seen:
                missing = takewhile(lambda ancestor: ancestor not in seen, scope.ancestors())
                seen.update(dict.fromkeys(reversed([*missing])))
            seen[scope] = None
        return iter(seen)

    def find(self, name: str) -> Call | Node:
        """Find one call or node by a name of the user's code or of the printed graph.

        Args:
            name: A module's qualified name (`layer1.0`), a scope path
                (`Net/Sequential[layer1]/Linear[0]`), a parameter's qualified name
                (`layer1.0.weight`), an input's path, or a node's name.
        Returns:
            The first call of that module, else the node.
        Raises:
            NotFoundError: No call or node has that name; the message suggests similar names.
            ArgumentError: The name is not a string.
        """
        name = _plain_name(name, "find")
        for call in self.calls:
            if call.qualified_name == name or call.scope.path == name:
                return call
        for node in self.nodes:
            if node.name == name:
                return node
        # An input that was passed under several names has the others in the attribute `also`.
        for node in self.inputs:
            if name in str(node.attributes.get("also", "")).split(", "):
                return node
        names = [call.qualified_name for call in self.calls if call.qualified_name]
        names += [call.scope.path for call in self.calls]
        names += [node.name for node in self.nodes if node.kind != "op"]
        raise NotFoundError(
            f"the graph of {self.name} has nothing named {shown(name)}",
            why="no call, node or scope has that name in this run",
            fix=did_you_mean(
                name,
                dict.fromkeys(names),
                "see graph.calls and graph.nodes for what was recorded",
            ),
        )

    def find_calls(self, name: str) -> list[Call]:
        """Return all calls of the module with this qualified name, in order.

        Args:
            name: The name in `named_modules()`.
        Raises:
            ArgumentError: The name is not a string.
        """
        name = _plain_name(name, "find_calls")
        return [call for call in self.calls if call.qualified_name == name]

    def summary(
        self,
        *,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        fold: bool = True,
    ) -> SummaryProtocol:
        """The table of the modules: shapes, parameters, FLOPs, bytes, and times if measured.

        `print(graph.summary())` prints it; `.rows` contains the figures, ready for pandas.

        Args:
            depth: The largest number of enclosing modules of a module with a line of its own;
                None for no limit. The figures of a line include all modules below it.
            columns: The columns beside the module tree, as keys of the rows; None for the columns
                with figures that differ or are not 0.
            fold: Whether equal modules with consecutive numbers (`0`, `1`, `2`) print as one line,
                with the sum of their figures.
        Returns:
            The table, a `Summary`.
        Raises:
            ArgumentError: A column does not exist, or the depth is not a number of modules.
        """
        table: SummaryProtocol = late_method("Graph.summary")(
            self, depth=depth, columns=columns, fold=fold
        )
        return table

    def functions(self) -> FunctionsProtocol:
        """The module calls as functions: calls with the same body share one definition.

        Two calls are uses of one definition if they have the same class, hyper-parameters and
        inner graph; parameters and shapes may differ. `print(graph.functions())` prints each
        definition once, and the graph of their uses.

        Returns:
            The definitions, `Functions`.
        """
        functions: FunctionsProtocol = late_method("Graph.functions")(self)
        return functions

    def save(self, path: Any, *, depth: int | None = None, **drawing: Any) -> None:
        """Write the graph to a file, in the format of the path's extension.

        Args:
            path: The path of a file: `.json` contains the complete graph, and `tbscope.load` reads
                it; `.html` is a page with boxes that open; `.dot`, `.svg`, `.png`, `.mmd`,
                `.explorer.json`, `.pb` and `.pbtxt` are for other programs. A path that ends in
                `/` is a folder for an event file. A file is written completely, or not at all.
            depth: The largest number of nested boxes in `.dot`, `.svg`, `.png` and `.mmd`; None
                for all, or as many as fit a page.
            drawing: Options of the drawing (see `Drawing`); not for `.json`.
        Raises:
            ArgumentError: The extension is unknown, or the path cannot be written to; an option
                does not exist, or does not fit the format; or a program that draws the format is
                not installed.
        """
        late_method("Graph.save")(self, path, depth=depth, **drawing)

    def verify(self) -> None:
        """Check that the graph satisfies every invariant of a graph.

        Raises:
            GraphError: The graph violates an invariant; the message lists the first few violations
                and their number.
        """
        late_method("Graph.verify")(self)

    def _repr_html_(self) -> str:
        """The page of `save("graph.html")` in an iframe, for notebooks."""
        return str(late_method("Graph._repr_html_")(self))

    def copy(self) -> "Graph":
        """Return a graph of new nodes, values and calls, which passes may change.

        Scopes are shared with the original, and so are objects without values (constants,
        hyper-parameters).
        """
        return copy_graph(self, state=True)


def _plain_name(name: object, doing: str) -> str:
    if isinstance(name, str):
        return str.__str__(name)
    raise ArgumentError(
        f"{doing} takes a name, and was given {shown(name)}",
        why="calls and nodes are looked up by a text: a name or a path",
        fix=f"graph.{doing}('layer1.0')",
    )


def copy_graph(graph: Graph, *, state: bool) -> Graph:
    """Return a copy, as `Graph.copy` does.

    Args:
        graph: The graph.
        state: Whether parameters and buffers are copied, too. No pass changes them, and they are
            half of the nodes of most models, so a drawing shares them with the original.
    """
    nodes: dict[Node, Node] = {}
    values = _CopiedValues(nodes)
    for node in graph.nodes:
        if not state and node.kind in STATE:
            nodes[node] = node
            values.update(zip(node.outputs, node.outputs, strict=True))
            continue
        # Positional, and without copies of empty lists: much of a conversion is spent here.
        nodes[node] = copied = Node(
            node.name,
            node.op,
            node.kind,
            node.scope,
            [*map(values.__getitem__, node.inputs)] if node.inputs else [],
            [],
            copy_arguments(node.arguments, values) if node.arguments else [],
            [nodes.get(dependency, dependency) for dependency in node.control_inputs]
            if node.control_inputs
            else [],
            node.source,
            node.kernels,
            node.attributes.copy(),
            node.body and copy_body(node.body, nodes, values),
            node.flops,
            node.gradients,
            node.allocated_bytes,
            node.measured,
            node.role,
            node.random,
            node.writes,
            node.phase,
            node.run,
            node.step,
            node.collective,
        )
        for old in node.outputs:
            values[old] = new = Value(
                copied, old.index, old.shape, old.dtype, old.device, old.sharding
            )
            copied.outputs.append(new)
    return replace(
        graph,
        nodes=list(nodes.values()),
        inputs=[nodes.get(node, node) for node in graph.inputs],
        outputs=[
            replace(
                output,
                value=values[output.value],
                control_inputs=tuple(
                    nodes.get(dependency, dependency) for dependency in output.control_inputs
                ),
            )
            for output in graph.outputs
        ],
        calls=[_copy_call(call, values) for call in graph.calls],
        notes=[
            replace(note, node=nodes.get(note.node)) if note.node else note for note in graph.notes
        ],
    )


def copy_body(body: Body, nodes: dict[Node, Node], values: Replacements[Value]) -> Body:
    """Return a copy of a body for the copy of its node, reading copied nodes and values outside."""
    copied = Graph("", body.nodes).copy()
    copies = dict(zip(body.nodes, copied.nodes, strict=True))
    # The copies still read the original values outside of the body.
    for copy in copied.nodes:
        copy.inputs = [values[value] for value in copy.inputs]
        copy.arguments = copy_arguments(copy.arguments, values)
        if copy.control_inputs:
            copy.control_inputs = [nodes.get(dep, dep) for dep in copy.control_inputs]
    # A result is an output of a kernel, or an input of the operation that comes from outside.
    return Body(
        copied.nodes,
        [
            copies[value.producer].outputs[value.index]
            if value.producer in copies
            else values[value]
            for value in body.results
        ],
        [copies[writer] for writer in body.writers],
    )


class _CopiedValues(Replacements[Value]):
    """The copies of the values of a graph; a value that another graph produces stays.

    After a pass has removed views, a call may refer to a value that is not in any node's outputs:
    it has the producer and index of the value that remains, but the shape and type of the view.
    """

    def __init__(self, nodes: dict[Node, Node]) -> None:
        self._nodes = nodes

    def __missing__(self, value: Value) -> Value:
        node = self._nodes.get(value.producer)
        if node is None:
            return value
        return Value(node, value.index, value.shape, value.dtype, value.device, value.sharding)


def _copy_call(call: Call, values: _CopiedValues) -> Call:
    results = call.results
    return Call(
        call.scope,
        call.class_name,
        call.qualified_name,
        copy_arguments(call.arguments, values),
        values[results] if type(results) is Value else map_values(results, values),
        call.hyperparameters,
        call.training,
        call.parameters,
        call.source,
        call.defined,
        call.number,
        call.run,
        call.step,
        call.caller,
        call.called_as,
    )


def require_graph(obj: object, doing: str = "this") -> None:
    """Check that an object is a graph.

    Args:
        obj: Any object.
        doing: The operation that needs the graph, for the message.
    Raises:
        ArgumentError: The object is not a graph.
    """
    if not isinstance(obj, Graph):
        raise ArgumentError(
            f"{doing} takes a graph, and was given {shown(obj)}",
            why="tbscope.trace, tbscope.record and add_graph return graphs",
            fix="graph = tbscope.trace(model, input)",
        )


# -- text -----------------------------------------------------------------------------------


def graph_to_text(graph: Graph, *, sources: bool = False, parameters: bool = False) -> str:
    """Return a graph as text: inputs in the head, one node a line, outputs at the end.

    Args:
        graph: The graph.
        sources: Whether each line ends with the line of the user's code.
        parameters: Whether parameters and buffers have lines of their own; else they
            appear only in the operations that read them, by their qualified names.
    Returns:
        Lines without a line end after the last. An input that was passed under two names
        shows both: `%input_ids = %labels : Long(1, 8)`.
    """
    inputs = []
    for node in graph.inputs:
        also = str(node.attributes.get("also", "")).split(", ")
        aliases = "".join(f" = %{one_line(name)}" for name in also if name)
        inputs += [
            f"{value_name(value)}{aliases} : {type_to_text(value)}" for value in node.outputs
        ]
    lines = body_to_lines(graph, sources=sources, parameters=parameters)
    return "\n".join([listed("graph(", inputs, "):"), *lines])


def body_to_lines(graph: Graph, *, sources: bool = False, parameters: bool = False) -> list[str]:
    """Return the lines of a graph below its head: one for each node, and the return line."""
    hidden = {"input"} if parameters else {"input", *STATE}
    lines = [
        f"  {node_to_text(node, source=sources)}" for node in graph.nodes if node.kind not in hidden
    ]
    outputs = []
    for output in graph.outputs:
        text = value_name(output.value)
        if not _NAME_THAT_IS_A_PLACE.fullmatch(output.name):
            text = f"{one_line(output.name)}={text}"
        if output.control_inputs:
            text += f" after {node_names(output.control_inputs)}"
        outputs.append(text)
    return [*lines, listed("  return (", outputs, ")")]


def listed(start: str, entries: list[str], end: str) -> str:
    """Return a list between a start and an end, on one line or, if too wide, an entry a line."""
    line = start + ", ".join(entries) + end
    if len(line) <= _WIDTH:
        return line
    return start + f",\n{' ' * len(start)}".join(entries) + end
