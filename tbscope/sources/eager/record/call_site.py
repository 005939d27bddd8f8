"""Finds where an operation stands: its scope, the line that called it, the run of a function.

All is told by the Python frames that led to it. A frame is a run of its own as long as it lives,
but its identity may belong to the next one as soon as it is gone, and whoever held frames to tell
them apart would keep alive all tensors in them. So each frame bears a mark, in the one place where
Python has room for it: where a debugger would put what it calls for each line. The mark goes when
the frame goes. Where a debugger does look, it is called as before.
"""

import dis
import os
import re
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, TypeAlias

import torch
from torch.overrides import handle_torch_function

from tbscope.ir.graph import Source
from tbscope.ir.metadata import Function, Run
from tbscope.ir.scopes import Scope, upward
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.compat.modules import CALL_CODE
from tbscope.sources.torch.module_names import ModulePlace
from tbscope.sources.torch.source_location import OWN_FILES, Locator, Spot, is_own_file

__all__ = ["Place", "Whereabouts"]

Place: TypeAlias = tuple[Scope | None, Source | None, Run | None, int]
"""Where an operation stands: its scope and source, the run that calls it, and the step in that."""

# Calls the one operation that it is made for.
_ONCE = handle_torch_function.__code__
# The flags of code that runs a bit now and a bit then, in turns with whoever asks it: generators,
# coroutines. No part of a run is its own, and each time another frame may be around it.
_BY_TURNS = 0x20 | 0x80 | 0x200
# What stands between a function and what it calls while somebody watches.
_WATCHING = os.path.join(OWN_FILES, "eager", "watch", "")
_ENDS = 2
# Methods that are called by the name of their class.
_BY_CLASS = frozenset({"__call__", "__init__", "__new__", "__post_init__"})
# Any of the operations of a bytecode that jump back.
_BACKWARDS = re.compile(
    b"[%s]"
    % re.escape(
        bytes(code for name, code in dis.opmap.items() if name.startswith(("JUMP_B", "POP_JUMP_B")))
    )
)
_EXTENDED = dis.opmap["EXTENDED_ARG"]


@dataclass(slots=True, eq=False)
class _Mark:
    """What the frame of a run bears.

    Attributes:
        owner: Whose mark it is.
        run: The run.
        key: What runs with it must have in common to be of one module call.
        traced: What a debugger, or another watcher, has put there.
        spots: The places in the code of the frame that are known so far.
        scope: The scope of operations that the frame calls; the owner where that is unknown.
        begins: Whether the region begins in the frame.
    """

    owner: object
    run: Run
    key: object
    traced: Any
    spots: dict[int, Spot]
    scope: object
    begins: bool = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> "_Mark":
        """Hand on to the debugger; stay where this is."""
        if self.traced is not None:
            self.traced = self.traced(frame, event, arg) or self.traced
        return self


@dataclass(slots=True, eq=False)
class _Spot:
    """What a frame of torch's own bears that calls operations: where all of these stand.

    The frames around it stand still for as long as it lives, so that the user's line is the same
    for each of them: of an optimizer's loop, or of all that autograd's engine runs.

    Attributes:
        owner: Whose it is.
        running: The module call that ran.
        place: Where the operations stand.
    """

    owner: object
    running: Frame
    place: Place

    def __call__(self, frame: FrameType, event: str, arg: Any) -> "_Spot":
        """Stay where this is, should a debugger come to look."""
        return self


