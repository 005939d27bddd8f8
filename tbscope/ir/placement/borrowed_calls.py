"""Borrowed calls: calls and operations that are drawn in the caller's box, not in their own scope.

A module may call a module that it does not contain: an activation that several blocks share, a
memory that each layer receives as an argument. The scope of a call follows the module tree; drawn
there, the blocks that share the module would form cycles. So a call whose edges lead out of the
caller's box and back into it is placed in the caller's box, under the path of its module. So are
operations of other methods of a called module (`net.transform.postprocess(y)`), and calls of its
submodules from outside (`net.decoder.embed(ids)`), if the module's box would otherwise read a value
that depends on its own results.

Words of this file: the host of a call is the scope in which it is drawn; the owner of a function is
the scope of the module call in which it ran.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.metadata import CallFrame
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.partition import Level, Moves, Partition, Placement, Unit
from tbscope.ir.placement.reentrant_modules import place_reentrant_work
from tbscope.ir.scope_io import (
    OPERATIONS,
    OWNED,
    InheritedProperty,
    NearestProperty,
    self_and_ancestors,
)
from tbscope.ir.scopes import Scope, ScopePart

_NONE: tuple[Scope, ...] = ()
_HOLDING = frozenset({"module", "container"})


def place_borrowed_calls(graph: Graph) -> Placement:
    """Return the calls and operations that are drawn in the box of their caller.

    Args:
        graph: A graph, as recorded or as drawn.
    Returns:
        The box of the scope of each moved call is the scope of the module that called it; that of
        a moved operation of a method, or of the box of its kernels, the scope of the module that
        called the method. `parts` has the printed name of each of these calls in its new box,
        numbered from 0.
    """
    placement = Placement()
    owners = _owners(graph)
    callers = dict(_borrowed(graph, owners))
    if not owners and not any(call.caller for call in graph.calls):
        return placement
    partition = Partition(
        lambda: [
            *(node for node in graph.nodes if node.kind in OPERATIONS and node.phase == "forward"),
            *graph.scopes(),
        ],
        placement.boxes,
    )
    if callers:
        moved = [call.scope for call in graph.calls if call.scope in callers and is_shared(call)]
        moved += _Neighbours(graph, callers).all_moved()
        placement.boxes.update((scope, callers[scope]) for scope in moved)
        _add_cycles(callers, partition)
    _add_visits(graph, owners, partition)
    place_reentrant_work(graph, partition)
    if placement.boxes:
        _number_parts(graph, placement)
        _add_gradients(graph, placement)
    return placement


def _number_parts(graph: Graph, placement: Placement) -> None:
    """Set the printed names of moved calls, numbered in their order.

    The name is the path of the module in the caller's module, or else in the module that
    contains it. If the path begins with a module list of the caller, the call is placed in the
    box of that list.
    """
    lists = {
        (scope.parent, scope.part.attribute): scope
        for scope in graph.scopes()
        if scope.kind == "container"
    }
    numbers: Counter[tuple[Scope, ScopePart]] = Counter()
    for call in graph.calls:
        scope, host = call.scope, placement.boxes.get(call.scope)
        if host is None or call.number:
            continue
        attribute = call.called_as if host is call.caller else ""
        attribute = attribute or _path_in(scope, host)
        while host not in self_and_ancestors(scope) and "." in attribute:
            list_name, _, rest = attribute.partition(".")
            if (host, list_name) not in lists:
                break
            host, attribute = lists[host, list_name], rest
        placement.boxes[scope] = host
        part = replace(scope.part, attribute=attribute or None, index=0)
        placement.parts[scope] = replace(part, index=numbers[host, part])
        numbers[host, part] += 1


def _add_gradients(graph: Graph, placement: Placement) -> None:
    """Move the gradients of moved calls, too: their paths are the calls' paths in a phase's box."""
    of_path = {scope.parts: scope for scope in graph.scopes()}
    calls = {scope.parts: (scope, placement.boxes[scope]) for scope in placement.parts}
    for path, scope in of_path.items():
        call, host = calls.get(path[1:], (None, None))
        if call is not None and host is not None and path[:1] + host.parts in of_path:
            placement.boxes[scope] = of_path[path[:1] + host.parts]
            placement.parts[scope] = placement.parts[call]


def _borrowed(
    graph: Graph, owners: Mapping[CallFrame | None, Scope]
) -> Iterator[tuple[Scope, Scope]]:
    """Yield the scope of each call of a module that the caller does not contain, with the caller.

    The order is the order of the calls.
    """
    # A pass may have removed all nodes and calls of a caller.
    callers = {call.caller for call in graph.calls}.intersection(graph.scopes())
    for call in graph.calls:
        owner = call.caller if call.caller in callers else owners.get(call.run)
        if call.number or owner is None or owner is call.scope.parent:
            continue
        around = self_and_ancestors(call.scope.parent)
        if (
            owner not in around
            and call.scope not in self_and_ancestors(owner)
            # A part that another method of the owner's module called is in another scope of it.
            and _module_of(owner) not in map(_module_of, around)
        ):
            yield call.scope, owner


def is_shared(call: Call) -> bool:
    """Whether the caller and a second module, outside of the caller, both contain the module.

    The box of the second module takes no part in the call, so the call is placed with its caller.
    """
    holder = _holder(call.scope)
    return (
        bool(call.called_as)
        and holder is not None
        and holder not in self_and_ancestors(call.caller)
    )


def _add_cycles(callers: Mapping[Scope, Scope], partition: Partition) -> None:
    """Place calls with their callers if the box that contains their module would be on a cycle."""
    levels: dict[Scope | None, dict[Scope, Moves[Unit]]] = defaultdict(dict)
    for scope, caller in callers.items():
        if scope not in partition.boxes:
            around = set(self_and_ancestors(caller))
            level = next((outer for outer in self_and_ancestors(scope) if outer in around), None)
            levels[level][scope] = {scope: caller}
    for level, proposals in levels.items():
        _relieve(partition, level, proposals)


def _add_visits(
    graph: Graph, owners: Mapping[CallFrame | None, Scope], partition: Partition
) -> None:
    """Place a caller's work inside a module with the caller, if the module would be on a cycle.

    The work consists of methods of the module, and of calls of its submodules.
    """
    called = {call.scope for call in graph.calls}
    visits: dict[Scope, dict[Scope, dict[Unit, Scope | None]]] = defaultdict(
        lambda: defaultdict(dict)
    )

    def add(owner: Scope, inside: Sequence[Scope], unit: Unit) -> None:
        module = next(scope for scope in reversed(inside) if scope in called)
        visits[owner][module][unit] = owner

    for call in graph.calls:
        owner = call.caller or owners.get(call.run)
        if owner is not None and not call.number:
            inside = _inside(call.scope.parent, owner)
            if not called.isdisjoint(inside):
                add(owner, inside, call.scope)
    for node in graph.nodes:
        owner = owners.get(node.run)
        if owner is None or node.scope is owner or node.kind != "op" or node.phase != "forward":
            continue
        inside = _inside(node.scope, owner)
        if not called.isdisjoint(inside):
            # The kernels of an operation are moved with their box.
            boxes = [scope for scope in inside if scope.kind not in _HOLDING]
            add(owner, inside, boxes[-1] if boxes else node)
    for owner, proposals in visits.items():
        _relieve(partition, owner, proposals)


def _relieve(
    partition: Partition, holder: Scope | None, proposals: Mapping[Scope, Moves[Unit]]
) -> None:
    """Make the moves that take a box off all cycles.

    Args:
        partition: Changed in place.
        holder: The box of the level.
        proposals: The moves that may help the box around each scope. They are undone if the box is
            still on a cycle, which then has another cause.
    """
    level = Level(partition, holder, is_box=_is_no_list, deep=True)
    boxes = {scope: [*filter(_is_no_list, _inside(scope, holder))][-1] for scope in proposals}
    circling = level.circling()
    level.settle(
        {scope: moves for scope, moves in proposals.items() if boxes[scope] in circling},
        lambda scope: boxes[scope] not in level.circling(),
    )


def _is_no_list(scope: Scope) -> bool:
    return scope.kind != "container"


def _path_in(scope: Scope, host: Scope) -> str:
    """Return the path of a call's module in the host, or else in its parent module."""
    if scope.part.attribute is None:
        return ""
    path, ancestor = [scope], scope.parent
    while ancestor is not None and ancestor is not host:
        if ancestor.kind != "container" and host not in self_and_ancestors(ancestor):
            break
        path.append(ancestor)
        ancestor = ancestor.parent
    return ".".join(step.part.attribute or step.part.label for step in reversed(path))


