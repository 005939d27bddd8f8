"""Union of two graphs: the nodes of both, each marked as added, removed, changed or same.

Common nodes are taken from the second graph. Nodes that only the first graph has are drawn in the
scopes that match theirs; control dependencies lead from them to their remaining readers.
"""

from dataclasses import replace
from typing import Any

from tbscope.comparison.build_structure import OutlinedGraph
from tbscope.comparison.changes import Comparison, Visit
from tbscope.functions.definition import Use
from tbscope.ir.builder import claim_name
from tbscope.ir.editing import Editor
from tbscope.ir.graph import Constant, Graph, Node
from tbscope.ir.nodes import OPERATIONS, copy_arguments, sources_of, type_to_text
from tbscope.ir.pytree import Replacements
from tbscope.ir.scopes import Scope

_FATE, _DETAILS = "difference", "differs"
# Placeholder for arguments and results of a call that have no value in the union.
_GONE = Constant("gone")


def union_graph(before: OutlinedGraph, after: OutlinedGraph, comparison: Comparison) -> Graph:
    """Return the union of two graphs."""
    return _Union(before, after, comparison).graph


class _Union:
    """Builds the union of copies of both graphs, in which equal nodes are merged.

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
        old = before.graph.copy()
        self.graph = graph = after.graph.copy()
        if old.name != graph.name:
            graph.name = f"{old.name} -> {graph.name}"
        self._old = dict(zip(before.graph.nodes, old.nodes, strict=True))
        self._copies = dict(zip(after.graph.nodes, graph.nodes, strict=True))
        self._editor = Editor(graph)
        # Maps from nodes and scopes of the first graph to the union's.
        self._nodes: dict[Node, Node | None] = {}
        self._scopes: dict[Scope | None, Scope | None] = {None: None}
        self._known = {(scope.parent, scope.part): scope for scope in graph.scopes()}
        for node in graph.nodes:
            node.attributes[_FATE] = "added"
        self._match(before.whole, after.whole)
        self._match_sources()
        self._add_removed(old)

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
                self._merge(old, self._copies[new], details)
                continue
            old, new = _use(old), _use(new)
            if details:
                texts[new] = details
            if visit is None:
                parts = zip(old.parts, new.parts, strict=True)
                pending += ((*pair, None, "") for pair in parts)
                continue
            for match in visit.pair.matches:
                left, right = visit.pair.blocks
                part = old.parts[match.left] if left.label else old
                new_part = new.parts[match.right] if right.label else new
                below = self._comparison.below(visit, match)
                differ = [*visit.pair.steps.get(match, ())]
                if below is not None and match.lone is None:
                    differ += below.pair.details
                text = "; ".join(map(str, differ))
                if match in visit.pair.replaced:
                    self._replace(_use(part), _use(new_part), text)
                else:
                    pending.append((part, new_part, below, text if match.lone is None else ""))
        # Details of a call are shown by its own operations, unless one of them differs already.
        for use, details in texts.items():
            inside = [self._copies[part] for part in use.parts if isinstance(part, Node)]
            if all(copy.attributes[_FATE] == "same" for copy in inside):
                for copy in inside:
                    _tell(copy, details)

    def _merge(self, node: Node, copy: Node, text: str) -> None:
        """Replace a node of the first graph by its counterpart."""
        old = self._old[node]
        self._nodes[node] = copy
        self._editor.stand_for(old, (copy,))
        for value, new_value in zip(old.outputs, copy.outputs, strict=False):
            self._editor.read_instead(value, new_value)
        _tell(copy, text)

    def _replace(self, part: Use, new_part: Use, text: str) -> None:
        """Replace a leaf module by its counterpart, whose operations are marked as changed."""
        self._scopes[part.scope] = new_part.scope
        for value, new_value in zip(part.outputs, new_part.outputs, strict=False):
            old, new = self._old[value.producer], self._copies[new_value.producer]
            self._editor.read_instead(old.outputs[value.index], new.outputs[new_value.index])
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
            self._scopes.setdefault(node.scope, counterpart.scope)
            before, after = _types(node), _types(counterpart)
            self._merge(node, counterpart, f"{before} -> {after}" if before != after else "")

    # -- nodes of the first graph only ---------------------------------------------------

    def _add_removed(self, old: Graph) -> None:
        graph = self.graph
        places: dict[Node, tuple[int, int]] = {node: (at, 0) for at, node in enumerate(graph.nodes)}
        removed = [node for node in self._before.nodes if node not in self._nodes]
        read = {value.producer for node in removed for value in node.inputs}
        kept = [
            self._old[node]
            for node in removed
            if node.kind in OPERATIONS or node.kind == "input" or node in read
        ]
        calls = {call.scope for call in graph.calls}
        for call in old.calls:
            scope = self._scope(call.scope)
            assert scope is not None, "a call has a scope"
            if scope not in calls:
                call.scope, call.run, call.step = scope, None, 0
                call.caller, call.called_as = None, ""
                graph.calls.append(call)
        names = {output.name for output in graph.outputs}
        graph.outputs += [output for output in old.outputs if output.name not in names]
        graph.inputs += old.inputs
        graph.nodes += old.nodes
        self._editor.drop({*old.nodes}.difference(kept), word=_GONE)
        self._editor.apply()
        taken = {node.name for node in places}
        for number, node in enumerate(kept, 1):
            node.name, node.scope = claim_name(node.name, taken), self._scope(node.scope)
            node.attributes[_FATE] = "removed"
            node.writes, node.run, node.step = (), None, 0
            place = max(
                (places[source][0] for source in sources_of(node) if source in places), default=-1
            )
            places[node] = (place, number)
            lost: Replacements[Any] = Replacements()
            lost |= {value: _GONE for value in node.inputs if value.producer not in places}
            node.inputs = [value for value in node.inputs if value not in lost]
            node.arguments = copy_arguments(node.arguments, lost)
        graph.nodes = sorted(places, key=places.__getitem__)
        graph.outputs = [output for output in graph.outputs if output.value.producer in places]
        for node in self._before.nodes:
            if (now := self._nodes.get(node)) is not None:
                for value in node.inputs:
                    source = self._old[value.producer]
                    if source in places and places[source] < places[now]:
                        now.control_inputs = [*dict.fromkeys([*now.control_inputs, source])]

    def _scope(self, scope: Scope | None) -> Scope | None:
        """Return the union's scope for a scope of the first graph, created if necessary."""
        pending: list[Scope] = []
        while scope not in self._scopes:
            assert scope is not None, "the top level is known"
            pending.append(scope)
            scope = scope.parent
        union_scope = self._scopes[scope]
        for missing in reversed(pending):
            part = missing.part
            # Calls have scopes of their own; two scopes of one path need different indices.
            while (known := self._known.get((union_scope, part))) is not None and (
                missing.kind == "module" or known.kind != missing.kind
            ):
                part = replace(part, index=part.index + 1)
            self._known[union_scope, part] = known = known or missing.like(part, union_scope)
            self._scopes[missing] = union_scope = known
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
