"""What one rank has of what is spread over several: its share of numbers, bytes and work."""

import math
from collections.abc import Iterable
from fractions import Fraction

from tbscope.ir.graph import Graph, Node, Parameter, Shape, Sharding
from tbscope.ir.regions import OPERATIONS

__all__ = ["bytes_here", "communication_bytes", "flops_here", "numbers_here"]


def numbers_here(one: Parameter) -> int:
    """Return how many numbers of a parameter a rank holds."""
    return _numbers(one.shape if one.sharding is None else one.sharding.shape)


def bytes_here(one: Parameter) -> int:
    """Return how many bytes of a parameter a rank holds."""
    return int(one.size_bytes * _share(one.shape, one.sharding))


def flops_here(node: Node) -> int:
    """Return the floating-point operations that a rank does of those of a node.

    They are those of whole tensors. A rank does as much of them as it has of the tensor of which
    it has least: of a product whose rows are spread that is the result, of one whose sums are
    spread an operand.
    """
    if not node.flops:
        return 0
    shares = [
        _share(value.shape, value.sharding)
        for value in (*node.inputs, *node.outputs)
        if value.sharding is not None
    ]
    return round(node.flops * min(shares, default=Fraction(1)))


def communication_bytes(graph: Graph) -> dict[Node, int]:
    """Return how many bytes each operation moves between ranks, as one of them sees it."""
    return {
        node: node.collective.moved_bytes
        for node in graph.nodes
        if node.kind in OPERATIONS and node.collective is not None
    }


def _share(shape: Shape | None, sharding: Sharding | None) -> Fraction:
    whole = _numbers(shape)
    return Fraction(_numbers(sharding.shape), whole) if sharding and whole else Fraction(1)


def _numbers(shape: Iterable[int | None] | None) -> int:
    return 0 if shape is None else math.prod(size or 0 for size in shape)
