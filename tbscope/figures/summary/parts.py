"""The parts of a model as a tree: its modules as the author wrote them, with their figures.

A part's figures are the sums of what stands in it and below it, and each parameter
counts once.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tbscope.figures.costs import node_costs
from tbscope.figures.summary.counting import count_parameters
from tbscope.figures.summary.part import Part, PartKind, walk
from tbscope.figures.summary.told import parameter_of
from tbscope.ir.graph import Graph, Module
from tbscope.ir.regions import STATE, Inherited, upward
from tbscope.ir.scopes import Scope

__all__ = ["HeldParts", "held_parts", "model_parts"]

_Place: TypeAlias = tuple[object, ...]

# What runs inside of a scripted module is seen, but not in which part of it.
_SCRIPTED = "torch.jit."


def model_parts(graph: Graph, *, per_call: bool = False, by_nodes: bool = False) -> Part:
    """Return the parts of a graph.

    Args:
        graph: The graph as it was recorded.
        per_call: Whether each call of a module is a part of its own.
        by_nodes: Whether nodes tell what is held, as no module does.
    Returns:
        The outermost part: the model, or what holds several models and what ran beside them.
    """
    tree = _Tree(graph, per_call=per_call)
    tree.add_costs()
    if by_nodes:
        tree.add_state()
    root = tree.top
    if len(root.children) == 1 and not root.costs.operations and not root.held:
        root = root.children[0]
        root.parent = None
    parts = list(walk(root))
    count_parameters(parts)
    if per_call and not by_nodes:
        # One call may leave out what another one runs, which is then a part of that one alone.
        whole = held_parts(graph).of_scope
        for part in parts:
            if part.name is not None and part.scopes:
                part.holds = whole[part.scopes[0]].holds
    for part in reversed(parts):
        if part.kind == "unused" and part.class_name.startswith(_SCRIPTED):
            part.kind = "container"
        if part.parent is not None:
            part.parent.costs.add(part.costs)
            if part.kind != "unused" and part.parent.kind == "unused":
                part.parent.kind = "container"
    return root


class HeldParts(NamedTuple):
    """The parts of a graph with all that they hold, and without their costs.

    A module that is called twice is one part, of both scopes; what was never called is below
    the part that holds it.

    Attributes:
        top: What holds all.
        of_scope: The part that each scope belongs to.
    """

    top: Part
    of_scope: Mapping[Scope, Part]

    def forget(self) -> None:
        """Let go of all parts, once nothing of them is asked any more."""
        # They refer to each other: garbage that only the collector finds.
        for part in list(walk(self.top)):
            part.children.clear()
            part.parent = None


def held_parts(graph: Graph) -> HeldParts:
    """Return the parts of a graph: who holds which parameters and buffers."""
    tree = _Tree(graph, per_call=False)
    tree.close()
    count_parameters(list(walk(tree.top)))
    return HeldParts(tree.top, tree.part_of)


class _Tree:
    """The tree of a graph: first its modules, then its scopes and calls.

    Args:
        graph: The graph.
        per_call: Whether each call of a module is a part of its own.

    Attributes:
        top: What holds all.
        part_of: The part of each scope.
    """

    def __init__(self, graph: Graph, *, per_call: bool) -> None:
        self.top = Part(graph.name, kind="graph")
        self.part_of: dict[Scope, Part] = {}
        self._graph = graph
        self._per_call = per_call
        self._parts: dict[_Place, Part] = {}
        # Models without a name, by number; which one a scope belongs to.
        self._roots: list[Module] = []
        self._told: dict[Scope, object] = {}
        self._root = Inherited[object](self._root_of, top=None)
        self._add_modules()
        self._add_scopes()
        self._add_calls()

    def close(self) -> None:
        """Let go of what refers to this, once all is added."""
        del self._root

    def _add_modules(self) -> None:
        """Add every module at its place, called or not."""
        parts = self._parts
        for module in self._graph.modules:
            name = module.name
            if not name:
                self._roots.append(module)
                if not module.class_name:
                    # Of a model that is no module, nobody knows more than what it holds.
                    self._parts[(len(self._roots) - 1, name)] = self.top
                    self.top.held = module.parameters
                    continue
            root = len(self._roots) - 1
            above, _, attribute = name.rpartition(".")
            holder = parts.get((root, above)) if name else None
            parts[(root, name)] = Part(
                module.class_name.rpartition(".")[2],
                parent=holder or self.top,
                class_name=module.class_name,
                attribute=(attribute if holder else name) or None,
                name=name,
                held=module.parameters,
                borrowed=module.borrowed,
            )
        if len(self._roots) > 1:
            self._told.update(self._told_by_parameters())

    def _told_by_parameters(self) -> Iterator[tuple[Scope, object]]:
        """Tell which of several models without a name was called, by what is read in it."""
        holders: dict[int, int] = {}
        root = -1
        for module in self._graph.modules:
            root += not module.name
            for parameter in module.parameters:
                holders.setdefault(parameter.number, root)
        for call in self._graph.calls:
            known = next((one.number for one in call.parameters if one.number in holders), None)
            if known is not None:
                for scope in upward(call.scope):
                    if scope.qualified_name == "":
                        yield scope, holders[known]

    def _add_scopes(self) -> None:
        """Find the part of each scope; what no module stands for becomes one."""
        for scope in self._graph.scopes():
            above = self.part_of[scope.parent] if scope.parent else self.top
            place = self._place(scope, above)
            part = self._parts.get(place)
            if part is None:
                self._parts[place] = part = self._open(scope, above)
            elif self._per_call and part.scopes:
                part = self._open(scope, above, twin=part)
            elif not part.scopes:
                part.label = scope.part.label
                if part.parent is not above:
                    # In a block by hand, in which its holder calls it.
                    part.move(above)
            if part.kind == "unused" or scope.kind == "module":
                part.kind = _kind_of(scope)
            part.scopes.append(scope)
            self.part_of[scope] = part

    def _place(self, scope: Scope, above: Part) -> _Place:
        root = self._root(scope)
        if scope.qualified_name is None:
            return (above, scope.part.label, scope.part.attribute)
        return (root, scope.qualified_name)

    def _root_of(self, scope: Scope, above: object) -> object:
        """Tell to which model a scope belongs, as the one around it; None where it is in none."""
        name = scope.qualified_name
        if scope in self._told:
            return self._told[scope]
        if name == "":
            return self._root_like(scope.part.label)
        if above is None and name is not None:
            # A model that was given a name.
            return next((place[0] for place in self._parts if place[1] == name), 0)
        return above

    def _root_like(self, label: str) -> object:
        if len(self._roots) == 1:
            return 0
        for number, module in enumerate(self._roots):
            if module.class_name.rpartition(".")[2] == label:
                return number
        return label

    def _open(self, scope: Scope, above: Part, *, twin: Part | None = None) -> Part:
        part = Part(
            scope.part.label,
            parent=above,
            kind=_kind_of(scope),
            class_name=twin.class_name if twin else "",
            attribute=scope.part.attribute,
            name=scope.qualified_name,
            held=twin.held if twin else (),
            borrowed=twin.borrowed if twin else (),
        )
        part.index = scope.part.index if twin else 0
        return part

    def _add_calls(self) -> None:
        """Hand each call to its part."""
        for call in self._graph.calls:
            part = self.part_of[call.scope]
            if not part.calls and not part.class_name:
                part.class_name = call.class_name
                part.held = call.parameters
            part.calls.append(call)

    def add_costs(self) -> None:
        """Hand what each operation costs to the part in which it ran."""
        for node, costs in node_costs(self._graph).items():
            part = self.part_of[node.scope] if node.scope else self.top
            part.costs.add(costs)

    def add_state(self) -> None:
        """Hand each parameter and buffer that a node stands for to the part where it stands."""
        for number, node in enumerate(self._graph.nodes):
            if node.kind in STATE:
                part = self.part_of[node.scope] if node.scope else self.top
                part.held = (*part.held, parameter_of(node, number))


def _kind_of(scope: Scope) -> PartKind:
    return scope.kind if scope.kind in ("module", "container") else "scope"
