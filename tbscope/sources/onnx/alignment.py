"""Lays the operations of a record beside those of the exported program, as alike as can be."""

from collections.abc import Iterable, Sequence

from tbscope.ir.graph import Node
from tbscope.sources.onnx.exporting import Operation

__all__ = ["side_by_side"]

_SAME, _ALIKE, _SIZED = 4, 3, 1
_MOST_CELLS = 4_000_000


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
