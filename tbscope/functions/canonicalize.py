"""The reading of one call: its signature and its steps, with refs in place of values.

Everything gets a number of its own that depends on nothing outside of the call: inputs by
the order of the arguments and then of the first use, operations by their place among the
steps. A call is known by its scope; the graph itself, around all calls, by None. Inputs,
parameters, buffers and constants stand in no call: they are state, which calls are given.
"""

import re
from typing import NamedTuple

from tbscope.functions.definition import (
    CallStep,
    Given,
    InputKind,
    Place,
    Read,
    Ref,
    Signature,
    Step,
    Use,
)
from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, Value
from tbscope.ir.nodes import OPERATIONS, STATE
from tbscope.ir.pytree import map_nest, map_values, values_in, walk
from tbscope.ir.scopes import Inherited, Scope

__all__ = ["CallTree", "Entry", "Reading"]

# The attributes of an operation that tell of one run, and so belong to a use.
_OF_A_RUN = frozenset({"read_by_python", "thread", "error", "onnx_name", "symbolic_shape"})

# Modules that nobody registers are numbered on through the whole run, `?0`, `?1`.
_ADOPTED = "?"

# Two models of one recording may have parameters of one name; the later has a number behind.
_REPEATED = re.compile(r"~[0-9]+\Z")


class CallTree:
    """The calls of one graph.

    Args:
        graph: The graph; it stays as it is.

    Attributes:
        calls: The calls that ran in each scope of a module, in the order in which they began.
        parts: For each call, and for the graph itself (None), the operations and the scopes of
            the calls that stand right in it, in order; calls come before those in them.
        place: The place of each operation and of each call among the parts around it.
        uses: The use of each call that has been read.
        results: Which tensor among the results of such a call each value is, of those made in it.
    """

    def __init__(self, graph: Graph) -> None:
        self.calls: dict[Scope, list[Call]] = {}
        for call in graph.calls:
            self.calls.setdefault(call.scope, []).append(call)
        self._calls_around = Inherited[tuple[Scope, ...]](
            lambda scope, above: (*above, scope) if scope in self.calls else above, top=()
        )
        self.parts: dict[Scope | None, list[Node | Scope]] = {None: []}
        self.parts.update((scope, []) for scope in graph.scopes() if scope in self.calls)
        # A call begins where its first operation does; one that runs nothing, where the next does.
        waiting = list(self.calls)
        numbers = {scope: number for number, scope in enumerate(waiting, 1)}
        begun = 0
        for node in graph.nodes:
            if node.kind in OPERATIONS:
                around = self._calls_around(node.scope)[-1:]
                last = max((begun, *map(numbers.__getitem__, around)))
                self._begin(waiting[begun:last])
                begun = last
                self.parts[around[0] if around else None].append(node)
        self._begin(waiting[begun:])
        self.place: dict[Node | Scope, int] = {
            part: at for parts in self.parts.values() for at, part in enumerate(parts)
        }
        self.uses: dict[Scope | None, Use] = {}
        self.results: dict[Scope, dict[tuple[Node, int], int]] = {}
        # Which of all parameters each is: tied ones, which have one node, have one number.
        self._numbers = {
            (call.scope, held.name): held.number for call in graph.calls for held in call.parameters
        }

    def _begin(self, scopes: list[Scope]) -> None:
        for scope in scopes:
            around = self._calls_around(scope.parent)
            self.parts[around[-1] if around else None].append(scope)

    def is_in(self, node: Node, scope: Scope | None) -> bool:
        """Whether a node is an operation that stands in a call or below it."""
        return node in self.place and (scope is None or scope in self._calls_around(node.scope))

    def calls_down_to(self, node: Node, scope: Scope | None) -> tuple[Scope, ...]:
        """Return the calls between one, or the graph, and an operation, the outermost first."""
        around = self._calls_around(node.scope)
        return around if scope is None else around[around.index(scope) + 1 :]

    def add(self, use: Use) -> None:
        """Keep the use of a call that has been read."""
        self.uses[use.scope] = use
        if use.scope is not None:
            found = self.results[use.scope] = {}
            for at, value in enumerate(values_in(use.call.results)):
                if self.is_in(value.producer, use.scope):
                    found.setdefault((value.producer, value.index), at)

    def state_name(self, node: Node, call: Call) -> str | None:
        """Return what a parameter or buffer is called from a module on: `weight`, `fc.weight`.

        Returns:
            None for what neither the module of the call registers nor one below it.
        """
        if node.kind not in STATE:
            return None
        name = _REPEATED.sub("", node.name)
        if node.scope is not None:
            number = self._numbers.get((node.scope, name.rpartition(".")[2]), -1)
            for held in call.parameters if number >= 0 else ():
                if held.number == number:
                    return held.name
        return _below(name, call.qualified_name)


