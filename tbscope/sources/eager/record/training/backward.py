"""Backward passes: the kernels that autograd's engine runs, and the scope of each of them.

Autograd numbers the nodes of its own graph in the order in which they are made. The numbers
assigned while an operation ran lead from a backward kernel to the operation whose gradient it
computes (`AutogradProducers.made`): the kernel is in `gradients/Net/layer1/0`, the scope of that
operation mirrored.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.ir.metadata import CallFrame
from tbscope.ir.scopes import (
    PHASE_BOXES,
    RECOMPUTED,
    Scope,
    ScopeKind,
    ScopePart,
    self_and_ancestors,
)
from tbscope.sources.eager.record.scope_stack import Frame
from tbscope.sources.eager.record.tensor_sources import TensorSources
from tbscope.sources.eager.record.training.autograd_producers import AutogradProducers
from tbscope.sources.eager.record.training.optimizer_step import Optimizers
from tbscope.sources.torch.autograd import (
    accumulates_into,
    kept_gradient,
    operation_of,
    output_types,
    reachable_nodes,
    running_node,
)
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import cuda_in_use, outside_modes, without_functions
from tbscope.sources.torch.module_names import ModuleEntry
from tbscope.sources.torch.source_location import is_only_dispatched
from tbscope.sources.torch.subclasses import PLAIN

_LARGER = dict.fromkeys((torch.float16, torch.bfloat16), torch.float32)


class _Leaf(NamedTuple):
    """A tensor that has got its gradient.

    Attributes:
        tensor: A weak reference to the tensor.
        node: The node that produced the gradient.
        name: The qualified name of the tensor.
        attribute: The last part of the name.
        accumulates: Whether the gradient was added to an earlier gradient.
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
        root: The scope of the whole pass.
        frame: The module call, or the top level, in which it began.
        creates_graph: Whether its own operations can be differentiated again.
        mirrors: The scope in the pass, by scope of the forward pass.
        calls: The scope of the forward pass, by the scope that mirrors it.
        parts: The mirroring scopes, by enclosing scope and the last step of their path.
        leaves: The tensors that have got a gradient, by owner and attribute, or by identity.
        caller: The identity of the Python frame that calls autograd's engine.
        called: The `CallFrame` of the user's function that called it, and the bytecode offset in
            it.
    """

    root: Scope
    frame: Frame
    creates_graph: bool
    caller: int
    called: tuple[CallFrame | None, int]
    mirrors: dict[Scope, Scope] = field(default_factory=dict)
    calls: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[tuple[Scope, ScopePart], Scope] = field(default_factory=dict)
    leaves: dict[object, _Leaf] = field(default_factory=dict)


class Backward:
    """The operations that can be differentiated, and the backward passes that run.

    Args:
        discovery: Finds the values and the names of tensors.

    Attributes:
        passes: The running passes, the innermost last.
        optimizers: The optimizer steps.
        gave: The values that passes have returned to their callers (`torch.autograd.grad`).
        made: Returns the operation that made a node of autograd's graph, or None if not recorded.
        ended_early: Records an operation after which a checkpoint runs no further.
        look_again: Records that the operations since the last recorded one ran unwatched.
        unseen_root: The module whose operations all ran unwatched; None if its calls are recorded.
    """

    def __init__(self, discovery: TensorSources) -> None:
        self.passes: list[_Pass] = []
        self.gave: set[Value] = set()
        self.unseen_root: torch.nn.Module | None = None
        self._scopes, self._values = discovery.scopes, discovery.values
        self._builder = self._values.builder
        self._name_of = discovery.name_of_leaf
        self.optimizers = Optimizers(discovery, self.passes)
        discovery.from_step = self.kept
        # The passes that are over, by their scopes.
        self._ended: dict[Scope, _Pass] = {}
        self._makers = AutogradProducers(self._values)
        self.made, self.look_again = self._makers.made, self._makers.look_again
        self.ended_early = self._makers.ended_early
        # Of the operation that has begun: autograd's node, whether its engine called it, the tensor
        # to whose gradient it adds, and the operation whose gradient it computes.
        self._running: Any = None
        self._by_engine = False
        self._leaf: torch.Tensor | None = None
        self._differentiated: Node | None = None
        # The identity of the leaf whose gradient was being added to when ranks last communicated.
        self._shared = 0

    def begin_thread(self) -> None:
        """Begin in a thread that runs no passes and no steps yet."""
        self.passes = self.optimizers.passes = []
        self.optimizers.steps, self.optimizers.helpers = [], {}

    # -- operations ---------------------------------------------------------------------

    def ran(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Record an operation that has run, with the tensors that it read and its results."""
        if self.passes:
            node.phase = "backward"
            if self._leaf is not None and node.collective is not None:
                self._shared = id(self._leaf)
            elif self._leaf is not None and self._shared != id(self._leaf):
                # No hook has communicated for this leaf. A hook that does has the gradients of
                # several leaves, and its operations are not the gradient of one leaf.
                key, leaves = self._key_of(self._leaf), self.passes[-1].leaves
                # An earlier operation of this leaf has only allocated the memory that is written
                # now.
                accumulates = bool(node.writes) and key not in leaves
                leaves[key] = _Leaf(ref(self._leaf), node, *self._name_of(self._leaf), accumulates)
                self._leaf = None
            elif self._differentiated is not None:
                node.attributes["differentiates"] = self._differentiated.op
        elif node.scope is not None and node.scope.phase == "backward":
            # Sharded modules may reduce their gradients after the passes.
            node.phase = "backward"
        if not torch.is_grad_enabled():
            self._makers.add_inside(node)
            return
        self._makers.add(node, read, results)

    def add_unseen_arguments(
        self,
        arguments: object,
        scope: Scope | None,
        value_of: Callable[[torch.Tensor], Value],
    ) -> None:
        """Add the operations that ran unseen between recorded operations and a module call.

        Args:
            arguments: A pytree of the arguments of the call.
            scope: The scope of the operations.
            value_of: Returns the value of a leaf.
        """
        for tensor in collect_tensors(arguments, []):
            if self._values.find(tensor) is None and any(
                self.made(function) is not None for function in reachable_nodes([tensor])
            ):
                self.add_unseen(tensor, value_of, scope)

    def add_unseen(
        self,
        root: torch.Tensor,
        value_of: Callable[[torch.Tensor], Value],
        scope: Scope | None = None,
    ) -> None:
        """Add the operations that ran unseen between recorded operations and a root of a pass.

        Autograd's own graph names the operations, but neither their constants nor the line of the
        code.

        Args:
            root: A tensor at which the pass begins.
            value_of: Returns the value of a leaf.
            scope: The scope of the operations; None for the running scope.
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
                node = self._add_unseen_operation(function, value_of, scope)
        if node is not None and node.outputs:
            self._values.hold(root, node.outputs[min(root.output_nr, len(node.outputs) - 1)])

    def _add_unseen_operation(
        self, function: Any, value_of: Callable[[torch.Tensor], Value], scope: Scope | None
    ) -> Node:
        """Add the operation of one node of autograd's graph, whose own inputs are recorded."""
        inputs, scope = [], scope or self._scopes.running.inner
        if self.unseen_root is not None:
            scope = self._scopes.container(self._scopes.registry.add_root(self.unseen_root))
        for function_before, output_index in function.next_functions:
            leaf = accumulates_into(function_before)
            if leaf is not None:
                inputs.append(value_of(leaf))
                if self.unseen_root is not None:
                    scope = self._own_scope_of(leaf) or scope
            elif function_before is not None:
                producer = self.made(function_before)
                assert producer is not None
                inputs.append(producer.outputs[min(output_index, len(producer.outputs) - 1)])
        node = self._values.append(operation_of(function), scope, inputs)
        node.attributes["told_by"] = "autograd"
        for shape, dtype, device in output_types(function):
            self._builder.add_value(node, shape, dtype, device)
        self._makers.add_unseen(function, node)
        return node

    def kept(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that a training step has kept, or None for any other tensor.

        Autograd keeps the tensors that it saves, an optimizer keeps its state; gradients may be
        there from before.
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
        self, *, creates_graph: bool, caller: int, called: tuple[CallFrame | None, int]
    ) -> Iterator[None]:
        """Record the operations of a block as part of a backward pass.

        Args:
            creates_graph: Whether the operations of the block can be differentiated themselves.
            caller: The identity of the Python frame that calls autograd's engine.
            called: The `CallFrame` of the user's function that requested it, and the bytecode
                offset in it.
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
            for each in leaves:
                # The last operation of each leaf, which is certain only now, produces its gradient.
                each.node.op, each.node.role = f"{each.attribute}_grad", None
                each.node.attributes["gradient_of"] = each.name
                if each.accumulates:
                    each.node.attributes["accumulates"] = True
            scopes.close_block(PHASE_BOXES["backward"], failed=True)
        _describe_gradients(
            (each.node, leaf) for each in leaves if (leaf := each.tensor()) is not None
        )

    def begin(self, frame: FrameType | None) -> None:
        """Prepare for an operation of a pass, before its arguments are looked up.

        Args:
            frame: The Python frame that called it.
        """
        begun = self.passes[-1]
        self._running = running_node()
        self._leaf = self._differentiated = None
        # At most one function of torch's own is around the engine.
        self._by_engine = (
            frame is None
            or begun.caller in (id(frame), id(frame.f_back))
            or is_only_dispatched(frame, begun.caller)
        )
        if self._by_engine:
            self._leaf = leaf = accumulates_into(self._running)
            if leaf is not None and leaf.grad is not None and self._values.find(leaf.grad) is None:
                # A gradient from before becomes an input, also if no module registers its leaf.
                name = f"{self._name_of(leaf)[0]}.grad"
                self._values.give(self._builder.append_source("input", name), leaf.grad)

    def scope_of(self, scope: Scope | None, values: Sequence[Value]) -> Scope | None:
        """Return the scope of the operation that has begun.

        Args:
            scope: Its scope by the call site.
            values: The values that it reads.
        """
        begun = self.passes[-1]
        if self._scopes.running is not begun.frame:
            # A module is called again (by a checkpoint), or a hook calls a module.
            return scope
        if not self._by_engine and torch.is_grad_enabled() and not begun.creates_graph:
            return self._again(scope)
        if self._running is None:
            return begun.root
        # Operations of a hook on the gradient of a leaf belong to the leaf, too.
        leaf = self._leaf if self._leaf is not None else accumulates_into(self._running)
        if leaf is not None:
            return self._place_of(leaf, begun, values)
        made = self._differentiated = self.made(self._running)
        return self._mirror(begun, None if made is None else made.scope)

    def _place_of(self, leaf: torch.Tensor, begun: _Pass, values: Sequence[Value]) -> Scope:
        """Return the scope of the gradient of a leaf tensor.

        Args:
            leaf: The tensor.
            begun: The pass that computes the gradient.
            values: The values that the operation reads which has begun.
        """
        own_scope = self._own_scope_of(leaf)
        near = values[-1].producer.scope if values else None
        call = None if near is None else begun.calls.get(near)
        if near is not None and self._scopes.boxes.get((near.parent, "reduce_scatter")) is near:
            # Sharded modules gather one parameter for all of theirs.
            return near
        if near is not None and call is not None:
            if own_scope is None:
                made = self._values.find(leaf)
                # The leaf is an input of a checkpoint, which begins anew there: no leaf of the
                # user's.
                if made is not None and made.producer.kind == "op":
                    return near
            else:
                return self._in_call(begun, call, own_scope)
        return self._mirror(begun, own_scope)

    def _in_call(self, begun: _Pass, call: Scope, own_scope: Scope) -> Scope:
        """Return the mirror of a module's own scope, in a later call of it or of a module around.

        Args:
            begun: The pass.
            call: The scope of the operation whose gradient is computed.
            own_scope: The scope of the module, in its first call.
        """
        calls = {_module_of(scope): scope for scope in reversed(self_and_ancestors(call))}
        inside: list[Scope] = []
        for scope in self_and_ancestors(own_scope):
            later = calls.get(_module_of(scope))
            if later is scope:
                break
            if later is not None and scope.qualified_name is not None:
                mirror = self._mirror(begun, later)
                for inner in reversed(inside):
                    mirror = self._part_of(begun, inner, mirror)
                return mirror
            inside.append(scope)
        return self._mirror(begun, own_scope)

    def mirror_of(self, entry: ModuleEntry, *, after: bool) -> Scope | None:
        """Return the scope in the running pass that mirrors a call of a module.

        The call is that of the operation whose gradient is computed, or else the latest. None if no
        pass runs.

        Args:
            entry: The module.
            after: Whether the latest pass counts if no pass runs.
        """
        begun = [*(self._ended.values() if after else ()), *self.passes][-1:]
        if not begun:
            return None
        function, name = running_node(), entry.qualified_name
        made = None if function is None else self.made(function)
        calls = () if made is None else self_and_ancestors(made.scope)
        call = next((scope for scope in calls if scope.qualified_name == name), entry.scope)
        return self._mirror(begun[0], call)

    def _own_scope_of(self, leaf: torch.Tensor) -> Scope | None:
        """Return the scope of the module that owns a leaf tensor, or None if no module does."""
        entry = self._scopes.registry.tensor(leaf)
        return None if entry is None else self._scopes.own_scope(entry.owner)

    def _again(self, scope: Scope | None) -> Scope:
        """Return the scope for operations of a script in a pass: of a checkpoint, or of a hook.

        It is apart from the mirrors of earlier scopes, which have the same names.
        """
        begun = self.passes[-1]
        root = begun.root
        if scope is not None and root in self_and_ancestors(scope.parent):
            return scope
        if root not in begun.mirrors:
            begun.mirrors[root] = self._new(ScopePart(RECOMPUTED), root)
        return begun.mirrors[root]

    def _mirror(self, begun: _Pass, scope: Scope | None) -> Scope:
        """Return the scope in a pass that mirrors a scope of the forward pass."""
        root = begun.root
        if scope is None or scope in (root, root.parent, begun.mirrors.get(root)):
            return root
        if scope not in begun.mirrors:
            begun.mirrors[scope] = self._part_of(begun, scope, self._mirror(begun, scope.parent))
            begun.calls[begun.mirrors[scope]] = scope
        return begun.mirrors[scope]

    def _part_of(self, begun: _Pass, scope: Scope, parent: Scope) -> Scope:
        """Return the scope in a mirror that has the part of a scope of the forward pass."""
        key = parent, scope.part
        if self._scopes.boxes.get((scope.parent, "gather")) is scope:
            # The gradient of a gathered tensor is reduced and scattered.
            begun.parts[key] = self._scopes.box(parent, "reduce_scatter")
        if key not in begun.parts:
            kind: ScopeKind = "container" if scope.kind == "container" else "hand"
            begun.parts[key] = self._new(scope.part, parent, kind)
        return begun.parts[key]

    def _new(self, part: ScopePart, parent: Scope, kind: ScopeKind = "hand") -> Scope:
        """Open a scope of a pass; its index is that of the mirrored scope if this is free."""
        # A script may have opened a scope of this name in the pass.
        index = part.index if self._builder.is_free(part, parent) else None
        scope = self._builder.new_scope(
            part.label, part.attribute, parent=parent, kind=kind, index=index
        )
        scope.phase = "backward"
        return scope

    def was_set(self, leaf: torch.Tensor) -> None:
        """Record which leaf's gradient it is that a script has set: `weight.grad = ...`."""
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
            added = [each.producer for each in node.inputs if each.producer.phase == "backward"]
            if node.writes and len(added) > 1:
                # `weight.grad += gradient`: the operation belongs to the pass of the last gradient.
                node.scope, node.phase = added[-1].scope, "backward"
                node.attributes["accumulates"] = True
        else:
            ended = (self._ended.get(scope) for scope in self_and_ancestors(node.scope))
            begun, key = next(filter(None, ended), None), self._key_of(leaf)
            if begun is None or key in begun.leaves:
                # The gradient of this leaf is recorded: the script has only laid it out anew.
                return
            own_scope = self._own_scope_of(leaf)
            scope = node.scope if own_scope is None else self._mirror(begun, own_scope)
            node = self._values.append(f"{attribute}_grad", scope, [value])
            node.phase = "backward"
            node.attributes["gradient_of"] = name
            begun.leaves[key] = _Leaf(ref(leaf), node, name, attribute)
            self._values.give(node, gradient)
        _describe_gradients([(node, leaf)])

    def _key_of(self, leaf: torch.Tensor) -> object:
        """Return a key of a leaf tensor, equal for any tensor in its place in the module."""
        entry = self._scopes.registry.tensor(leaf)
        return id(leaf) if entry is None else (entry.owner, entry.attribute)


