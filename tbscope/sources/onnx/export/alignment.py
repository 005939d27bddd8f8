"""The operations that torch's exporter translated, and those of a record beside them.

The file tells in which module an operation ran; which call of it, the names in the exported
program tell (`L__self__tw@1`), which the exporter does not write into the file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tbscope.ir.graph import Node, Shape

__all__ = ["Operation", "numbers_of", "operations_of", "side_by_side"]

_SAME, _ALIKE, _SIZED = 4, 3, 1
_MOST_CELLS = 4_000_000


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the program that became ONNX.

    Attributes:
        name: Its name there, and that of the value that it gives (`linear_1`).
        call: The module and the number of the call that it ran in.
        target: What it called, without namespace and overload (`linear`).
        shape: The shape of what it gives; None where that is not known.
        reads: The operations whose values it reads, by name.
        parts: The names of its results, where they are several.
    """

    name: str
    call: tuple[str, int]
    target: str
    shape: Shape | None
    reads: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


def numbers_of(program: Any) -> dict[str, tuple[int, ...]]:
    """Return which call of each module around it an operation ran in, by its name.

    Args:
        program: A `torch.export.ExportedProgram`.
    """
    return {
        node.name: tuple(_number(key) for key in node.meta.get("nn_module_stack", ()))
        for node in program.graph.nodes
    }


def operations_of(program: Any) -> list[Operation]:
    """Return the operations of an exported program, in order."""
    found = []
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack", {})
        # A part of a result belongs to what gave it.
        if node.op != "call_function" or not stack or _is_part(node):
            continue
        key, (name, _) = list(stack.items())[-1]
        parts = {user.args[1]: user.name for user in node.users if _is_part(user)}
        found.append(
            Operation(
                node.name,
                (name, _number(key)),
                _plain(str(node.target)),
                _shape(node.meta.get("val")),
                tuple(one.name for one in node.all_input_nodes),
                tuple(parts[place] for place in sorted(parts)),
            )
        )
    return found


def _is_part(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], int)


def _number(key: str) -> int:
    number = str(key).rpartition("@")[2]
    return int(number) if number.isdecimal() and "@" in str(key) else 0


def _plain(target: str) -> str:
    """Return the name of an operator (`linear` of `aten.linear.default`)."""
    steps = target.split(".")
    return (steps[1] if len(steps) > 1 else steps[0]).strip("_")


def _shape(value: Any) -> Shape | None:
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return tuple(size if type(size) is int else None for size in shape)


def _likeness(node: Node, operation: Operation) -> int:
    """Return how much an operation of the record is like one of the program; 0 for not at all."""
    shapes = [value.shape for value in node.outputs]
    sized = operation.shape is None or not shapes or _fits(operation.shape, shapes[0])
    names = {node.op.strip("_").rpartition(".")[2]}
    names.update(kernel.rpartition("::")[2].strip("_") for kernel in node.kernels)
    if operation.target in names:
        return _SAME if sized else 0
    near = any(name and (name in operation.target or operation.target in name) for name in names)
    return (_ALIKE if near else _SIZED) if sized and operation.shape is not None else 0


def _fits(one: Sequence[int | None], other: Sequence[int | None] | None) -> bool:
    """Tell whether two shapes may be the same, as far as both are known."""
    if other is None:
        return True
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )


def side_by_side(
    ours: Sequence[Node], theirs: Sequence[Operation]
) -> Iterable[tuple[Node, Operation]]:
    """Return pairs of two sequences, in order in both, that are together as alike as can be.

    None of sequences that are too long for it.
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
        # Of several of theirs that are alike in the same way, the last one gives the result; of
        # several of ours the first one is it, as what is computed once is computed there.
        if best[i][j] == best[i][j + 1]:
            j += 1
        elif score and best[i][j] == best[i + 1][j + 1] + score:
            pairs.append((ours[i], theirs[j]))
            i, j = i + 1, j + 1
        else:
            i += 1
    return pairs
