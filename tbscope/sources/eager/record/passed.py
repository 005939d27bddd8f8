"""What backward passes read and give that are one operation each.

Such an operation gives gradients of leaf tensors, and whatever hooks have kept of the pass: most of
that is never read. So a tensor becomes a result of the operation once anything asks for its value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Body, Node, Value
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.eager.record.wrappers import shape_of
from tbscope.sources.torch.autograd import accumulates_into, running_node
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.wrapping import type_names

__all__ = ["Passed", "Passing"]


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
        running = running_node()
        leaf = None if running is None else accumulates_into(running)
        gradient = None if leaf is None else leaf.grad
        if leaf is None or gradient is None or id(gradient) in self.earlier:
            return None
        if self._has_made(gradient):
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
        builder: The door to the graph.
        values: The values that tensors hold.
        name_of: Returns the qualified name of a leaf tensor, and the last part of it.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        values: TensorValues,
        name_of: Callable[[torch.Tensor], tuple[str, str]],
    ) -> None:
        self._builder = builder
        self._values = values
        self._name_of = name_of
        self._given: dict[int, _Given] = {}
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
            if tensor is not None and values.get(tensor) is None:
                self._given[key] = _Given(held, node, None if inside is None else inside(tensor))
        for gradient, leaf in passing.earlier.values():
            now = leaf.grad
            if now is None:
                continue
            before: _Given | Value | str | None = values.get(gradient)
            if before is None:
                known = self.has_given(gradient)
                name = f"{self._name_of(leaf)[0]}.grad"
                before = self._given[id(gradient)] if known else name
            given = self._given[id(now)] = _Given(ref(now), node, before=before)
            if now is gradient and isinstance(before, Value):
                # Something may hold a view of it, which shows the sum.
                total = self._settled(given)
                values.give_written(total, [now], [], [now])
                values.of_passes.update(total.outputs)
                del self._given[id(now)]

    def has_given(self, tensor: torch.Tensor) -> bool:
        """Whether a pass has given a tensor of which nothing has asked for the value so far."""
        given = self._given.get(id(tensor))
        return given is not None and given.tensor() is tensor

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of what a pass has given; None for any other tensor."""
        if not self.has_given(tensor):
            return None
        value = self._values.give(self._settled(self._given.pop(id(tensor))), tensor)
        self._values.of_passes.add(value)
        return value

    def forget(self) -> None:
        """Let go of all, once the run is over."""
        self._given.clear()

    def _settled(self, given: _Given) -> Node:
        """Return the node whose next output is what a pass has given: its operation, or a sum."""
        tensor = given.tensor()
        assert tensor is not None, "something asks for it"
        sums = [given]
        while isinstance(sums[-1].before, _Given):
            sums.append(sums[-1].before)
        before = sums[-1].before
        if before is given.before is None:
            self._open(given)
            return given.node
        if isinstance(before, str):
            total = self._output(self._builder.append_source("input", before), tensor)
        elif isinstance(before, Value):
            total = before
        else:
            total = self._result(sums.pop(), tensor)
        while True:
            each = sums.pop()
            inputs = [total, self._result(each, tensor)]
            arguments = [Argument(None, value) for value in inputs]
            of, append = each.node, self._builder.append_op
            node = append("accumulate", of.scope, inputs, arguments, [], of.source, [])
            node.run, node.step = of.run, of.step
            if each is given:
                return node
            total = self._output(node, tensor)

    def _result(self, given: _Given, like: torch.Tensor) -> Value:
        self._open(given)
        return self._output(given.node, like)

    def _open(self, given: _Given) -> None:
        """Have the kernels of an operation give one more result, if one of them does."""
        body = given.node.body
        if body is not None and body.nodes:
            if given.inner is None:
                given.node.body = Body([], [])
            else:
                body.results.append(given.inner)

    def _output(self, node: Node, like: torch.Tensor) -> Value:
        types = type_names(like.dtype, like.device)
        return self._builder.add_value(node, shape_of(like), *types)
