"""Canonical form of one call: its signature and its steps, with refs in place of values.

All numbers in it are relative to the call: inputs are numbered by the order of the arguments and
then of first use, operations by their index among the steps. A call is identified by its scope; the
graph itself, which encloses all calls, by None. Input, parameter, buffer and constant nodes belong
to no call: they are passed to calls as inputs.
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
from tbscope.ir.pytree import map_tree, map_values, values_in, walk
from tbscope.ir.scopes import InheritedProperty, Scope

# The attributes of an operation that differ from run to run, and so belong to a use.
_OF_A_RUN = frozenset({"read_by_python", "thread", "error", "onnx_name", "symbolic_shape"})

# Unregistered modules are numbered throughout the run (`?0`, `?1`), here within the call.
_ADOPTED = "?"

# Two models in a recording may have parameters of equal names; the later name ends in a number.
_REPEATED = re.compile(r"~[0-9]+\Z")


class CallTree:
    """The calls of one graph.

    Args:
        graph: The graph, which is not changed.

    Attributes:
        calls: The calls that ran in each module scope, in the order in which they began.
        parts: For each call, and for the graph itself (None), the operations and the scopes of
            calls directly in it, in order; outer calls come before inner calls.
        index_of: The index of each operation and of each call among the parts of its parent.
        uses: The use of each call whose canonical form is complete.
        results: For each of these calls, the index among the tensors of its results for each
            value that was computed in it.
    """

    def __init__(self, graph: Graph) -> None:
        self.calls: dict[Scope, list[Call]] = {}
        for call in graph.calls:
            self.calls.setdefault(call.scope, []).append(call)
        self._calls_around = InheritedProperty[tuple[Scope, ...]](
            lambda scope, outer: (*outer, scope) if scope in self.calls else outer, top=()
        )
        self.parts: dict[Scope | None, list[Node | Scope]] = {None: []}
        self.parts.update((scope, []) for scope in graph.scopes() if scope in self.calls)
        # A call begins with its first operation, or, if it has none, with the next operation.
        waiting = list(self.calls)
        numbers = {scope: number for number, scope in enumerate(waiting, 1)}
        begun = 0
        for node in graph.nodes:
            if node.kind in OPERATIONS:
                innermost = self._calls_around(node.scope)[-1:]
                last = max((begun, *map(numbers.__getitem__, innermost)))
                self._begin(waiting[begun:last])
                begun = last
                self.parts[innermost[0] if innermost else None].append(node)
        self._begin(waiting[begun:])
        self.index_of: dict[Node | Scope, int] = {
            part: at for parts in self.parts.values() for at, part in enumerate(parts)
        }
        self.uses: dict[Scope | None, Use] = {}
        self.results: dict[Scope, dict[tuple[Node, int], int]] = {}
        # The numbers of parameters: tied parameters share a node, and so a number.
        self._numbers = {
            (call.scope, parameter.name): parameter.number
            for call in graph.calls
            for parameter in call.parameters
        }

    def _begin(self, scopes: list[Scope]) -> None:
        for scope in scopes:
            enclosing = self._calls_around(scope.parent)
            self.parts[enclosing[-1] if enclosing else None].append(scope)

    def is_in(self, node: Node, scope: Scope | None) -> bool:
        """Whether a node is an operation in a call, or in a call inside of it."""
        return node in self.index_of and (scope is None or scope in self._calls_around(node.scope))

    def calls_down_to(self, node: Node, scope: Scope | None) -> tuple[Scope, ...]:
        """Return the calls that enclose an operation inside of `scope`, the outermost first."""
        enclosing = self._calls_around(node.scope)
        return enclosing if scope is None else enclosing[enclosing.index(scope) + 1 :]

    def add(self, use: Use) -> None:
        """Add the use of a call, with the index of each value in its results."""
        self.uses[use.scope] = use
        if use.scope is not None:
            indices = self.results[use.scope] = {}
            for at, value in enumerate(values_in(use.call.results)):
                if self.is_in(value.producer, use.scope):
                    indices.setdefault((value.producer, value.index), at)

    def state_name(self, node: Node, call: Call) -> str | None:
        """Return the name of a parameter or buffer relative to a module: `weight`, `fc.weight`.

        Returns:
            The name, or None if neither the module of the call nor its submodules register it.
        """
        if node.kind not in STATE:
            return None
        name = _REPEATED.sub("", node.name)
        if node.scope is not None:
            # A tied parameter has one node, perhaps with the name that another module uses.
            number = self._numbers.get((node.scope, name.rpartition(".")[2]), -1)
            for parameter in call.parameters if number >= 0 else ():
                if parameter.number == number:
                    return parameter.name
        return _below(name, call.qualified_name)


def _below(name: str | None, above: str | None) -> str | None:
    if above == "":
        return name
    if name is None or above is None or not name.startswith(f"{above}."):
        return None
    return name[len(above) + 1 :]


class Entry(NamedTuple):
    """The canonical description of an input.

    Attributes:
        kind: The kind of the input.
        name: The name, if it is a part of the structure; empty otherwise.
    """

    kind: InputKind
    name: str


class CanonicalCall:
    """The canonical form of one call, without names, types and times.

    Args:
        scope: The scope of the call; None for the graph itself.
        tree: All calls of the graph; the calls inside this call have uses already.
        graph: The graph.

    Attributes:
        signatures: The signatures of the calls in the scope.
        entries: The canonical descriptions of the inputs.
        inputs: The values of the inputs.
        waits: The nodes outside on which its operations have control dependencies.
        steps: The steps of the body.
        parts: The node or use for each step.
        results: The results of the first call, with refs for tensors; for the graph itself, its
            outputs by name.
        ends: For the graph itself, the control dependencies of each output.
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
        # The arguments come before the steps, because inputs are numbered in the order of use.
        arguments_of_calls = [
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
                tuple((parameter.name, parameter.kind) for parameter in call.parameters),
            )
            for call, arguments in zip(self._calls, arguments_of_calls, strict=True)
        )
        outputs = graph.outputs if scope is None else []
        self.results: Nest = {output.name: self[output.value] for output in outputs}
        if self.signatures:
            self.results = self.signatures[0].results
        self.ends = tuple(tuple(map(self._wait, output.control_inputs)) for output in outputs)

    # -- steps ------------------------------------------------------------------------

    def _step(self, node: Node) -> Step:
        return Step(
            node.op,
            node.kind,
            tuple([self[value] for value in node.inputs]),
            tuple([Argument(name, map_values(nest, self)) for name, nest in node.arguments]),
            tuple(map(self._wait, node.control_inputs)),
            len(node.outputs),
            node.writes,
            node.role,
            node.random,
            node.phase,
            {key: value for key, value in node.attributes.items() if key not in _OF_A_RUN},
            self._places_of(node.scope),
        )

    def _call_step(self, scope: Scope, use: Use) -> CallStep:
        definition = use.definition
        refs = []
        for entry, value in zip(definition.inputs, use.inputs, strict=True):
            name = None
            if self._calls and entry.kind in STATE:
                # State of a submodule is state of this module, too.
                path = _below(use.call.qualified_name, self._calls[0].qualified_name)
                name = None if path is None else f"{path}.{entry.name}"
            refs.append(self._ref(value, name))
        return CallStep(
            definition, tuple(refs), tuple(map(self._wait, use.waits)), self._places_of(scope)
        )

    def _places_of(self, scope: Scope | None) -> tuple[Place, ...]:
        path: list[Scope] = []
        while scope not in self._places:
            assert scope is not None, "what stands in a call stands below its scope"
            path.append(scope)
            scope = scope.parent
        places = self._places[scope]
        for inner in reversed(path):
            self._places[inner] = places = (*places, self._place(inner))
        return places

    def _place(self, scope: Scope) -> Place:
        part = scope.part
        attribute = part.attribute
        if attribute is not None and attribute[:1] == _ADOPTED and scope.qualified_name is None:
            number = self._adopted.setdefault(attribute, len(self._adopted))
            attribute = f"{_ADOPTED}{number}"
        return Place(scope.kind, part.label, attribute, part.index, scope.phase)

    # -- refs -------------------------------------------------------------------------

    def _argument(self, path: str, nest: Nest, *, first: bool) -> Nest:
        """Return an argument with a ref for each of its tensors.

        Each tensor of the first call is a separate input; later calls in the scope refer to the
        inputs that exist.
        """
        paths = (path for path, _ in walk(nest, path))

        def changed(entry: Nest) -> Nest:
            path = next(paths)
            if not isinstance(entry, Value):
                return entry
            if not first or self._tree.is_in(entry.producer, self._scope):
                # A hook of the module may have computed it, inside of the call.
                return self[entry]
            return self._take(entry, Entry("argument", path))

        return map_tree(nest, changed)

    def _take(self, value: Value, entry: Entry) -> Read:
        read = Read(len(self.inputs))
        self.inputs.append(value)
        self.entries.append(entry)
        # If several inputs are the same tensor, refs in the body use the first.
        self._reads.setdefault((value.producer, value.index), read)
        return read

    def __getitem__(self, value: Value) -> Ref:
        """Return the ref of a value (the protocol of `Replacement`)."""
        return self._ref(value)

    def _ref(self, value: Value, name: str | None = None) -> Ref:
        """Return the ref of a value; `name` is its name as state of a call inside this call."""
        node, key = value.producer, (value.producer, value.index)
        read = self._reads.get(key)
        if read is not None:
            return read
        tree = self._tree
        if tree.is_in(node, self._scope):
            # The shortest path ends at the outermost call that has the value among its results.
            path: list[int] = []
            for scope in tree.calls_down_to(node, self._scope):
                path.append(tree.index_of[scope])
                at = tree.results[scope].get(key)
                if at is not None:
                    return Given(tuple(path), at)
            return Given((*path, tree.index_of[node]), value.index)
        kind: InputKind = "buffer" if node.kind == "buffer" else "parameter"
        if self._calls:
            name = tree.state_name(node, self._calls[0]) or name
        elif node.kind in STATE:
            name = ""
        return self._take(value, Entry("captured", "") if name is None else Entry(kind, name))

    def _wait(self, node: Node) -> Ref:
        tree = self._tree
        if tree.is_in(node, self._scope):
            calls = map(tree.index_of.__getitem__, tree.calls_down_to(node, self._scope))
            return Given((*calls, tree.index_of[node]), None)
        read = self._waited.get(node)
        if read is None:
            read = self._waited[node] = Read(len(self.waits))
            self.waits.append(node)
        return read
