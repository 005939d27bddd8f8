"""The union of two graphs: all that stands in either, each node with what became of it.

What both have is told as the second one has it. What only the first one has stands in the scopes
that became of its own; dotted lines lead from it to what read it and is still there.
"""

from dataclasses import replace

from tbscope.comparison.build_structure import Reading
from tbscope.comparison.changes import Comparison, Visit
from tbscope.functions.definition import Use
from tbscope.ir.builder import claim_name
from tbscope.ir.graph import Argument, Constant, Graph, Nest, Node, Output, Value
from tbscope.ir.nodes import OPERATIONS, sources_of, type_to_text
from tbscope.ir.pytree import map_values
from tbscope.ir.scopes import Scope

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
        self._before = before.graph
        self._comparison = comparison
        self.graph = graph = after.graph.copy()
        if before.graph.name != graph.name:
            graph.name = f"{before.graph.name} -> {graph.name}"
        self._copies = dict(zip(after.graph.nodes, graph.nodes, strict=True))
        # What each node, each value and each scope of the first graph became.
        self._nodes: dict[Node, Node | None] = {}
        self._values: dict[Value, Value] = {}
        self._scopes: dict[Scope | None, Scope | None] = {None: None}
        self._taken = {node.name for node in graph.nodes}
        self._known = {(one.parent, one.part, one.kind): one for one in graph.scopes()}
        # A path tells of no kind, so two scopes of one place have two numbers.
        self._places = {(parent, part) for parent, part, _ in self._known}
        for node in graph.nodes:
            node.attributes[_FATE] = "added"
        self._match(before.whole, after.whole)
        self._match_sources()
        self._add_removed()
        names = {output.name for output in graph.outputs}
        for output in self._before.outputs:
            if output.name not in names and output.value in self._values:
                graph.outputs.append(Output(output.name, self._values[output.value]))

    # -- what both have ---------------------------------------------------------------

    def _match(self, before: Use, after: Use) -> None:
        told: dict[Use, str] = {}
        pending: list[tuple[Node | Use, Node | Use, Visit | None, str]] = [
            (before, after, self._comparison.start(), "")
        ]
        while pending:
            one, other, visit, details = pending.pop()
            # What wraps a call stands for nothing itself.
            if visit is None or visit.alone == (None, None):
                self._scopes[one.scope] = other.scope
            if isinstance(one, Node) and isinstance(other, Node):
                copy = self._copies[other]
                self._nodes[one] = copy
                self._values.update(zip(one.outputs, copy.outputs, strict=False))
                _tell(copy, details)
                continue
            one, other = _use(one), _use(other)
            if details:
                told[other] = details
            if visit is None:
                parts = zip(one.parts, other.parts, strict=True)
                pending += ((part, twin, None, "") for part, twin in parts)
                continue
            for match in visit.pair.matches:
                part = one if visit.alone[0] is not None else one.parts[match.left]
                twin = other if visit.alone[1] is not None else other.parts[match.right]
                below = self._comparison.below(visit, match)
                differ = [*visit.pair.steps.get(match, ())]
                if below is not None and not match.wrapped:
                    differ += below.pair.details
                text = "; ".join(map(str, differ))
                if match in visit.pair.replaced:
                    self._replace(_use(part), _use(twin), text)
                else:
                    pending.append((part, twin, below, "" if match.wrapped else text))
        # Where a call changed itself, its own operations tell it, unless one of them tells more.
        for use, details in told.items():
            inside = [self._copies[part] for part in use.parts if isinstance(part, Node)]
            if all(copy.attributes[_FATE] == "same" for copy in inside):
                for copy in inside:
                    _tell(copy, details)

    def _replace(self, part: Use, twin: Use, told: str) -> None:
        """Take one leaf module for another one: what runs in the new one is what changed."""
        self._scopes[part.scope] = twin.scope
        for value, other in zip(part.outputs, twin.outputs, strict=False):
            self._values[value] = self._copies[other.producer].outputs[other.index]
        last: Node | None = None
        for node in twin.parts:
            if isinstance(node, Node):
                last = self._copies[node]
                _tell(last, told)
        self._nodes.update({node: last for node in part.parts if isinstance(node, Node)})

    def _match_sources(self) -> None:
        """Match inputs, parameters and buffers by their names, constants by what reads them."""
        constants: dict[Node, Node] = {}
        for node, copy in self._nodes.items():
            if copy is not None and len(node.inputs) == len(copy.inputs):
                for value, other in zip(node.inputs, copy.inputs, strict=True):
                    if value.producer.kind == other.producer.kind == "constant":
                        constants.setdefault(value.producer, other.producer)
        names = {node.name: node for node in self.graph.nodes if node.kind not in OPERATIONS}
        for node in self._before.nodes:
            if node.kind in OPERATIONS:
                continue
            twin = None
            if node.kind == "constant":
                twin = constants.get(node)
            elif node.kind == "input":
                twin = names.get(self._comparison.inputs.get(node.name, ""))
            # Whether the module of a parameter still is one; containers tell nothing of that.
            elif node.scope is None or node.scope.kind != "module" or node.scope in self._scopes:
                twin = names.get(self._comparison.name_now(node.name))
            if twin is None or twin.kind != node.kind:
                continue
            self._nodes[node] = twin
            self._values.update(zip(node.outputs, twin.outputs, strict=False))
            self._scopes.setdefault(node.scope, twin.scope)
            before, after = _types(node), _types(twin)
            _tell(twin, f"{before} -> {after}" if before != after else "")

    # -- what only the first one has --------------------------------------------------

    def _add_removed(self) -> None:
        graph = self.graph
        places: dict[Node, tuple[int, int]] = {node: (at, 0) for at, node in enumerate(graph.nodes)}
        gone = [node for node in self._before.nodes if node not in self._nodes]
        stay = dict(self._nodes)
        read = {value.producer for node in gone for value in node.inputs}
        for number, node in enumerate(gone, 1):
            if node.kind not in OPERATIONS and node.kind != "input" and node not in read:
                continue
            self._nodes[node] = copy = self._removed(node)
            places[copy] = max((places[one][0] for one in sources_of(copy)), default=-1), number
            if node.kind == "input":
                graph.inputs.append(copy)
        graph.nodes = sorted(places, key=places.__getitem__)
        removed = {copy for copy, (_, number) in places.items() if number}
        for node in self._before.nodes:
            now = stay.get(node)
            if now is None:
                continue
            for value in node.inputs:
                source = self._nodes.get(value.producer)
                if source is not None and source in removed and places[source] < places[now]:
                    now.control_inputs = [*dict.fromkeys([*now.control_inputs, source])]
        calls = {call.scope for call in graph.calls}
        for call in self._before.calls:
            scope = self._scope(call.scope)
            assert scope is not None, "a call has a scope"
            if scope not in calls:
                twin = replace(call, scope=scope, run=None, step=0, caller=None, called_as="")
                twin.arguments = self._arguments(call.arguments)
                twin.results = map_values(call.results, self)
                graph.calls.append(twin)

    def _removed(self, node: Node) -> Node:
        waited = (self._nodes.get(other) for other in node.control_inputs)
        copy = Node(
            claim_name(node.name, self._taken),
            node.op,
            node.kind,
            self._scope(node.scope),
            [self._values[value] for value in node.inputs if value in self._values],
            arguments=self._arguments(node.arguments),
            control_inputs=[other for other in waited if other is not None],
            source=node.source,
            kernels=node.kernels,
            attributes={**node.attributes, _FATE: "removed"},
            flops=node.flops,
            allocated_bytes=node.allocated_bytes,
            role=node.role,
            random=node.random,
            phase=node.phase,
        )
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
            known = self._known.get((found, one.part, one.kind))
            if known is None or one.kind == "module":
                part = one.part
                while (found, part) in self._places:
                    part = replace(part, index=part.index + 1)
                self._places.add((found, part))
                known = Scope(
                    part,
                    parent=found,
                    kind=one.kind,
                    qualified_name=one.qualified_name,
                    phase=one.phase,
                )
                self._known[found, part, one.kind] = known
            self._scopes[one] = found = known
        return found


def _tell(copy: Node, told: str) -> None:
    copy.attributes[_FATE] = "changed" if told else "same"
    if told:
        copy.attributes[_DETAILS] = told


def _use(part: Node | Use) -> Use:
    assert isinstance(part, Use), "calls stand for calls alone"
    return part


def _types(node: Node) -> str:
    return ", ".join(type_to_text(value, device=False) for value in node.outputs)
