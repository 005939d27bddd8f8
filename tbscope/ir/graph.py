"""The graph: what a model did in one run, as plain data.

Scopes, calls, nodes and values, in the order in which they came. It is the
middle of tbscope: sources make it, passes tidy it, converters read it. It knows
nothing of torch, of protobuf, or of files. `str(graph)` prints it, one node a line:

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
from tbscope.ir.late_methods import Functions, Table, way_up
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
from tbscope.ir.pytree import map_values
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

# A head or an end that is wider takes one line for each of its entries.
_WIDTH = 100

# The name of an output that is a tensor, or the entry of a plain tuple or list: its
# place tells as much.
_NAME_THAT_IS_A_PLACE = re.compile(r"out(\.[0-9]+)*")


@dataclass(slots=True, eq=False)
class Graph:
    """What ran, in order: a list of nodes with the calls and scopes around them.

    Attributes:
        name: The class of the model, or what was recorded.
        nodes: Every node, each after all nodes that it reads.
        inputs: The nodes of kind "input" in the order of the arguments; they stand
            in `nodes` too.
        outputs: The tensors given back, by path.
        calls: The module calls in the order in which they began.
        notes: What the drawing alone does not tell.
        signatures: For each operation the names of its positional arguments, as far as they
            are known; None where overloads differ.
        rank: Which process of a distributed run it ran in; 0 in any other run.
        modules: Every module of the model, called or not, in the order of `named_modules()`.
        uncounted: The kernels that ran and compute, and whose operations `Node.flops` does not
            count, each with the reason.
        profile: How times and memory were measured; None where they were not.
        world_size: How many processes the distributed run has; 1 for any other run.
        mesh: The dimensions of the device mesh that the run is laid out on, outermost first;
            empty where it has none.
        parts: The ranks whose graphs are merged in this one, those together that hold and do
            equally much; empty where it is that of `rank` alone.
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
        """Return every scope in which a node or a call stands, parents first, each once."""
        seen: dict[Scope, None] = {}
        stands = [call.scope for call in self.calls]
        for scope in dict.fromkeys([*stands, *[node.scope for node in self.nodes]]):
            if scope is None or scope in seen:
                continue
            # What came already came after all that is around it.
            if scope.parent is not None and scope.parent not in seen:
                above = takewhile(lambda one: one not in seen, scope.ancestors())
                seen.update(dict.fromkeys(reversed([*above])))
            seen[scope] = None
        return iter(seen)

    def find(self, name: str) -> Call | Node:
        """Find one call or node by the name that its user knows.

        Args:
            name: A module's qualified name (`layer1.0`), a scope path
                (`Net/Sequential[layer1]/Linear[0]`), a parameter's qualified name
                (`layer1.0.weight`), an input's path, or a node's name.
        Returns:
            The first call of that module, else the node.
        Raises:
            NotFoundError: Nothing has that name; the message tells near ones.
            ArgumentError: It is no text.
        """
        name = _plain_name(name, "find")
        for call in self.calls:
            if call.qualified_name == name or call.scope.path == name:
                return call
        for node in self.nodes:
            if node.name == name:
                return node
        for node in self.inputs:
            if name in str(node.attributes.get("also", "")).split(", "):
                return node
        known = [call.qualified_name for call in self.calls if call.qualified_name]
        known += [call.scope.path for call in self.calls]
        known += [node.name for node in self.nodes if node.kind != "op"]
        raise NotFoundError(
            f"the graph of {self.name} holds nothing named {shown(name)}",
            why="no call, node or scope has that name in this run",
            fix=did_you_mean(
                name,
                dict.fromkeys(known),
                "see graph.calls and graph.nodes for what was recorded",
            ),
        )

    def find_calls(self, name: str) -> list[Call]:
        """Return every call of the module with this qualified name, in order.

        Raises:
            ArgumentError: It is no text.
        """
        name = _plain_name(name, "find_calls")
        return [call for call in self.calls if call.qualified_name == name]

    def summary(
        self,
        *,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        fold: bool = True,
    ) -> Table:
        """The table of the modules: shapes, parameters, FLOPs, bytes, and times if measured.

        `print(graph.summary())` prints it; `.rows` are its figures, ready for pandas.

        Args:
            depth: The most modules around one that still has a line; None for any number. The
                figures of a line are those of all below it.
            columns: The columns beside the module tree, as keys of the rows; None for those
                that have something to tell.
            fold: Whether equal modules that are numbered on (`0`, `1`, `2`) print as one line,
                with the sum of their figures.
        Raises:
            ArgumentError: There is no such column, or the depth is no number of modules.
        """
        table: Table = way_up("Graph.summary")(self, depth=depth, columns=columns, fold=fold)
        return table

    def functions(self) -> Functions:
        """The module calls as functions: those with the same body share one definition.

        Two calls are uses of one definition if they have the same class, hyper-parameters and
        inner graph; parameters and shapes may differ. `print(graph.functions())` prints each
        definition once, and the graph of their uses.
        """
        functions: Functions = way_up("Graph.functions")(self)
        return functions

    def save(self, path: Any, *, depth: int | None = None, **drawing: Any) -> None:
        """Write the graph to a file, in the form that the end of its name tells.

        Args:
            path: The path of a file: `.json` holds all of the graph, and `tbscope.load` reads it;
                `.html` is a page with boxes that open; `.dot`, `.svg`, `.png`, `.mmd`,
                `.explorer.json`, `.pb` and `.pbtxt` are for other programs. One that ends in `/`
                is a folder for an event file. A file is written whole, or not at all.
            depth: Down to how many boxes around them nodes are drawn in `.dot`, `.svg`, `.png`
                and `.mmd`; None for all, or as many as fit a page.
            drawing: How it is drawn (see `Drawing`); not for `.json`.
        Raises:
            ArgumentError: The path tells no form, or cannot be written to; an option is none, or
                does not fit the form; or a program that draws it is not there.
        """
        way_up("Graph.save")(self, path, depth=depth, **drawing)

    def _repr_html_(self) -> str:
        """The page of `save("graph.html")` in a frame, as notebooks show it."""
        return str(way_up("Graph._repr_html_")(self))

    def copy(self) -> "Graph":
        """Return a graph of new nodes, values and calls, which passes may change.

        Scopes are shared, and so is what holds no value (constants, hyper-parameters).
        """
        return copy_graph(self, state=True)


