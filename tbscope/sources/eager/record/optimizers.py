"""Optimizer steps: where each of their operations stands, by the parameters that it serves.

`optimizer/Adam/group_0/Net/fc/weight` holds what is done for one parameter; what is done for
several at a time (the foreach variants) stands in the box of their group.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from copy import copy
from types import FrameType
from typing import Any
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import PHASE_BOXES, Scope
from tbscope.sources.eager.record.origins import origin_of
from tbscope.sources.eager.record.parts import Part, Step, held_by, tensors_in
from tbscope.sources.eager.record.scope_stack import ScopeStack
from tbscope.sources.eager.record.whereabouts import Place
from tbscope.sources.torch.autograd import kept_gradient
from tbscope.sources.torch.locate import LOADING, helper_name

__all__ = ["Optimizers"]


class Optimizers:
    """Knows the steps of optimizers that run.

    Args:
        builder: The door to the graph.
        scopes: The scopes that are open.
        find: Returns the value that a tensor holds; None for an unknown one.
        passes: The backward passes that run.

    Attributes:
        steps: Those that run, the innermost last.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        scopes: ScopeStack,
        find: Callable[[torch.Tensor], Value | None],
        passes: Sized,
    ) -> None:
        self.steps: list[Step] = []
        self._passes = passes
        self._builder = builder
        self._scopes = scopes
        self._find = find
        # The boxes of torch's own helpers, until an optimizer makes the next step.
        self._helpers: dict[tuple[Scope | None, str], Scope] = {}
        # Where the latest operation was called, and the helper that led there.
        self._latest: Place | None = None
        self._helper_there: str | None = None
        self._part_of_latest: Part | None = None

    def branch(self, scopes: ScopeStack, passes: Sized) -> "Optimizers":
        """Return one for the steps that another thread makes at the same time."""
        branch = copy(self)
        branch._scopes, branch._passes, branch.steps, branch._helpers = scopes, passes, [], {}
        return branch

    def begin(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Have what runs from now on stand in a step of an optimizer.

        Args:
            optimizer: The optimizer.
            caller: The Python frame in which it runs.
        """
        scopes = self._scopes
        frame, outer = scopes.running, scopes.running.inner
        around = scopes.open_phase("optimizer")
        root = self._new(type(optimizer).__name__, None, around)
        frame.inner = root
        step = Step(optimizer, id(caller), frame, outer, around, root)
        step.passes = len(self._passes)
        self._look(step)
        self.steps.append(step)
        self._latest = None

    def pass_begins(self) -> None:
        """Have what helps once a backward pass is over stand apart from what helped before."""
        self._helpers.clear()

    def end(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Have what runs from now on stand outside of a step again, and of those left in it.

        Args:
            optimizer: Whose step it is; None for all.
        """
        if optimizer is not None and all(step.optimizer is not optimizer for step in self.steps):
            return
        while self.steps:
            step = self.steps[-1]
            self._end_last()
            if step.optimizer is optimizer:
                return

    def _end_last(self) -> None:
        step = self.steps.pop()
        self._latest = None
        self._helpers.clear()
        self._settle(step)
        step.frame.inner = step.around
        # A module may run by now, where nobody has told that the step has ended.
        self._scopes.close_block(PHASE_BOXES["optimizer"], failed=True, frame=step.frame)

    def end_broken(self, caller: FrameType) -> None:
        """End the step that an error ends in this Python frame, and those left in it."""
        callers = [step.caller for step in self.steps]
        if id(caller) in callers:
            for _ in callers[callers.index(id(caller)) :]:
                self._end_last()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Have what runs in a block (a closure) stand where the optimizer was called.

        Once the optimizer has done something with what a closure gave, the next one is a part
        of its step.
        """
        step = self.steps[-1]
        if step.ran:
            try:
                yield
            finally:
                self._look(step)
            return
        inner, step.frame.inner = step.frame.inner, step.outer
        self.steps.pop()
        try:
            yield
        finally:
            # The gradients are others now.
            self._look(step)
            self.steps.append(step)
            step.frame.inner = inner

    def _look(self, step: Step) -> None:
        """Take note of what belongs to each parameter: its gradient, and what is kept for it."""
        step.parts.clear()
        step.held.clear()
        step.parameters.clear()
        for part, parameter, state in held_by(step.optimizer):
            step.parameters[id(parameter)] = parameter
            gradient = kept_gradient(parameter)
            for tensor in (parameter,) if gradient is None else (parameter, gradient):
                step.parts[id(tensor)] = ref(tensor), part
            for name, tensor in state:
                step.parts[id(tensor)] = known = ref(tensor), part
                step.held[id(tensor)] = (*known, name)
        for number, group in enumerate(step.optimizer.param_groups):
            # A step size may be one.
            others = {name: held for name, held in group.items() if name != "params"}
            for name, tensor in tensors_in(others):
                if id(tensor) not in step.parts:
                    step.parts[id(tensor)] = known = ref(tensor), Part(number)
                    step.held[id(tensor)] = (*known, name)

    def kept(self, tensor: torch.Tensor) -> Node | None:
        """Return a new node for what an optimizer keeps from step to step (a moment).

        None for any other tensor.
        """
        if not self.steps:
            return None
        step = self.steps[-1]
        if id(tensor) not in step.held:
            return None
        held, part, name = step.held[id(tensor)]
        if held() is not tensor:
            return None
        scope = self._scope_of(step, part)
        return self._builder.append_source("constant", f"{scope}.{name}", scope)

    def _settle(self, step: Step) -> None:
        """Find the part of what read nothing: the optimizer holds what was made of it."""
        for part, _, state in held_by(step.optimizer):
            for _, tensor in state:
                value = self._find(tensor)
                if value is not None:
                    step.made.setdefault(value, part)
        for node in reversed(step.loose):
            parts = [step.made[value] for value in node.outputs if value in step.made]
            if parts:
                part = functools.reduce(Part.joined, parts)
                node.scope = self._scope_of(step, part)
                if len(node.writes) == len(parts) == len(node.outputs):
                    # What is written into belongs to what it becomes.
                    for place, own in zip(node.writes, parts, strict=True):
                        step.made.setdefault(node.inputs[place], own)
                for value in node.inputs:
                    step.made.setdefault(value, part)

    def place(
        self,
        scope: Scope | None,
        called: tuple[Place, FrameType | None],
        read: Sequence[torch.Tensor],
        values: Sequence[Value],
    ) -> Scope | None:
        """Return where an operation stands.

        Args:
            scope: Where it would stand without.
            called: Where it was called, and the Python frame that called it.
            read: The tensors that it reads.
            values: Their values.
        """
        there, frame = called
        # Called by the same frame as the last one: what is around that has not changed.
        if there is not self._latest:
            asked = not self.steps and self._scopes.at_top
            self._latest, self._helper_there = there, helper_name(frame) if asked else None
        if not self.steps:
            helper = self._helper_there
            if helper == LOADING:
                # It is a method of the modules into which it writes.
                scope = self._scopes.running.inner
            return scope if helper is None else self._helper(scope, helper)
        step = self.steps[-1]
        if self._scopes.running is not step.frame or len(self._passes) > step.passes:
            # In a closure, or a pass of its own.
            return scope
        part = self._part_of_latest = self._part(step, read, values)
        if part is None:
            return step.root
        # Not `_scope_of`: most parts have their scopes, and this runs for each operation.
        return step.scopes.get(part) or self._scope_of(step, part)

    def ran(self, node: Node, read: Sequence[torch.Tensor]) -> None:
        """Take note of an operation that has run."""
        if not self.steps:
            if node.scope is not None and node.scope.phase == "optimizer":
                # One of torch's own helpers; those that scale a loss are differentiated.
                differs = torch.is_grad_enabled() and any(one.requires_grad for one in read)
                node.phase = "forward" if differs else "optimizer"
            return
        step = self.steps[-1]
        if self._scopes.running is not step.frame or len(self._passes) > step.passes:
            return
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
        for place in node.writes:
            name = self._name(read, place) or self._shown(step, node.inputs[place])
            if name:
                names[name] = None
        if names:
            node.attributes["updates"] = ", ".join(names)

    def _name(self, read: Sequence[torch.Tensor], place: int) -> str | None:
        known = self._scopes.registry.tensor(read[place]) if place < len(read) else None
        return None if known is None else known.qualified_name

    def _shown(self, step: Step, value: Value) -> str | None:
        """Return the name of the parameter that a value is a view of; None for none."""
        node = value.producer
        if node.role != "view" and not node.writes:
            return None
        origin = origin_of(value)
        if origin not in step.names:
            # What it keeps is none, and what it has made on its way.
            asked = origin.kind == "parameter" or (
                origin.kind == "op" and origin.phase != "optimizer"
            )
            step.names[origin] = self._name_of(step, origin) if asked else None
        return step.names[origin]

    def _name_of(self, step: Step, origin: Node) -> str | None:
        """Return the name of the parameter that a node stands for; None where it is that of none.

        The parameters come mostly in their order, and each is looked at until it is known.
        """
        if step.unnamed is None:
            step.unnamed = deque(parameter for _, parameter, _ in held_by(step.optimizer))
        for _ in range(len(step.unnamed)):
            parameter = step.unnamed.popleft()
            known = self._find(parameter)
            if known is None:
                step.unnamed.append(parameter)
                continue
            place = self._scopes.registry.tensor(parameter)
            stands = origin_of(known)
            step.names[stands] = None if place is None else place.qualified_name
            if stands is origin:
                break
        return step.names.get(origin)

    def _part(
        self, step: Step, read: Sequence[torch.Tensor], values: Sequence[Value]
    ) -> Part | None:
        found: Part | None = None
        parts, made = step.parts, step.made
        for tensor, value in zip(read, values, strict=False):
            # What was done for several at a time is theirs, whoever keeps it.
            part = made.get(value)
            own = None if part is not None else parts.get(id(tensor))
            if own is not None and own[0]() is tensor:
                part = own[1]
            if part is not None and part is not found:
                found = part if found is None else found.joined(part)
        return found

    # -- scopes -------------------------------------------------------------------------

    def _helper(self, scope: Scope | None, name: str) -> Scope:
        """Return the box of one of torch's own helpers (`clip_grad_norm_`)."""
        box = self._helpers.get((scope, name))
        if box is None:
            box = self._helpers[scope, name] = self._new(name, None, scope)
        return box

    def _scope_of(self, step: Step, part: Part) -> Scope:
        """Return the box of a part of a step's work."""
        scope = step.scopes.get(part)
        if scope is None:
            scope = step.scopes[part] = self._open(step, part)
        return scope

    def _open(self, step: Step, part: Part) -> Scope:
        groups = step.optimizer.param_groups
        if part.group is None or (part.parameter is None and len(groups) == 1):
            return step.root
        group = groups[part.group]
        if part.parameter is None:
            name = group.get("name")
            label = name if isinstance(name, str) and name else f"group_{part.group}"
            return self._new(label, None, step.root)
        above = self._scope_of(step, Part(part.group))
        if part.parameter not in step.parameters:
            # A group was added since.
            step.parameters.update((id(each), each) for _, each, _ in held_by(step.optimizer))
        place = self._scopes.registry.tensor(step.parameters[part.parameter])
        if place is None:
            return self._new("parameter", None, above)
        for inner in _way_down(self._scopes.home(place.owner)):
            above = self._below(step, inner, above)
        return self._new(place.attribute, None, above)

    def _below(self, step: Step, scope: Scope, above: Scope) -> Scope:
        """Return the scope that mirrors one of the forward pass, below another one."""
        key: Any = (scope, above)
        known = step.scopes.get(key)
        if known is None:
            known = step.scopes[key] = self._new(scope.part.label, scope.part.attribute, above)
        return known

    def _new(self, label: str, attribute: str | None, parent: Scope | None) -> Scope:
        scope = self._builder.new_scope(label, attribute, parent=parent, kind="hand")
        scope.phase = "optimizer"
        return scope


def _way_down(scope: Scope) -> list[Scope]:
    return [*reversed(list(scope.ancestors())), scope]
