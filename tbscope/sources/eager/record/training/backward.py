"""Backward passes: what autograd's engine runs, and where each of its kernels stands.

Autograd numbers the nodes of its own graph in the order in which they are made. Who knows
which numbers were given while an operation ran knows whose gradient a kernel computes: it
stands in `gradients/Net/layer1/0`, the scope of that operation mirrored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from math import isfinite
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.ir.metadata import Run
from tbscope.ir.scopes import PHASE_BOXES, Scope, ScopeKind, ScopePart, upward
from tbscope.sources.eager.record.scope_stack import Frame
from tbscope.sources.eager.record.tensor_sources import Discovery
from tbscope.sources.eager.record.training.autograd_producers import Makers
from tbscope.sources.eager.record.training.optimizer_step import Optimizers
from tbscope.sources.torch.autograd import (
    accumulates_into,
    gave_of,
    kept_gradient,
    operation_of,
    running_node,
)
from tbscope.sources.torch.compat.tensors import outside_modes, without_functions
from tbscope.sources.torch.source_location import is_handed_on
from tbscope.sources.torch.subclasses import PLAIN

__all__ = ["Backward"]

_LARGER = dict.fromkeys((torch.float16, torch.bfloat16), torch.float32)


class _Leaf(NamedTuple):
    """A tensor that has got its gradient.

    Attributes:
        tensor: The tensor, held weakly.
        node: What gave it.
        name: The qualified name of the tensor.
        attribute: The last part of that.
        accumulates: Whether it was added to what was there.
    """

    tensor: ref[torch.Tensor]
    node: Node
    name: str
    attribute: str
    accumulates: bool = False


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
        leaves: The tensors that have got a gradient, by their holders and attributes, or identity.
        caller: The identity of the Python frame that calls autograd's engine.
        called: The run of the user's function that called it, and where in the code of that.
    """

    root: Scope
    frame: Frame
    creates_graph: bool
    caller: int
    called: tuple[Run | None, int] = (None, 0)
    mirrors: dict[Scope, Scope] = field(default_factory=dict)
    calls: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[tuple[Scope, ScopePart], Scope] = field(default_factory=dict)
    leaves: dict[object, _Leaf] = field(default_factory=dict)