def _inside(scope: Scope | None, owner: Scope | None) -> list[Scope]:
    """Return a scope and its ancestors below `owner`, innermost first; empty if not inside it."""
    inside: list[Scope] = []
    while scope is not owner:
        if scope is None:
            return []
        inside.append(scope)
        scope = scope.parent
    return inside


def _owners(graph: Graph) -> dict[CallFrame | None, Scope]:
    """Return the owner of each run of a function: the scope of the module that it is part of.

    A run that another run called has the owner of its outermost caller.
    """
    first_runs = _first_runs(graph)
    called: dict[CallFrame | None, set[Scope]] = defaultdict(set)
    for call in graph.calls:
        called[first_runs[call.run]].add(call.scope)
    working = set().union(*called.values())
    # Kernels are in the box of their operation, inside of the call. An operation that receives a
    # gradient from another rank is in the box of a backward pass, which is no caller.
    nearest = NearestProperty[Scope](
        lambda scope: scope if scope in working or _is_of_hand(scope) else None
    )
    owners: dict[CallFrame | None, Scope] = {}
    # Functions that ran operations only in their callees, which may be methods of other modules.
    unsure: set[CallFrame | None] = set()
    last: CallFrame | None = None
    for node in graph.nodes:
        run = node.run
        if run is last or run is None or node.kind != "op" or node.phase != "forward":
            continue
        last, first = run, first_runs[run]
        owner = nearest(node.scope)
        if owner is not None and (first not in owners or (run is first and first in unsure)):
            owners[first] = owner
            unsure.add(first)
        if run is first:
            unsure.discard(first)
    for run in unsure:
        # A function that called a module is outside of it, even if a method of the module ran.
        outermost = [scope for scope in self_and_ancestors(owners[run]) if scope in called[run]]
        if outermost:
            holder = _holder(outermost[-1])
            if holder is None:
                # The function is part of the script, outside of all modules.
                del owners[run]
            else:
                owners[run] = holder
    # The owner of a function without operations is the innermost module that contains a callee.
    known = set(owners)
    for call in graph.calls:
        run = first_runs[call.run]
        if run is None or run in known:
            continue
        holder = _holder(call.scope)
        if holder is None or holder in called[run]:
            continue
        owner = owners.setdefault(run, holder)
        owners[run] = holder if owner in self_and_ancestors(holder) else owner
    return {run: owners[first] for run, first in first_runs.items() if first in owners}


