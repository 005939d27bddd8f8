"""Finds where an operation stands: its scope, the line that called it, the run of a function."""

from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch
from torch.overrides import handle_torch_function

from tbscope.ir.graph import Source
from tbscope.ir.runs import Run
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.runs import BY_TURNS, Mark, Runs
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.locate import Locator
from tbscope.sources.torch.module_internals import CALL_CODE

__all__ = ["Place", "Whereabouts"]

Place: TypeAlias = tuple[Scope | None, Source | None, Run | None, int]
"""Where an operation stands: its scope and source, the run that calls it, and the step in that."""

# Calls the one operation that it is made for.
_ONCE = handle_torch_function.__code__


class _Spot:
    """What a frame of torch's own bears that calls operations: where all of these stand.

    The frames around it stand still for as long as it lives, so that the user's line is the same
    for each of them: of an optimizer's loop, or of all that autograd's engine runs.

    Attributes:
        owner: Whose it is.
        running: The module call that ran.
        place: Where the operations stand.
    """

    __slots__ = ("owner", "place", "running")

    def __init__(self, owner: "Whereabouts", running: Frame, place: Place) -> None:
        self.owner = owner
        self.running = running
        self.place = place

    def __call__(self, frame: FrameType, event: str, arg: Any) -> "_Spot":
        """Stay where this is, should a debugger come to look."""
        return self


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
        self._runs = Runs(boundary, locator)
        # By identity, as hashing a code object reads all of it; the code is kept alive.
        self._is_method: dict[int, tuple[CodeType, bool]] = {}

    def branch(self, scopes: ScopeStack) -> "Whereabouts":
        """Return one for the operations of another thread."""
        return Whereabouts(scopes, self._boundary)

    def of_operation(self, frame: FrameType | None) -> Place:
        """Return where an operation stands that this frame calls.

        The very same tuple, where that is known from an earlier operation of the frame.
        """
        running = self._scopes.running
        if frame is None:
            return running.inner, running.source, None, 0
        if frame.f_code is _ONCE:
            # Whoever has called the function of torch's that asks it to hand the operation over.
            frame = self._caller(frame)
        mark: Any = frame.f_trace
        if mark.__class__ is _Spot:
            if mark.owner is self and mark.running is running and mark.place[0] is running.inner:
                return mark.place
        elif id(frame) == running.home or self._is_home(frame, running):
            if running.foreign:
                # A forward of torch's own: the line that called the module is the user's.
                return running.inner, running.source, None, 0
            # Most operations are called here: by the forward of the module that runs.
            if mark.__class__ is Mark and mark.owner is self._runs and mark.key is running.scope:
                step = frame.f_lasti
                source = mark.sources.get(step)
                if source is not None:
                    return running.inner, source, mark.run, step
        return self._looked_for(frame, running)

    def spot_of(self, frame: FrameType) -> Any:
        """Return what a frame bears from which all operations stand in one place; None for none.

        Its `place` holds as long as the frame bears it, and the scope that is open stays open.
        """
        mark: Any = frame.f_trace
        running = self._scopes.running
        holds = mark.__class__ is _Spot and mark.owner is self and mark.running is running
        return mark if holds and mark.place[0] is running.inner else None

    def _caller(self, frame: FrameType) -> FrameType:
        """Return the frame of a forward that has called a function of torch's written in Python.

        The given one, where another function than that stands between them.
        """
        function = frame.f_back
        caller = None if function is None else function.f_back
        if caller is None or caller.f_code is not self._scopes.running.forward:
            return frame
        assert function is not None
        code = function.f_code
        known = self._is_method.get(id(code))
        if known[1] if known is not None else self._takes_self(code):
            return frame
        return caller if self._locator.is_foreign(code.co_filename) else frame

    def _looked_for(self, frame: FrameType, running: Frame) -> Place:
        """Find where an operation stands by going out from the frame that calls it."""
        scope, user = self._look(frame, running)
        if running.foreign and id(frame) == running.home:
            return scope, running.source, None, 0
        place = scope, *self._called_by(user, frame)
        if user is not frame and scope is running.inner:
            code, mark = frame.f_code, frame.f_trace
            alone = mark is None or (type(mark) is _Spot and mark.owner is self)
            if alone and code is not _ONCE and not code.co_flags & BY_TURNS:
                frame.f_trace = _Spot(self, running, place)
        return place

    def of_call(self, frame: FrameType | None) -> tuple[Source | None, Run | None, int]:
        """Return the source of a call that this frame makes, the run around it, and the step."""
        running = self._scopes.running
        if frame is not None and not running.foreign and id(frame) == running.home:
            return self._called_by(frame, frame)
        return self._called_by(self._locator.user_frame(frame), frame)

    def _called_by(
        self, user: FrameType | None, frame: FrameType | None
    ) -> tuple[Source | None, Run | None, int]:
        """Return the same where the user's frame is known that led to the one which calls."""
        running = self._scopes.running
        if user is None:
            return running.source, None, 0
        mark: Any = user.f_trace
        # Most frames are known: what is asked here is asked for each call of a module.
        if mark.__class__ is Mark and mark.owner is self._runs and mark.key is running.scope:
            step = user.f_lasti
            source = mark.sources.get(step) or self._locator.at(user)
            return source or running.source, mark.run, step
        run, step = self._runs.enter(frame, running.scope, self.base)
        return self._locator.at(user) or running.source, run, step

    def source_at(self, frame: FrameType | None) -> Source | None:
        """Return the place in the user's code that led to this frame."""
        return self._locator.source(frame, self._scopes.running.source)

    def _look(self, frame: FrameType, running: Frame) -> tuple[Scope | None, FrameType | None]:
        """Return the scope of an operation that this Python frame calls, and the user's frame.

        The scope is that of the call that runs, unless a method of another module was
        called without calling that module (`net.encoder.forward(x)`, `net.encode(x)`):
        then it is the scope that stands for that module. The frame is None where none of the
        user's is met before the call of the module.
        """
        home, base, boundary, methods = running.home, self.base, self._boundary, self._is_method
        is_foreign = self._locator.is_foreign
        scope, user = running.inner, None
        around: FrameType | None = frame
        while around is not None:
            here, code = id(around), around.f_code
            if code is boundary:
                return scope, user
            if user is None and not is_foreign(code.co_filename):
                user = around
            if here in (home, base):
                break
            known = methods.get(id(code))
            if known[1] if known is not None else self._takes_self(code):
                owner = around.f_locals.get("self")
                if isinstance(owner, torch.nn.Module):
                    place = self._registry.module(owner)
                    if place is not None and place is running.place:
                        self._remember_home(around, running)
                        break
                    if place is not None and not self._scopes.calls_of(place):
                        # The parameters of an optimizer tell where it stands, whoever called it.
                        if not _in_optimizer(running.inner):
                            scope = self._scopes.container(place)
                        break
            around = around.f_back
        return scope, user or self._locator.user_frame(around)

    def _is_home(self, frame: FrameType, running: Frame) -> bool:
        """Tell whether a frame is the forward of the running module, which torch itself has called.

        Most modules do one thing: so is found without a look at what the frame holds.
        """
        if running.home or frame.f_code is not running.forward:
            return False
        caller = frame.f_back
        if caller is None or caller.f_code is not CALL_CODE:
            return False
        self._remember_home(frame, running)
        return True

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