class Backward:
    """Knows the operations that can be differentiated, and the backward passes that run.

    Args:
        discovery: Finds the values and the names of tensors.

    Attributes:
        passes: Those that run, the innermost last.
        optimizers: The steps of optimizers.
        gave: The values that passes have given to whoever asked (`torch.autograd.grad`).
        made: Returns the operation that made a node of autograd's graph; None for none known.
        ended_early: Takes note of an operation after which a checkpoint runs no further.
        look_again: Takes note that nobody has watched until now.
    """

    def __init__(self, discovery: Discovery) -> None:
        self.passes: list[_Pass] = []
        self.gave: set[Value] = set()
        self._scopes, self._values = discovery.scopes, discovery.values
        self._builder = self._values.builder
        self._name_of = discovery.name_of_leaf
        self.optimizers = Optimizers(discovery, self.passes)
        discovery.from_step = self.kept
        # Those that are over, by their scopes.
        self._ended: dict[Scope, _Pass] = {}
        self._makers = Makers(self._values)
        self.made, self.look_again = self._makers.made, self._makers.look_again
        self.ended_early = self._makers.ended_early
        # Of the operation that has begun: autograd's node, whether its engine called it, the
        # tensor to whose gradient it adds, and the operation whose gradient it computes.
        self._running: Any = None
        self._by_engine = False
        self._leaf: torch.Tensor | None = None
        self._differentiated: Node | None = None
        # The leaf, by its identity, in whose turn ranks did something together.
        self._shared = 0

    def branch(self, discovery: Discovery) -> "Backward":
        """Return one for the passes that another thread runs at the same time."""
        branch = copy(self)
        branch._scopes, branch.passes = discovery.scopes, []
        branch.optimizers = self.optimizers.branch(discovery.scopes, branch.passes)
        discovery.from_step = branch.kept
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
                key, leaves = self._key_of(self._leaf), self.passes[-1].leaves
                # One before it only made room for what is copied there now.
                accumulates = bool(node.writes) and key not in leaves
                names = self._name_of(self._leaf)
                leaves[key] = _Leaf(ref(self._leaf), node, *names, accumulates)
                self._leaf = None
            elif self._differentiated is not None:
                node.attributes["differentiates"] = self._differentiated.op
        if not torch.is_grad_enabled():
            self._makers.add_inside(node)
            return
        self._makers.add(node, read, results)

    def tell_unseen(self, root: torch.Tensor, value_of: Callable[[torch.Tensor], Value]) -> None:
        """Add what ran unseen between the operations that are known and a root of a pass.

        Autograd's own graph tells the operations; not their constants, and no line of the code.

        Args:
            root: What the pass begins at.
            value_of: Returns the value of a leaf.
        """
        if root.grad_fn is None or self._values.find(root) is not None:
            return

        def is_known(function: Any) -> bool:
            return accumulates_into(function) is not None or self.made(function) is not None

        pending, node = [root.grad_fn], None
        while pending:
            function = pending[-1]
            known = is_known(function)
            before = () if known else (each for each, _ in function.next_functions if each)
            unseen = [each for each in before if not is_known(each)]
            if unseen:
                pending += unseen
                continue
            pending.pop()
            if not known:
                node = self._add_unseen(function, value_of)
        if node is not None and node.outputs:
            self._values.hold(root, node.outputs[0])

    def _add_unseen(self, function: Any, value_of: Callable[[torch.Tensor], Value]) -> Node:
        inputs = []
        for each, place in function.next_functions:
            leaf = accumulates_into(each)
            if leaf is not None:
                inputs.append(value_of(leaf))
            elif each is not None:
                made = self.made(each)
                assert made is not None
                inputs.append(made.outputs[min(place, len(made.outputs) - 1)])
        scope = self._scopes.running.inner
        node = self._values.append(operation_of(function), scope, inputs)
        node.attributes["told_by"] = "autograd"
        for shape, dtype, device in gave_of(function):
            self._builder.add_value(node, shape, dtype, device)
        self._makers.add_unseen(function, node)
        return node

    def kept(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that a training step has kept; None for any other.

        So do autograd, which saves it, and optimizers; or it is a gradient from before.
        """
        value = self._makers.value_of(tensor) if self.passes else None
        if value is not None:
            return value
        with without_functions():
            node = self.optimizers.kept(tensor)
            if node is None:
                leaves = self._scopes.registry.tensors()
                leaf = next((leaf for leaf in leaves if kept_gradient(leaf) is tensor), None)
                if leaf is None:
                    return None
                node = self._builder.append_source("input", f"{self._name_of(leaf)[0]}.grad")
            return self._values.give(node, tensor)

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
        begun = _Pass(root, frame, creates_graph, caller, called)
        self.passes.append(begun)
        self._shared = 0
        outer, scopes.again = scopes.again, self._again
        leaves = begun.leaves.values()
        try:
            yield
        finally:
            scopes.again = outer
            self._ended[root] = self.passes.pop()
            for one in leaves:
                one.node.op, one.node.role = f"{one.attribute}_grad", None
                one.node.attributes["gradient_of"] = one.name
                if one.accumulates:
                    one.node.attributes["accumulates"] = True
            scopes.close_block(PHASE_BOXES["backward"], failed=True)
        _tell_sizes((one.node, leaf) for one in leaves if (leaf := one.tensor()) is not None)

    def begin(self, frame: FrameType | None) -> None:
        """Take note of an operation of a pass, before what it reads is looked at.

        Args:
            frame: The Python frame that called it.
        """
        begun = self.passes[-1]
        self._running = running_node()
        self._leaf = self._differentiated = None
        # Of torch's own there is at most one function around the engine.
        self._by_engine = (
            frame is None
            or begun.caller in (id(frame), id(frame.f_back))
            or is_handed_on(frame, begun.caller)
        )
        if self._by_engine:
            self._leaf = leaf = accumulates_into(self._running)
            if leaf is not None and leaf.grad is not None and self._values.find(leaf.grad) is None:
                # Of a leaf that no module holds, too.
                name = f"{self._name_of(leaf)[0]}.grad"
                self._values.give(self._builder.append_source("input", name), leaf.grad)

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
        home = self._home_of(leaf)
        near = values[-1].producer.scope if values else None
        call = None if near is None else begun.calls.get(near)
        if near is not None and call is not None:
            if home is None:
                made = self._values.find(leaf)
                # What a checkpoint was given, to begin anew: no leaf of the user's.
                if made is not None and made.producer.kind == "op":
                    return near
            elif call.qualified_name == home.qualified_name:
                # A later call of the module.
                return near
        return self._mirror(begun, home)

    def _home_of(self, leaf: torch.Tensor) -> Scope | None:
        """Return the scope of the module that owns a leaf tensor; None where none does."""
        place = self._scopes.registry.tensor(leaf)
        return None if place is None else self._scopes.home(place.owner)

    def _again(self, scope: Scope | None) -> Scope:
        """Return where what a script runs in a scope stands: a checkpoint, or a hook.

        It is apart from the mirrors of what had run before, which have the same names.
        """
        begun = self.passes[-1]
        root = begun.root
        if scope is not None and root in upward(scope.parent):
            return scope
        if root not in begun.mirrors:
            begun.mirrors[root] = self._new(ScopePart("recomputed"), root)
        return begun.mirrors[root]

    def _mirror(self, begun: _Pass, scope: Scope | None) -> Scope:
        """Return the scope in a pass that mirrors one of the forward pass."""
        root = begun.root
        if scope is None or scope in (root, root.parent, begun.mirrors.get(root)):
            return root
        if scope not in begun.mirrors:
            above = self._mirror(begun, scope.parent)
            key = above, scope.part
            if key not in begun.parts:
                kind: ScopeKind = "container" if scope.kind == "container" else "hand"
                begun.parts[key] = self._new(scope.part, above, kind)
            begun.mirrors[scope] = begun.parts[key]
            begun.calls[begun.parts[key]] = scope
        return begun.mirrors[scope]

    def _new(self, part: ScopePart, parent: Scope, kind: ScopeKind = "hand") -> Scope:
        # A script may have opened one of this name in the pass.
        index = part.index if self._builder.is_free(part, parent) else None
        scope = self._builder.new_scope(
            part.label, part.attribute, parent=parent, kind=kind, index=index
        )
        scope.phase = "backward"
        return scope

    def was_set(self, leaf: torch.Tensor) -> None:
        """Tell whose gradient it is that a script has given a tensor: `weight.grad = ...`."""
        gradient = kept_gradient(leaf)
        value = None if gradient is None else self._values.find(gradient)
        if gradient is None or value is None or value.producer.kind != "op":
            return
        node = value.producer
        if "gradient_of" in node.attributes or node.phase == "optimizer":
            return
        name, attribute = self._name_of(leaf)
        if node.phase == "forward":
            node.attributes["gradient_of"] = name
        else:
            ended = (self._ended.get(scope) for scope in upward(node.scope))
            begun, key = next(filter(None, ended), None), self._key_of(leaf)
            if begun is None or key in begun.leaves:
                # The gradient of this one is known, and was laid out anew.
                return
            scope = self._mirror(begun, self._home_of(leaf))
            node = self._values.append(f"{attribute}_grad", scope, [value])
            node.phase = "backward"
            node.attributes["gradient_of"] = name
            begun.leaves[key] = _Leaf(ref(leaf), node, name, attribute)
            self._values.give(node, gradient)
        _tell_sizes([(node, leaf)])

    def _key_of(self, leaf: torch.Tensor) -> object:
        """Return what a leaf tensor is known by, and whatever stands in for it in its module."""
        place = self._scopes.registry.tensor(leaf)
        return id(leaf) if place is None else (place.owner, place.attribute)


def _tell_sizes(leaves: Iterable[tuple[Node, torch.Tensor]]) -> None:
    """Tell of the nodes that give parameters their gradients what these are like.

    The attribute `gradient_norm` is the Euclidean norm, where that is a number,
    `gradient_zeros` how many elements are 0, `gradient_nan` and `gradient_inf` how many are none
    or infinite, where some are. Gradients that hold nothing (on "meta"), or not all of their
    elements (sparse ones), are left out.

    Args:
        leaves: The nodes, each with the parameter.
    """
    with outside_modes(), torch.no_grad():
        for node, leaf in leaves:
            given = leaf.grad
            if given is None or type(given) not in PLAIN or given.is_meta:
                continue
            if given.layout is not torch.strided:
                continue
            # Of truths torch counts twice as fast as of numbers, the making of them included.
            filled = int(torch.count_nonzero(given.bool()))
            node.attributes["gradient_zeros"] = given.numel() - filled
            # The squares of small types overflow.
            norm = float(torch.linalg.vector_norm(given, dtype=_LARGER.get(given.dtype)))
            if isfinite(norm):
                node.attributes["gradient_norm"] = norm
                continue
            for name, which in (("gradient_nan", torch.isnan), ("gradient_inf", torch.isinf)):
                wrong = int(torch.count_nonzero(which(given)))
                if wrong:
                    node.attributes[name] = wrong