def _below(name: str | None, above: str | None) -> str | None:
    if above == "":
        return name
    if name is None or above is None or not name.startswith(f"{above}."):
        return None
    return name[len(above) + 1 :]


class Entry(NamedTuple):
    """What an input of a call is.

    Attributes:
        kind: The kind of the input.
        name: What it is called, where that is a part of the structure; empty where it is not.
    """

    kind: InputKind
    name: str


class Reading:
    """What one call is, without names, types and times.

    Args:
        scope: The scope of the call; None for the graph itself.
        tree: All calls of the graph, those in this one with their uses.
        graph: The graph.

    Attributes:
        signatures: Its signatures.
        entries: What its inputs are.
        inputs: Their values.
        waits: The nodes outside that its operations wait for.
        steps: Its steps.
        parts: What stands for each of them.
        results: What it gives.
        ends: For the graph itself, what each of its outputs waits for.
    """

    def __init__(self, scope: Scope | None, tree: CallTree, graph: Graph) -> None:
        self._scope = scope
        self._tree = tree
        self._reads: dict[tuple[Node, int], Read] = {}
        self._waited: dict[Node, Read] = {}
        self._places: dict[Scope | None, tuple[Place, ...]] = {scope: ()}
        self._adopted: dict[str, int] = {}
        self._calls = [] if scope is None else tree.calls[scope]
        self.entries: list[Entry] = []
        self.inputs: list[Value] = []
        self.waits: list[Node] = []
        self.steps: list[Step | CallStep] = []
        self.parts: list[Node | Use] = []
        if scope is None:
            for node in graph.inputs:
                for value in node.outputs:
                    self._take(value, Entry("argument", ""))
        given = [
            tuple(
                Argument(name, self._argument(name or str(at), nest, first=number == 0))
                for at, (name, nest) in enumerate(call.arguments)
            )
            for number, call in enumerate(self._calls)
        ]
        for part in tree.parts[scope]:
            if isinstance(part, Node):
                self.steps.append(self._step(part))
                self.parts.append(part)
            else:
                self.steps.append(self._call_step(part, tree.uses[part]))
                self.parts.append(tree.uses[part])
        self.signatures = tuple(
            Signature(
                call.class_name,
                call.hyperparameters,
                call.training,
                call.number,
                arguments,
                map_values(call.results, self),
                tuple((held.name, held.kind) for held in call.parameters),
            )
            for call, arguments in zip(self._calls, given, strict=True)
        )
        outputs = graph.outputs if scope is None else []
        self.results: Nest = {output.name: self.get(output.value) for output in outputs}
        if self.signatures:
            self.results = self.signatures[0].results
        self.ends = tuple(tuple(map(self._wait, output.control_inputs)) for output in outputs)

    # -- steps ------------------------------------------------------------------------

    def _step(self, node: Node) -> Step:
        return Step(
            node.op,
            node.kind,
            tuple(map(self.get, node.inputs)),
            tuple([Argument(name, map_values(nest, self)) for name, nest in node.arguments]),
            tuple(map(self._wait, node.control_inputs)),
            len(node.outputs),
            node.writes,
            node.role,
            node.random,
            node.phase,
            {key: told for key, told in node.attributes.items() if key not in _OF_A_RUN},
            self._places_of(node.scope),
        )

    def _call_step(self, scope: Scope, use: Use) -> CallStep:
        definition = use.definition
        refs = []
        for entry, value in zip(definition.inputs, use.inputs, strict=True):
            name = None
            if self._calls and entry.kind in STATE:
                # What is state of the call in this one is state of this one, too.
                way = _below(use.call.qualified_name, self._calls[0].qualified_name)
                name = None if way is None else f"{way}.{entry.name}"
            refs.append(self._ref(value, name))
        waits = tuple(map(self._wait, use.waits))
        return CallStep(definition, tuple(refs), waits, self._places_of(scope))

    def _places_of(self, scope: Scope | None) -> tuple[Place, ...]:
        way: list[Scope] = []
        while scope not in self._places:
            assert scope is not None, "what stands in a call stands below its scope"
            way.append(scope)
            scope = scope.parent
        found = self._places[scope]
        for one in reversed(way):
            self._places[one] = found = (*found, self._place(one))
        return found

    def _place(self, scope: Scope) -> Place:
        part = scope.part
        attribute = part.attribute
        if attribute is not None and attribute[:1] == _ADOPTED and scope.qualified_name is None:
            number = self._adopted.setdefault(attribute, len(self._adopted))
            attribute = f"{_ADOPTED}{number}"
        return Place(scope.kind, part.label, attribute, part.index, scope.phase)

    # -- refs -------------------------------------------------------------------------

    def _argument(self, path: str, nest: Nest, *, first: bool) -> Nest:
        """Return an argument with a ref for each tensor in it, each an input of its own."""
        paths = (path for path, _ in walk(nest, path))

        def changed(entry: Nest) -> Nest:
            path = next(paths)
            if not isinstance(entry, Value):
                return entry
            if not first or self._tree.is_in(entry.producer, self._scope):
                # A hook of the module may have made it.
                return self.get(entry)
            return self._take(entry, Entry("argument", path))

        return map_nest(nest, changed)

    def _take(self, value: Value, entry: Entry) -> Read:
        read = Read(len(self.inputs))
        self.inputs.append(value)
        self.entries.append(entry)
        self._reads.setdefault((value.producer, value.index), read)
        return read

    def get(self, value: Value, _: Nest = None) -> Ref:
        """Return the ref of a value, as a mapping from values to refs does."""
        return self._ref(value)

    def _ref(self, value: Value, name: str | None = None) -> Ref:
        """Return the ref of a value; `name` is that which it has as state of a call in this one."""
        node, key = value.producer, (value.producer, value.index)
        known = self._reads.get(key)
        if known is not None:
            return known
        tree = self._tree
        if tree.is_in(node, self._scope):
            # The shortest way to it: among the results of the outermost call that gives it.
            way: list[int] = []
            for scope in tree.calls_down_to(node, self._scope):
                way.append(tree.place[scope])
                at = tree.results[scope].get(key)
                if at is not None:
                    return Given(tuple(way), at)
            return Given((*way, tree.place[node]), value.index)
        kind: InputKind = "buffer" if node.kind == "buffer" else "parameter"
        if self._calls:
            name = tree.state_name(node, self._calls[0]) or name
        elif node.kind in STATE:
            name = ""
        return self._take(value, Entry("captured", "") if name is None else Entry(kind, name))

    def _wait(self, node: Node) -> Ref:
        tree = self._tree
        if tree.is_in(node, self._scope):
            calls = map(tree.place.__getitem__, tree.calls_down_to(node, self._scope))
            return Given((*calls, tree.place[node]), None)
        known = self._waited.get(node)
        if known is None:
            known = self._waited[node] = Read(len(self.waits))
            self.waits.append(node)
        return known
