"""Scopes of collectives, by the modules that they serve.

Training that is sharded by hand gathers the parameters of a module while another module runs, and
gradients are reduced once autograd is done with them; stages of a pipeline send and receive outside
of every module. So a collective that ran in a hook or between modules finds its scope after the run
(`move_to_modules`): the producers of its inputs, or the readers of its results, lead to the module
that it serves.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import takewhile

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import STATE, sources_of
from tbscope.ir.pytree import values_in
from tbscope.ir.scopes import PHASE_BOXES, RECOMPUTED, Scope, ScopePart, self_and_ancestors

# The most nodes of a search: gathered parameters are near their collective.
_FAR = 64
_EMPTY = "empty"
# Names of the nodes that wait, by `work.wait()` and by a kernel.
_WAITS = ("wait", "wait_tensor")


def move_to_modules(graph: Graph, collectives: Collection[Node]) -> None:
    """Move collectives to the scopes of the modules that they serve.

    Args:
        graph: Changed in place: the scopes of collectives, and of nodes that only lead to them.
        collectives: The collectives.
    """
    if collectives:
        settling = _ModuleSearch(graph)
        for node in collectives:
            module_scope = settling.module_scope(node)
            if module_scope is not None and module_scope is not node.scope:
                settling.move(node, module_scope)


def move_to_recomputed(graph: Graph, boxes: Collection[Scope]) -> None:
    """Move boxes that gather parameters for a checkpoint beside the operations recomputed in it.

    Gradients read what is recomputed, so that a box among them would be part of a cycle.

    Args:
        graph: Changed in place: the scopes of nodes in these boxes.
        boxes: The boxes of sharded modules.
    """
    gathers = {box for box in boxes if (box.part.label, box.phase) == ("gather", "backward")}
    readers: dict[Scope | None, list[Scope]] = {}
    for node in graph.nodes if gathers else ():
        around = [*self_and_ancestors(node.scope)]
        if any(scope.part.label == RECOMPUTED for scope in around):
            for source in {source.scope for source in sources_of(node)} & gathers:
                readers.setdefault(source, []).append(around[0])
    moved = {
        box: Scope(ScopePart("gather"), parent=_around(scopes), kind="hand", phase="backward")
        for box, scopes in readers.items()
    }
    for node in graph.nodes if moved else ():
        node.scope = moved.get(node.scope, node.scope)


class _ModuleSearch:
    """The search for the scopes of one graph's collectives."""

    def __init__(self, graph: Graph) -> None:
        self._readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for source in sources_of(node):
                self._readers.setdefault(source, []).append(node)
        self._calls: dict[Value, Scope] = {}
        for call in graph.calls:
            for argument in call.arguments:
                for value in values_in(argument.nest):
                    self._calls.setdefault(value, call.scope)

    def module_scope(self, node: Node) -> Scope | None:
        """Return the scope of the module that a collective serves; None if it is there already."""
        module_scope = _around(self._owners(node))
        # A collective of another phase serves the gradients of the module.
        if module_scope is not None and (
            node.scope is None or node.phase == _root(module_scope).phase
        ):
            encloses_it = node.scope in {*module_scope.ancestors()}
            if not encloses_it or self._is_nowhere(node.scope):
                return module_scope
        if not self._is_nowhere(node.scope):
            return None
        by_readers = self._around_those(node, self._after)
        if node.collective is not None and node.collective.kind == "recv":
            # It reads nothing but the memory that it fills.
            return by_readers
        return self._around_those(node, sources_of) or by_readers

    def _is_nowhere(self, scope: Scope | None) -> bool:
        """Whether a scope belongs to no module: the top level, a whole pass or optimizer.

        A helper of torch (`clip_grad_norm_`) has a box of its own.
        """
        if scope is None or scope.parent is None:
            return scope is None or scope.part.label == PHASE_BOXES.get(scope.phase)
        outer = scope.parent
        return (
            scope.phase == "optimizer"
            and outer.parent is None
            and outer.part.label == PHASE_BOXES["optimizer"]
        )

    def _owners(self, node: Node) -> list[Scope]:
        """Return the scopes of the parameters or gradients from which alone a collective is made.

        The list is empty if other tensors lead to the collective as well, or if the search is too
        long.
        """
        scopes: list[Scope] = []
        seen: set[Node] = set()
        pending = [*sources_of(node)]
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            gradient = "gradient_of" in current.attributes and not self._is_nowhere(current.scope)
            # A kernel that allocates empty memory has no inputs to follow.
            empty = bool(current.kernels) and all(_EMPTY in kernel for kernel in current.kernels)
            if current.kind in STATE or gradient:
                scopes += [] if current.scope is None else [current.scope]
            elif len(seen) > _FAR or not (current.inputs or empty):
                return []
            else:
                pending += sources_of(current)
        return scopes

    def _after(self, node: Node) -> Iterable[Node]:
        """Return the nodes that read a node or depend on it."""
        return self._readers.get(node, ())

    def _around_those(self, node: Node, lead: Callable[[Node], Iterable[Node]]) -> Scope | None:
        """Return the scope that encloses the nearest nodes of modules in one direction.

        Args:
            node: The collective.
            lead: Returns the neighbours of a node in this direction: its producers or its readers.
        """
        scopes: list[Scope] = []
        seen = {node}
        pending = [node]
        while pending:
            current = pending.pop()
            if lead == self._after:
                scopes += [self._calls[value] for value in current.outputs if value in self._calls]
            for neighbour in lead(current):
                if neighbour in seen or neighbour.kind == "constant":
                    continue
                seen.add(neighbour)
                if neighbour.scope is not None and not self._is_nowhere(neighbour.scope):
                    scopes.append(neighbour.scope)
                elif len(seen) <= _FAR:
                    pending.append(neighbour)
        phases = {_root(scope).phase for scope in scopes}
        if len(phases) > 1 or (node.scope is not None and phases):
            # A tensor saved for the backward pass has readers there, too: the phase of the node
            # decides.
            phase = node.phase if node.scope is not None else "forward"
            scopes = [scope for scope in scopes if _root(scope).phase == phase]
        return _around(scopes)

    def move(self, node: Node, module_scope: Scope) -> None:
        """Move a collective, and the nodes beside it that only lead to it.

        Views of its result, waits for it, and operations that only store it in gradients move as
        well.
        """
        scope = node.scope
        # The box of a whole pass also contains nodes that were found at its end: the bucket of
        # gradients.
        beside = (scope, None if scope is None else _root(module_scope))
        moved = {node}
        pending = [*sources_of(node), *self._after(node)]
        while pending:
            near = pending.pop()
            if near in moved or near.kind != "op" or near.scope not in beside or near.collective:
                continue
            if "gradient_of" in near.attributes:
                # The gradient stays with its own module.
                continue
            waits = near.op in _WAITS
            if near.role is None and not moved.issuperset(self._after(near)) and not waits:
                stored = {value for at, value in enumerate(near.inputs) if at not in near.writes}
                if not near.writes or not moved.issuperset(value.producer for value in stored):
                    continue
            if (near.role == "view" or waits) and moved.isdisjoint(sources_of(near)):
                continue
            moved.add(near)
            pending += [*sources_of(near), *self._after(near)]
        leads = (sources_of, self._after)
        if scope is None and any(self._comes_back(moved, module_scope, lead) for lead in leads):
            # The script itself communicates what it computes from the results of the module.
            return
        phase = _root(module_scope).phase if scope is None else node.phase
        for each in moved:
            # The function that called it is no part of the module.
            each.scope, each.phase, each.run = module_scope, phase, None

    def _comes_back(
        self, moved: set[Node], module_scope: Scope, lead: Callable[[Node], Iterable[Node]]
    ) -> bool:
        """Whether data of a module goes through computations outside of it to some nodes, or back.

        Args:
            moved: The nodes, which would be in the module.
            module_scope: The scope of the module.
            lead: Returns the neighbours of a node in the direction of the search.
        """
        seen: set[Node] = set()
        pending = [(near, False) for node in moved for near in lead(node) if near.scope is None]
        while pending and len(seen) <= _FAR:
            node, computes = pending.pop()
            if node in moved or node in seen or node.kind != "op":
                continue
            if module_scope in self_and_ancestors(node.scope):
                if computes:
                    return True
                continue
            seen.add(node)
            pending += [(near, computes or node.role is None) for near in lead(node)]
        return False


def _root(scope: Scope) -> Scope:
    return [*self_and_ancestors(scope)][-1]


def _around(scopes: list[Scope]) -> Scope | None:
    """Return the innermost scope that encloses all of some scopes, or None."""
    common: list[Scope] = []
    for number, each in enumerate(dict.fromkeys(scopes)):
        path = [*self_and_ancestors(each)][::-1]
        same = takewhile(lambda pair: pair[0] is pair[1], zip(common, path, strict=False))
        common = [scope for scope, _ in same] if number else path
    return common[-1] if common else None
