"""Optimizer steps: the scope of each of their operations, by the parameters that it updates.

`optimizer/Adam/group_0/Net/fc/weight` contains the operations for one parameter; an operation for
several parameters at a time (the foreach variants) is in the box of their group.
"""

import functools
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import PHASE_BOXES, Scope, self_and_ancestors
from tbscope.sources.eager.record.call_site import CallSite
from tbscope.sources.eager.record.manual_updates import origin_of
from tbscope.sources.eager.record.scope_stack import Frame
from tbscope.sources.eager.record.tensor_sources import TensorSources
from tbscope.sources.torch.autograd import kept_gradient
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.source_location import METHODS, helper_name


class _Part(NamedTuple):
    """The part of an optimizer's work: for one parameter, one group, or all.

    Attributes:
        group: The number of the group; None for all groups.
        parameter: The identity of the parameter; None for several parameters.
    """

    group: int | None = None
    parameter: int | None = None

    def joined(self, other: "_Part") -> "_Part":
        """Return the smallest part that contains both."""
        if self == other:
            return self
        return _Part(self.group) if self.group == other.group else _Part()


@dataclass(slots=True, eq=False)
class _Step:
    """One step of an optimizer.

    Attributes:
        optimizer: The optimizer.
        caller: The identity of the Python frame in which it runs.
        frame: The module call, or the top level, in which it began.
        outer: The scope of operations directly in that frame before the step.
        around: The box of the step.
        root: The scope in it that names the optimizer.
        passes: The number of backward passes that ran when it began.
        parts: By identity of each tensor of the optimizer: a weak reference, as a closure may make
            gradients anew, its part, and its name if it is state kept from step to step.
        made: The part of each value that the step has made.
        scopes: The scope of each part.
        ran: Whether one of its operations has run.
        loose: Its operations that read no value of any part, in order.
    """

    optimizer: torch.optim.Optimizer
    caller: int
    frame: Frame
    outer: Scope | None
    around: Scope
    root: Scope
    passes: int
    parts: dict[int, tuple[ref[torch.Tensor], _Part, str]] = field(default_factory=dict)
    made: dict[Value, _Part] = field(default_factory=dict)
    scopes: dict[_Part, Scope] = field(default_factory=dict)
    ran: bool = False
    loose: list[Node] = field(default_factory=list)


