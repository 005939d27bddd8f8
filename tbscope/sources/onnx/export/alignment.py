"""Alignment of the operations of an exported program with the operations of a trace.

The ONNX file has the module of each operation. The number of the call of the module is only in the
names of the exported program (`L__self__tw@1`), which the exporter does not write into the file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tbscope.ir.graph import Node, Shape

if TYPE_CHECKING:
    import torch

__all__ = ["ExportedOperation", "align_operations", "numbers_of", "operations_of"]

_SAME, _ALIKE, _SIZED = 4, 3, 1
_MOST_CELLS = 4_000_000


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
) -> Iterable[tuple[Node, ExportedOperation]]:
    """Return the pairs with the largest total score, in the order of both sequences.

    The search is an alignment by dynamic programming; sequences that are too long have no pairs.

    Args:
        ours: Nodes of the trace.
        theirs: Operations of the exported program.
    """
    if len(ours) * len(theirs) > _MOST_CELLS:
        return []
    best = [[0] * (len(theirs) + 1) for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        row, below = best[i], best[i + 1]
        for j in range(len(theirs) - 1, -1, -1):
            score = _likeness(ours[i], theirs[j])
            paired = below[j + 1] + score if score else 0
            row[j] = max(paired, below[j], row[j + 1])
    pairs = []
    i = j = 0
    while i < len(ours) and j < len(theirs):
        score = _likeness(ours[i], theirs[j])
        # Several equal pairings: the last of several operations is paired, as it returns the
        # result; the first of several nodes is paired, as a value computed once is computed there.
        if best[i][j] == best[i][j + 1]:
            j += 1
        elif score and best[i][j] == best[i + 1][j + 1] + score:
            pairs.append((ours[i], theirs[j]))
            i, j = i + 1, j + 1
        else:
            i += 1
    return pairs
