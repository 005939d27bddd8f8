"""The bundler: boxes around what one run of a helper function did, and around one round of a loop.

A level that is too full for the page is drawn as its author has parted it: what a function
ran stands in a box of its name, and where a loop comes round again, each round is a box
(`step.0`, `step.1`). What ran between the first and the last operation of a run, or of a
round, ran in it; so such a box reads nothing that it has given.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from tbscope.drawing.placement.containers import Stage, Stands
from tbscope.ir.graph import Graph, Node
from tbscope.ir.metadata import Run
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.borrowed_calls import Guests
from tbscope.ir.scope_io import OPERATIONS, Nearest, with_above
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.utils.components import find_cycles

__all__ = ["Bundler"]

_Thing: TypeAlias = Node | Scope
_Key = TypeVar("_Key", Run, int)
_Loop: TypeAlias = tuple[int, int]

# So many operations beside its modules make a round of a loop worth a box.
_MUCH_BETWEEN = 4


class _Unit(NamedTuple):
    """What stands on a level as one thing, in the order of the graph.

    Attributes:
        thing: An operation, or a box.
        chain: The runs in which all of it was called, the outermost first.
        steps: Where in the code of each.
        modules: The names of the modules that were called in it.
        lists: The lists in which it stands on this level, the outermost first.
    """

    thing: _Thing
    chain: tuple[Run, ...]
    steps: tuple[int, ...]
    modules: frozenset[str]
    lists: tuple[Scope, ...] = ()


class _Called(NamedTuple):
    """The call of a module.

    Attributes:
        run: The run that called it, or None if that is not known.
        step: Where in the code of that run.
        name: The module's name.
        number: How many calls began before it.
    """

    run: Run | None
    step: int
    name: str
    number: int


class _Event(NamedTuple):
    """What one place in the code of a function did at one time.

    Attributes:
        step: The place.
        within: The run that was called there, if that is known.
        members: What it did.
    """

    step: int
    within: Run | None
    members: list[_Unit]


class Bundler:
    """Finds the bundles of one graph, level by level, as they are asked for.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        guests: What stands in the box of who called it.

    Attributes:
        found: What was found so far.
        changed: Whether anything was found that nobody has asked about yet.
        knows: Whether it is known of anything in which function it ran.
    """

    def __init__(self, graph: Graph, guests: Guests) -> None:
        self.found = Stands()
        self.changed = False
        self._graph, self._guests = graph, guests
        self._own: dict[Scope | None, dict[Node, None]] = defaultdict(dict)
        self._children: dict[Scope | None, dict[Scope, None]] = defaultdict(dict)
        self._calls: dict[Scope, _Called] = {}
        self._order: dict[_Thing, int] = {}
        self._numbers: Counter[tuple[Scope | None, str]] = Counter()
        # A level is asked for each stage, until something on it moves.
        self._known_units: dict[Scope | None, list[_Unit]] = {}
        # The module call whose forward, or what decorates it, a run is.
        self._forwards: dict[Run, Scope] = {}
        operations = [node for node in graph.nodes if node.kind in OPERATIONS]
        self.knows = any(node.run is not None for node in operations)
        for at, node in enumerate(operations):
            scope = guests.nodes.get(node, node.scope)
            self._order[node] = at
            self._own[scope][node] = None
            while scope is not None and scope not in self._order:
                self._order[scope] = at
                scope = scope.parent
        for scope in graph.scopes():
            if scope in self._order:
                self._children[guests.hosts.get(scope, scope.parent)][scope] = None
            key = scope.parent, scope.part.label
            if scope.part.attribute is None:
                self._numbers[key] = max(self._numbers[key], scope.part.index + 1)
        for call in graph.calls:
            if call.number == 0:
                name = call.qualified_name or call.scope.path
                self._calls[call.scope] = _Called(call.run, call.step, name, len(self._calls))
        called = Nearest[Scope](lambda scope: scope if scope in self._calls else None)
        for node in graph.nodes:
            if node.run is not None and node not in guests.nodes:
                caller = called(node.scope)
                if caller is not None:
                    self._forwards.setdefault(node.run.outermost(), caller)

    # -- what stands on a level --------------------------------------------------------------

    def _units(self, level: Scope | None) -> list[_Unit]:
        """Return what stands right on a level, in order."""
        if level not in self._known_units:
            units = [
                _Unit(node, *_told(node.run, node.step), frozenset())
                for node in self._own[level]
                if node.kind == "op"
            ]
            units += [self._unit(scope) for scope in self._children[level]]
            self._known_units[level] = sorted(units, key=lambda unit: self._order[unit.thing])
        return self._known_units[level]

    def _unit(self, scope: Scope) -> _Unit:
        call = self._calls.get(scope)
        if call is not None:
            return _Unit(scope, *self._called(scope), frozenset({call.name}))
        inner = self._units(scope)
        modules = frozenset().union(*(one.modules for one in inner))
        if scope.phase != "forward":
            # Autograd lays some gradients out anew where no function of the user's has asked.
            inner = [unit for unit in inner if unit.chain]
            modules |= {scope.part.label}
        chain, steps = _shared(inner)
        return _Unit(scope, chain, steps, modules)

    def _called(self, scope: Scope) -> tuple[tuple[Run, ...], tuple[int, ...]]:
        """Return the runs in which a module was called, and where in the code of each.

        One that was called by a module that stands beside it, as one that nobody registers does,
        was called in the runs that called that one, too.
        """
        call = self._calls[scope]
        chain, steps = _told(call.run, call.step)
        caller = self._forwards.get(chain[0]) if chain else None
        level = self._guests.hosts.get(scope, scope.parent)
        if caller is None or caller in with_above([level]):
            return chain, steps
        if self._calls[caller].number >= call.number:
            return chain, steps
        around, called = self._called(caller)
        return (*around, *chain), (*called, *steps)

    # -- bundles of a level ------------------------------------------------------------------

    def bundle_all(self) -> None:
        """Make a box of every function that ran several things, but not all of a level."""
        pending: list[Scope | None] = [None, *self._graph.scopes()]
        for level in pending:
            before = len(self.found.all)
            self.bundle(level, "functions")
            pending += self.found.all[before:]

    def bundle(self, level: Scope | None, stage: Stage) -> bool:
        """Find bundles right on a level; tell whether there are any."""
        units = self._units(level)
        # The runs of a hook are none of those in forward.
        outermost: dict[Run, list[_Unit]] = {}
        for unit in units:
            if unit.chain:
                outermost.setdefault(unit.chain[0], []).append(unit)
        before = len(self.found.all)
        loops = 0
        for known in outermost.values():
            depth = len(_shared(known)[0])
            if stage != "steps":
                self._add_functions(level, units, known, depth, whole=stage == "parts")
                continue
            parted = [one for unit in known for one in self._parted(unit)]
            parted.sort(key=lambda unit: self._order[unit.thing])
            inside = {unit.thing for unit in known}
            beside = [unit for unit in units if unit.thing not in inside]
            for rounds in self._loops(parted, depth - 1):
                numbered = list(enumerate(rounds))
                if len(self._without_cycles(parted + beside, numbered)) == len(rounds):
                    loops += 1
                    self._add_steps(level, rounds, parted, f"step{loops}" if loops > 1 else "step")
        return len(self.found.all) > before

    def _add_functions(
        self,
        level: Scope | None,
        units: list[_Unit],
        known: list[_Unit],
        depth: int,
        *,
        whole: bool,
    ) -> None:
        # Of what was not called by itself, a part may have been called in a run.
        mixed = [
            one for one in units if isinstance(one.thing, Scope) and one.thing not in self._calls
        ]
        wanted: list[tuple[Run, list[_Unit]]] = []
        pending = [(known, depth)]
        while pending:
            members, depth = pending.pop()
            groups: dict[Run, list[_Unit]] = {}
            for unit in members:
                if len(unit.chain) > depth:
                    groups.setdefault(unit.chain[depth], []).append(unit)
            for run, inside in groups.items():
                if self._is_function(run, inside, mixed, whole=whole):
                    wanted.append((_named_best(run, inside, depth), inside))
                else:
                    pending.append((inside, depth + 1))
        if wanted:
            wanted = self._without_cycles(units, wanted)
        for run, inside in sorted(wanted, key=lambda each: self._order[each[1][0].thing]):
            box = self._open(level, run.function.name, inside, kind="function")
            for unit in inside:
                self._move(unit.thing, level, box)

    def _is_function(
        self, run: Run, inside: list[_Unit], mixed: list[_Unit], *, whole: bool
    ) -> bool:
        """Tell whether a run is worth a box: it ran several things, and is no forward."""
        if len(inside) < 2 or _is_forward(run):
            return False
        if not any(unit.chain and not unit.modules for unit in inside):
            return False
        if not whole and any(unit.modules for unit in inside):
            return False
        if not _named_best(run, inside, inside[0].chain.index(run)).function.name:
            return False
        return not any(self._ran_partly_in(unit, run) for unit in mixed if run not in unit.chain)

    def _ran_partly_in(self, unit: _Unit, run: Run) -> bool:
        """Tell whether a part of a box that stands beside a run was called in it."""
        if not isinstance(unit.thing, Scope) or unit.thing in self._calls:
            return False
        return any(
            run in inner.chain or self._ran_partly_in(inner, run)
            for inner in self._units(unit.thing)
        )

    def _without_cycles(
        self, units: list[_Unit], wanted: Sequence[tuple[_Key, list[_Unit]]]
    ) -> list[tuple[_Key, list[_Unit]]]:
        """Leave out what would be a box that reads what it has given."""
        around: dict[_Thing, object] = {unit.thing: unit.thing for unit in units}
        for key, inside in wanted:
            around.update((unit.thing, key) for unit in inside)
        # What will stand on the level, by each node in it or below it.
        places: dict[Node, object] = {}
        for thing, box in around.items():
            if isinstance(thing, Node):
                places[thing] = box
                continue
            pending = [thing]
            while pending:
                scope = pending.pop()
                places.update(dict.fromkeys(self._own[scope], box))
                pending += self._children[scope]
        links = {
            (places[source], place)
            for node, place in places.items()
            for source in sources_of(node)
            if source in places and places[source] is not place
        }
        circling = set().union(*find_cycles(links))
        return [(key, inside) for key, inside in wanted if key not in circling]

    # -- loops -------------------------------------------------------------------------------

    def _loops(self, units: list[_Unit], depth: int) -> Iterator[list[list[_Unit]]]:
        """Yield for each loop that is worth it the units in each of its rounds."""
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
        for found in _rounds_of(events, units[0].chain[depth].function.loops):
            if not isinstance(found, _Event):
                yield found
            elif found.within is not None:
                yield from self._loops(found.members, depth + 1)

    def _parted(self, unit: _Unit) -> Iterator[_Unit]:
        """Yield the members of a list that is called member by member, for any other the unit."""
        scope = unit.thing
        if not isinstance(scope, Scope) or scope.kind != "container":
            yield unit
            return
        for inner in self._units(scope):
            for one in self._parted(inner):
                yield one._replace(lists=(scope, *one.lists))

    def _add_steps(
        self, level: Scope | None, rounds: list[list[_Unit]], units: list[_Unit], stem: str
    ) -> None:
        """Make a box of each round; a list of which it called some members has a part in it."""
        of_lists = Counter(one.lists[0] for one in units if one.lists)
        for at, members in enumerate(rounds):
            if len(members) < 2:
                continue
            box = self._open(level, f"{stem}.{at}", members, kind="hand")
            here = Counter(one.lists[0] for one in members if one.lists)
            pieces: dict[tuple[Scope, ...], Scope] = {(): box}
            for unit in members:
                thing = unit.thing
                if unit.lists and here[unit.lists[0]] == of_lists[unit.lists[0]]:
                    thing = unit.lists[0]
                    if thing not in self.found.scopes:
                        self._move(thing, level, box)
                    continue
                for depth, whole in enumerate(unit.lists):
                    around, inner = unit.lists[:depth], unit.lists[: depth + 1]
                    if inner not in pieces:
                        # The part of the list that stands in the box.
                        name = whole.qualified_name
                        piece = Scope(
                            whole.part, parent=pieces[around], kind="container", qualified_name=name
                        )
                        pieces[inner] = self._add(piece, whole)
                self._move(thing, unit.lists[-1] if unit.lists else level, pieces[unit.lists])
            self._renumber(box)

    # -- making them -------------------------------------------------------------------------

    def _open(
        self,
        level: Scope | None,
        name: str,
        units: list[_Unit],
        *,
        kind: Literal["function", "hand"],
    ) -> Scope:
        """Make a box on a level."""
        part = ScopePart(name, None, self._numbers[level, name])
        self._numbers[level, name] += 1
        box = self._add(Scope(part, parent=level, kind=kind), units[0].thing)
        if not any(unit.modules for unit in units):
            self.found.free.append(box)
        return box

    def _add(self, box: Scope, first: _Thing) -> Scope:
        """Have a box stand on the level of its parent, in the place of its first thing."""
        self.changed = True
        self.found.all.append(box)
        self._order[box] = self._order[first]
        self._children[box.parent][box] = None
        return box

    def _move(self, thing: _Thing, level: Scope | None, box: Scope) -> None:
        # Whoever makes a box or a piece of a list moves something into it then.
        self._known_units.clear()
        if isinstance(thing, Node):
            self.found.nodes[thing] = box
            del self._own[level][thing]
            self._own[box][thing] = None
        else:
            self.found.scopes[thing] = box
            del self._children[level][thing]
            self._children[box][thing] = None

    def _renumber(self, box: Scope) -> None:
        """Count the calls of each module, and the passes, in a round from 0."""
        numbers: Counter[tuple[str, str | None]] = Counter()
        for scope in self._children[box]:
            part = scope.part
            if scope in self._calls or scope.phase != "forward":
                key = part.label, part.attribute
                self.found.parts[scope] = replace(part, index=numbers[key])
                numbers[key] += 1
            elif scope.kind == "container":
                self._renumber(scope)


def _told(run: Run | None, step: int) -> tuple[tuple[Run, ...], tuple[int, ...]]:
    """Return the runs around a call, the outermost first, and where in the code of each."""
    if run is None:
        return (), ()
    chain = run.chain()
    return tuple(chain), (*(one.step for one in chain[1:]), step)


def _shared(units: list[_Unit]) -> tuple[tuple[Run, ...], tuple[int, ...]]:
    """Return the runs that all units have in common, and where the first one is in them."""
    if not units:
        return (), ()
    ways = zip(*(unit.chain for unit in units), strict=False)
    depth = sum(1 for _ in takewhile(lambda runs: len(set(runs)) == 1, ways))
    return units[0].chain[:depth], units[0].steps[:depth]


def _named_best(run: Run, inside: list[_Unit], depth: int) -> Run:
    """Return, of runs that did the same, the one whose name tells most.

    That is the outermost which is neither a closure, as what decorators put around others, nor
    without a name.
    """
    named = [one for one in _shared(inside)[0][depth:] if one.function.name]
    plain = [one for one in named if not one.function.nested]
    return (plain or named or [run])[0]


def _is_forward(run: Run) -> bool:
    """Tell whether a run is that of a module's own forward, below what decorators put around it."""
    above = run.chain()[:-1]
    return run.function.name == "forward" and all(one.function.nested for one in above)


