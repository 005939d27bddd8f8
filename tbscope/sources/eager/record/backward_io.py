"""What backward passes read and give that are one operation each.

Such an operation gives gradients of leaf tensors, and whatever hooks have kept of the pass: most of
that is never read. So a tensor becomes a result of the operation once anything asks for its value.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Union
from weakref import ref

import torch

from tbscope.ir.graph import Body, Node, Value
from tbscope.ir.nodes import sources_of
from tbscope.sources.eager.record.values import TensorValues, add_value
from tbscope.sources.torch.autograd import accumulates_into, running_node
from tbscope.sources.torch.calling.argument_values import collect_tensors

__all__ = ["Passed", "Passing", "not_behind"]


class Passing:
    """A backward pass inside of an operation: what its kernels have read and made.

    Args:
        known: Returns the value of a tensor that is known; None for any other.

    Attributes:
        read: The values that it has read. The pass lets go of their tensors.
        made: The tensors that it has made, held weakly, by their identities.
        earlier: The gradients from before to which it has added, by identity, with their leaves.
    """

    def __init__(self, known: Callable[[torch.Tensor], Value | None]) -> None:
        self.read: dict[Value, None] = {}
        self.made: dict[int, ref[torch.Tensor]] = {}
        self._known = known
        # Held: the sum may come to stand in the place of one.
        self.earlier: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def reads(self, nest: Any) -> None:
        """Take note of what a kernel is about to read."""
        added_to = self._begins_to_add()
        for tensor in collect_tensors(nest, []):
            if tensor is added_to or self._has_made(tensor):
                continue
            value = self._known(tensor)
            if value is not None:
                self.read[value] = None

    def makes(self, nest: Any) -> None:
        """Take note of what a kernel has given, or of what autograd begins with."""
        for tensor in collect_tensors(nest, []):
            if id(tensor) not in self.earlier:
                self.made[id(tensor)] = ref(tensor)

    def _begins_to_add(self) -> torch.Tensor | None:
        """Return the gradient from before to which the first kernel of a leaf adds, if any."""
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
class _Given:
    """What a pass has given, of which nothing has asked for the value so far.

    Attributes:
        tensor: The tensor, held weakly.
        node: The operation that the pass is.
        inner: The value that a kernel of the operation gave; None where that is not known.
        before: What the pass has added it to: that of an earlier pass, a value, or the name of an
            input; None for nothing.
    """

    tensor: ref[torch.Tensor]
    node: Node
    inner: Value | None = None
    before: Union["_Given", Value, str, None] = None


class Passed:
    """Knows what such passes have given.

    Args:
        values: The values that tensors hold.
        name_of: Returns the qualified name of a leaf tensor, and the last part of it.

    Attributes:
        given: What they have given, by the identity of the tensor.
    """

    def __init__(
        self, values: TensorValues, name_of: Callable[[torch.Tensor], tuple[str, str]]
    ) -> None:
        self._values = values
        self._name_of = name_of
        self.given: dict[int, _Given] = {}
        values.from_pass = self.value_of

    def add(
        self, node: Node, passing: Passing, inside: Callable[[torch.Tensor], Value | None] | None
    ) -> None:
        """Take note of what a pass has given that is over.

        Args:
            node: Its operation, with its results.
            passing: The pass.
            inside: Returns the value that a kernel of the operation gave; None without kernels.
        """
        values = self._values
        for key, held in passing.made.items():
            tensor = held()
            if tensor is not None and values.seen(tensor) is None:
                self.given[key] = _Given(held, node, None if inside is None else inside(tensor))
        for gradient, leaf in passing.earlier.values():
            now = leaf.grad
            if now is None:
                continue
            before: _Given | Value | str | None = values.seen(gradient)
            if before is None:
                known = self.has_given(gradient)
                name = f"{self._name_of(leaf)[0]}.grad"
                before = self.given[id(gradient)] if known else name
            given = self.given[id(now)] = _Given(ref(now), node, before=before)
            if now is gradient and isinstance(before, Value):
                # Something may hold a view of it, which shows the sum.
                total = self._settled(given, now)
                values.give_written(total, [now], [], [now])
                values.of_passes.update(total.outputs)
                del self.given[id(now)]

    def has_given(self, tensor: torch.Tensor) -> bool:
        """Whether a pass has given a tensor of which nothing has asked for the value so far."""
        given = self.given.get(id(tensor))
        return given is not None and given.tensor() is tensor

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of what a pass has given; None for any other tensor."""
        # In most runs no pass has given anything.
        if not self.given or not self.has_given(tensor):
            return None
        node = self._settled(self.given.pop(id(tensor)), tensor)
        value = self._values.give(node, tensor)
        self._values.of_passes.add(value)
        return value

    def _settled(self, given: _Given, like: torch.Tensor) -> Node:
        """Return the node whose next output is what a pass has given: its operation, or a sum.

        Args:
            given: What it has given.
            like: A tensor of its shape and type.
        """
        of, before = given.node, given.before
        if of.body is not None and of.body.nodes:
            # Its kernels give one more result, if one of them does.
            if given.inner is None:
                of.body = Body([], [])
            else:
                of.body.results.append(given.inner)
        if before is None:
            return of
        if isinstance(before, _Given):
            before = add_value(self._settled(before, like), like)
        elif isinstance(before, str):
            before = add_value(self._values.builder.append_source("input", before), like)
        inputs = [before, add_value(of, like)]
        node = self._values.append("accumulate", of.scope, inputs, of.source)
        node.run, node.step = of.run, of.step
        return node


def not_behind(values: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Return those of some values of which none of the others was made."""
    values = list(values)
    left = {value.producer for value in values}
    # The nearest first: mostly all are found soon.
    pending = deque(dict.fromkeys(value.producer for value in others))
    seen = set(pending)
    while pending and left:
        node = pending.popleft()
        left.discard(node)
        found = [each for each in dict.fromkeys(sources_of(node)) if each not in seen]
        seen.update(found)
        pending += found
    return [value for value in values if value.producer in left]