def _plain_name(name: object, doing: str) -> str:
    if isinstance(name, str):
        return str.__str__(name)
    raise ArgumentError(
        f"{doing} takes a name, and was given {shown(name)}",
        why="calls and nodes are found by the text that their user knows",
        fix=f"graph.{doing}('layer1.0')",
    )


def copy_graph(graph: Graph, *, state: bool) -> Graph:
    """Return a copy, as `Graph.copy` does.

    Args:
        graph: The graph.
        state: Whether parameters and buffers are new, too. No pass changes one, and they are
            half of the nodes of most models: a drawing takes those of the graph itself.
    """
    nodes: dict[Node, Node] = {}
    values: dict[Value, Value] = {}
    for node in graph.nodes:
        if not state and node.kind in STATE:
            nodes[node] = node
            values.update(zip(node.outputs, node.outputs, strict=True))
            continue
        # By position, and only what is there: this is much of a conversion's time.
        nodes[node] = twin = Node(
            node.name,
            node.op,
            node.kind,
            node.scope,
            list(map(values.get, node.inputs, node.inputs)) if node.inputs else [],
            [],
            copy_arguments(node.arguments, values) if node.arguments else [],
            [nodes.get(other, other) for other in node.control_inputs]
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
                twin, old.index, old.shape, old.dtype, old.device, old.sharding
            )
            twin.outputs.append(new)
    in_calls = _Twins(nodes, values)
    return replace(
        graph,
        nodes=list(nodes.values()),
        inputs=[nodes.get(node, node) for node in graph.inputs],
        outputs=[
            replace(
                output,
                value=values.get(output.value, output.value),
                control_inputs=tuple(nodes.get(other, other) for other in output.control_inputs),
            )
            for output in graph.outputs
        ],
        calls=[_copy_call(call, in_calls) for call in graph.calls],
        notes=[
            replace(note, node=nodes.get(note.node)) if note.node else note for note in graph.notes
        ],
    )