def _module_of(scope: Scope) -> tuple[str | None, str, str | None]:
    """Return a key that is equal for the calls of a module."""
    return scope.qualified_name, scope.part.label, scope.part.attribute


def _describe_gradients(leaves: Iterable[tuple[Node, torch.Tensor]]) -> None:
    """Describe gradients of parameters in attributes of the nodes that produce them.

    The attribute `gradient_norm` is the Euclidean norm, if that is a number, `gradient_zeros` the
    share of elements that are 0, `gradient_nan` and `gradient_inf` the numbers of elements that
    are NaN or infinite, if there are any. Gradients without content (on "meta"), or without some of
    their elements (sparse ones), are left out.

    Args:
        leaves: The nodes, each with the parameter.
    """
    if cuda_in_use() and torch.cuda.is_current_stream_capturing():
        # A CUDA graph is captured: nothing is computed yet, and nothing may be read.
        return
    with outside_modes(), torch.no_grad():
        for node, leaf in leaves:
            grad = leaf.grad
            if grad is None or type(grad) not in PLAIN or grad.is_meta:
                continue
            if grad.layout is not torch.strided:
                continue
            # torch counts booleans twice as fast as numbers, the conversion included.
            zeros = grad.numel() - int(torch.count_nonzero(grad.bool()))
            node.attributes["gradient_zeros"] = zeros / max(grad.numel(), 1)
            # The squares of small types overflow.
            norm = float(torch.linalg.vector_norm(grad, dtype=_LARGER.get(grad.dtype)))
            if isfinite(norm):
                node.attributes["gradient_norm"] = norm
                continue
            for name, which in (("gradient_nan", torch.isnan), ("gradient_inf", torch.isinf)):
                count = int(torch.count_nonzero(which(grad)))
                if count:
                    node.attributes[name] = count
