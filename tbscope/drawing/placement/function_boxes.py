"""Function boxes: boxes around the operations of a helper function, and of a loop iteration.

A level that is too full for the page is structured like its source code: the operations of one
call of a function are drawn in a box of the function's name, and each iteration of a loop in a
box (`step.0`, `step.1`). All operations between the first and the last of a call frame, or of an
iteration, ran in it; so a box of this kind does not read its own results.

A call frame is a `CallFrame`: one call of one function. The operations of a level are grouped by
the call frames that they share (`_Unit.chain`), and those of one frame into iterations by the steps
at which they ran (`_Unit.steps`): a step lower than the preceding one begins a new iteration.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from tbscope.drawing.placement.containers import Stage
from tbscope.ir.graph import Graph
from tbscope.ir.metadata import CallFrame
from tbscope.ir.placement.partition import Level, Partition, Placement, Unit
from tbscope.ir.scope_io import OPERATIONS, NearestProperty, with_above
from tbscope.ir.scopes import PHASE_BOXES, Scope, ScopePart

_Loop: TypeAlias = tuple[int, int]

# The fewest operations beside its modules that make an iteration worth a box.
_MUCH_BETWEEN = 4


class _Unit(NamedTuple):
    """An operation or a box on a level.

    Attributes:
        item: The operation, or the scope of the box.
        chain: The call frames in which all of it ran, outermost first.
        steps: The position in the code of each of these call frames.
        modules: The names of the modules that were called in it.
        lists: The lists on this level that contain it, outermost first.
    """

    item: Unit
    chain: tuple[CallFrame, ...]
    steps: tuple[int, ...]
    modules: frozenset[str]
    lists: tuple[Scope, ...] = ()


class _Called(NamedTuple):
    """The call of a module.

    Attributes:
        run: The call frame that called the module, or None if unknown.
        step: The position in the code of that call frame.
        name: The module's name.
        number: The number of calls that began before this one.
    """

    run: CallFrame | None
    step: int
    name: str
    number: int


class _Event(NamedTuple):
    """One execution of one position in the code of a function.

    Attributes:
        step: The position.
        within: The call frame of the function that was called there; None if there is none.
        members: The units that ran there.
    """

    step: int
    within: CallFrame | None
    members: list[_Unit]


class FunctionBoxes:
    """Makes boxes for the functions and loop iterations of one graph, level by level, on request.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        borrowed: The calls and nodes that are drawn in the box of their caller.

    Attributes:
        placement: `borrowed`, with the boxes so far and the placement of their contents.
        changed: Whether boxes were made since the caller last cleared this flag.
    """

    def __init__(self, graph: Graph, borrowed: Placement) -> None:
        self.placement = replace(
            borrowed, all=[], boxes={**borrowed.boxes}, parts={**borrowed.parts}, free=[]
        )
        self.changed = False
        self._graph = graph
        self._calls: dict[Scope, _Called] = {}
        self._order = order = dict[Unit, int]()
        self._numbers: Counter[tuple[Scope | None, str]] = Counter()
        # Cached, since each stage reads the units of a level; cleared when a unit moves.
        self._known_units: dict[Scope | None, list[_Unit]] = {}
        # The module call of each outermost call frame, which is its forward or a decorator of it.
        self._forwards: dict[CallFrame, Scope] = {}
        operations = [node for node in graph.nodes if node.kind in OPERATIONS]
        self._partition = Partition(
            lambda: [*operations, *(scope for scope in graph.scopes() if scope in order)],
            self.placement.boxes,
        )
        for at, node in enumerate(operations):
            self._order[node] = at
            scope = self._partition.box_of(node)
            while scope is not None and scope not in self._order:
                self._order[scope] = at
                scope = scope.parent
        for scope in graph.scopes():
            key = scope.parent, scope.part.label
            if scope.part.attribute is None:
                self._numbers[key] = max(self._numbers[key], scope.part.index + 1)
        for call in graph.calls:
            if call.number == 0:
                name = call.qualified_name or call.scope.path
                self._calls[call.scope] = _Called(call.run, call.step, name, len(self._calls))
        called = NearestProperty[Scope](lambda scope: scope if scope in self._calls else None)
        for node in graph.nodes:
            if node.run is not None and node not in borrowed.boxes:
                caller = called(node.scope)
                if caller is not None:
                    self._forwards.setdefault(node.run.outermost(), caller)

    # -- units of a level --------------------------------------------------------------------

    def _units(self, level: Scope | None) -> list[_Unit]:
        """Return the operations and boxes directly on a level, in the order of the graph."""
        if level not in self._known_units:
            items = sorted(self._partition.inside[level], key=self._order.__getitem__)
            self._known_units[level] = [
                self._unit(item)
                if isinstance(item, Scope)
                else _Unit(item, *_calls_around(item.run, item.step), frozenset())
                for item in items
                if isinstance(item, Scope) or item.kind == "op"
            ]
        return self._known_units[level]

    def _unit(self, scope: Scope) -> _Unit:
        call = self._calls.get(scope)
        if call is not None:
            return _Unit(scope, *self._called(scope), frozenset({call.name}))
        inner = self._units(scope)
        modules = frozenset().union(*(member.modules for member in inner))
        if scope.phase != "forward":
            # Autograd changes the memory layout of some gradients outside of any user function:
            # these units must not shorten the common chain.
            inner = [unit for unit in inner if unit.chain]
            modules |= {scope.part.label}
        chain, steps = _shared(inner)
        return _Unit(scope, chain, steps, modules)

    def _called(self, scope: Scope) -> tuple[tuple[CallFrame, ...], tuple[int, ...]]:
        """Return the call frames in which a module was called, and the position in each.

        If the caller is a module drawn outside of the enclosing boxes (beside it, such as an
        unregistered module), the call frames in which that module was called come first.
        """
        call = self._calls[scope]
        chain, steps = _calls_around(call.run, call.step)
        caller = self._forwards.get(chain[0]) if chain else None
        level = self._partition.box_of(scope)
        if caller is None or caller in with_above([level]):
            return chain, steps
        if self._calls[caller].number >= call.number:
            return chain, steps
        outer, outer_steps = self._called(caller)
        return (*outer, *chain), (*outer_steps, *steps)

    # -- boxes of a level --------------------------------------------------------------------

    def add_all_functions(self) -> None:
        """Make a box of every function that ran several units of a level, but not all of them."""
        pending: list[Scope | None] = [None, *self._graph.scopes()]
        for level in pending:
            before = len(self.placement.all)
            self.add_boxes(level, "functions")
            pending += self.placement.all[before:]

    def add_boxes(self, level: Scope | None, stage: Stage) -> bool:
        """Make the boxes of one stage directly on a level.

        Args:
            level: The scope of the level; None for the top level.
            stage: The kind of boxes.
        Returns:
            Whether any box was made.
        """
        units = self._units(level)
        # Grouped by the outermost call frame: hooks do not run inside of forward.
        outermost: dict[CallFrame, list[_Unit]] = {}
        for unit in units:
            if unit.chain:
                outermost.setdefault(unit.chain[0], []).append(unit)
        before = len(self.placement.all)
        loops = 0
        for members in outermost.values():
            depth = len(_shared(members)[0])
            if stage != "steps":
                self._add_functions(level, units, members, depth, whole=stage == "parts")
                continue
            flat = [member for unit in members for member in self._members(unit)]
            flat.sort(key=lambda unit: self._order[unit.item])
            for iterations in _rounds(flat, [*self._loops(flat, depth - 1)]):
                stem = f"step{loops + 1}" if loops else "step"
                loops += self._add_steps(level, iterations, flat, stem)
        return len(self.placement.all) > before

    def _add_functions(
        self,
        level: Scope | None,
        units: list[_Unit],
        known: list[_Unit],
        depth: int,
        *,
        whole: bool,
    ) -> None:
        wanted: list[tuple[str, list[_Unit]]] = []
        pending = [(known, depth)]
        while pending:
            members, depth = pending.pop()
            groups: dict[CallFrame, list[_Unit]] = {}
            for unit in members:
                if len(unit.chain) > depth:
                    groups.setdefault(unit.chain[depth], []).append(unit)
            for run, inside in groups.items():
                name = _best_name(inside, depth)
                if name and self._is_function(run, inside, units, whole=whole):
                    wanted.append((name, inside))
                else:
                    pending.append((inside, depth + 1))
        if not wanted:
            return
        boxes = {
            Scope(ScopePart(name), parent=level, kind="function"): inside
            for name, inside in sorted(wanted, key=lambda each: self._order[each[1][0].item])
        }
        trial = Level(self._partition, level)
        moves = {box: {unit.item: box for unit in inside} for box, inside in boxes.items()}
        for box in trial.settle(moves, lambda box: box not in trial.circling()):
            self._open(box, boxes[box])

    def _is_function(
        self, run: CallFrame, inside: list[_Unit], units: list[_Unit], *, whole: bool
    ) -> bool:
        """Whether a call frame is worth a box: it ran several units, and is no forward.

        Args:
            run: The call frame.
            inside: The units that ran in it.
            units: All units of the level.
            whole: Whether functions in which modules were called are worth a box, too.
        """
        calls_modules = [bool(unit.modules) for unit in inside]
        if len(inside) < 2 or _is_forward(run) or (all if whole else any)(calls_modules):
            return False
        return not any(self._ran_partly_in(unit, run) for unit in units if run not in unit.chain)

    def _ran_partly_in(self, unit: _Unit, run: CallFrame) -> bool:
        """Whether a part of a box, which is no module call, ran in a call frame."""
        if not isinstance(unit.item, Scope) or unit.item in self._calls:
            return False
        return any(
            run in inner.chain or self._ran_partly_in(inner, run)
            for inner in self._units(unit.item)
        )

    # -- loops -------------------------------------------------------------------------------

    def _loops(self, units: list[_Unit], depth: int) -> Iterator[list[list[_Unit]]]:
        """Yield the units of each iteration, for each loop whose iterations are worth boxes.

        Args:
            units: Units that share the call frame at this depth of their chains.
            depth: The index of that call frame.
        """
        if depth < 0 or not units:
            return
        events: list[_Event] = []
        for unit in units:
            within = unit.chain[depth + 1] if len(unit.chain) > depth + 1 else None
            step = unit.steps[depth]
            if within is not None and events and events[-1][:2] == (step, within):
                events[-1].members.append(unit)
            else:
                events.append(_Event(step, within, [unit]))
        for result in _iterations_of(events, units[0].chain[depth].function.loops):
            if not isinstance(result, _Event):
                yield result
            elif result.within is not None:
                yield from self._loops(result.members, depth + 1)

    def _members(self, unit: _Unit) -> Iterator[_Unit]:
        """Yield the members of a unit that is a list, at any depth, or the unit itself."""
        scope = unit.item
        if not isinstance(scope, Scope) or scope.kind != "container":
            yield unit
            return
        for inner in self._units(scope):
            for member in self._members(inner):
                yield member._replace(lists=(scope, *member.lists))

    def _add_steps(
        self, level: Scope | None, iterations: list[list[_Unit]], units: list[_Unit], stem: str
    ) -> bool:
        """Make a box of each iteration with several units, if no iteration would be on a cycle.

        A list whose members all ran in one iteration moves into its box. If only some did, a
        piece of the list with these members is made in the box.

        Args:
            level: The scope of the level.
            iterations: The units of each iteration.
            units: All units, with lists replaced by their members.
            stem: The name of the boxes before their number.
        Returns:
            Whether the boxes were made.
        """
        in_all = Counter(unit.lists[0] for unit in units if unit.lists)
        lists = {listed for unit in units for listed in unit.lists}
        boxes = {
            Scope(ScopePart(f"{stem}.{at}"), parent=level, kind="hand"): members
            for at, members in enumerate(iterations)
        }
        moves = {unit.item: box for box, members in boxes.items() for unit in members}
        trial = Level(self._partition, level, is_box=lambda scope: scope not in lists)
        if not trial.settle({stem: moves}, lambda _: trial.circling().isdisjoint(boxes)):
            return False
        move = self._partition.move
        for box, members in boxes.items():
            if len(members) > 1:
                self._open(box, members)
            in_iteration = Counter(unit.lists[0] for unit in members if unit.lists)
            pieces: dict[tuple[Scope, ...], Scope] = {(): box}
            for unit in members:
                whole = unit.lists and in_iteration[unit.lists[0]] == in_all[unit.lists[0]]
                if whole or len(members) == 1:
                    move({unit.item: unit.lists[-1] if unit.lists else level})
                    if len(members) > 1 and unit.lists[0] not in self.placement.boxes:
                        move({unit.lists[0]: box})
                    continue
                for depth, listed in enumerate(unit.lists):
                    enclosing, inner = unit.lists[:depth], unit.lists[: depth + 1]
                    if inner not in pieces:
                        # The piece of the list that is drawn in the box.
                        name = listed.qualified_name
                        piece = Scope(
                            listed.part,
                            parent=pieces[enclosing],
                            kind="container",
                            qualified_name=name,
                        )
                        pieces[inner] = self._add(piece, listed)
                move({unit.item: pieces[unit.lists]})
            self._renumber(box)
        return True

    # -- changes of the placement ------------------------------------------------------------

    def _open(self, box: Scope, units: list[_Unit]) -> None:
        """Number a box, and add it to its level."""
        key = box.parent, box.part.label
        box.renumber(self._numbers[key])
        self._numbers[key] += 1
        self._add(box, units[0].item)
        if not any(unit.modules for unit in units):
            self.placement.free.append(box)

    def _add(self, box: Scope, first: Unit) -> Scope:
        """Add a box to the level of its parent, in the position of its first node or scope."""
        self.changed = True
        self.placement.all.append(box)
        self._order[box] = self._order[first]
        self._partition.inside[box.parent][box] = None
        self._known_units.clear()
        return box

    def _renumber(self, box: Scope) -> None:
        """Number the calls of each module, and the backward passes, in an iteration from 0 on."""
        numbers: Counter[tuple[str, str | None]] = Counter()
        for scope in self._partition.inside[box]:
            if not isinstance(scope, Scope):
                continue
            part = scope.part
            if scope in self._calls or scope.phase != "forward":
                key = part.label, part.attribute
                self.placement.parts[scope] = replace(part, index=numbers[key])
                numbers[key] += 1
            elif scope.kind == "container":
                self._renumber(scope)


def _rounds(units: list[_Unit], loops: list[list[list[_Unit]]]) -> list[list[list[_Unit]]]:
    """Return the iterations of loops, or the units up to each optimizer step if one is in none."""
    looped = {unit.item for iterations in loops for members in iterations for unit in members}
    steps = [at for at, unit in enumerate(units, 1) if PHASE_BOXES["optimizer"] in unit.modules]
    if len(steps) < 2 or all(units[at - 1].item in looped for at in steps):
        return loops
    return [[units[start:end] for start, end in pairwise([0, *steps])]]


def _calls_around(
    run: CallFrame | None, step: int
) -> tuple[tuple[CallFrame, ...], tuple[int, ...]]:
    """Return the call frames around a call site, outermost first, and the position in each."""
    if run is None:
        return (), ()
    chain = run.chain()
    return tuple(chain), (*(frame.step for frame in chain[1:]), step)


def _shared(units: list[_Unit]) -> tuple[tuple[CallFrame, ...], tuple[int, ...]]:
    """Return the call frames that all units share, and the first unit's position in each."""
    if not units:
        return (), ()
    frames = zip(*(unit.chain for unit in units), strict=False)
    depth = sum(1 for _ in takewhile(lambda runs: len(set(runs)) == 1, frames))
    return units[0].chain[:depth], units[0].steps[:depth]


