"""The union of two graphs: all that stands in either, each node with what became of it.

What both have is told as the second one has it. What only the first one has stands in the scopes
that became of its own; dotted lines lead from it to what read it and is still there.
"""

from tbscope.comparing.changes import Comparison, Visit
from tbscope.comparing.reading import Reading
from tbscope.functions.definition import Use
from tbscope.ir.builder import claim_name
from tbscope.ir.graph import Argument, Call, Constant, Graph, Nest, Node, Output, Value
from tbscope.ir.nests import map_values
from tbscope.ir.nodes import OPERATIONS, STATE, type_to_text
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["union_graph"]

_FATE, _DETAILS = "difference", "differs"
# What a call was given that no node of the union gives.
_GONE = Constant("gone")


def union_graph(before: Reading, after: Reading, comparison: Comparison) -> Graph:
    """Return the graph of all that stands in one of two graphs, or in both."""
    return _Union(before, after, comparison).graph


class _Union:
    """Builds the union on a copy of the second graph.

    Args:
        before: The first graph.
        after: The second one.
        comparison: How their outlines differ.

    Attributes:
        graph: The union.
    """

    def __init__(self, before: Reading, after: Reading, comparison: Comparison) -> None:
        self._before = before
        self._comparison = comparison
        self.graph = graph = after.graph.copy()
        if before.graph.name != graph.name:
            graph.name = f"{before.graph.name} -> {graph.name}"
        self._copies = dict(zip(after.graph.nodes, graph.nodes, strict=True))
        # What each node and each scope of the first graph became.
        self._nodes: dict[Node, Node | None] = {}
        self._values: dict[Value, Value] = {}
        # By a constant of the first graph, the one that its reader reads now.
        self._constants: dict[Node, Node] = {}
        self._told: dict[Use, str] = {}
        self._scopes: dict[Scope | None, Scope | None] = {None: None}
        self._taken = {node.name for node in graph.nodes}
        self._known = {(one.parent, one.part, one.kind): one for one in graph.scopes()}
        # A path tells of no kind, so two scopes of one place have two numbers.
        self._places = {(a, b.label, b.attribute, b.index) for a, b, _ in self._known}
        for node in graph.nodes:
            if node.kind in OPERATIONS:
                node.attributes[_FATE] = "added"
        self._match(before.whole, after.whole)
        self._tell_calls()
        self._match_constants()
        self._match_sources()
        self._add_removed()
        self._add_outputs()

    # -- what both have ---------------------------------------------------------------

    def _match(self, before: Use, after: Use) -> None:
        pending: list[tuple[Use, Use, Visit | None]] = [(before, after, self._comparison.start())]
        while pending:
            one, other, visit = pending.pop()
            if visit is None:
                for part, twin in zip(one.parts, other.parts, strict=True):
                    pending += self._pair(part, twin, None, "")
                continue
            pair = visit.pair
            for match in pair.matches:
                part = one if visit.alone[0] is not None else one.parts[match.left]
                twin = other if visit.alone[1] is not None else other.parts[match.right]
                below = self._comparison.below(visit, match)
                details = [*pair.steps.get(match, ())]
                if below is not None and not match.wrapped:
                    details += below.pair.details
                told = "; ".join(map(str, details))
                if match in pair.replaced:
                    self._replace(part, twin, told)
                elif match.wrapped:
                    pending.append((_use(part), _use(twin), below))
                else:
                    pending += self._pair(part, twin, below, told)

    def _pair(
        self, part: Node | Use, twin: Node | Use, below: Visit | None, told: str
    ) -> list[tuple[Use, Use, Visit | None]]:
        """Have one part stand for another one; return what is to be done for those in them."""
        if isinstance(part, Node) and isinstance(twin, Node):
            copy = self._copies[twin]
            self._scopes[part.scope] = twin.scope
            for value, other in zip(part.outputs, copy.outputs, strict=False):
                self._values[value] = other
            self._nodes[part] = copy
            self._tell(copy, told)
            return []
        part, twin = _use(part), _use(twin)
        self._scopes[part.scope] = twin.scope
        if told:
            self._told[twin] = told
        return [(part, twin, below)]

    def _tell(self, copy: Node, told: str) -> None:
        copy.attributes[_FATE] = "changed" if told else "same"
        if told:
            copy.attributes[_DETAILS] = told

    def _tell_calls(self) -> None:
        """Have the operations right in a call that changed itself tell it, where no other does."""
        for use, told in self._told.items():
            inside = [self._copies[part] for part in use.parts if isinstance(part, Node)]
            if all(copy.attributes[_FATE] == "same" for copy in inside):
                for copy in inside:
                    self._tell(copy, told)

    def _replace(self, part: Node | Use, twin: Node | Use, told: str) -> None:
        """Take one leaf module for another one: what runs in the new one is what changed."""
        part, twin = _use(part), _use(twin)
        self._scopes[part.scope] = twin.scope
        for value, other in zip(part.outputs, twin.outputs, strict=False):
            self._values[value] = self._value_of(other)
        last: Node | None = None
        for node in twin.parts:
            if isinstance(node, Node):
                last = self._copies[node]
                self._tell(last, told)
        for node in part.parts:
            if isinstance(node, Node):
                self._nodes[node] = last

    def _value_of(self, value: Value) -> Value:
        """Return what a value of the second graph is in the union."""
        return self._copies[value.producer].outputs[value.index]

    # -- what stands outside of calls -------------------------------------------------

    def _match_sources(self) -> None:
        """Match inputs, parameters, buffers and constants, by their names."""
        names = {node.name: node for node in self.graph.nodes if node.kind not in OPERATIONS}
        matched = self._comparison.inputs
        for node in self._before.graph.nodes:
            if node.kind in OPERATIONS:
                continue
            now = matched.get(node.name) if node.kind == "input" else None
            if node.kind in STATE and self._is_there(node.scope):
                now = self._comparison.name_now(node.name)
            twin = names.get(now or "")
            if node.kind == "constant":
                twin = self._constants.get(node)
            if twin is None or twin.kind != node.kind:
                continue
            self._nodes[node] = twin
            self._scopes.setdefault(node.scope, twin.scope)
            same = _types(node) == _types(twin)
            twin.attributes[_FATE] = "same" if same else "changed"
            if not same:
                twin.attributes[_DETAILS] = f"{_types(node)} -> {_types(twin)}"
            self._values.update(zip(node.outputs, twin.outputs, strict=False))
        for node in self.graph.nodes:
            node.attributes.setdefault(_FATE, "added")

    def _is_there(self, scope: Scope | None) -> bool:
        """Tell whether the module of a scope still is one; containers tell nothing of that."""
        return scope is None or scope.kind != "module" or scope in self._scopes

    def _match_constants(self) -> None:
        for node, copy in self._nodes.items():
            if copy is None or len(node.inputs) != len(copy.inputs):
                continue
            for value, other in zip(node.inputs, copy.inputs, strict=True):
                if value.producer.kind == other.producer.kind == "constant":
                    self._constants.setdefault(value.producer, other.producer)

    # -- what only the first one has --------------------------------------------------

    def _add_removed(self) -> None:
        graph = self.graph
        places: dict[Node, tuple[int, int]] = {node: (at, 0) for at, node in enumerate(graph.nodes)}
        gone = [node for node in self._before.graph.nodes if node not in self._nodes]
        read = {value.producer for node in gone for value in node.inputs}
        calls = {call.scope for call in graph.calls}
        for number, node in enumerate(gone, 1):
            if node.kind not in OPERATIONS and node.kind != "input" and node not in read:
                continue
            copy = self._removed(node)
            above = [places[value.producer] for value in copy.inputs]
            above += [places[other] for other in copy.control_inputs]
            places[copy] = (max(above, default=(-1, 0))[0], number)
            self._nodes[node] = copy
            if node.kind == "input":
                graph.inputs.append(copy)
        graph.nodes = sorted(places, key=places.__getitem__)
        self._add_calls(calls)
        removed = {id(self._nodes[node]) for node in gone if node in self._nodes}
        for node in self._before.graph.nodes:
            now = self._nodes.get(node)
            if now is None or id(now) in removed:
                continue
            for value in node.inputs:
                source = self._nodes.get(value.producer)
                if (
                    source is not None
                    and id(source) in removed
                    and places[source] < places[now]
                    and source not in now.control_inputs
                ):
                    now.control_inputs.append(source)

    def _removed(self, node: Node) -> Node:
        copy = Node(
            claim_name(node.name, self._taken),
            node.op,
            node.kind,
            self._scope(node.scope),
            [self._values[value] for value in node.inputs if value in self._values],
            source=node.source,
            kernels=node.kernels,
            flops=node.flops,
            allocated_bytes=node.allocated_bytes,
            role=node.role,
            random=node.random,
            phase=node.phase,
        )
        copy.attributes = {**node.attributes, _FATE: "removed"}
        copy.arguments = self._arguments(node.arguments)
        waited = [self._nodes.get(other) for other in node.control_inputs]
        copy.control_inputs = [other for other in waited if other is not None]
        for value in node.outputs:
            new = Value(copy, value.index, value.shape, value.dtype, value.device)
            copy.outputs.append(new)
            self._values[value] = new
        return copy

    def _arguments(self, arguments: list[Argument]) -> list[Argument]:
        return [Argument(name, map_values(nest, self)) for name, nest in arguments]

    def get(self, value: Value, _: Nest = None) -> Nest:
        """Return what stands for a value of the first graph, as a mapping from these does."""
        return self._values.get(value, _GONE)

    def _scope(self, scope: Scope | None) -> Scope | None:
        """Return where in the union that stands which stood in a scope of the first graph."""
        pending: list[Scope] = []
        while scope not in self._scopes:
            assert scope is not None, "the top level is known"
            pending.append(scope)
            scope = scope.parent
        found = self._scopes[scope]
        for one in reversed(pending):
            if one.kind != "module" and (found, one.part, one.kind) in self._known:
                found = self._known[found, one.part, one.kind]
            else:
                found = self._new_scope(one, found)
            self._scopes[one] = found
        return found

    def _new_scope(self, scope: Scope, parent: Scope | None) -> Scope:
        part = scope.part
        alike = (parent, part.label, part.attribute)
        index = part.index
        while (*alike, index) in self._places:
            index += 1
        self._places.add((*alike, index))
        new = Scope(
            ScopePart(part.label, part.attribute, index),
            parent=parent,
            kind=scope.kind,
            qualified_name=scope.qualified_name,
            phase=scope.phase,
        )
        self._known[parent, new.part, new.kind] = new
        return new

    def _add_calls(self, calls: set[Scope]) -> None:
        """Add the calls of the scopes that are new."""
        for call in self._before.graph.calls:
            scope = self._scope(call.scope)
            assert scope is not None, "a call has a scope"
            if scope in calls:
                continue
            self.graph.calls.append(
                Call(
                    scope,
                    call.class_name,
                    call.qualified_name,
                    self._arguments(call.arguments),
                    map_values(call.results, self),
                    call.hyperparameters,
                    call.training,
                    call.parameters,
                    call.source,
                    call.defined,
                    call.number,
                )
            )

    def _add_outputs(self) -> None:
        names = {output.name for output in self.graph.outputs}
        for output in self._before.graph.outputs:
            if output.name not in names and output.value in self._values:
                self.graph.outputs.append(Output(output.name, self._values[output.value]))


def _use(part: Node | Use) -> Use:
    assert isinstance(part, Use), "calls stand for calls alone"
    return part


def _types(node: Node) -> str:
    return ", ".join(type_to_text(value, device=False) for value in node.outputs)