def _rounds_of(
    events: list[_Event], loops: tuple[_Loop, ...]
) -> Iterator[_Event | list[list[_Unit]]]:
    """Part a row of events in the rounds of the loops in which they are.

    Args:
        events: What the run of a function did, in order.
        loops: The loops in its code: the first and the last step of each.
    Returns:
        The rounds of each loop that is worth it, outer ones first, and the events beside these.
    """
    for loop, block in _blocks(events, loops):
        if loop is None:
            yield from block
            continue
        inner = tuple(other for other in loops if _holds(loop, other))
        rounds = _rounds(block, inner)
        members = [[member for event in one for member in event.members] for one in rounds]
        if _are_worth_it(members):
            yield members
        else:
            for one in rounds:
                yield from _rounds_of(one, inner)


def _holds(loop: _Loop, other: _Loop) -> bool:
    return loop != other and loop[0] <= other[0] and other[1] <= loop[1]


def _blocks(
    events: list[_Event], loops: tuple[_Loop, ...]
) -> Iterator[tuple[_Loop | None, list[_Event]]]:
    """Yield the events in order, those in one outer loop together; of these also that loop."""
    outer = [loop for loop in loops if not any(_holds(other, loop) for other in loops)]

    def around(event: _Event) -> _Loop | None:
        return next((one for one in outer if one[0] <= event.step <= one[1]), None)

    for loop, block in groupby(events, around):
        yield loop, [*block]


