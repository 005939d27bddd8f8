"""Backward passes: what autograd's engine runs, and where each of its kernels stands.

Autograd numbers the nodes of its own graph in the order in which they are made. Who knows
which numbers were given while an operation ran knows whose gradient a kernel computes: it
stands in `gradients/Net/layer1/0`, the scope of that operation mirrored.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.autograd import accumulates_into, running_node, sequence_number
from tbscope.sources.torch.internals import storage_key

__all__ = ["Backward"]

# A storage, and the offset, the shape and the strides of a tensor in it.
_Place = tuple[int, Any, torch.Size, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class _Pass:
    """One run of autograd's engine.

    Attributes:
        root: The scope of all of it.
        frame: The module call, or the top level, in which it was begun.
        creates_graph: Whether its own operations can be differentiated again.
        mirrors: The scope in it for each scope of the forward pass.
        parts: The same scopes, by the one around them and the last step of their path.
        leaves: The tensors whose gradients it has added to.
    """

    root: Scope
    frame: Frame
    creates_graph: bool
    mirrors: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[tuple[Scope, ScopePart], Scope] = field(default_factory=dict)
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)


class Backward:
    """Knows the operations that can be differentiated, and the backward passes that run.

    Args:
        builder: The door to the graph.
        scopes: The scopes that are open.
        values: The values that tensors hold.

    Attributes:
        passes: Those that run, the innermost last.
        gave: The values that passes have given to whoever asked (`torch.autograd.grad`).
    """

    def __init__(
        self,
        builder: GraphBuilder,
        scopes: ScopeStack,
        values: TensorValues,
    ) -> None:
        self.passes: list[_Pass] = []
        self.gave: set[Value] = set()
        self._builder = builder
        self._scopes = scopes
        self._find, self._give = values.find, values.give
        self._thread = get_ident()
        # What autograd had numbered when each operation was over, and the operations.
        self._numbers: list[int] = []
        self._nodes: list[Node] = []
        self._first = sequence_number()
        # What autograd saves of a result is another tensor in the same memory.
        self._in_place: dict[_Place, Value] = {}
        self._in_memory: dict[int, Value] = {}
        self._stopped: dict[str, Node] = {}

    # -- operations ---------------------------------------------------------------------

    def ran(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Take note of an operation that has run, of what it read and of what it gave."""
        if self.passes:
            node.phase = "backward"
        if not torch.is_grad_enabled():
            return
        if get_ident() == self._thread:
            self._numbers.append(sequence_number())
            self._nodes.append(node)
        for tensor, value in (*zip(read, node.inputs), *zip(results, node.outputs)):  # noqa: B905
            place = _place_of(tensor)
            if place is not None:
                self._in_place[place] = self._in_memory[place[0]] = value

    def saved(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that autograd has saved; None for any other.

        What the operation alone knows (the mean of a norm) becomes a further result of it.
        """
        if not self.passes:
            return None
        place = _place_of(tensor)
        if place is None:
            return None
        value = self._in_place.get(place) or self._in_memory.get(place[0])
        if value is None:
            node = self._maker_of_running()
            if node is not None:
                node = self._stopped.get(node.op, node)
                value = self._give(self._keeper(node), tensor)
                self._in_place[place] = self._in_memory[place[0]] = value
        return value

    def _keeper(self, node: Node) -> Node:
        """Return who gives what an operation has saved: it, where its results come last."""
        if not node.writes and node.body is None:
            return node
        return self._builder.append_op("saved", node.scope, [], [], [node], node.source, [])

    def _maker_of_running(self) -> Node | None:
        """Return the operation whose gradient is computed now; None for none known."""
        running = running_node()
        return None if running is None else self.made(running._sequence_nr())

    def stopped(self, node: Node) -> None:
        """Take note of an operation after which a checkpoint has stopped to run the model again."""
        node.phase = "backward"
        self._stopped[node.op] = node

    def made(self, number: int) -> Node | None:
        """Return the operation that made autograd's node of this number; None for none known."""
        at = bisect_right(self._numbers, number)
        if number < self._first or at == len(self._nodes):
            return None
        return self._nodes[at]

    # -- passes -------------------------------------------------------------------------

    @contextmanager
    def run(self, *, creates_graph: bool) -> Iterator[None]:
        """Have what runs in a block stand in a backward pass.

        Args:
            creates_graph: Whether what runs can be differentiated itself.
        """
        scopes = self._scopes
        frame = scopes.running
        if self.passes:
            # A checkpoint runs a pass of its own for a part of this one.
            self.passes.append(replace(self.passes[-1], frame=frame, creates_graph=creates_graph))
            try:
                yield
            finally:
                self.passes.pop()
            return
        root = scopes.open_block("gradients")
        root.phase = "backward"
        begun = _Pass(root, frame, creates_graph)
        self.passes.append(begun)
        outer, scopes.again = scopes.again, self._again
        try:
            yield
        finally:
            scopes.again = outer
            self.passes.pop()
            self._name_gradients(begun)
            scopes.close_block("gradients", failed=True)

    def place(self, scope: Scope | None) -> Scope | None:
        """Return where an operation stands that runs in a pass.

        Args:
            scope: Where it would stand without.
        """
        begun = self.passes[-1]
        if self._scopes.running is not begun.frame:
            # A module was called again, or a hook has called one.
            return scope
        if torch.is_grad_enabled() and not begun.creates_graph:
            return self._again()
        node = running_node()
        if node is None:
            return begun.root
        leaf = accumulates_into(node)
        if leaf is not None:
            begun.leaves[id(leaf)] = leaf
            place = self._scopes.registry.tensor(leaf)
            if leaf.grad is not None and self._find(leaf.grad) is None:
                name = place.qualified_name if place else self._name(leaf)
                self._give(self._builder.append_source("input", f"{name}.grad"), leaf.grad)
            home = None if place is None else self._scopes.home(place.owner)
            return self._mirror(begun, home)
        made = self.made(node._sequence_nr())
        return self._mirror(begun, None if made is None else made.scope)

    def _again(self) -> Scope:
        """Return the scope for what runs a second time, to be differentiated (a checkpoint)."""
        root = self.passes[-1].root
        begun = self.passes[-1]
        again = begun.mirrors.get(root)
        if again is None:
            again = begun.mirrors[root] = self._new(ScopePart("recomputed"), root)
        return again

    def _mirror(self, begun: _Pass, scope: Scope | None) -> Scope:
        """Return the scope in a pass that mirrors one of the forward pass."""
        pending: list[Scope] = []
        above = begun.root
        ends = begun.root, begun.root.parent, begun.mirrors.get(begun.root)
        while scope is not None and scope not in ends:
            known = begun.mirrors.get(scope)
            if known is not None:
                above = known
                break
            pending.append(scope)
            scope = scope.parent
        for inner in reversed(pending):
            key = above, inner.part
            if key not in begun.parts:
                begun.parts[key] = self._new(inner.part, above)
            above = begun.mirrors[inner] = begun.parts[key]
        return above

    def _new(self, part: ScopePart, parent: Scope) -> Scope:
        scope = self._builder.new_scope(
            part.label, part.attribute, parent=parent, kind="hand", index=part.index
        )
        scope.phase = "backward"
        return scope

    def _name_gradients(self, begun: _Pass) -> None:
        """Call what gave a tensor its gradient by the name of the tensor."""
        for leaf in begun.leaves.values():
            value = None if leaf.grad is None else self._find(leaf.grad)
            if value is None or value.producer.phase != "backward":
                continue
            node = value.producer
            place = self._scopes.registry.tensor(leaf)
            name = place.attribute if place else self._name(leaf)
            node.op, node.role = f"{name}_grad", None
            node.attributes["gradient_of"] = place.qualified_name if place else name
            if node.writes:
                node.attributes["accumulates"] = True

    def _name(self, leaf: torch.Tensor) -> str:
        """Return a name for a leaf that no module holds: that of an input, or what made it."""
        value = self._find(leaf)
        if value is None:
            return "leaf"
        node = value.producer
        return node.op if node.kind == "op" else node.name


def _place_of(tensor: torch.Tensor) -> _Place | None:
    try:
        key = storage_key(tensor)
        if key is None:
            return None
        return key, tensor.storage_offset(), tensor.shape, tensor.stride()
    except RuntimeError:
        # Nested and sparse tensors have no strides.
        return None