class Optimizers:
    """The optimizer steps that run.

    Args:
        discovery: Finds the values of tensors.
        passes: The backward passes that run.

    Attributes:
        steps: The running steps, the innermost last.
        passes: As the argument.
        helpers: The boxes of torch's own helpers, until the next backward pass, or step.
    """

    def __init__(self, discovery: TensorSources, passes: Sized) -> None:
        self.steps: list[_Step] = []
        self.passes = passes
        self._scopes, self._values = discovery.scopes, discovery.values
        self.helpers: dict[tuple[Scope | None, str], Scope] = {}
        # Of the latest operation: whether the step itself has run it, its call site, the helper of
        # torch that led there, and its part.
        self._by_step = False
        self._latest: CallSite | None = None
        self._helper_there: str | None = None
        self._part_of_latest: _Part | None = None

    def begin(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Open the box of an optimizer step, for all operations from now on.

        Args:
            optimizer: The optimizer.
            caller: The Python frame in which it runs.
        """
        scopes = self._scopes
        frame, outer = scopes.running, scopes.running.inner
        around = scopes.open_phase("optimizer")
        root = self._new(type(optimizer).__name__, None, around)
        frame.inner = root
        step = _Step(optimizer, id(caller), frame, outer, around, root, len(self.passes))
        self._look(step)
        self.steps.append(step)
        self._latest = None

    def end(
        self, optimizer: torch.optim.Optimizer | None = None, *, caller: FrameType | None = None
    ) -> None:
        """Close the box of an optimizer step, and of steps left open in it.

        Args:
            optimizer: The optimizer of the step; None for all steps.
            caller: The Python frame in which an error ends the step; None for a completed step.
        """
        ends = [
            optimizer in (None, step.optimizer) if caller is None else step.caller == id(caller)
            for step in self.steps
        ]
        # Steps that began inside of an ended step end with it.
        while any(ends[: len(self.steps)]):
            step = self.steps.pop()
            self._latest = None
            self.helpers.clear()
            self._settle(step)
            step.frame.inner = step.around
            # A module may run by now, if the end of the step was not reported: the frame is
            # explicit.
            self._scopes.close_block(PHASE_BOXES["optimizer"], failed=True, frame=step.frame)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Record the operations of a block (a closure) in the scope that called the optimizer.

        Once an operation of the step has run, a further closure is part of the step.
        """
        step = self.steps[-1]
        ran, inner = step.ran, step.frame.inner
        if not ran:
            self.steps.pop()
            step.frame.inner = step.outer
        try:
            yield
        finally:
            # The closure may have made new gradients.
            self._look(step)
            if not ran:
                self.steps.append(step)
                step.frame.inner = inner

    def _look(self, step: _Step) -> None:
        """Map the tensors of each parameter to its part: itself, its gradient, and its state."""
        step.parts.clear()
        for part, parameter, state in _held_by(step.optimizer):
            gradient = kept_gradient(parameter)
            own = [("", parameter)] if gradient is None else [("", parameter), ("", gradient)]
            for name, tensor in (*own, *state):
                step.parts[id(tensor)] = ref(tensor), part, name
        for number, group in enumerate(step.optimizer.param_groups):
            # A hyper-parameter such as the step size may be a tensor.
            others = {name: entry for name, entry in group.items() if name != "params"}
            for name, tensor in tensor_leaves(others, ""):
                if id(tensor) not in step.parts:
                    step.parts[id(tensor)] = ref(tensor), _Part(number), name

    def kept(self, tensor: torch.Tensor) -> Node | None:
        """Return a new node for state of an optimizer (a moment), or None for any other tensor."""
        step = self.steps[-1] if self.steps else None
        if step is None or id(tensor) not in step.parts:
            return None
        reference, part, name = step.parts[id(tensor)]
        if reference() is not tensor or not name:
            return None
        scope = self._scope_of(step, part)
        return self._values.builder.append_source("constant", f"{scope}.{name}", scope)

    def _settle(self, step: _Step) -> None:
        """Find the parts of loose operations, by the state that was made of their results."""
        for part, _, state in _held_by(step.optimizer):
            for _, tensor in state:
                value = self._values.find(tensor)
                if value is not None:
                    step.made.setdefault(value, part)
        for node in reversed(step.loose):
            parts = [step.made[value] for value in node.outputs if value in step.made]
            if parts:
                part = functools.reduce(_Part.joined, parts)
                node.scope = self._scope_of(step, part)
                if len(node.writes) == len(parts) == len(node.outputs):
                    # A written tensor belongs to the part of its new value.
                    for index, own in zip(node.writes, parts, strict=True):
                        step.made.setdefault(node.inputs[index], own)
                for value in node.inputs:
                    step.made.setdefault(value, part)

    def scope_of(
        self,
        scope: Scope | None,
        called: tuple[CallSite, FrameType | None],
        read: Sequence[torch.Tensor],
        values: Sequence[Value],
    ) -> Scope | None:
        """Return the scope of an operation.

        Args:
            scope: Its scope without regard to optimizers.
            called: Its call site, and the Python frame that called it.
            read: The tensors that it reads.
            values: Their values.
        """
        there, frame = called
        # The same tuple comes from the same frame, whose callers have not changed.
        if there is not self._latest:
            is_outside = not self.steps and self._scopes.at_top
            self._latest, self._helper_there = there, helper_name(frame) if is_outside else None
        if not self.steps:
            helper = self._helper_there
            if helper is not None and helper.partition(".")[2] in METHODS:
                # It is a method of the modules into which it writes.
                scope = self._scopes.running.inner
            if helper is None:
                return scope
            if (scope, helper) not in self.helpers:
                self.helpers[scope, helper] = self._new(helper, None, scope)
            return self.helpers[scope, helper]
        step = self.steps[-1]
        # Otherwise a closure runs, or a backward pass of its own.
        self._by_step = self._scopes.running is step.frame and len(self.passes) <= step.passes
        if not self._by_step:
            return scope
        part = self._part_of_latest = self._part(step, read, values)
        if part is None:
            return step.root
        return step.scopes.get(part) or self._scope_of(step, part)

    def ran(self, node: Node, read: Sequence[torch.Tensor]) -> None:
        """Record an operation that has run."""
        if not self.steps:
            if node.scope is not None and node.scope.phase == "optimizer":
                # A helper of torch has run it; helpers that scale a loss are differentiated.
                differs = torch.is_grad_enabled() and any(each.requires_grad for each in read)
                node.phase = "forward" if differs else "optimizer"
            return
        if not self._by_step:
            return
        step = self.steps[-1]
        step.ran = True
        node.phase = "optimizer"
        part = self._part_of_latest
        if part is not None:
            for value in node.outputs:
                step.made[value] = part
        else:
            step.loose.append(node)
        if not node.writes:
            return
        names: dict[str, None] = {}
        for index in node.writes:
            tensor_entry = self._scopes.registry.tensor(read[index]) if index < len(read) else None
            if tensor_entry is not None:
                names[tensor_entry.qualified_name] = None
            elif (origin := origin_of(node.inputs[index])) in self._values.names:
                # It writes into a view of the parameter.
                names[self._values.names[origin]] = None
        if names:
            node.attributes["updates"] = ", ".join(names)

    def _part(
        self, step: _Step, read: Sequence[torch.Tensor], values: Sequence[Value]
    ) -> _Part | None:
        """Return the smallest part that contains all that an operation reads, or None."""
        common: _Part | None = None
        parts, made = step.parts, step.made
        for tensor, value in zip(read, values, strict=False):
            # A value made for several parameters has their common part, also as state of one of
            # them.
            part = made.get(value)
            own = None if part is not None else parts.get(id(tensor))
            if own is not None and own[0]() is tensor:
                part = own[1]
            if part is not None and part is not common:
                common = part if common is None else common.joined(part)
        return common

    # -- scopes -------------------------------------------------------------------------

    def _scope_of(self, step: _Step, part: _Part) -> Scope:
        """Return the box of a part of a step's work."""
        if part not in step.scopes:
            step.scopes[part] = self._open(step, part)
        return step.scopes[part]

    def _open(self, step: _Step, part: _Part) -> Scope:
        """Open the box of a part: of a group, or of a parameter by the path of its module."""
        groups = step.optimizer.param_groups
        if part.group is None or (part.parameter is None and len(groups) == 1):
            return step.root
        group = groups[part.group]
        if part.parameter is None:
            name = group.get("name")
            label = name if isinstance(name, str) and name else f"group_{part.group}"
            return self._new(label, None, step.root)
        parent = self._scope_of(step, _Part(part.group))
        parameter = step.parts[part.parameter][0]()
        entry = None if parameter is None else self._scopes.registry.tensor(parameter)
        if entry is None:
            return self._new("parameter", None, parent)
        for inner in reversed([*self_and_ancestors(self._scopes.own_scope(entry.owner))]):
            key: Any = (inner, parent)
            if key not in step.scopes:
                step.scopes[key] = self._new(inner.part.label, inner.part.attribute, parent)
            parent = step.scopes[key]
        return self._new(entry.attribute, None, parent)

    def _new(self, label: str, attribute: str | None, parent: Scope | None) -> Scope:
        scope = self._values.builder.new_scope(label, attribute, parent=parent, kind="hand")
        scope.phase = "optimizer"
        return scope


def _held_by(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[_Part, torch.Tensor, list[tuple[str, torch.Tensor]]]]:
    """Yield each parameter with its part, and the tensors of its state with their names.

    An optimizer with state for only one of several parameters works on all at once (LBFGS).
    """
    parameters = [
        (_Part(number, id(each)), each)
        for number, group in enumerate(optimizer.param_groups)
        for each in group["params"]
    ]
    for_all = len(optimizer.state) == 1 and len(parameters) > 1
    for part, parameter in parameters:
        state = optimizer.state.get(parameter, {})
        yield (_Part() if for_all else part), parameter, tensor_leaves(state, "")
