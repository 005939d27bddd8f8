"""Finds the run of the user's function in which an operation is called, by the Python frame.

A frame is a run of its own as long as it lives, but its identity may belong to the next one
as soon as it is gone, and whoever held frames to tell them apart would keep alive all tensors
in them. So each frame bears a mark, in the one place where Python has room for it: where a
debugger would put what it calls for each line. The mark goes when the frame goes. Where a
debugger does look, it is called as before.
"""

import dis
import os
import re
from types import CodeType, FrameType
from typing import Any

from tbscope.ir.facts import Function, Run
from tbscope.sources.torch.locate import OWN_FILES, Locator, Spot, is_own_file

__all__ = ["BY_TURNS", "Mark", "Runs"]

BY_TURNS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
"""The flags of code that runs a bit now and a bit then, in turns with whoever asks it.

No part of a run is its own, and each time another frame may be around it.
"""
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


class Mark:
    """What the frame of a run bears.

    Attributes:
        owner: Whose mark it is.
        run: The run.
        key: What runs with it must have in common to be of one module call.
        begins: Whether the region begins in the frame.
        scope: The scope of operations that the frame calls; the owner where that is unknown.
        traced: What a debugger, or another watcher, has put there.
        spots: The places in the code of the frame that are known so far.
    """

    __slots__ = ("begins", "key", "owner", "run", "scope", "spots", "traced")

    def __init__(
        self, owner: "Runs", run: Run, key: object, traced: Any, spots: dict[int, Spot]
    ) -> None:
        self.owner = owner
        self.run = run
        self.key = key
        self.begins = False
        self.scope: object = owner
        self.traced = traced
        self.spots = spots

    def __call__(self, frame: FrameType, event: str, arg: Any) -> "Mark":
        """Hand on to the debugger; stay where this is."""
        if self.traced is not None:
            self.traced = self.traced(frame, event, arg) or self.traced
        return self


class Runs:
    """Finds runs; knows the frames that it has seen by their marks.

    Args:
        boundary: The code of the function that wraps each module call.
        locator: Knows whether a file is not the user's, and the sources of frames.
    """

    def __init__(self, boundary: CodeType, locator: Locator) -> None:
        self._boundary = boundary
        self._locator = locator
        # For each file 0 for the user's, 1 for what is passed over, `_ENDS` for what is outside.
        self._passed: dict[str, int] = {}
        # By identity, as hashing a code object reads all of it; the code is kept alive.
        self._known: dict[int, tuple[CodeType, Function]] = {}

    def begin_at(self, frame: FrameType) -> None:
        """Have a region begin in a frame: what is around it is not looked at."""
        self._mark(frame, self._new_run(frame.f_code, None, 0), None).begins = True

    def begins_at(self, frame: FrameType) -> bool:
        """Whether the region begins in a frame."""
        mark: Any = frame.f_trace
        while type(mark) is Mark:
            if mark.owner is self and mark.begins:
                return True
            mark = mark.traced
        return False

    def end_in(self, frame: FrameType | None) -> None:
        """Take its mark from the frame in which the region began, where it led to this one."""
        while frame is not None and not self.begins_at(frame):
            frame = frame.f_back
        if frame is None:
            return
        mark: Any = frame.f_trace
        if mark.owner is self:
            frame.f_trace = mark.traced
            return
        while mark.traced.owner is not self:
            mark = mark.traced
        mark.traced = mark.traced.traced

    def enter(self, frame: FrameType | None, key: object) -> tuple[Run | None, int]:
        """Return the run in which a frame calls something, and the step; mark frames on the way.

        Args:
            frame: The frame.
            key: What runs with it has it in common: of one call of a module.
        """
        new: list[FrameType] = []
        around: Run | None = None
        outer: FrameType | None = None
        passed = self._passed
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                break
            around = self._marked(frame, key) if frame.f_trace is not None else None
            if around is not None:
                outer = frame
                break
            skip = passed.get(code.co_filename)
            if skip is None:
                skip = self._passes(code.co_filename)
            if skip == _ENDS:
                break
            if not skip and not code.co_flags & BY_TURNS:
                new.append(frame)
            frame = frame.f_back
        for frame in reversed(new):
            around = self._new_run(frame.f_code, around, self._step_of(outer))
            self._mark(frame, around, key)
            outer = frame
        return around, self._step_of(outer)

    def _step_of(self, frame: FrameType | None) -> int:
        return self._locator.spot(frame)[1] if frame else 0

    def _mark(self, frame: FrameType, run: Run, key: object) -> Mark:
        traced: Any = frame.f_trace
        if type(traced) is Mark and traced.owner is self:
            traced = traced.traced
        frame.f_trace = mark = Mark(self, run, key, traced, self._locator.spots_of(frame.f_code))
        return mark

    def _passes(self, file: str) -> int:
        """Tell whether frames of a file are passed over, or end the walk."""
        own = is_own_file(file) and not file.startswith(_WATCHING)
        known = self._passed[file] = _ENDS if own else int(self._locator.is_foreign(file))
        return known

    def _marked(self, frame: FrameType, key: object) -> Run | None:
        """Return the run whose mark a frame bears, also below those of other recorders."""
        mark: Any = frame.f_trace
        while type(mark) is Mark:
            if mark.owner is self and (mark.begins or mark.key is key):
                return mark.run
            mark = mark.traced
        return None

    def _new_run(self, code: CodeType, around: Run | None, step: int) -> Run:
        known = self._known.get(id(code))
        if known is None:
            nested = "<locals>" in code.co_qualname
            function = Function(_name_of(code), _loops_of(code), nested)
            known = self._known[id(code)] = (code, function)
        return Run(known[1], around, step)


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