def _best_name(inside: list[_Unit], depth: int) -> str:
    """Return the best name among functions whose call frames, from a depth on, ran all these units.

    That is the name of the outermost function that has one and is not nested (a decorator's wrapper
    is), else of the outermost with a name; empty if none has.
    """
    named = [frame.function for frame in _shared(inside)[0][depth:] if frame.function.name]
    best = min(named, key=attrgetter("nested"), default=None)
    return best.name if best else ""


def _is_forward(run: CallFrame) -> bool:
    """Whether a call frame is a module's own forward, possibly inside of decorators' wrappers."""
    callers = run.chain()[:-1]
    return run.function.name == "forward" and all(frame.function.nested for frame in callers)


def _iterations_of(
    events: list[_Event], loops: tuple[_Loop, ...]
) -> Iterator[_Event | list[list[_Unit]]]:
    """Split events into the iterations of the loops in which they ran.

    Args:
        events: The events of one call frame, in order.
        loops: The loops in its code: the first and the last step of each.
    Yields:
        The iterations of each loop that is worth boxes, outer loops first, and the events outside
        of these.
    """
    for loop, block in _blocks(events, loops):
        if loop is None:
            yield from block
            continue
        inner = tuple(nested for nested in loops if _contains(loop, nested))
        iterations = _iterations(block, inner)
        members = [
            [member for event in iteration for member in event.members] for iteration in iterations
        ]
        if _are_worth_it(members):
            yield members
        else:
            for iteration in iterations:
                yield from _iterations_of(iteration, inner)


