"""Levels of detail: stacks of equal blocks, modules, operations, or the kernels inside of them.

In the overview, consecutive equal blocks are one node, `layers.0-79`, called a stack. Blocks are
equal if their calls share a definition (`Graph.functions`): equal class, hyper-parameters and
inner graph. Operations of their parent that run between two blocks are part of the stack.
Parameters keep their scopes, so that a search for any key of the `state_dict` finds them.

`_runs` finds the rows of equal blocks, `_Stacking.add` decides which operations each stack
contains, and `_Stacking.apply` replaces them by one node per stack.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

from tbscope.functions.functions import Functions
from tbscope.ir.editing import Editor, clear_call_values, replace_calls, sort_nodes
from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scope_io import OPERATIONS, STATE, NearestProperty, self_and_ancestors, with_above
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.passes.collapse_modules import collapse_modules, merge_call, read_outside
from tbscope.passes.expand_kernels import expand_kernels

Level: TypeAlias = Literal["overview", "module", "op", "aten"]
"""The level of detail at which a graph is drawn (see `set_level`)."""

_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)")


class Stack(NamedTuple):
    """Equal blocks that became one node.

    Attributes:
        node: The node that represents the stack.
        scopes: The scopes of which all operations are in the stack.
        nodes: The operations in the stack.
    """

    node: Node
    scopes: list[Scope]
    nodes: list[Node]


def set_level(graph: Graph, level: Level) -> list[Stack]:
    """Bring a graph to a level of detail.

    Args:
        graph: Changed in place.
        level: "overview" merges equal blocks of one parent with consecutive numbers into one
            node; its attribute `blocks` is their number, and its FLOPs, parameters and bytes
            are their sums. Blocks between which other modules with parameters run are not
            merged. "module" merges each module that calls no other module into one node.
            "op" changes nothing. "aten" turns each operation in which several kernels ran into
            a scope.
    Returns:
        The stacks of equal blocks; empty at any other level than "overview".
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
    """Yield rows of equal blocks with consecutive numbers, outer blocks first.

    A block without an equal neighbour is a row of its own.
    """
    functions = Functions(graph)
    siblings: dict[Scope, dict[Scope, None]] = defaultdict(dict)
    for call in graph.calls:
        if call.scope.parent is not None:
            siblings[call.scope.parent][call.scope] = None
    # Outer blocks come first: a block inside of a stack cannot be in a stack of its own.
    for parent in sorted(siblings, key=lambda scope: len(scope.parts)):
        numbered: dict[tuple[str, ...], list[tuple[int, Scope]]] = defaultdict(list)
        for kind, number, scope in _numbered(siblings[parent]):
            numbered[kind].append((number, scope))
        for members in numbered.values():
            members.sort(key=itemgetter(0))
            # Equal keys mean one definition and consecutive numbers: number minus index is
            # constant along consecutive numbers.
            keys = [
                (number - index, id(functions.uses[scope].definition))
                for index, (number, scope) in enumerate(members)
            ]
            for _, run in groupby(zip(keys, members, strict=True), key=itemgetter(0)):
                yield [scope for _, (_, scope) in run]


def _numbered(scopes: Iterable[Scope]) -> Iterator[tuple[tuple[str, ...], int, Scope]]:
    """Yield the members of a list (`layers.0`) and repeated calls of a module, with numbers.

    Yields:
        The key that all members of a row share, the number, and the scope. A member of a
        list that is itself called repeatedly counts as repeated calls only.
    """
    repeated = {scope.part.attribute for scope in scopes if scope.part.index}
    for scope in scopes:
        part = scope.part
        match = _NUMBERED.fullmatch(part.attribute or "")
        if match and part.attribute not in repeated:
            yield (part.label, match[1]), int(match[2]), scope
        elif part.attribute is not None:
            yield (part.label, part.attribute, "calls"), part.index, scope


# -- contents of a stack --------------------------------------------------------------------


