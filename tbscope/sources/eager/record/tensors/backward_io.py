"""Inputs and results of backward passes that are one operation each.

A backward pass becomes part of an operation if passes are not recorded themselves.
"""

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tbscope.ir.graph import Value
from tbscope.ir.nodes import sources_of
from tbscope.sources.torch.calling.argument_values import collect_tensors


class InnerPass:
    """A backward pass inside of an operation: the tensors that its kernels have read and made.

    Args:
        known: Returns the value of a tensor that has one, or None for any other tensor.

    Attributes:
        read: The values that it has read; the pass itself frees their tensors.
        made: The tensors that it has made, as weak keys.
    """

    def __init__(self, known: Callable[[torch.Tensor], Value | None]) -> None:
        self.read: dict[Value, None] = {}
        self.made = WeakIdKeyDictionary()
        self._known = known

    def reads(self, nest: object) -> None:
        """Record the tensors that a kernel is about to read."""
        for tensor in collect_tensors(nest, []):
            value = None if tensor in self.made else self._known(tensor)
            if value is not None:
                self.read[value] = None

    def makes(self, nest: object) -> None:
        """Record the results of a kernel, or the gradients with which autograd begins."""
        for tensor in collect_tensors(nest, []):
            self.made[tensor] = None


def without_ancestors(values: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Return those of some values from which none of the other values was made."""
    values = list(values)
    remaining = {value.producer for value in values}
    # Breadth-first: in most cases all are near.
    pending = deque(dict.fromkeys(value.producer for value in others))
    seen = set(pending)
    while pending and remaining:
        node = pending.popleft()
        remaining.discard(node)
        before = [each for each in dict.fromkeys(sources_of(node)) if each not in seen]
        seen.update(before)
        pending += before
    return [value for value in values if value.producer in remaining]
