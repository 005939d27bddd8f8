"""Puts what enters and leaves a module in the order of its call, as our own record tells it.

The record of a run and the exported program are of the same model: within one call of a module
the same operations come in the same order, some of them taken apart or left out by the exporter.
They are laid side by side, and so a value of the record is found in the ONNX model.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tbscope.ir.graph import Call, Graph, Node, Value
from tbscope.ir.pytree import walk
from tbscope.ir.scope_io import STATE
from tbscope.ir.scopes import Nearest, Scope
from tbscope.sources.onnx.export.alignment import Operation, side_by_side

__all__ = ["Order"]


class Order:
    """Which value of an ONNX model is which argument of a call, and which result.

    Args:
        record: What `tbscope.trace` gave for the same model.
        operations: The operations of the exported program.
        values: The values of the ONNX model by the names of these operations.
        inputs: The inputs of the ONNX model, in order.
        calls: The calls of modules that the ONNX model tells, in order: the name and the class of
            the module, and which call of it it is.
    """

    def __init__(
        self,
        record: Graph,
        operations: Sequence[Operation],
        values: Mapping[str, Any],
        inputs: Sequence[Any],
        calls: Iterable[tuple[str, str | None, int]],
    ) -> None:
        self._values = values
        self._now: dict[Any, Any] = {}
        self._operations = {one.name: one for one in operations}
        number_of = _called_by_scope(record)
        self._calls: dict[tuple[str, int], Call] = {}
        for call in record.calls:
            if call.scope in number_of and call.number == 0:
                self._calls[number_of[call.scope]] = call
        # A module that is registered twice has one name in the record, and may have another here.
        here = {(name, number): class_name for name, class_name, number in calls}
        free = [key for key in self._calls if key not in here]
        for key, class_name in here.items():
            if key not in self._calls:
                same = (one for one in free if self._calls[one].class_name == class_name)
                other = next(same, None)
                if other is not None:
                    free.remove(other)
                    call = self._calls.pop(other)
                    self._calls[key] = call
                    number_of[call.scope] = key
        self._names = self._aligned(record, operations, number_of)
        self._inputs = _inputs_by_node(record.inputs, inputs)

    def renamed(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Tell of values that others stand for now."""
        self._now.update(pairs)

    def call(self, name: str, number: int) -> Call | None:
        """Return the call of a module in the record; None where it holds none."""
        return self._calls.get((name, number))

    def sort_inputs(
        self, call: Call, values: Sequence[Any], held: Sequence[Any]
    ) -> tuple[list[Any], list[Any], dict[Any, str]]:
        """Put what enters a module in the order of its call.

        Args:
            call: The call.
            values: What enters, in the order in which it is read.
            held: Those tensors of the model that enter.
        Returns:
            The arguments of the call, in order, and then what enters beside them; the tensors
            of the model that are no arguments; and the names of arguments.
        """
        leaves = [
            (path or f"argument_{place}", leaf)
            for place, argument in enumerate(call.arguments)
            for path, leaf in walk(argument.nest, argument.name or f"argument_{place}")
            if isinstance(leaf, Value)
        ]
        names = self._matched(leaves, {*values, *held})
        rest = [value for value in values if value not in names]
        return [*names, *rest], [value for value in held if value not in names], names

    def sort_outputs(self, call: Call, values: Sequence[Any]) -> list[Any]:
        """Put what leaves a module in the order of its results, and behind it what else leaves."""
        leaves = [(path, leaf) for path, leaf in walk(call.results) if isinstance(leaf, Value)]
        found = self._matched(leaves, {*values})
        return [*found, *(value for value in values if value not in found)]

    def _matched(self, leaves: Sequence[tuple[str, Value]], values: set[Any]) -> dict[Any, str]:
        """Return those of some values that are leaves, in the order of these, with their names."""
        found: dict[Any, str] = {}
        for name, leaf in leaves:
            for candidate in map(self._current, self._candidates(leaf)):
                if candidate in found:
                    break
                if candidate in values:
                    found[candidate] = name
                    break
        return found

    def _current(self, value: Any) -> Any:
        while value in self._now:
            value = self._now[value]
        return value

    def _candidates(self, leaf: Value) -> Iterator[Any]:
        """Return the values of the ONNX model that a value of the record may be, best first."""
        value: Value | None = leaf
        while value is not None:
            node = value.producer
            if node.kind == "input":
                if node in self._inputs:
                    yield self._inputs[node]
                return
            if node.kind in STATE:
                if node.name in self._values:
                    yield self._values[node.name]
                return
            name = self._names.get(node)
            if name is not None:
                yield from self._of_operation(name, value.index)
            # What only describes another tensor anew may have been left out.
            value = node.inputs[0] if node.role is not None and node.inputs else None

    def _of_operation(self, name: str, index: int) -> Iterator[Any]:
        """Return the value of an operation; of one that was left out, what it read."""
        seen: set[str] = set()
        while name not in seen:
            seen.add(name)
            operation = self._operations.get(name)
            if operation is not None and index < len(operation.parts):
                name = operation.parts[index]
            if name in self._values:
                yield self._values[name]
                return
            if operation is None or not operation.reads:
                return
            name, index = operation.reads[0], 0

    def _aligned(
        self,
        record: Graph,
        operations: Sequence[Operation],
        number_of: Mapping[Scope, tuple[str, int]],
    ) -> dict[Node, str]:
        """Return the operations of the program that those of the record became, by name."""
        ours: dict[tuple[str, int], list[Node]] = defaultdict(list)
        call_around = Nearest(number_of.get)
        for node in record.nodes:
            if node.kind == "op":
                key = call_around(node.scope)
                if key is not None:
                    ours[key].append(node)
        theirs: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for operation in operations:
            theirs[operation.call].append(operation)
        names: dict[Node, str] = {}
        for key, nodes in ours.items():
            for node, operation in side_by_side(nodes, theirs.get(key, [])):
                names[node] = operation.name
        return names


def _called_by_scope(record: Graph) -> dict[Scope, tuple[str, int]]:
    """Return which call of which module each scope is that of."""
    counts: dict[str, int] = defaultdict(int)
    found: dict[Scope, tuple[str, int]] = {}
    for call in record.calls:
        if call.qualified_name is not None and call.number == 0:
            found[call.scope] = call.qualified_name, counts[call.qualified_name]
            counts[call.qualified_name] += 1
    return found


def _inputs_by_node(nodes: Sequence[Node], inputs: Sequence[Any]) -> dict[Node, Any]:
    """Return the inputs of the model by those of the record: by name, the others in order."""
    by_name = {str(value.name): value for value in inputs}
    found: dict[Node, Any] = {}
    for node in nodes:
        for name in (node.name, node.name.replace(".", "_")):
            if name in by_name:
                found[node] = by_name.pop(name)
                break
    rest = iter(by_name.values())
    for node in nodes:
        if node not in found:
            value = next(rest, None)
            if value is not None:
                found[node] = value
    return found