def copy_body(body: Body, nodes: dict[Node, Node], values: dict[Value, Value]) -> Body:
    """Return the kernels of a node's twin, where others stand for what they read outside."""
    inside = Graph("", body.nodes).copy()
    # What it hands on is given outside; what a kernel gives, by its twin.
    twins = dict(zip(body.nodes, inside.nodes, strict=True))
    for twin in inside.nodes:
        twin.inputs = [values.get(value, value) for value in twin.inputs]
        twin.arguments = copy_arguments(twin.arguments, values)
        if twin.control_inputs:
            twin.control_inputs = [nodes.get(other, other) for other in twin.control_inputs]
    return Body(
        inside.nodes,
        [
            twins[value.producer].outputs[value.index]
            if value.producer in twins
            else values.get(value, value)
            for value in body.results
        ],
        [twins[writer] for writer in body.writers],
    )


class _Twins:
    """What calls of a copy name: the copied values, with the types that the calls saw.

    A pass that leaves views out has calls name a value that no node lists: it stands where
    its index says, and tells another type than the one there.
    """

    def __init__(self, nodes: dict[Node, Node], values: dict[Value, Value]) -> None:
        self._nodes = nodes
        self._values = values

    def get(self, value: Value, _: Nest = None) -> Nest:
        """Return the twin of a value; the value itself where another graph gives it."""
        twin = self._values.get(value)
        if twin is None and value.producer in self._nodes:
            node = self._nodes[value.producer]
            return Value(node, value.index, value.shape, value.dtype, value.device, value.sharding)
        return value if twin is None else twin


def _copy_call(call: Call, values: _Twins) -> Call:
    return Call(
        call.scope,
        call.class_name,
        call.qualified_name,
        copy_arguments(call.arguments, values),
        map_values(call.results, values),
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


def require_graph(thing: object, doing: str = "this") -> None:
    """Check that something is a graph.

    Args:
        thing: Anything.
        doing: What is to be done with it, for the message.
    Raises:
        ArgumentError: It is none.
    """
    if not isinstance(thing, Graph):
        raise ArgumentError(
            f"{doing} takes a graph, and was given {shown(thing)}",
            why="a graph is what tbscope.trace, tbscope.record and add_graph give",
            fix="graph = tbscope.trace(model, input)",
        )


# -- text -----------------------------------------------------------------------------------


def graph_to_text(graph: Graph, *, sources: bool = False, parameters: bool = False) -> str:
    """Return a graph as text: inputs in the head, one node a line, outputs at the end.

    Args:
        graph: The graph.
        sources: Whether each line ends in the place in the user's code.
        parameters: Whether parameters and buffers have lines of their own; else they
            are told only by the operations that read them, by their qualified names.
    Returns:
        Lines without a line end after the last. An input that was given under two names
        has both: `%input_ids = %labels : Long(1, 8)`.
    """
    inputs = []
    for node in graph.inputs:
        also = str(node.attributes.get("also", "")).split(", ")
        others = "".join(f" = %{one_line(name)}" for name in also if name)
        inputs += [f"{value_name(one)}{others} : {type_to_text(one)}" for one in node.outputs]
    lines = body_to_lines(graph, sources=sources, parameters=parameters)
    return "\n".join([listed("graph(", inputs, "):"), *lines])


def body_to_lines(graph: Graph, *, sources: bool = False, parameters: bool = False) -> list[str]:
    """Return the lines of a graph below its head: one for each node, and what it returns."""
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
    """Return entries between a start and an end: on one line, or where that is wide, on several."""
    line = start + ", ".join(entries) + end
    if len(line) <= _WIDTH:
        return line
    return start + f",\n{' ' * len(start)}".join(entries) + end
