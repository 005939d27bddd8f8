"""Overview: equal blocks that follow one another are one node, `layers.0-79`.

Blocks are equal where their calls share a definition (`Graph.functions`): the same class,
hyper-parameters and inner graph. What their parent does between two of them is part of the
stack. Parameters stay where they are, so that a search for any key of the `state_dict` finds them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import NamedTuple

from tbscope.cycles import in_order
from tbscope.functions.functions import Functions
from tbscope.ir.editing import Editor, cut_call, replace_calls, replace_nodes
from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.regions import OPERATIONS, STATE, Nearest, with_above
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.passes.modules import join, read_outside

__all__ = ["Stack", "stack_blocks"]

_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)")


class Stack(NamedTuple):
    """Equal blocks that became one node.

    Attributes:
        node: The node.
        scopes: The scopes in which nothing runs but what it stands for.
        nodes: The operations for which it stands.
    """

    node: Node
    scopes: list[Scope]
    nodes: list[Node]


def stack_blocks(graph: Graph) -> list[Stack]:
    """Make one node of equal blocks in one place whose numbers follow one another.

    Its attribute `blocks` tells how many they are; its FLOPs, parameters and bytes are those of
    all together. Blocks between which other modules with parameters run stay as they are.

    Args:
        graph: Changed in place.
    """
    stacking = _Stacking(graph)
    for run in _runs(graph):
        stacking.add(run)
    return stacking.apply()


# -- which blocks are equal -----------------------------------------------------------------


class _Place(NamedTuple):
    """A block among its siblings: what all of a run have in common, and its number."""

    common: tuple[object, ...]
    number: int
    scope: Scope


def _runs(graph: Graph) -> Iterator[list[Scope]]:
    """Yield the runs of equal blocks, outer ones first; of what has no equal, itself."""
    functions = Functions(graph)
    siblings: dict[Scope, dict[Scope, None]] = defaultdict(dict)
    for call in graph.calls:
        if call.scope.parent is not None:
            siblings[call.scope.parent][call.scope] = None
    depths = Nearest[int](lambda scope: sum(1 for _ in scope.ancestors()))
    for parent in sorted(siblings, key=lambda scope: depths(scope) or 0):
        places: dict[tuple[object, ...], list[_Place]] = defaultdict(list)
        for place in _places(siblings[parent]):
            places[place.common].append(place)
        for found in places.values():
            found.sort(key=lambda place: place.number)
            numbered = enumerate(found)
            key = lambda entry: (  # noqa: E731  It is of this loop alone.
                entry[1].number - entry[0],
                id(functions.use(entry[1].scope).definition),
            )
            for _, run in groupby(numbered, key=key):
                yield [place.scope for _, place in run]


def _places(scopes: Iterable[Scope]) -> Iterator[_Place]:
    """Yield the places of members of a list by their numbers, of one module by its calls."""
    again = {scope.part.attribute for scope in scopes if scope.part.index}
    for scope in scopes:
        part = scope.part
        found = _NUMBERED.fullmatch(part.attribute or "")
        if found and part.attribute not in again:
            yield _Place((part.label, found[1]), int(found[2]), scope)
        elif part.attribute is not None:
            yield _Place((part.label, part.attribute, "calls"), part.index, scope)


# -- what a stack holds ---------------------------------------------------------------------


class _Stacking:
    """Finds for runs of blocks what stands in their stacks.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._order = {node: at for at, node in enumerate(graph.nodes)}
        self._sources = {node: sources_of(node) for node in graph.nodes}
        self._readers: dict[Node, list[Node]] = defaultdict(list)
        for node, sources in self._sources.items():
            for source in sources:
                self._readers[source].append(node)
        # The operations below each scope.
        self._below: dict[Scope, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            if node.kind in OPERATIONS:
                scope = node.scope
                while scope is not None:
                    self._below[scope].append(node)
                    scope = scope.parent
        self._runs: list[list[Scope]] = []
        self._held: list[list[Node]] = []
        self._stack_of: dict[Node, int] = {}

    def add(self, run: list[Scope]) -> None:
        """Add the stacks of a run: one, or several where other modules run in between."""
        run = [scope for scope in run if self._below[scope]]
        own = [node for scope in run for node in self._below[scope]]
        if len(run) < 2 or any(node in self._stack_of for node in own):
            return
        between = self._between(own)
        foreign = [
            self._order[node]
            for node in between
            if node in self._stack_of or any(one.kind in STATE for one in self._sources[node])
        ]
        if not foreign:
            place = len(self._runs)
            self._runs.append(run)
            self._held.append(sorted({*own, *between}, key=self._order.__getitem__))
            self._stack_of.update(dict.fromkeys(self._held[-1], place))
            return
        starts = {scope: self._order[self._below[scope][0]] for scope in run}
        for part in _split(run, starts, foreign):
            if len(part) < len(run):
                self.add(part)

    def _between(self, own: list[Node]) -> set[Node]:
        """Return what depends on one of some operations, and on which another one depends."""
        after, before = self._reached(own, self._readers), self._reached(own, self._sources)
        return {node for node in after & before if node.kind in OPERATIONS}.difference(own)

    def _reached(self, own: list[Node], steps: Mapping[Node, list[Node]]) -> set[Node]:
        """Return what can be reached, where one node of a stack leads to all of it."""
        found: set[Node] = set()
        pending = list(own)
        entered: set[int] = set()
        while pending:
            for node in steps.get(pending.pop(), ()):
                if node not in found:
                    found.add(node)
                    pending.append(node)
                    stack = self._stack_of.get(node)
                    if stack is not None and stack not in entered:
                        entered.add(stack)
                        found.update(self._held[stack])
                        pending += self._held[stack]
        return found

    def apply(self) -> list[Stack]:
        """Make a node of each stack."""
        graph = self._graph
        if not self._runs:
            return []
        blocks = {scope: place for place, run in enumerate(self._runs) for scope in run}
        stack_around = Nearest[int](blocks.get)
        swallowed: dict[int, list[Call]] = defaultdict(list)
        others: list[Call] = []
        entries = zip(self._runs, self._held, strict=True)
        scopes = [self._scope(run, set(held)) for run, held in entries]
        for call in graph.calls:
            place = stack_around(call.scope)
            if place is not None:
                swallowed[place].append(call)
            else:
                others.append(call)
        wholes = []
        for place, run in enumerate(self._runs):
            of_blocks = [call for call in swallowed[place] if call.scope in run]
            wholes.append(_whole(of_blocks, swallowed[place], scopes[place]))
        inside = {node: wholes[place] for node, place in self._stack_of.items()}
        before = graph.calls
        replace_calls(graph, [*others, *wholes])
        outer = read_outside(graph, inside)
        editor = Editor(graph)
        stacks = []
        for call, run, held in zip(wholes, self._runs, self._held, strict=True):
            node = join(call, held, outer.get(call, {}), editor)
            node.attributes["blocks"] = len(run)
            stacks.append(Stack(node, self._scopes_of(set(held)), held))
        editor.apply()
        replace_calls(graph, _standing(graph, before, others, wholes))
        _sort(graph)
        return stacks

    def _scope(self, run: list[Scope], held: set[Node]) -> Scope:
        """Return the scope of a stack."""
        first, last, parent = run[0].part, run[-1].part, run[0].parent
        assert parent is not None, "a block is one of several"
        if first.attribute == last.attribute:
            name = f"{first.attribute}.{first.index}-{last.index}"
        else:
            number = _NUMBERED.fullmatch(last.attribute or "")
            assert number is not None, "blocks of a run are numbered"
            name = f"{first.attribute}-{number[2]}"
        # Alone in a box, the page would cut all of its lines.
        while parent.parent is not None and not self._touches(held, parent):
            number_of_call = f".{parent.part.index}" if parent.part.index else ""
            name = f"{parent.part.attribute or parent.part.label}{number_of_call}.{name}"
            parent = parent.parent
        return Scope(ScopePart(first.label, name), parent=parent)

    def _scopes_of(self, held: set[Node]) -> list[Scope]:
        """Return the scopes all of whose operations are in a stack."""
        around = with_above(node.scope for node in held)
        return [scope for scope in around if held.issuperset(self._below[scope])]

    def _touches(self, held: set[Node], parent: Scope) -> bool:
        """Tell whether a stack reads, or is read by, another operation in a scope.

        What computes nothing may not be drawn: what is behind it counts.
        """
        inside = set(self._below[parent]) - held
        seen: set[Node] = set()
        for steps in (self._readers, self._sources):
            pending = list(held)
            while pending:
                for node in steps.get(pending.pop(), ()):
                    if node in inside and node not in seen:
                        seen.add(node)
                        if node.role is None:
                            return True
                        pending.append(node)
        return False


def _split(
    run: list[Scope], starts: Mapping[Scope, int], foreign: list[int]
) -> Iterator[list[Scope]]:
    """Part a run where something foreign runs between the starts of two blocks."""
    ordered = sorted(run, key=starts.__getitem__)
    part = ordered[:1]
    for before, scope in pairwise(ordered):
        if any(starts[before] < at < starts[scope] for at in foreign):
            yield part
            part = []
        part.append(scope)
    yield part


def _whole(calls: list[Call], inner: list[Call], scope: Scope) -> Call:
    """Return the call that stands for those of all blocks, with the parameters of all in them."""
    first, last = calls[0], calls[-1]
    held = [
        parameter._replace(name=f"{call.qualified_name or call.scope.path}.{parameter.name}")
        for call in inner
        for parameter in call.parameters
    ]
    return Call(
        scope,
        first.class_name,
        None,
        arguments=first.arguments,
        results=last.results,
        hyperparameters=first.hyperparameters,
        training=first.training,
        parameters=tuple(held),
        source=first.source,
        defined=first.defined,
    )


def _standing(
    graph: Graph, before: list[Call], others: list[Call], wholes: list[Call]
) -> list[Call]:
    """Return the calls whose modules still stand somewhere, if only for their parameters."""
    stay = {*map(id, others), *map(id, wholes)}
    held = with_above(node.scope for node in graph.nodes)
    calls = list(wholes)
    for call in before:
        if id(call) in stay:
            calls.append(call)
        elif call.scope in held:
            # What it was given is inside the stack, and no value any more.
            cut_call(call)
            calls.append(call)
    return calls


def _sort(graph: Graph) -> None:
    """Have each node stand after all that it reads again, as near to its place as can be."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    steps = ((order[source], order[node]) for node in graph.nodes for source in sources_of(node))
    nodes = [graph.nodes[at] for at in in_order(len(order), steps)]
    assert len(nodes) == len(order), "no stack reads what depends on it"
    replace_nodes(graph, nodes)
