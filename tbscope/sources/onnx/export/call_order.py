"""Order of the inputs and outputs of a module in ONNX: the order in a traced call of the module.

The trace and the exported program are of one model: within one call of a module their operations
have one order, though the exporter decomposes some operations and leaves others out. `CallOrder`
aligns them, and so finds the ONNX value for a value of the trace. The ONNX file has the module of
each operation; the number of the call of the module is only in the names of the exported program
(`L__self__tw@1`), which the exporter does not write into the file.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tbscope.ir.graph import Call, Graph, Node, Shape, Value
from tbscope.ir.pytree import walk
from tbscope.ir.scope_io import STATE
from tbscope.ir.scopes import NearestProperty, Scope
from tbscope.utils.alignment import align

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch


_SAME, _ALIKE, _SIZED, _LEAST = 4, 3, 1, 1e-9


@dataclass(frozen=True, slots=True)
class ExportedOperation:
    """One operation of the exported program.

    Attributes:
        name: Its name in the program, and the name of its value in ONNX (`linear_1`).
        call: The module in which it ran, and the number of the call.
        target: The callee, without namespace and overload (`linear`).
        shape: The shape of its result; None if it is unknown, or if there are several results.
        reads: The names of the operations whose values it reads.
        parts: The names of its results, if they are several.
    """

    name: str
    call: tuple[str, int]
    target: str
    shape: Shape | None
    reads: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


def numbers_of(program: "torch.export.ExportedProgram") -> dict[str, tuple[int, ...]]:
    """Return the call numbers of the enclosing modules, outermost first, by operation name.

    Args:
        program: A `torch.export.ExportedProgram`.
    """
    return {
        node.name: tuple(_number(key) for key in node.meta.get("nn_module_stack", ()))
        for node in program.graph.nodes
    }


def operations_of(program: "torch.export.ExportedProgram") -> list[ExportedOperation]:
    """Return the operations of an exported program that ran in a module, in order."""
    operations = []
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack", {})
        # `getitem` of a result belongs to the operation that returned the result.
        if node.op != "call_function" or not stack or _is_part(node):
            continue
        key, (name, _) = list(stack.items())[-1]
        parts = {user.args[1]: user.name for user in node.users if _is_part(user)}
        operations.append(
            ExportedOperation(
                node.name,
                (name, _number(key)),
                _plain(str(node.target)),
                _shape(node.meta.get("val")),
                tuple(input_node.name for input_node in node.all_input_nodes),
                tuple(parts[index] for index in sorted(parts)),
            )
        )
    return operations


def _is_part(node: "torch.fx.Node") -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], int)


def _number(key: str) -> int:
    number = str(key).rpartition("@")[2]
    return int(number) if number.isdecimal() and "@" in str(key) else 0


def _plain(target: str) -> str:
    """Return the name of an operator without namespace and overload (`linear`)."""
    steps = target.split(".")
    return (steps[1] if len(steps) > 1 else steps[0]).strip("_")


def _shape(value: object) -> Shape | None:
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return tuple(size if type(size) is int else None for size in shape)


def _likeness(node: Node, operation: ExportedOperation) -> int:
    """Return a score for a node of the trace and an operation; 0 if they cannot be a pair."""
    shapes = [value.shape for value in node.outputs]
    sized = operation.shape is None or not shapes or _fits(operation.shape, shapes[0])
    names = {node.op.strip("_").rpartition(".")[2]}
    names.update(kernel.rpartition("::")[2].strip("_") for kernel in node.kernels)
    if operation.target in names:
        return _SAME if sized else 0
    near = any(name and (name in operation.target or operation.target in name) for name in names)
    return (_ALIKE if near else _SIZED) if sized and operation.shape is not None else 0


def _fits(left: Sequence[int | None], right: Sequence[int | None] | None) -> bool:
    """Whether two shapes may be equal; unknown sizes and shapes match any other."""
    if right is None:
        return True
    return len(left) == len(right) and all(
        a == b or a is None or b is None for a, b in zip(left, right, strict=True)
    )


def align_operations(
    ours: Sequence[Node], theirs: Sequence[ExportedOperation]
) -> list[tuple[Node, ExportedOperation]]:
    """Return the pairs with the largest total score, in the order of both sequences.

    Args:
        ours: Nodes of the trace.
        theirs: Operations of the exported program.
    """

    def score(i: int, j: int) -> float:
        # Several equal pairings: the last of several operations is paired, as it returns the
        # result; the first of several nodes is paired, as a value computed once is computed there.
        likeness = _likeness(ours[i], theirs[j])
        return likeness and likeness + (j - i) * _LEAST

    # No two keys are equal, so that the scores decide.
    keys = range(len(ours)), range(-len(theirs), 0)
    return [(ours[i], theirs[j]) for i, j in align(keys, keys, score)]


class CallOrder:
    """Map from the arguments and results of traced calls to values of an ONNX model.

    Args:
        record: The graph of `tbscope.trace` for the same model.
        operations: The operations of the exported program.
        values: The values of the ONNX model by the names of these operations.
        inputs: The inputs of the ONNX model, in order.
        calls: The module calls of the ONNX model, in order: the name and the class of the module,
            and the number of the call.
    """

    def __init__(
        self,
        record: Graph,
        operations: Sequence[ExportedOperation],
        values: "Mapping[str, ir.Value]",
        inputs: "Sequence[ir.Value]",
        calls: Iterable[tuple[str, str | None, int]],
    ) -> None:
        self._values = values
        self._now: dict[ir.Value, ir.Value] = {}
        self._operations = {item.name: item for item in operations}
        number_of = _called_by_scope(record)
        self._calls: dict[tuple[str, int], Call] = {}
        for call in record.calls:
            if call.scope in number_of and call.number == 0:
                self._calls[number_of[call.scope]] = call
        # A module that is registered twice has one name in the trace, and may have another in ONNX.
        onnx_calls = {(name, number): class_name for name, class_name, number in calls}
        unmatched = [key for key in self._calls if key not in onnx_calls]
        for key, class_name in onnx_calls.items():
            if key not in self._calls:
                candidates = (
                    item for item in unmatched if self._calls[item].class_name == class_name
                )
                match = next(candidates, None)
                if match is not None:
                    unmatched.remove(match)
                    call = self._calls.pop(match)
                    self._calls[key] = call
                    number_of[call.scope] = key
        self._names = self._aligned(record, operations, number_of)
        self._inputs = _inputs_by_node(record.inputs, inputs)

    def renamed(self, pairs: "Iterable[tuple[ir.Value, ir.Value]]") -> None:
        """Record pairs of an old value and the value that has replaced it."""
        self._now.update(pairs)

    def call(self, name: str, number: int) -> Call | None:
        """Return the traced call of a module by its number, or None if the trace has none."""
        return self._calls.get((name, number))

    def sort_inputs(
        self, call: Call, values: "Sequence[ir.Value]", initializers: "Sequence[ir.Value]"
    ) -> "tuple[list[ir.Value], list[ir.Value], dict[ir.Value, str]]":
        """Sort the inputs of a module into the order of the arguments of its call.

        Args:
            call: The traced call.
            values: The inputs that are no initializers, in the order of their first reads.
            initializers: The initializers among the inputs.
        Returns:
            The arguments of the call in order, followed by the other `values`; the initializers
            that are no arguments; and the name of each value that is an argument.
        """
        leaves = [
            (path or f"argument_{index}", leaf)
            for index, argument in enumerate(call.arguments)
            for path, leaf in walk(argument.nest, argument.name or f"argument_{index}")
            if isinstance(leaf, Value)
        ]
        names = self._matched(leaves, {*values, *initializers})
        remaining = [value for value in values if value not in names]
        return [*names, *remaining], [value for value in initializers if value not in names], names

    def sort_outputs(self, call: Call, values: "Sequence[ir.Value]") -> "list[ir.Value]":
        """Sort the outputs of a module: the results of its call in order, then other outputs."""
        leaves = [(path, leaf) for path, leaf in walk(call.results) if isinstance(leaf, Value)]
        results = self._matched(leaves, {*values})
        return [*results, *(value for value in values if value not in results)]

    def _matched(
        self, leaves: Sequence[tuple[str, Value]], values: "set[ir.Value]"
    ) -> "dict[ir.Value, str]":
        """Return the values that are leaves of a call, in leaf order, with the leaves' names."""
        names: dict[ir.Value, str] = {}
        for name, leaf in leaves:
            for candidate in map(self._current, self._candidates(leaf)):
                if candidate in names:
                    break
                if candidate in values:
                    names[candidate] = name
                    break
        return names

    def _current(self, value: "ir.Value") -> "ir.Value":
        while value in self._now:
            value = self._now[value]
        return value

    def _candidates(self, leaf: Value) -> "Iterator[ir.Value]":
        """Yield the values of the ONNX model that a value of the trace may be, best first."""
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
            # The exporter may have left out a view, cast or copy: its input is the next candidate.
            value = node.inputs[0] if node.role is not None and node.inputs else None

    def _of_operation(self, name: str, index: int) -> "Iterator[ir.Value]":
        """Yield the value of an operation, or of its first input if the operation was left out."""
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
        operations: Sequence[ExportedOperation],
        number_of: Mapping[Scope, tuple[str, int]],
    ) -> dict[Node, str]:
        """Return the name of the exported operation for each node of the trace that has one."""
        ours: dict[tuple[str, int], list[Node]] = defaultdict(list)
        enclosing_call = NearestProperty(number_of.get)
        for node in record.nodes:
            if node.kind == "op":
                key = enclosing_call(node.scope)
                if key is not None:
                    ours[key].append(node)
        theirs: dict[tuple[str, int], list[ExportedOperation]] = defaultdict(list)
        for operation in operations:
            theirs[operation.call].append(operation)
        names: dict[Node, str] = {}
        for key, nodes in ours.items():
            for node, operation in align_operations(nodes, theirs.get(key, [])):
                names[node] = operation.name
        return names


def _called_by_scope(record: Graph) -> dict[Scope, tuple[str, int]]:
    """Return the module and the call number of each scope that is a call of a module."""
    counts: dict[str, int] = defaultdict(int)
    calls: dict[Scope, tuple[str, int]] = {}
    for call in record.calls:
        if call.qualified_name is not None and call.number == 0:
            calls[call.scope] = call.qualified_name, counts[call.qualified_name]
            counts[call.qualified_name] += 1
    return calls


def _inputs_by_node(nodes: Sequence[Node], inputs: "Sequence[ir.Value]") -> "dict[Node, ir.Value]":
    """Return the model's input for each input of the trace: by name, the others in order."""
    by_name = {str(value.name): value for value in inputs}
    named = {node: by_name.pop(node.name.replace(".", "_"), None) for node in nodes}
    remaining = iter(by_name.values())
    found = {node: value or next(remaining, None) for node, value in named.items()}
    return {node: value for node, value in found.items() if value is not None}
