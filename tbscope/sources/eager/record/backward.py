"""Backward passes: what autograd's engine runs, and where each of its kernels stands.

Autograd numbers the nodes of its own graph in the order in which they are made. Who knows
which numbers were given while an operation ran knows whose gradient a kernel computes: it
stands in `gradients/Net/layer1/0`, the scope of that operation mirrored.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.facts import Run
from tbscope.ir.graph import Argument, Node, Value
from tbscope.ir.nodes import Role
from tbscope.ir.scopes import PHASE_BOXES, Scope, ScopeKind, ScopePart, upward
from tbscope.sources.eager.record.gradient_sizes import tell_sizes
from tbscope.sources.eager.record.makers import Makers
from tbscope.sources.eager.record.saved import Saved
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.autograd import (
    accumulates_into,
    gave_of,
    kept_gradient,
    operation_of,
    running_node,
)
from tbscope.sources.torch.locate import is_handed_on

__all__ = ["Backward"]


class _Leaf(NamedTuple):
    """A tensor that has got its gradient.

    Attributes:
        tensor: The tensor, held weakly.
        node: What gave it.
        op: What that was called before.
        role: Its role before.
    """

    tensor: ref[torch.Tensor]
    node: Node
    op: str
    role: Role | None


@dataclass(slots=True, eq=False)
class _Pass:
    """One run of autograd's engine.

    Attributes:
        root: The scope of all of it.
        frame: The module call, or the top level, in which it was begun.
        creates_graph: Whether its own operations can be differentiated again.
        mirrors: The scope in it for each scope of the forward pass.
        calls: The scope of the forward pass that each of these mirrors.
        parts: The same scopes, by the one around them and the last step of their path.
        leaves: What gave each tensor its gradient, by the identity of the tensor.
        caller: The identity of the Python frame that calls autograd's engine.
        run: The run of the user's function that called it.
        step: Where in the code of that.
        given: The tensors that have got a gradient, by their holders and attributes, or identity.
    """

    root: Scope
    frame: Frame
    creates_graph: bool
    caller: int
    run: Run | None = None
    step: int = 0
    mirrors: dict[Scope, Scope] = field(default_factory=dict)
    calls: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[tuple[Scope, ScopePart], Scope] = field(default_factory=dict)
    leaves: dict[int, _Leaf] = field(default_factory=dict)
    given: set[object] = field(default_factory=set)


class Backward:
    """Knows the operations that can be differentiated, and the backward passes that run.

    Args:
        builder: The door to the graph.
        scopes: The scopes that are open.
        values: The values that tensors hold.
        name_of: Returns the qualified name of a leaf tensor, and the last part of it.

    Attributes:
        passes: Those that run, the innermost last.
        gave: The values that passes have given to whoever asked (`torch.autograd.grad`).
        made: Returns the operation that made a node of autograd's graph; None for none known.
        look_again: Takes note that nobody has watched until now.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        scopes: ScopeStack,
        values: TensorValues,
        name_of: Callable[[torch.Tensor], tuple[str, str]],
    ) -> None:
        self.passes: list[_Pass] = []
        self.gave: set[Value] = set()
        self._builder = builder
        self._scopes = scopes
        self._name_of = name_of
        self._find, self._give, self._hold = values.find, values.give, values.hold
        # Those that are over, by their scopes.
        self._ended: dict[Scope, _Pass] = {}
        self._makers = Makers()
        self.made, self.look_again = self._makers.made, self._makers.look_again
        self._saved = Saved(builder, values, self.made)
        # Of the operation that has begun: autograd's node, whether its engine called it, the
        # tensor to whose gradient it adds, and the operation whose gradient it computes.
        self._running: Any = None
        self._by_engine = False
        self._leaf: torch.Tensor | None = None
        self._differentiated: Node | None = None
        # The leaf, by its identity, in whose turn ranks did something together.
        self._shared = 0

    def branch(self, scopes: ScopeStack) -> "Backward":
        """Return one for the passes that another thread runs at the same time."""
        branch = copy(self)
        branch._scopes, branch.passes = scopes, []
        return branch

    # -- operations ---------------------------------------------------------------------

    def ran(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Take note of an operation that has run, of what it read and of what it gave."""
        if self.passes:
            node.phase = "backward"
            if self._leaf is not None and node.collective is not None:
                self._shared = id(self._leaf)
            elif self._leaf is not None and self._shared != id(self._leaf):
                # What a hook does with the gradients of several is not the gradient of one.
                self._tell_leaf(node, self._leaf)
                self._leaf = None
            elif self._differentiated is not None:
                node.attributes["differentiates"] = self._differentiated.op
        if not torch.is_grad_enabled():
            self._makers.add_inside(node)
            return
        self._makers.add(node, read, results)
        self._saved.hold(node, read, results)

    def tell_unseen(self, root: torch.Tensor, value_of: Callable[[torch.Tensor], Value]) -> None:
        """Add what ran unseen between the operations that are known and a root of a pass.

        Autograd's own graph tells the operations; not their constants, and no line of the code.

        Args:
            root: What the pass begins at.
            value_of: Returns the value of a leaf.
        """
        if root.grad_fn is None or self._find(root) is not None:
            return
        pending, node = [root.grad_fn], None
        while pending:
            function = pending[-1]
            known = accumulates_into(function) is not None or self.made(function) is not None
            before = [] if known else [each for each, _ in function.next_functions if each]
            unseen = [
                each
                for each in before
                if accumulates_into(each) is None and self.made(each) is None
            ]
            if unseen:
                pending += unseen
                continue
            pending.pop()
            if not known:
                node = self._add_unseen(function, value_of)
        if node is not None and node.outputs:
            self._hold(root, node.outputs[0])

    def _add_unseen(self, function: Any, value_of: Callable[[torch.Tensor], Value]) -> Node:
        inputs = []
        for each, place in function.next_functions:
            leaf = None if each is None else accumulates_into(each)
            if leaf is not None:
                inputs.append(value_of(leaf))
            elif each is not None:
                outputs = self._made(each).outputs
                inputs.append(outputs[min(place, len(outputs) - 1)])
        arguments = [Argument(None, value) for value in inputs]
        op, scope = operation_of(function), self._scopes.running.inner
        node = self._builder.append_op(op, scope, inputs, arguments, [], None, [])
        node.attributes["told_by"] = "autograd"
        for shape, dtype, device in gave_of(function):
            self._builder.add_value(node, shape, dtype, device)
        self._makers.add_unseen(function, node)
        return node

    def _made(self, function: Any) -> Node:
        node = self.made(function)
        assert node is not None
        return node

    def saved(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that autograd has saved; None for any other."""
        return self._saved.value_of(tensor) if self.passes else None

    def stopped(self, node: Node) -> None:
        """Take note of an operation after which a checkpoint has stopped to run the model again."""
        node.phase = "backward"
        self._saved.ended_early(node)

    def earlier_gradient(self, tensor: torch.Tensor) -> Node | None:
        """Return a new input for the gradient that a parameter had before; None for any other."""
        for leaf in self._scopes.registry.tensors():
            if kept_gradient(leaf) is tensor:
                return self._builder.append_source("input", f"{self._name_of(leaf)[0]}.grad")
        return None

    # -- passes -------------------------------------------------------------------------

    @contextmanager
    def run(
        self, *, creates_graph: bool, caller: int, called: tuple[Run | None, int]
    ) -> Iterator[None]:
        """Have what runs in a block stand in a backward pass.

        Args:
            creates_graph: Whether what runs can be differentiated itself.
            caller: The identity of the Python frame that calls autograd's engine.
            called: The run of the user's function that asked for it, and where in its code.
        """
        scopes = self._scopes
        frame = scopes.running
        if self.passes:
            # A checkpoint runs a pass of its own for a part of this one.
            self.passes.append(
                replace(self.passes[-1], frame=frame, creates_graph=creates_graph, caller=caller)
            )
            try:
                yield
            finally:
                self.passes.pop()
            return
        root = scopes.open_phase("backward")
        begun = _Pass(root, frame, creates_graph, caller, *called)
        self.passes.append(begun)
        self._shared = 0
        outer, scopes.again = scopes.again, self._again
        try:
            yield
            tell_sizes(
                (leaf.node, tensor)
                for leaf in begun.leaves.values()
                if (tensor := leaf.tensor()) is not None
            )
        finally:
            scopes.again = outer
            self._ended[root] = self.passes.pop()
            scopes.close_block(PHASE_BOXES["backward"], failed=True)

    def begin(self, frame: FrameType | None) -> None:
        """Take note of an operation of a pass, before what it reads is looked at.

        Args:
            frame: The Python frame that called it.
        """
        begun = self.passes[-1]
        self._running = running_node()
        self._leaf = self._differentiated = None
        # Of torch's own there is at most one function around the engine.
        around = frame.f_back if frame is not None else None
        if (
            frame is None
            or begun.caller in (id(frame), id(around))
            or is_handed_on(frame, begun.caller)
        ):
            self._by_engine = True
            leaf = None if self._running is None else accumulates_into(self._running)
            self._leaf = leaf
            if leaf is not None and leaf.grad is not None and self._find(leaf.grad) is None:
                # Of a leaf that no module holds, too.
                name = f"{self._name_of(leaf)[0]}.grad"
                self._give(self._builder.append_source("input", name), leaf.grad)
        else:
            self._by_engine = False

    def place(self, scope: Scope | None, values: Sequence[Value]) -> Scope | None:
        """Return where the operation stands that has begun.

        Args:
            scope: Where it would stand without.
            values: What it reads.
        """
        begun = self.passes[-1]
        if self._scopes.running is not begun.frame:
            # A module was called again, or a hook has called one.
            return scope
        if not self._by_engine and torch.is_grad_enabled() and not begun.creates_graph:
            return self._again(scope)
        if self._running is None:
            return begun.root
        # What a hook does with the gradient of a leaf belongs to the leaf, too.
        leaf = self._leaf if self._leaf is not None else accumulates_into(self._running)
        if leaf is not None:
            return self._place_of(leaf, begun, values)
        made = self._differentiated = self.made(self._running)
        return self._mirror(begun, None if made is None else made.scope)

    def _place_of(self, leaf: torch.Tensor, begun: _Pass, values: Sequence[Value]) -> Scope:
        """Return where the gradient of a leaf tensor stands.

        Args:
            leaf: The tensor.
            begun: The pass that computes it.
            values: What the operation reads that has begun.
        """
        place = self._scopes.registry.tensor(leaf)
        near = values[-1].producer.scope if values else None
        call = None if near is None else begun.calls.get(near)
        if near is not None and call is not None:
            if place is None:
                made = self._find(leaf)
                # What a checkpoint was given, to begin anew: no leaf of the user's.
                if made is not None and made.producer.kind == "op":
                    return near
            elif call.qualified_name == self._scopes.home(place.owner).qualified_name:
                # A later call of the module.
                return near
        return self._mirror(begun, None if place is None else self._scopes.home(place.owner))

    def _again(self, scope: Scope | None) -> Scope:
        """Return where what a script runs in a scope stands: a checkpoint, or a hook.

        It is apart from the mirrors of what had run before, which have the same names.
        """
        begun = self.passes[-1]
        root = begun.root
        if scope is not None and root in upward(scope.parent):
            return scope
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
                kind: ScopeKind = "container" if inner.kind == "container" else "hand"
                begun.parts[key] = self._new(inner.part, above, kind)
            above = begun.mirrors[inner] = begun.parts[key]
            begun.calls[above] = inner
        return above

    def _new(self, part: ScopePart, parent: Scope, kind: ScopeKind = "hand") -> Scope:
        # A script may have opened one of this name in the pass.
        index = part.index if self._builder.is_free(part, parent) else None
        scope = self._builder.new_scope(
            part.label, part.attribute, parent=parent, kind=kind, index=index
        )
        scope.phase = "backward"
        return scope

    def _tell_leaf(self, node: Node, leaf: torch.Tensor) -> None:
        """Call a node that gives a tensor its gradient by the name of the tensor."""
        begun = self.passes[-1]
        earlier = begun.leaves.get(id(leaf))
        if earlier is not None:
            # It only made room for what is copied there now.
            earlier.node.op, earlier.node.role = earlier.op, earlier.role
            earlier.node.attributes.pop("gradient_of")
        begun.leaves[id(leaf)] = _Leaf(ref(leaf), node, node.op, node.role)
        name, attribute = self._name_of(leaf)
        node.op, node.role = f"{attribute}_grad", None
        node.attributes["gradient_of"] = name
        begun.given.add(self._key_of(leaf))
        if node.writes and earlier is None:
            node.attributes["accumulates"] = True

    def was_set(self, leaf: torch.Tensor) -> None:
        """Tell whose gradient it is that a script has given a tensor: `weight.grad = ...`."""
        gradient = kept_gradient(leaf)
        value = None if gradient is None else self._find(gradient)
        if gradient is None or value is None or value.producer.kind != "op":
            return
        node = value.producer
        if "gradient_of" in node.attributes or node.phase == "optimizer":
            return
        name, attribute = self._name_of(leaf)
        if node.phase == "forward":
            node.attributes["gradient_of"] = name
        else:
            scope = node.scope
            while scope is not None and scope not in self._ended:
                scope = scope.parent
            if scope is None or self._key_of(leaf) in self._ended[scope].given:
                # The gradient of this one is known, and was laid out anew.
                return
            begun = self._ended[scope]
            begun.given.add(self._key_of(leaf))
            place = self._scopes.registry.tensor(leaf)
            home = None if place is None else self._scopes.home(place.owner)
            node = self._append_gradient(f"{attribute}_grad", self._mirror(begun, home), value)
            node.attributes["gradient_of"] = name
            self._give(node, gradient)
        tell_sizes([(node, leaf)])

    def _key_of(self, leaf: torch.Tensor) -> object:
        """Return what a leaf tensor is known by, and whatever stands in for it in its module."""
        place = self._scopes.registry.tensor(leaf)
        return id(leaf) if place is None else (place.owner, place.attribute)

    def _append_gradient(self, op: str, scope: Scope, value: Value) -> Node:
        node = self._builder.append_op(op, scope, [value], [Argument(None, value)], [], None, [])
        node.phase = "backward"
        return node