class Whereabouts:
    """Finds the scope and the source of operations by the Python frames that call them.

    Args:
        scopes: The scopes that are open.
        boundary: The code of the function that wraps each module call (see `Locator`).
    """

    def __init__(self, scopes: ScopeStack, boundary: CodeType) -> None:
        self._scopes = scopes
        self._boundary = boundary
        # The owner of marks: frames may outlive the run, and must not keep its modules alive.
        self._own = object()
        self._locator = Locator(boundary)
        # For each file 0 for the user's, 1 for what is passed over, `_ENDS` for what is outside.
        self._passed: dict[str, int] = {}
        # By identity, as hashing a code object reads all of it; the code is kept alive.
        self._functions: dict[int, tuple[CodeType, Function]] = {}

    def branch(self, scopes: ScopeStack) -> "Whereabouts":
        """Return one for the operations of another thread."""
        return Whereabouts(scopes, self._boundary)

    def begin_at(self, frame: FrameType) -> None:
        """Have a region begin in a Python frame; those around it are not looked at."""
        # What enters blocks for others (an ExitStack) is gone by the time that anything runs.
        frame = self._locator.user_frame(frame) or frame
        self._mark(frame, self._new_run(frame.f_code, None, 0), None).begins = True

    def end_in(self, around: FrameType) -> None:
        """Take its mark from the frame in which the region began, where it led to this one."""
        frame: FrameType | None = around
        while frame is not None and not self._begins_in(frame):
            frame = frame.f_back
        if frame is None:
            return
        above: Any = frame.f_trace
        if above.owner is self._own:
            frame.f_trace = above.traced
            return
        while above.traced.owner is not self._own:
            above = above.traced
        above.traced = above.traced.traced

    def _mark_of(self, frame: FrameType) -> _Mark | None:
        """Return the mark that a frame bears, also below those of other recorders."""
        mark: Any = frame.f_trace
        while type(mark) is _Mark and mark.owner is not self._own:
            mark = mark.traced
        return mark if type(mark) is _Mark else None

    def _begins_in(self, frame: FrameType) -> bool:
        """Whether the region begins in a frame."""
        mark = self._mark_of(frame)
        return mark is not None and mark.begins

    def of_operation(self, frame: FrameType | None) -> Place:
        """Return where an operation stands that this frame calls.

        The very same tuple, where that is known from an earlier operation of the frame.
        """
        running = self._scopes.running
        if frame is None:
            return running.inner, running.source, None, 0
        mark: Any = frame.f_trace
        if mark is None:
            if _is_forward(frame, running) and self._locator.is_foreign(frame.f_code.co_filename):
                # A forward of torch's own: the line that called the module is the user's.
                return running.inner, running.source, None, 0
        elif mark.__class__ is _Spot:
            if (
                mark.owner is self._own
                and mark.running is running
                and mark.place[0] is running.inner
            ):
                return mark.place
        elif mark.__class__ is _Mark and mark.owner is self._own and mark.key is running.scope:
            # Most operations are called by the forward of the module that runs.
            spot = mark.spots.get(frame.f_lasti)
            if spot is not None and spot[0] is not None and mark.scope is running.inner:
                return running.inner, spot[0], mark.run, spot[1]
        return self._looked_for(frame, running)

    def _looked_for(self, frame: FrameType, running: Frame) -> Place:
        """Find where an operation stands by going out from the frame that calls it."""
        owner, user = self._look(frame, running)
        # The parameters of an optimizer tell where it stands, whoever called it.
        stays = owner is None or any(one.phase == "optimizer" for one in upward(running.inner))
        scope = running.inner if owner is None or stays else self._scopes.container(owner)
        place = scope, *self._called_by(user, frame)
        if scope is not running.inner:
            return place
        # What is around a frame stays as long as it lives: its next operation stands there, too.
        code, mark = frame.f_code, frame.f_trace
        if user is frame:
            if type(mark) is _Mark and mark.owner is self._own and mark.key is running.scope:
                mark.scope = scope
            return place
        alone = mark is None or (type(mark) is _Spot and mark.owner is self._own)
        if alone and code is not _ONCE and not code.co_flags & _BY_TURNS:
            frame.f_trace = _Spot(self._own, running, place)
        return place

    def of_call(self, frame: FrameType | None) -> tuple[Source | None, Run | None, int]:
        """Return the source of a call that this frame makes, the run around it, and the step."""
        return self._called_by(self._locator.user_frame(frame), frame)

    def caller_of(self, called: ModulePlace, frame: FrameType) -> tuple[Scope | None, str]:
        """Return the scope in which a module is called that is none of its parts, and its path.

        None for a part of the caller, and at the top level.

        Args:
            called: The place of the module.
            frame: The Python frame that calls it.
        """
        running = self._scopes.running
        if called.parent is None or called.parent is running.place:
            return None, ""
        # What calls it are first methods of its own, `__call__` among them.
        owner = self._look(frame, running, called)[0]
        caller = owner or running.place
        around: ModulePlace | None = called
        while around is not None and around is not caller:
            around = around.parent
        if caller is None or around is not None:
            return None, ""
        scope = running.inner if owner is None else self._scopes.container(owner)
        return scope, caller.path_of(called)

    def _called_by(
        self, user: FrameType | None, frame: FrameType | None
    ) -> tuple[Source | None, Run | None, int]:
        """Return the same where the user's frame is known that led to the one which calls."""
        running = self._scopes.running
        if user is None:
            return running.source, None, 0
        mark: Any = user.f_trace
        # Most frames are known: what is asked here is asked for each call of a module.
        if mark.__class__ is _Mark and mark.owner is self._own and mark.key is running.scope:
            source, step = mark.spots.get(user.f_lasti) or self._locator.spot(user)
            return source or running.source, mark.run, step
        run, step = self._enter(frame, running.scope)
        return self._locator.at(user) or running.source, run, step

    def source_at(self, frame: FrameType | None) -> Source | None:
        """Return the place in the user's code that led to this frame."""
        return self._locator.source(frame, self._scopes.running.source)

    def _look(
        self, frame: FrameType, running: Frame, called: ModulePlace | None = None
    ) -> tuple[ModulePlace | None, FrameType | None]:
        """Return the module of which a method led to this Python frame, and the user's frame.

        The module is None for the one that runs: it is another one where a method of that was
        called without calling it (`net.encoder.forward(x)`, `net.encode(x)`). The frame is None
        where none of the user's is met before the call of the module.

        Args:
            frame: The frame.
            running: The call that runs.
            called: A module whose methods are passed over.
        """
        boundary, is_foreign = self._boundary, self._locator.is_foreign
        user: FrameType | None = None
        around: FrameType | None = frame
        while around is not None:
            code = around.f_code
            if code is boundary:
                return None, user
            if user is None and not is_foreign(code.co_filename):
                user = around
            if _is_forward(around, running):
                break
            if around.f_trace is not None and self._begins_in(around):
                break
            # Of other frames no locals are read: Python keeps alive what it has shown of them.
            is_method = code.co_argcount and code.co_varnames[0] == "self"
            owner = around.f_locals.get("self") if is_method else None
            place = None
            if isinstance(owner, torch.nn.Module):
                place = self._scopes.registry.module(owner)
            if place is not None and place is running.place:
                if around is frame and user is None:
                    # A forward of torch's own: the line that called the module is the user's.
                    return None, None
                break
            if place not in (None, called) and self._scopes.call_of(place) is None:
                return place, user or self._locator.user_frame(around)
            around = around.f_back
        return None, user or self._locator.user_frame(around)

    # -- runs -----------------------------------------------------------------------------

    def _enter(self, frame: FrameType | None, key: object) -> tuple[Run | None, int]:
        """Return the run in which a frame calls something, and the step; mark frames on the way.

        Args:
            frame: The frame.
            key: What runs with it has it in common: of one call of a module.
        """
        new: list[FrameType] = []
        around: Run | None = None
        outer: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                break
            mark = self._mark_of(frame) if frame.f_trace is not None else None
            if mark is not None and (mark.begins or mark.key is key):
                around, outer = mark.run, frame
                break
            skip = self._passes(code.co_filename)
            if skip == _ENDS:
                break
            if not skip and not code.co_flags & _BY_TURNS:
                new.append(frame)
            frame = frame.f_back
        step = self._locator.spot(outer)[1] if outer else 0
        for frame in reversed(new):
            around = self._new_run(frame.f_code, around, step)
            self._mark(frame, around, key)
            step = self._locator.spot(frame)[1]
        return around, step

    def _mark(self, frame: FrameType, run: Run, key: object) -> _Mark:
        traced: Any = frame.f_trace
        if type(traced) is _Mark and traced.owner is self._own:
            traced = traced.traced
        spots = self._locator.spots_of(frame.f_code)
        frame.f_trace = mark = _Mark(self._own, run, key, traced, spots, self._own)
        return mark

    def _passes(self, file: str) -> int:
        """Tell whether frames of a file are passed over, or end the walk."""
        if file not in self._passed:
            own = is_own_file(file) and not file.startswith(_WATCHING)
            self._passed[file] = _ENDS if own else int(self._locator.is_foreign(file))
        return self._passed[file]

    def _new_run(self, code: CodeType, around: Run | None, step: int) -> Run:
        known = self._functions.get(id(code))
        if known is None:
            nested = "<locals>" in code.co_qualname
            function = Function(_name_of(code), _loops_of(code), nested)
            known = self._functions[id(code)] = (code, function)
        return Run(known[1], around, step)


