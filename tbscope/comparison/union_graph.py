"""Union of two graphs: the nodes of both, each marked as added, removed, changed or same.

Common nodes are taken from the second graph. Nodes that only the first graph has are drawn in the
scopes that match theirs; control dependencies lead from them to their remaining readers.
"""

from dataclasses import replace

from tbscope.comparison.build_structure import OutlinedGraph
from tbscope.comparison.changes import Comparison, Visit
from tbscope.functions.definition import Use
from tbscope.ir.builder import claim_name
from tbscope.ir.graph import Argument, Constant, Graph, Nest, Node, Output, Value
from tbscope.ir.nodes import OPERATIONS, sources_of, type_to_text
from tbscope.ir.pytree import map_values
from tbscope.ir.scopes import Scope

__all__ = ["union_graph"]

_FATE, _DETAILS = "difference", "differs"
# Placeholder for arguments and results of a call that have no value in the union.
_GONE = Constant("gone")


def union_graph(before: OutlinedGraph, after: OutlinedGraph, comparison: Comparison) -> Graph:
    """Return the union of two graphs."""
    return _Union(before, after, comparison).graph


class _Union:
    """Builds the union on a copy of the second graph.

    Args:
        before: The first graph with its outline.
        after: The second graph with its outline.
        comparison: Comparison of the outlines.

    Attributes:
        graph: The union.
    """

    def __init__(self, before: OutlinedGraph, after: OutlinedGraph, comparison: Comparison) -> None:
        self._before = before.graph
        self._comparison = comparison
        self.graph = graph = after.graph.copy()
        if before.graph.name != graph.name:
            graph.name = f"{before.graph.name} -> {graph.name}"
        self._copies = dict(zip(after.graph.nodes, graph.nodes, strict=True))
        # Maps from nodes, values and scopes of the first graph to the union's.
        self._nodes: dict[Node, Node | None] = {}
        self._values: dict[Value, Value] = {}
        self._scopes: dict[Scope | None, Scope | None] = {None: None}
        self._taken = {node.name for node in graph.nodes}
        self._known = {(scope.parent, scope.part, scope.kind): scope for scope in graph.scopes()}
        # A path does not contain the kind, so two scopes with one path need different indices.
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

    # -- common nodes --------------------------------------------------------------------

    def _match(self, before: Use, after: Use) -> None:
        texts: dict[Use, str] = {}
        pending: list[tuple[Node | Use, Node | Use, Visit | None, str]] = [
            (before, after, self._comparison.start(), "")
        ]
        while pending:
            old, new, visit, details = pending.pop()
            # The scope of a wrapper has no counterpart.
            if visit is None or all(block.label for block in visit.pair.blocks):
                self._scopes[old.scope] = new.scope
            if isinstance(old, Node) and isinstance(new, Node):
                copy = self._copies[new]
                self._nodes[old] = copy
                self._values.update(zip(old.outputs, copy.outputs, strict=False))
                _tell(copy, details)
                continue
            old, new = _use(old), _use(new)
            if details:
                texts[new] = details
            if visit is None:
                parts = zip(old.parts, new.parts, strict=True)
                pending += ((part, new_part, None, "") for part, new_part in parts)
                continue
            for match in visit.pair.matches:
                left, right = visit.pair.blocks
                part = old.parts[match.left] if left.label else old
                new_part = new.parts[match.right] if right.label else new
                below = self._comparison.below(visit, match)
                differ = [*visit.pair.steps.get(match, ())]
                if below is not None and not match.wrapped:
                    differ += below.pair.details
                text = "; ".join(map(str, differ))
                if match in visit.pair.replaced:
                    self._replace(_use(part), _use(new_part), text)
                else:
                    pending.append((part, new_part, below, "" if match.wrapped else text))
        # Details of a call are shown by its own operations, unless one of them differs already.
        for use, details in texts.items():
            inside = [self._copies[part] for part in use.parts if isinstance(part, Node)]
            if all(copy.attributes[_FATE] == "same" for copy in inside):
                for copy in inside:
                    _tell(copy, details)

    def _replace(self, part: Use, new_part: Use, text: str) -> None:
        """Replace a leaf module by its counterpart, whose operations are marked as changed."""
        self._scopes[part.scope] = new_part.scope
        for value, new_value in zip(part.outputs, new_part.outputs, strict=False):
            self._values[value] = self._copies[new_value.producer].outputs[new_value.index]
        last: Node | None = None
        for node in new_part.parts:
            if isinstance(node, Node):
                last = self._copies[node]
                _tell(last, text)
        self._nodes.update({node: last for node in part.parts if isinstance(node, Node)})

    def _match_sources(self) -> None:
        """Match inputs, parameters and buffers by name, constants by their readers."""
        constants: dict[Node, Node] = {}
        for node, copy in self._nodes.items():
            if copy is not None and len(node.inputs) == len(copy.inputs):
                for value, new_value in zip(node.inputs, copy.inputs, strict=True):
                    if value.producer.kind == new_value.producer.kind == "constant":
                        constants.setdefault(value.producer, new_value.producer)
        names = {node.name: node for node in self.graph.nodes if node.kind not in OPERATIONS}
        for node in self._before.nodes:
            if node.kind in OPERATIONS:
                continue
            counterpart = None
            if node.kind == "constant":
                counterpart = constants.get(node)
            elif node.kind == "input":
                counterpart = names.get(self._comparison.inputs.get(node.name, ""))
            # A parameter stays only if its module has a counterpart; other scopes are not checked.
            elif node.scope is None or node.scope.kind != "module" or node.scope in self._scopes:
                counterpart = names.get(self._comparison.name_now(node.name))
            if counterpart is None or counterpart.kind != node.kind:
                continue
            self._nodes[node] = counterpart
            self._values.update(zip(node.outputs, counterpart.outputs, strict=False))
            self._scopes.setdefault(node.scope, counterpart.scope)
            before, after = _types(node), _types(counterpart)
            _tell(counterpart, f"{before} -> {after}" if before != after else "")

    # -- nodes of the first graph only ---------------------------------------------------

    def _add_removed(self) -> None:
        graph = self.graph
        places: dict[Node, tuple[int, int]] = {node: (at, 0) for at, node in enumerate(graph.nodes)}
        removed_nodes = [node for node in self._before.nodes if node not in self._nodes]
        matched = dict(self._nodes)
        read = {value.producer for node in removed_nodes for value in node.inputs}
        for number, node in enumerate(removed_nodes, 1):
            if node.kind not in OPERATIONS and node.kind != "input" and node not in read:
                continue
            self._nodes[node] = copy = self._removed(node)
            places[copy] = (
                max((places[producer][0] for producer in sources_of(copy)), default=-1),
                number,
            )
            if node.kind == "input":
                graph.inputs.append(copy)
        graph.nodes = sorted(places, key=places.__getitem__)
        removed = {copy for copy, (_, number) in places.items() if number}
        for node in self._before.nodes:
            now = matched.get(node)
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
                copied_call = replace(
                    call, scope=scope, run=None, step=0, caller=None, called_as=""
                )
                copied_call.arguments = self._arguments(call.arguments)
                copied_call.results = map_values(call.results, self)
                graph.calls.append(copied_call)

    def _removed(self, node: Node) -> Node:
        waited = (self._nodes.get(source) for source in node.control_inputs)
        copy = Node(
            claim_name(node.name, self._taken),
            node.op,
            node.kind,
            self._scope(node.scope),
            [self._values[value] for value in node.inputs if value in self._values],
            arguments=self._arguments(node.arguments),
            control_inputs=[source for source in waited if source is not None],
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

    def __getitem__(self, value: Value) -> Nest:
        """Return the union's value for a value of the first graph."""
        return self._values.get(value, _GONE)

    def _scope(self, scope: Scope | None) -> Scope | None:
        """Return the union's scope for a scope of the first graph, created if necessary."""
        pending: list[Scope] = []
        while scope not in self._scopes:
            assert scope is not None, "the top level is known"
            pending.append(scope)
            scope = scope.parent
        union_scope = self._scopes[scope]
        for missing in reversed(pending):
            existing = self._known.get((union_scope, missing.part, missing.kind))
            if existing is None or missing.kind == "module":
                part = missing.part
                while (union_scope, part) in self._places:
                    part = replace(part, index=part.index + 1)
                self._places.add((union_scope, part))
                existing = missing.like(part, union_scope)
                self._known[union_scope, part, missing.kind] = existing
            self._scopes[missing] = union_scope = existing
        return union_scope


def _tell(copy: Node, text: str) -> None:
    copy.attributes[_FATE] = "changed" if text else "same"
    if text:
        copy.attributes[_DETAILS] = text


def _use(part: Node | Use) -> Use:
    assert isinstance(part, Use), "calls stand for calls alone"
    return part


def _types(node: Node) -> str:
    return ", ".join(type_to_text(value, device=False) for value in node.outputs)
