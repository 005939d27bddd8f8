"""Inputs and results of backward passes that are one operation each.

A backward pass becomes part of an operation if passes are not recorded themselves. The operation
produces gradients of leaf tensors, and tensors that hooks have kept of the pass; most of these are
never read. So a tensor becomes an output of the operation once its value is requested.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Union
from weakref import ref

import torch

from tbscope.ir.graph import Body, Node, Value
from tbscope.ir.nodes import sources_of
from tbscope.sources.eager.record.tensors.tensor_table import add_value
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.torch.autograd import accumulates_into, running_node
from tbscope.sources.torch.calling.argument_values import collect_tensors


class InnerPass:
    """A backward pass inside of an operation: the tensors that its kernels have read and made.

    Args:
        known: Returns the value of a tensor that has one, or None for any other tensor.

    Attributes:
        read: The values that it has read; the pass itself frees their tensors.
        made: Weak references to the tensors that it has made, by their identities.
        earlier: The gradients from before to which it has added, by identity, with their leaves.
    """

    def __init__(self, known: Callable[[torch.Tensor], Value | None]) -> None:
        self.read: dict[Value, None] = {}
        self.made: dict[int, ref[torch.Tensor]] = {}
        self._known = known
        # References, as the sum may otherwise get the identity of a gradient that is gone.
        self.earlier: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def reads(self, nest: object) -> None:
        """Record the tensors that a kernel is about to read."""
        added_to = self._begins_to_add()
        for tensor in collect_tensors(nest, []):
            if tensor is added_to or self._has_made(tensor):
                continue
            value = self._known(tensor)
            if value is not None:
                self.read[value] = None

    def makes(self, nest: object) -> None:
        """Record the results of a kernel, or the gradients with which autograd begins."""
        for tensor in collect_tensors(nest, []):
            if id(tensor) not in self.earlier:
                self.made[id(tensor)] = ref(tensor)

    def _begins_to_add(self) -> torch.Tensor | None:
        """Return the earlier gradient to which the first kernel of a leaf adds, or None."""
        leaf = accumulates_into(running_node())
        gradient = None if leaf is None else leaf.grad
        if leaf is None or gradient is None or self._has_made(gradient):
            return None
        if id(gradient) in self.earlier:
            return None
        self.earlier[id(gradient)] = gradient, leaf
        return gradient

    def _has_made(self, tensor: torch.Tensor) -> bool:
        made = self.made.get(id(tensor))
        return made is not None and made() is tensor


@dataclass(slots=True, eq=False)
class _PassResult:
    """A result of a backward pass whose value has not been requested so far.

    Attributes:
        tensor: A weak reference to the tensor.
        node: The operation that contains the pass.
        inner: The value that a kernel of the operation produced, or None if it is not recorded.
        before: The gradient to which the pass has added it: a result of an earlier pass, a value,
            or the name of an input; None if there was none.
    """

    tensor: ref[torch.Tensor]
    node: Node
    inner: Value | None = None
    before: Union["_PassResult", Value, str, None] = None


class InnerPassResults:
    """The results of backward passes that are one operation each.

    Args:
        values: The values of tensors.
        name_of: Returns the qualified name of a leaf tensor, and the last part of it.

    Attributes:
        pending: The results whose values have not been requested, by the identity of the tensor.
    """

    def __init__(
        self, values: TensorValues, name_of: Callable[[torch.Tensor], tuple[str, str]]
    ) -> None:
        self._values = values
        self._name_of = name_of
        self.pending: dict[int, _PassResult] = {}

    def add(
        self, node: Node, passing: InnerPass, inside: Callable[[torch.Tensor], Value | None] | None
    ) -> None:
        """Record the results of a backward pass that is over.

        Args:
            node: Its operation, with its results.
            passing: The pass.
            inside: Returns the value that a kernel of the operation produced; None without kernels.
        """
        values = self._values
        values.from_pass = self.value_of
        for key, reference in passing.made.items():
            tensor = reference()
            if tensor is not None and values.seen(tensor) is None:
                self.pending[key] = _PassResult(
                    reference, node, None if inside is None else inside(tensor)
                )
        for gradient, leaf in passing.earlier.values():
            grad = leaf.grad
            if grad is None:
                continue
            before: _PassResult | Value | str | None = values.seen(gradient)
            if before is None:
                known = self.is_pending(gradient)
                name = f"{self._name_of(leaf)[0]}.grad"
                before = self.pending[id(gradient)] if known else name
            entry = self.pending[id(grad)] = _PassResult(ref(grad), node, before=before)
            if grad is gradient and isinstance(before, Value):
                # A view of the gradient may exist, and shows the sum from now on.
                total = self._settled(entry, grad)
                values.add_written_outputs(total, [grad], [], [grad])
                values.of_passes.update(total.outputs)
                del self.pending[id(grad)]

    def is_pending(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a result of a pass, and its value has not been requested so far."""
        entry = self.pending.get(id(tensor))
        return entry is not None and entry.tensor() is tensor

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a result of a pass, or None for any other tensor."""
        if not self.is_pending(tensor):
            return None
        node = self._settled(self.pending.pop(id(tensor)), tensor)
        value = self._values.give(node, tensor)
        self._values.of_passes.add(value)
        return value

    def _settled(self, entry: _PassResult, like: torch.Tensor) -> Node:
        """Return the node whose next output is a result of a pass: its operation, or a sum.

        Args:
            entry: The result.
            like: A tensor of its shape and type.
        """
        of, before = entry.node, entry.before
        if of.body is not None and of.body.nodes:
            # The body needs one more result; if no kernel produced it, the body is dropped.
            if entry.inner is None:
                of.body = Body([], [])
            else:
                of.body.results.append(entry.inner)
        if before is None:
            return of
        if isinstance(before, _PassResult):
            before = add_value(self._settled(before, like), like)
        elif isinstance(before, str):
            before = add_value(self._values.builder.append_source("input", before), like)
        inputs = [before, add_value(of, like)]
        node = self._values.append("accumulate", of.scope, inputs, of.source)
        node.run, node.step = of.run, of.step
        return node


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