class _Stacking:
    """Collects the operations of each stack, then replaces them by one node.

    Args:
        graph: Changed in place, once `apply` is called.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._order = {node: at for at, node in enumerate(graph.nodes)}
        self._sources = {node: sources_of(node) for node in graph.nodes}
        self._readers: dict[Node, list[Node]] = defaultdict(list)
        for node, sources in self._sources.items():
            for source in sources:
                self._readers[source].append(node)
        # The operations in each scope, at any depth.
        self._below: dict[Scope, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for scope in self_and_ancestors(node.scope) if node.kind in OPERATIONS else ():
                self._below[scope].append(node)
        self._runs: list[list[Scope]] = []
        self._held: list[list[Node]] = []
        self._stack_of: dict[Node, int] = {}

    def add(self, run: list[Scope]) -> None:
        """Add the stack of a row of blocks, or several if other modules run in between.

        Operations that are not in the blocks but between them (on a path from one block to
        another) join the stack. Those that read a parameter or buffer, or are in a stack
        already, do not: they split the row.
        """
        run = [scope for scope in run if self._below[scope]]
        own = [node for scope in run for node in self._below[scope]]
        if len(run) < 2 or any(node in self._stack_of for node in own):
            return
        between = self._between(own)
        foreign = [
            self._order[node]
            for node in between
            if node in self._stack_of or any(source.kind in STATE for source in self._sources[node])
        ]
        if not foreign:
            members = sorted({*own, *between}, key=self._order.__getitem__)
            self._stack_of.update(dict.fromkeys(members, len(self._runs)))
            self._runs.append(run)
            self._held.append(members)
            return
        # Foreign operations between the starts of two blocks split the row there.
        starts = {scope: self._order[self._below[scope][0]] for scope in run}
        ordered = sorted(run, key=starts.__getitem__)
        parts = [ordered[:1]]
        for before, scope in pairwise(ordered):
            if any(starts[before] < index < starts[scope] for index in foreign):
                parts.append([])
            parts[-1].append(scope)
        for part in parts if len(parts) > 1 else ():
            self.add(part)

    def _between(self, own: list[Node]) -> set[Node]:
        """Return the operations outside of a list on paths between two operations of the list."""
        between = self._reached(own, self._readers) & self._reached(own, self._sources)
        return {node for node in between if node.kind in OPERATIONS}.difference(own)

    def _reached(self, own: list[Node], steps: Mapping[Node, list[Node]]) -> set[Node]:
        """Return the nodes that are reachable along edges, with all nodes of each stack entered.

        A stack becomes one node, so a path that enters it may leave it anywhere.

        Args:
            own: The nodes from which the search begins.
            steps: The next nodes of each node: its readers, or its sources.
        """
        reached: set[Node] = set()
        pending = list(own)
        entered: set[int] = set()
        while pending:
            for node in steps.get(pending.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    pending.append(node)
                    stack = self._stack_of.get(node)
                    if stack is not None and stack not in entered:
                        entered.add(stack)
                        reached.update(self._held[stack])
                        pending += self._held[stack]
        return reached

    def apply(self) -> list[Stack]:
        """Replace the operations of each stack by one node, and its calls by one call."""
        graph = self._graph
        if not self._runs:
            return []
        stack_around = NearestProperty[int](
            {scope: index for index, run in enumerate(self._runs) for scope in run}.get
        )
        calls_in: dict[int | None, list[Call]] = defaultdict(list)
        for call in graph.calls:
            calls_in[stack_around(call.scope)].append(call)
        stack_calls = [
            _whole(run, calls_in[index], self._scope(run, set(members)))
            for index, (run, members) in enumerate(zip(self._runs, self._held, strict=True))
        ]
        inside = {node: stack_calls[index] for node, index in self._stack_of.items()}
        old_calls = graph.calls
        replace_calls(graph, [*calls_in[None], *stack_calls])
        outer = read_outside(graph, inside)
        editor = Editor(graph)
        stacks = []
        for call, run, members in zip(stack_calls, self._runs, self._held, strict=True):
            node = merge_call(call, members, outer.get(call, {}), editor)
            node.attributes["blocks"] = len(run)
            member_set = set(members)
            candidates = with_above(member.scope for member in members)
            scopes = [scope for scope in candidates if member_set.issuperset(self._below[scope])]
            stacks.append(Stack(node, scopes, members))
        editor.apply()
        # Calls inside a stack stay if a node is left in their scope, even a parameter alone.
        shown = with_above(node.scope for node in graph.nodes)
        calls = list(stack_calls)
        for call in old_calls:
            if stack_around(call.scope) is not None:
                if call.scope not in shown:
                    continue
                # The tensors that the call received and returned are inside the stack now.
                clear_call_values(call)
            calls.append(call)
        replace_calls(graph, calls)
        is_sorted = sort_nodes(graph)
        assert is_sorted, "no stack reads what depends on it"
        return stacks

    def _scope(self, run: list[Scope], nodes: set[Node]) -> Scope:
        """Return the scope of a stack: `layers.0-79`, in the parent of the blocks.

        A stack without a neighbour there moves to the nearest enclosing scope in which it
        has one, under a name that includes the parents it left.
        """
        first, last, parent = run[0].part, run[-1].part, run[0].parent
        assert parent is not None, "a block is one of several"
        if first.attribute == last.attribute:
            name = f"{first.attribute}.{first.index}-{last.index}"
        else:
            number = _NUMBERED.fullmatch(last.attribute or "")
            assert number is not None, "blocks of a run are numbered"
            name = f"{first.attribute}-{number[2]}"
        # The page would cut all edges of a node that is alone in its box.
        while parent.parent is not None and not self._touches(nodes, parent):
            number_of_call = f".{parent.part.index}" if parent.part.index else ""
            name = f"{parent.part.attribute or parent.part.label}{number_of_call}.{name}"
            parent = parent.parent
        return Scope(ScopePart(first.label, name), parent=parent)

    def _touches(self, nodes: set[Node], parent: Scope) -> bool:
        """Whether a stack has an edge to another operation in a scope, in either direction.

        Nodes with a role (views, casts) may be left out of the drawing, so the search goes on
        through them.
        """
        inside = set(self._below[parent]) - nodes
        seen: set[Node] = set()
        for steps in (self._readers, self._sources):
            pending = list(nodes)
            while pending:
                for node in steps.get(pending.pop(), ()):
                    if node in inside and node not in seen:
                        seen.add(node)
                        if node.role is None:
                            return True
                        pending.append(node)
        return False


def _whole(run: list[Scope], inner: list[Call], scope: Scope) -> Call:
    """Return the call that represents a stack.

    Args:
        run: The scopes of its blocks.
        inner: The calls inside the stack; the new call has the parameters of all of them.
        scope: The scope of the stack.
    """
    calls = [call for call in inner if call.scope in run]
    first, last = calls[0], calls[-1]
    parameters = [
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
        parameters=tuple(parameters),
        source=first.source,
        defined=first.defined,
    )
