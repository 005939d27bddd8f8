"""Finds the run of the user's function in which an operation is called, by the Python frame.

A frame is a run of its own as long as it lives, but its identity may belong to the next one
as soon as it is gone, and whoever held frames to tell them apart would keep alive all tensors
in them. So each frame bears a mark, in the one place where Python has room for it: where a
debugger would put what it calls for each line. The mark goes when the frame goes. Where a
debugger does look, it is called as before.
"""

import dis
import os
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tbscope.ir.runs import Function, Run
from tbscope.sources.torch.locate import OWN_FILES, is_own_file

__all__ = ["Runs"]

# What runs a bit now and a bit then, in turns with whoever asks it: no part of a run is its own.
_BY_TURNS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
# What stands between a function and what it calls while somebody watches.
_WATCHING = os.path.join(OWN_FILES, "eager", "watch", "")
# Methods that are called by the name of their class.
_BY_CLASS = frozenset({"__call__", "__init__", "__new__", "__post_init__"})
_BACKWARDS = frozenset(
    code for name, code in dis.opmap.items() if name.startswith(("JUMP_B", "POP_JUMP_B"))
)
_EXTENDED = dis.opmap["EXTENDED_ARG"]


class _Mark:
    """What the frame of a run bears.

    Attributes:
        owner: Whose mark it is.
        run: The run.
        key: What runs with it must have in common to be of one module call.
        traced: What a debugger, or another watcher, has put there.
    """

    __slots__ = ("key", "owner", "run", "traced")

    def __init__(self, owner: "Runs", run: Run, key: object, traced: Any) -> None:
        self.owner = owner
        self.run = run
        self.key = key
        self.traced = traced

    def __call__(self, frame: FrameType, event: str, arg: Any) -> "_Mark":
        """Hand on to the debugger; stay where this is."""
        if self.traced is not None:
            self.traced = self.traced(frame, event, arg) or self.traced
        return self


class Runs:
    """Finds runs; knows the frames that it has seen by their marks.

    Args:
        boundary: The code of the function that wraps each module call.
        is_foreign: Whether a file is not the user's.
    """

    def __init__(self, boundary: CodeType, is_foreign: Callable[[str], bool]) -> None:
        self._boundary = boundary
        self._is_foreign = is_foreign
        self._outermost: tuple[int, Run] | None = None
        # By identity, as hashing a code object reads all of it; the code is kept alive.
        self._known: dict[int, tuple[CodeType, Function]] = {}

    def at(
        self, frame: FrameType, caller: FrameType | None, key: object, base: int
    ) -> tuple[Run | None, int]:
        """Return the run to which a frame of the user's belongs, and the step in it.

        Args:
            frame: The frame.
            caller: Where the walk to it began: if tbscope stands between, it is outside.
            key: What runs with it has it in common: of one call of a module.
            base: The identity of the frame in which a region begins; 0 for none.
        """
        mark: Any = frame.f_trace
        if mark.__class__ is _Mark and mark.owner is self and mark.key is key:
            return mark.run, frame.f_lasti
        return self._enter(caller, key, base)

    def _enter(self, frame: FrameType | None, key: object, base: int) -> tuple[Run | None, int]:
        """Mark the frames of the runs around that bear no mark, and do what `at` does."""
        new: list[FrameType] = []
        around: Run | None = None
        outer: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                break
            if id(frame) == base:
                around, outer = self._of_region(code, base), frame
                break
            file = code.co_filename
            if is_own_file(file) and not file.startswith(_WATCHING):
                break
            if not self._is_foreign(file) and not code.co_flags & _BY_TURNS:
                around = self._marked(frame, key)
                if around is not None:
                    outer = frame
                    break
                new.append(frame)
            frame = frame.f_back
        for frame in reversed(new):
            around = self._new_run(frame.f_code, around, outer.f_lasti if outer else 0)
            self._put_mark(frame, around, key)
            outer = frame
        return around, outer.f_lasti if outer else 0

    def _marked(self, frame: FrameType, key: object) -> Run | None:
        """Return the run whose mark a frame bears, also below those of other recorders."""
        mark: Any = frame.f_trace
        while type(mark) is _Mark:
            if mark.owner is self and mark.key is key:
                return mark.run
            mark = mark.traced
        return None

    def _put_mark(self, frame: FrameType, run: Run, key: object) -> None:
        traced: Any = frame.f_trace
        if type(traced) is _Mark and traced.owner is self:
            traced = traced.traced
        frame.f_trace = _Mark(self, run, key, traced)

    def _of_region(self, code: CodeType, base: int) -> Run:
        """Return the run of the function in which a region begins: its frame lives on."""
        if self._outermost is None or self._outermost[0] != base:
            self._outermost = base, self._new_run(code, None, 0)
        return self._outermost[1]

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
    if not _BACKWARDS.isdisjoint(steps[::2]):
        for at in range(0, len(steps), 2):
            if steps[at] in _BACKWARDS:
                argument, shift, before = steps[at + 1], 8, at - 2
                while before >= 0 and steps[before] == _EXTENDED:
                    argument |= steps[before + 1] << shift
                    shift, before = shift + 8, before - 2
                # Steps are counted in units of two bytes from the one behind the jump.
                ends[at + 2 - 2 * argument] = at
    return tuple(ends.items())