def _contains(loop: _Loop, inner: _Loop) -> bool:
    return loop != inner and loop[0] <= inner[0] and inner[1] <= loop[1]


def _blocks(
    events: list[_Event], loops: tuple[_Loop, ...]
) -> Iterator[tuple[_Loop | None, list[_Event]]]:
    """Yield runs of consecutive events with the outer loop that contains them, or None."""
    outer = [loop for loop in loops if not any(_contains(enclosing, loop) for enclosing in loops)]

    def around(event: _Event) -> _Loop | None:
        return next(
            (candidate for candidate in outer if candidate[0] <= event.step <= candidate[1]), None
        )

    for loop, block in groupby(events, around):
        yield loop, [*block]


def _iterations(events: list[_Event], inner: tuple[_Loop, ...]) -> list[list[_Event]]:
    """Split the events of a loop into iterations.

    A new iteration begins if the step decreases, or repeats with another call frame. An inner
    loop counts as one step.
    """
    iterations: list[list[_Event]] = []
    last, within = -1, None
    for loop, block in _blocks(events, inner):
        for event in block if loop is None else block[:1]:
            step = event.step if loop is None else loop[0]
            again = step == last and event.within is not None and event.within is not within
            if not iterations or step < last or again:
                iterations.append([])
            last, within = step, event.within
            iterations[-1] += [event] if loop is None else block
    return iterations


def _are_worth_it(iterations: list[list[_Unit]]) -> bool:
    """Whether boxes for iterations show more structure than the level already has."""
    if len(iterations) < 2 or all(len(units) < 2 for units in iterations):
        return False
    counts = Counter(
        name
        for units in iterations
        for name in frozenset().union(*(unit.modules for unit in units))
    )
    # If each iteration calls other modules, these structure the level already, unless many
    # operations run between them.
    if not counts or max(counts.values()) > 1:
        return True
    # Members of several lists alternate, so that their lists are dissolved and structure nothing.
    if all(len({unit.lists for unit in units if unit.lists}) > 1 for units in iterations):
        return True
    loose = sorted(sum(not unit.modules for unit in units) for units in iterations)
    return loose[len(loose) // 2] >= _MUCH_BETWEEN