def _is_forward(frame: FrameType, running: Frame) -> bool:
    """Whether a frame is the forward of the running module, which torch itself has called.

    Most modules do one thing: so is found without a look at what the frame holds.
    """
    if frame.f_code is not running.forward:
        return False
    caller = frame.f_back
    return caller is not None and caller.f_code is CALL_CODE


def _name_of(code: CodeType) -> str:
    """Return the name under which a user knows a function; empty for a part of another one."""
    name = code.co_name
    if name in _BY_CLASS:
        return code.co_qualname.split(".")[-2] if "." in code.co_qualname else name
    if name == "<lambda>":
        return "lambda"
    return "" if name.startswith("<") else name


def _loops_of(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return the first and the last step of each loop, by the jumps back in the code."""
    steps = code.co_code
    ends: dict[int, int] = {}
    # Found by a pattern, as this reads the whole code of each function that runs.
    for jump in _BACKWARDS.finditer(steps[::2]):
        at = 2 * jump.start()
        argument, shift, before = steps[at + 1], 8, at - 2
        while before >= 0 and steps[before] == _EXTENDED:
            argument |= steps[before + 1] << shift
            shift, before = shift + 8, before - 2
        # Steps are counted in units of two bytes from the one behind the jump.
        ends[at + 2 - 2 * argument] = at
    return tuple(ends.items())