def _rounds(events: list[_Event], inner: tuple[_Loop, ...]) -> list[list[_Event]]:
    """Part the events of a loop where it has come round again; a loop in it is one place."""
    rounds: list[list[_Event]] = []
    last, within = -1, None
    for loop, block in _blocks(events, inner):
        for event in block if loop is None else block[:1]:
            step = event.step if loop is None else loop[0]
            again = step == last and event.within is not None and event.within is not within
            if not rounds or step < last or again:
                rounds.append([])
            last, within = step, event.within
            rounds[-1] += [event] if loop is None else block
    return rounds


def _are_worth_it(rounds: list[list[_Unit]]) -> bool:
    """Tell whether a box for each round shows more than what stands there already."""
    if len(rounds) < 2 or all(len(units) < 2 for units in rounds):
        return False
    counts = Counter(
        name for units in rounds for name in frozenset().union(*(unit.modules for unit in units))
    )
    # Where each round calls other modules, these part the level already, if little is between.
    if not counts or max(counts.values()) > 1:
        return True
    # Those of several lists stand beside each other, for they take turns.
    if all(len({unit.lists for unit in units if unit.lists}) > 1 for units in rounds):
        return True
    loose = sorted(sum(not unit.modules for unit in units) for units in rounds)
    return loose[len(loose) // 2] >= _MUCH_BETWEEN
