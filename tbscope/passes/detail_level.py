"""Levels of detail: stacks of equal blocks, modules, operations, or the kernels inside of them.

In the overview, equal blocks that follow one another are one node, `layers.0-79`. Blocks are
equal where their calls share a definition (`Graph.functions`): the same class, hyper-parameters
and inner graph. What their parent does between two of them is part of the stack. Parameters stay
where they are, so that a search for any key of the `state_dict` finds them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

from tbscope.functions.functions import Functions
from tbscope.ir.editing import Editor, cut_call, replace_calls, replace_nodes
from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scope_io import OPERATIONS, STATE, Nearest, upward, with_above
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.passes.collapse_modules import collapse_modules, join, read_outside
from tbscope.passes.expand_kernels import expand_kernels
from tbscope.utils.components import in_order

__all__ = ["Level", "Stack", "set_level"]

Level: TypeAlias = Literal["overview", "module", "op", "aten"]
"""How far a graph goes into detail."""

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


def set_level(graph: Graph, level: Level = "op") -> list[Stack]:
    """Bring a graph to a level of detail.

    Args:
        graph: Changed in place.
        level: "overview" makes one node of equal blocks in one place whose numbers follow one
            another; its attribute `blocks` tells how many they are, its FLOPs, parameters and
            bytes are those of all together, and blocks between which other modules with
            parameters run stay as they are. "module" makes one node of each module that calls
            no other one; "op" leaves all as it is; "aten" makes a scope of each operation in
            which several kernels ran.
    Returns:
        The stacks of equal blocks.
    Raises:
        ArgumentError: The kernels were not recorded.
    """
    if level == "overview":
        stacking = _Stacking(graph)
        for run in _runs(graph):
            stacking.add(run)
        return stacking.apply()
    if level == "module":
        collapse_modules(graph)
    elif level == "aten":
        expand_kernels(graph)
    return []


# -- which blocks are equal -----------------------------------------------------------------


def _runs(graph: Graph) -> Iterator[list[Scope]]:
    """Yield the runs of equal blocks, outer ones first; of what has no equal, itself."""
    functions = Functions(graph)
    siblings: dict[Scope, dict[Scope, None]] = defaultdict(dict)
    for call in graph.calls:
        if call.scope.parent is not None:
            siblings[call.scope.parent][call.scope] = None
    for parent in sorted(siblings, key=lambda scope: len(scope.parts)):
        numbered: dict[tuple[str, ...], list[tuple[int, Scope]]] = defaultdict(list)
        for kind, number, scope in _numbered(siblings[parent]):
            numbered[kind].append((number, scope))
        for found in numbered.values():
            found.sort(key=itemgetter(0))
            # Blocks of a run are of one definition, and their numbers follow one another.
            keys = [
                (number - at, id(functions.use(scope).definition))
                for at, (number, scope) in enumerate(found)
            ]
            for _, run in groupby(zip(keys, found, strict=True), key=itemgetter(0)):
                yield [scope for _, (_, scope) in run]


def _numbered(scopes: Iterable[Scope]) -> Iterator[tuple[tuple[str, ...], int, Scope]]:
    """Yield members of a list with their numbers, calls of one module with theirs.

    What those have in common that may be of one run comes first.
    """
    again = {scope.part.attribute for scope in scopes if scope.part.index}
    for scope in scopes:
        part = scope.part
        found = _NUMBERED.fullmatch(part.attribute or "")
        if found and part.attribute not in again:
            yield (part.label, found[1]), int(found[2]), scope
        elif part.attribute is not None:
            yield (part.label, part.attribute, "calls"), part.index, scope


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
            for scope in upward(node.scope) if node.kind in OPERATIONS else ():
                self._below[scope].append(node)
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
            held = sorted({*own, *between}, key=self._order.__getitem__)
            self._stack_of.update(dict.fromkeys(held, len(self._runs)))
            self._runs.append(run)
            self._held.append(held)
            return
        # The run is parted where something foreign runs between the starts of two blocks.
        starts = {scope: self._order[self._below[scope][0]] for scope in run}
        ordered = sorted(run, key=starts.__getitem__)
        parts = [ordered[:1]]
        for before, scope in pairwise(ordered):
            if any(starts[before] < at < starts[scope] for at in foreign):
                parts.append([])
            parts[-1].append(scope)
        for part in parts if len(parts) > 1 else ():
            self.add(part)

    def _between(self, own: list[Node]) -> set[Node]:
        """Return what depends on one of some operations, and on which another one depends."""
        found = self._reached(own, self._readers) & self._reached(own, self._sources)
        return {node for node in found if node.kind in OPERATIONS}.difference(own)

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
        stack_around = Nearest[int](
            {scope: place for place, run in enumerate(self._runs) for scope in run}.get
        )
        swallowed: dict[int | None, list[Call]] = defaultdict(list)
        for call in graph.calls:
            swallowed[stack_around(call.scope)].append(call)
        wholes = [
            _whole(run, swallowed[place], self._scope(run, set(held)))
            for place, (run, held) in enumerate(zip(self._runs, self._held, strict=True))
        ]
        inside = {node: wholes[place] for node, place in self._stack_of.items()}
        before = graph.calls
        replace_calls(graph, [*swallowed[None], *wholes])
        outer = read_outside(graph, inside)
        editor = Editor(graph)
        stacks = []
        for call, run, held in zip(wholes, self._runs, self._held, strict=True):
            node = join(call, held, outer.get(call, {}), editor)
            node.attributes["blocks"] = len(run)
            inside_it = set(held)
            around = with_above(one.scope for one in held)
            scopes = [scope for scope in around if inside_it.issuperset(self._below[scope])]
            stacks.append(Stack(node, scopes, held))
        editor.apply()
        # Modules stay that stand somewhere, if only for their parameters.
        shown = with_above(node.scope for node in graph.nodes)
        calls = list(wholes)
        for call in before:
            if stack_around(call.scope) is not None:
                if call.scope not in shown:
                    continue
                # What it was given is inside the stack, and no value any more.
                cut_call(call)
            calls.append(call)
        replace_calls(graph, calls)
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


def _whole(run: list[Scope], inner: list[Call], scope: Scope) -> Call:
    """Return the call that stands for those of all blocks, with the parameters of all in them."""
    calls = [call for call in inner if call.scope in run]
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


def _sort(graph: Graph) -> None:
    """Have each node stand after all that it reads again, as near to its place as can be."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    steps = ((order[source], order[node]) for node in graph.nodes for source in sources_of(node))
    nodes = [graph.nodes[at] for at in in_order(len(order), steps)]
    assert len(nodes) == len(order), "no stack reads what depends on it"
    replace_nodes(graph, nodes)