def _is_of_hand(scope: Scope) -> bool:
    return scope.kind == "hand" and scope.phase == "forward"


def _first_runs(graph: Graph) -> dict[CallFrame | None, CallFrame | None]:
    """Return the outermost caller of each run of a graph; None for None."""
    first_runs: dict[CallFrame | None, CallFrame | None] = {None: None}
    runs = [node.run for node in graph.nodes] + [call.run for call in graph.calls]
    for run in dict.fromkeys(runs):
        first = run
        while first is not None and first.around is not None:
            first = first.around
        first_runs[run] = first
    return first_runs


def _holder(scope: Scope) -> Scope | None:
    """Return the innermost module around a scope that is not a container (a module list)."""
    holder = scope.parent
    while holder is not None and holder.kind in ("container", "rank"):
        holder = holder.parent
    return holder


class _Neighbours:
    """The data flow between borrowed calls and their surroundings.

    Args:
        graph: The graph.
        callers: The scope that made each call.
    """

    def __init__(self, graph: Graph, callers: Mapping[Scope, Scope]) -> None:
        self._callers = callers
        self._boxes = {scope: _box_around(scope, caller) for scope, caller in callers.items()}
        # The borrowed calls that enclose each scope, the outermost first.
        self._borrowed = InheritedProperty[tuple[Scope, ...]](self._link_scope, top=_NONE)
        # For each call: whether it reads values from inside (True) and outside (False) of the box
        # of its caller; and the same for its readers.
        self._reads: dict[Scope, set[bool]] = {scope: set() for scope in callers}
        self._feeds: dict[Scope, set[bool]] = {scope: set() for scope in callers}
        called = {call.scope for call in graph.calls}
        is_called = NearestProperty[bool](lambda scope: scope in called or None)
        for output in graph.outputs:
            for scope in self._borrowed(output.value.producer.scope):
                self._feeds[scope].add(False)
        for node in graph.nodes:
            # Gradient computations are in no call, but recomputations for them are.
            if node.kind not in OWNED and (node.phase == "forward" or is_called(node.scope)):
                self._link_node(node)

    def all_moved(self) -> list[Scope]:
        """Return the calls that are placed in the box of their caller.

        A call is placed there if it leads back into the box. So are all other calls of its module
        that read something from such a box, and calls by a caller of a moved call that feed
        nothing else, since the parameters are drawn there. So are recursive calls of the module
        that a moved call makes.
        """
        callers = self._callers
        leading = [scope for scope in callers if self._leads_back(scope)]
        moved = {_module_of(scope) for scope in leading}
        there = {(_module_of(scope), callers[scope]) for scope in leading}
        there |= {(_module_of(scope), scope) for scope in leading}
        return [
            scope
            for scope in callers
            if self._leads_back(scope)
            or (_module_of(scope) in moved and True in self._reads[scope])
            or ((_module_of(scope), callers[scope]) in there and self._feeds[scope] == {True})
        ]

    def _leads_back(self, scope: Scope) -> bool:
        """Whether a call, or the box that contains its module, would be on a cycle."""
        if not self._reads[scope]:
            return self._feeds[scope] == {True}
        held_right_there = self._boxes[scope].parent is scope.parent
        return True in self._reads[scope] and (not held_right_there or True in self._feeds[scope])

    def _link_scope(self, scope: Scope, above: tuple[Scope, ...]) -> tuple[Scope, ...]:
        return (*above, scope) if scope in self._callers else above

    def _link_node(self, node: Node) -> None:
        here = self._borrowed(node.scope)
        for source in sources_of(node):
            there = self._borrowed(source.scope)
            if source.kind in OWNED or here == there:
                continue
            for scope in here:
                if scope not in there:
                    self._reads[scope].add(self._is_in(source, self._boxes[scope]))
            for scope in there:
                if scope not in here:
                    self._feeds[scope].add(self._is_in(node, self._boxes[scope]))

    def _is_in(self, node: Node, box: Scope) -> bool:
        """Whether a node is in a box, or in a call that was made from the box.

        Calls made by such a call count, too, as in a module that calls itself.
        """
        scope, seen = node.scope, set[Scope]()
        while borrowed := self._borrowed(scope):
            moved = borrowed[0]
            if moved in seen:
                return False
            seen.add(moved)
            path = self_and_ancestors(scope)
            if box in path[: path.index(moved) + 1]:
                return True
            scope = self._callers[moved]
        return box in self_and_ancestors(scope)


def _module_of(scope: Scope) -> tuple[Scope | None, str, str | None]:
    return scope.parent, scope.part.label, scope.part.attribute


def _box_around(scope: Scope, caller: Scope) -> Scope:
    """Return the outermost scope around a caller that does not enclose the call, or the caller."""
    around = set(self_and_ancestors(scope))
    box = caller
    while box.parent is not None and box.parent not in around:
        box = box.parent
    return box
