"""Finds where an operation stands: its scope, the line that called it, the run of a function."""

from types import CodeType, FrameType
from typing import Any

import torch

from tbscope.ir.graph import Source
from tbscope.ir.runs import Run
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.runs import Mark, Runs
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.locate import Locator

__all__ = ["Whereabouts"]


class Whereabouts:
    """Finds the scope and the source of operations by the Python frames that call them.

    Args:
        scopes: The scopes that are open.
        boundary: The code of the function that wraps each module call (see `Locator`).

    Attributes:
        base: The identity of the Python frame in which a region begins; what is around it is
            not looked at.
    """

    def __init__(self, scopes: ScopeStack, boundary: CodeType) -> None:
        self.base = 0
        self._scopes = scopes
        self._registry = scopes.registry
        self._boundary = boundary
        self._locator = locator = Locator(boundary)
        self._runs = Runs(boundary, locator.is_foreign)
        # By identity, as hashing a code object reads all of it; the code is kept alive.
        self._is_method: dict[int, tuple[CodeType, bool]] = {}

    def branch(self, scopes: ScopeStack) -> "Whereabouts":
        """Return one for the operations of another thread."""
        return Whereabouts(scopes, self._boundary)

    def of_operation(
        self, frame: FrameType | None
    ) -> tuple[Scope | None, Source | None, Run | None, int]:
        """Return the scope of an operation that this frame calls, its source, its run and step."""
        running = self._scopes.running
        scope = self.scope_at(frame)
        if running.foreign and id(frame) == running.home:
            # A forward of torch's own: the line that called the module is the user's.
            return scope, running.source, None, 0
        return scope, *self.of_call(frame)

    def of_call(self, frame: FrameType | None) -> tuple[Source | None, Run | None, int]:
        """Return the source of a call that this frame makes, the run around it, and the step."""
        running = self._scopes.running
        user = self._locator.user_frame(frame)
        if user is None:
            return running.source, None, 0
        source = self._locator.at(user) or running.source
        mark: Any = user.f_trace
        # Most frames are known: what is asked here is asked for each operation.
        if mark.__class__ is Mark and mark.owner is self._runs and mark.key is running.scope:
            return source, mark.run, user.f_lasti
        run, step = self._runs.enter(frame, running.scope, self.base)
        return source, run, step

    def source_at(self, frame: FrameType | None) -> Source | None:
        """Return the place in the user's code that led to this frame."""
        return self._locator.source(frame, self._scopes.running.source)

    def scope_at(self, frame: FrameType | None) -> Scope | None:
        """Return the scope of an operation that this Python frame calls.

        It is the scope of the call that runs, unless a method of another module was
        called without calling that module (`net.encoder.forward(x)`, `net.encode(x)`):
        then it is the scope that stands for that module.
        """
        running = self._scopes.running
        home, base, boundary, methods = running.home, self.base, self._boundary, self._is_method
        while frame is not None:
            here = id(frame)
            if here == home:
                break
            code = frame.f_code
            if code is boundary or here == base:
                break
            known = methods.get(id(code))
            if known[1] if known is not None else self._takes_self(code):
                owner = frame.f_locals.get("self")
                if isinstance(owner, torch.nn.Module):
                    place = self._registry.module(owner)
                    if place is not None and place is running.place:
                        self._remember_home(frame, running)
                        break
                    if place is not None and not self._scopes.calls_of(place):
                        if _in_optimizer(running.inner):
                            # Its parameters tell where it stands, whoever called the optimizer.
                            break
                        return self._scopes.container(place)
            frame = frame.f_back
        return running.inner

    def _remember_home(self, frame: FrameType, running: Frame) -> None:
        running.home = id(frame)
        running.foreign = self._locator.is_foreign(frame.f_code.co_filename)

    def _takes_self(self, code: CodeType) -> bool:
        takes = code.co_argcount > 0 and code.co_varnames[0] == "self"
        self._is_method[id(code)] = (code, takes)
        return takes


def _in_optimizer(scope: Scope | None) -> bool:
    """Tell whether a scope is that of an optimizer's step, or stands in one."""
    while scope is not None and scope.phase != "optimizer":
        scope = scope.parent
    return scope is not None
