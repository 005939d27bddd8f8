"""The reading of one call: its signature and its steps, with refs in place of values.

Everything gets a number of its own that depends on nothing outside of the call: inputs by
the order of the arguments and then of the first use, operations by their place among the
steps.
"""

from typing import NamedTuple

from tbscope.functions.calls import CallTree
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
from tbscope.functions.state import StateNames
from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, Value
from tbscope.ir.nests import map_nest, map_values, walk
from tbscope.ir.nodes import STATE
from tbscope.ir.scopes import Scope

__all__ = ["Reading"]

# The attributes of an operation that tell of one run, and so belong to a use.
_OF_A_RUN = frozenset({"read_by_python", "thread", "error", "onnx_name", "symbolic_shape"})

# Modules that nobody registers are numbered on through the whole run, `?0`, `?1`.
_ADOPTED = "?"


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
        tree: All calls of the graph.
        state: The names of its parameters.
        uses: The uses of the calls that stand in this one.
        results: Which tensor among the results of each of these a value is.

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

    def __init__(
        self,
        scope: Scope | None,
        tree: CallTree,
        state: StateNames,
        uses: dict[Scope | None, Use],
        results: dict[Scope, dict[tuple[Node, int], int]],
    ) -> None:
        self._scope = scope
        self._tree = tree
        self._state = state
        self._uses = uses
        self._results = results
        self._reads: dict[tuple[Node, int], Read] = {}
        self._waited: dict[Node, Read] = {}
        self._places: dict[Scope | None, tuple[Place, ...]] = {scope: ()}
        self._calls = [] if scope is None else tree.calls[scope]
        self.signatures: tuple[Signature, ...] = ()
        self.entries: list[Entry] = []
        self.inputs: list[Value] = []
        self.waits: list[Node] = []
        self.steps: list[Step | CallStep] = []
        self.parts: list[Node | Use] = []
        self.results: Nest = None
        self.ends: tuple[tuple[Ref, ...], ...] = ()
        self._adopted: dict[str, int] = {}

    def read_call(self) -> None:
        """Read the call of a module."""
        given = [
            tuple(
                Argument(name, self._argument(name or str(at), nest, first=number == 0))
                for at, (name, nest) in enumerate(call.arguments)
            )
            for number, call in enumerate(self._calls)
        ]
        self._read_steps()
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
        self.results = self.signatures[0].results

    def read_graph(self, graph: Graph) -> None:
        """Read the graph itself, around all calls."""
        for node in graph.inputs:
            for value in node.outputs:
                self._take(value, Entry("argument", ""))
        self._read_steps()
        self.results = {output.name: self._ref(output.value) for output in graph.outputs}
        self.ends = tuple(
            tuple(self._wait(node) for node in output.control_inputs) for output in graph.outputs
        )

    def get(self, value: Value, _: Nest = None) -> Ref:
        """Return the ref of a value, as a mapping from values to refs does."""
        return self._ref(value)

    # -- steps ------------------------------------------------------------------------

    def _read_steps(self) -> None:
        for part in self._tree.parts[self._scope]:
            if isinstance(part, Node):
                self.steps.append(self._step(part))
                self.parts.append(part)
            else:
                use = self._uses[part]
                self.steps.append(self._call_step(part, use))
                self.parts.append(use)

    def _step(self, node: Node) -> Step:
        refs = tuple([self._ref(value) for value in node.inputs])
        attributes = node.attributes
        if attributes and not _OF_A_RUN.isdisjoint(attributes):
            attributes = {key: told for key, told in attributes.items() if key not in _OF_A_RUN}
        return Step(
            node.op,
            node.kind,
            refs,
            tuple([Argument(name, map_values(nest, self)) for name, nest in node.arguments]),
            tuple([self._wait(other) for other in node.control_inputs]),
            len(node.outputs),
            node.writes,
            node.role,
            node.random,
            node.phase,
            attributes,
            self._places_of(node.scope),
        )

    def _call_step(self, scope: Scope, use: Use) -> CallStep:
        definition = use.definition
        refs = []
        for entry, value in zip(definition.inputs, use.inputs, strict=True):
            below = (use.call, entry.name) if entry.kind in ("parameter", "buffer") else None
            refs.append(self._ref(value, below))
        waits = [self._wait(node) for node in use.waits]
        return CallStep(definition, tuple(refs), tuple(waits), self._places_of(scope))

    def _places_of(self, scope: Scope | None) -> tuple[Place, ...]:
        known = self._places.get(scope)
        if known is None:
            way: list[Place] = []
            stands = scope
            while stands is not self._scope:
                assert stands is not None, "what stands in a call stands below its scope"
                way.append(self._place(stands))
                stands = stands.parent
            known = self._places[scope] = tuple(reversed(way))
        return known

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
                return self._ref(entry)
            return self._take(entry, Entry("argument", path))

        return map_nest(nest, changed)

    def _take(self, value: Value, entry: Entry) -> Read:
        read = Read(len(self.inputs))
        self.inputs.append(value)
        self.entries.append(entry)
        self._reads.setdefault((value.producer, value.index), read)
        return read

    def _ref(self, value: Value, below: tuple[Call, str] | None = None) -> Ref:
        """Return the ref of a value; `below` tells the call in this one of which it is state."""
        key = value.producer, value.index
        known = self._reads.get(key)
        if known is not None:
            return known
        if self._tree.is_in(value.producer, self._scope):
            return self._given(key)
        return self._take(value, self._entry(value.producer, below))

    def _given(self, key: tuple[Node, int]) -> Given:
        """Return the shortest way to a value that is made in this call or in one in it."""
        node, index = key
        tree = self._tree
        way: list[int] = []
        for scope in tree.calls_down_to(node, self._scope):
            way.append(tree.place[scope])
            at = self._results[scope].get(key)
            if at is not None:
                return Given(tuple(way), at)
        return Given((*way, tree.place[node]), index)

    def _entry(self, node: Node, below: tuple[Call, str] | None) -> Entry:
        if self._calls:
            call = self._calls[0]
            name = self._state.name(node, call)
            if name is None and below is not None:
                name = self._state.name_below(below[1], below[0], call)
            if name is not None:
                return Entry("buffer" if node.kind == "buffer" else "parameter", name)
        elif node.kind in STATE:
            return Entry("buffer" if node.kind == "buffer" else "parameter", "")
        return Entry("captured", "")

    def _wait(self, node: Node) -> Ref:
        if self._tree.is_in(node, self._scope):
            return Given(self._tree.way(node, self._scope), None)
        known = self._waited.get(node)
        if known is None:
            known = self._waited[node] = Read(len(self.waits))
            self.waits.append(node)
        return known
