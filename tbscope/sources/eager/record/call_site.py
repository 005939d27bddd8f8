"""Call sites of operations: the scope, the line of the user's code, and the call of a function.

`CallSites` finds all three by a walk outwards from the Python frame that called the operation.
The line is that of the innermost frame of the user's code. The scope is that of the running module
call, unless a frame on the way is a method of another module that was called without a module call
(`net.encoder.forward(x)`). The call of a function (`CallFrame`) separates the operations of two
calls of one function.

A call of a function lasts as long as its Python frame. The identity of a frame is reused once the
frame is gone, and a reference to the frame would keep alive all tensors in it. So each function
call gets a tag (`_FrameTag`, or `_CallSiteTag` for torch's own code) in `frame.f_trace`, the only
attribute of a frame that has room for an object: a debugger keeps its callback for each line there.
The tag goes when the frame goes. The callback of an active debugger is called as before.
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
from tbscope.ir.metadata import CallFrame, Function
from tbscope.ir.scopes import Scope, self_and_ancestors
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.compat.modules import CALL_CODE
from tbscope.sources.torch.module_names import ModuleEntry
from tbscope.sources.torch.source_location import OWN_FILES, CallSiteFinder, Spot, is_own_file

CallSite: TypeAlias = tuple[Scope | None, Source | None, CallFrame | None, int]
"""A call site: its scope, source and `CallFrame`, and the bytecode offset of the call."""

# A frame of this code calls only one operation: a tag on it would be of no use.
_ONCE = handle_torch_function.__code__
# Flags of code that runs in pieces, interleaved with its callers: generators, coroutines. These
# frames get no `CallFrame` of their own, as each piece may have another caller.
_BY_TURNS = 0x20 | 0x80 | 0x200
# The wrappers of the watchers, which are between a function and its callees on the stack.
_WATCHING = os.path.join(OWN_FILES, "eager", "watch", "")
_ENDS = 2
# Methods that a user calls by the name of their class.
_BY_CLASS = frozenset({"__call__", "__init__", "__new__", "__post_init__"})
# Matches the opcodes that jump backwards.
_BACKWARDS = re.compile(
    b"[%s]"
    % re.escape(
        bytes(code for name, code in dis.opmap.items() if name.startswith(("JUMP_B", "POP_JUMP_B")))
    )
)
_EXTENDED = dis.opmap["EXTENDED_ARG"]


@dataclass(slots=True, eq=False)
class _FrameTag:
    """Tag on the frame of a function call, which Python calls if a debugger is active.

    Attributes:
        owner: The object that identifies the `CallSites` of the tag.
        run: The call of the function.
        key: The scope of the running module call; all function calls of a module call share it.
        traced: The callback of a debugger, or the tag of another recorder, that was there before.
        spots: The lines found so far in the code of the frame, by bytecode offset.
        scope: The scope of operations that the frame calls; the owner if it has not been found.
        begins: Whether the recorded region begins in the frame.
    """

    owner: object
    run: CallFrame
    key: object
    traced: Any
    spots: dict[int, Spot]
    scope: object
    begins: bool = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> "_FrameTag":
        """Forward an event to the debugger; the tag stays in place."""
        if self.traced is not None:
            self.traced = self.traced(frame, event, arg) or self.traced
        return self


@dataclass(slots=True, eq=False)
class _CallSiteTag:
    """Tag on a frame of torch's own code that calls operations: the call site of all of them.

    The frames outside of the tagged frame do not advance as long as it lives, so that the user's
    line is the same for each operation: of an optimizer's loop, or of all that autograd's engine
    runs.

    Attributes:
        owner: The object that identifies the `CallSites` of the tag.
        running: The module call that ran.
        site: The call site.
    """

    owner: object
    running: Frame
    site: CallSite

    def __call__(self, frame: FrameType, event: str, arg: object) -> "_CallSiteTag":
        """Keep the tag in place if a debugger is active."""
        return self


class CallSites:
    """Search for the call sites of operations, by the Python frames that call them.

    Args:
        scopes: The open scopes.
        boundary: The code of the function that wraps each module call (see `CallSiteFinder`).
    """

    def __init__(self, scopes: ScopeStack, boundary: CodeType) -> None:
        self._scopes = scopes
        self._boundary = boundary
        # The owner of tags, a plain object: frames may outlive the run, and must not keep its
        # modules alive.
        self._own = object()
        self._locator = CallSiteFinder(boundary)
        # By file: 0 for the user's code, 1 for code to skip, `_ENDS` for code outside of the
        # recording.
        self._passed: dict[str, int] = {}
        # By identity, as hashing a code object reads all of it; the entry keeps the code alive.
        self._functions: dict[int, tuple[CodeType, Function]] = {}

    def begin_at(self, frame: FrameType) -> None:
        """Tag the frame in which a region begins; frames outside of it are not searched."""
        # A frame that enters the region for its caller (of an ExitStack) ends before anything runs.
        frame = self._locator.user_frame(frame) or frame
        self._mark(frame, self._new_run(frame.f_code, None, 0), None).begins = True

    def end_in(self, around: FrameType) -> None:
        """Remove the tag from the frame in which the region began, if it led to this frame."""
        frame: FrameType | None = around
        while frame is not None and not self._begins_in(frame):
            frame = frame.f_back
        if frame is None:
            return
        mark: Any = frame.f_trace
        if mark.owner is self._own:
            frame.f_trace = mark.traced
            return
        while mark.traced.owner is not self._own:
            mark = mark.traced
        mark.traced = mark.traced.traced

    def _mark_of(self, frame: FrameType) -> _FrameTag | None:
        """Return this recorder's tag on a frame, also below tags of other recorders; or None."""
        mark: Any = frame.f_trace
        while type(mark) is _FrameTag and mark.owner is not self._own:
            mark = mark.traced
        return mark if type(mark) is _FrameTag else None

    def _begins_in(self, frame: FrameType) -> bool:
        """Whether the region begins in a frame."""
        mark = self._mark_of(frame)
        return mark is not None and mark.begins

    def of_operation(self, frame: FrameType | None) -> CallSite:
        """Return the call site of an operation that this frame calls.

        The very same tuple is returned if the tag of the frame contains it from an earlier
        operation: `Optimizers.scope_of` compares identities.
        """
        running = self._scopes.running
        if frame is None:
            return running.inner, running.source, None, 0
        mark: Any = frame.f_trace
        if mark is None:
            is_forward = frame.f_code is running.forward and _is_called_by_torch(frame)
            if is_forward and self._locator.is_foreign(frame.f_code.co_filename):
                # In a forward of torch's own, the line that called the module is the user's.
                return running.inner, running.source, None, 0
        elif mark.__class__ is _CallSiteTag:
            if (
                mark.owner is self._own
                and mark.running is running
                and mark.site[0] is running.inner
            ):
                return mark.site
        elif mark.__class__ is _FrameTag and mark.owner is self._own and mark.key is running.scope:
            # Most operations are called by the forward of the running module.
            spot = mark.spots.get(frame.f_lasti)
            if spot is not None and spot[0] is not None and mark.scope is running.inner:
                return running.inner, spot[0], mark.run, spot[1]
        return self._find_site(frame, running)

    def _find_site(self, frame: FrameType, running: Frame) -> CallSite:
        """Find the call site of an operation by a walk outwards from the frame that calls it."""
        owner, user = self._module_of_method(frame, running)
        # In an optimizer step the parameters decide on the scope, whatever the caller is.
        stays = owner is None or any(
            enclosing.phase == "optimizer" for enclosing in self_and_ancestors(running.inner)
        )
        scope = running.inner if owner is None or stays else self._scopes.container(owner)
        site = scope, *self._called_by(user, frame)
        if scope is not running.inner:
            return site
        # The callers of a frame stay as long as it lives: its next operation has the same call
        # site.
        code, mark = frame.f_code, frame.f_trace
        if user is frame:
            if type(mark) is _FrameTag and mark.owner is self._own and mark.key is running.scope:
                mark.scope = scope
            return site
        is_free = mark is None or (type(mark) is _CallSiteTag and mark.owner is self._own)
        if is_free and code is not _ONCE and not code.co_flags & _BY_TURNS:
            frame.f_trace = _CallSiteTag(self._own, running, site)
        return site

    def of_call(self, frame: FrameType | None) -> tuple[Source | None, CallFrame | None, int]:
        """Return source, `CallFrame` and bytecode offset of a call that this frame makes."""
        # Only frames of the user's code have this tag.
        tagged = frame is not None and type(frame.f_trace) is _FrameTag
        return self._called_by(frame if tagged else self._locator.user_frame(frame), frame)

    def caller_of(self, called: ModuleEntry, frame: FrameType) -> tuple[Scope | None, str]:
        """Return the calling scope of a module that is no child of its caller, and its path.

        The path leads from the caller to the module. Return `(None, "")` for a part of the caller,
        and at the top level.

        Args:
            called: The place of the module.
            frame: The Python frame that calls it.
        """
        running = self._scopes.running
        if called.parent is None:
            return None, ""
        # The innermost callers are the module's own methods, `__call__` among them.
        owner = self._module_of_method(frame, running, called)[0]
        caller = owner or running.entry
        ancestor: ModuleEntry | None = called
        while ancestor is not None and ancestor is not caller:
            ancestor = ancestor.parent
        if caller is None or ancestor is not None:
            return None, ""
        scope = running.inner if owner is None else self._scopes.container(owner)
        return scope, caller.path_of(called)

    def _called_by(
        self, user: FrameType | None, frame: FrameType | None
    ) -> tuple[Source | None, CallFrame | None, int]:
        """Return the result of `of_call`, for a user's frame that has been found already."""
        running = self._scopes.running
        if user is None:
            return running.source, None, 0
        mark: Any = user.f_trace
        # Fast path: most frames have a tag, and this runs for each call of a module.
        if mark.__class__ is _FrameTag and mark.owner is self._own and mark.key is running.scope:
            source, step = mark.spots.get(user.f_lasti) or self._locator.spot(user)
            return source or running.source, mark.run, step
        run, step = self._enter(frame, running.scope)
        return self._locator.spot(user)[0] or running.source, run, step

    def source_at(self, frame: FrameType | None) -> Source | None:
        """Return the place in the user's code that led to this frame."""
        return self._locator.source(frame, self._scopes.running.source)

    def _module_of_method(
        self, frame: FrameType, running: Frame, called: ModuleEntry | None = None
    ) -> tuple[ModuleEntry | None, FrameType | None]:
        """Return the module whose method led to this Python frame, and the user's frame.

        The module is None if the running module led there. It is another module if a method of that
        module was called without a module call (`net.encoder.forward(x)`, `net.encode(x)`). The
        frame is None if the walk meets the call of the module before any frame of the user's code.

        Args:
            frame: The frame.
            running: The running module call.
            called: A module whose methods are passed over.
        """
        boundary, is_foreign = self._boundary, self._locator.is_foreign
        user: FrameType | None = None
        outer: FrameType | None = frame
        while outer is not None:
            code = outer.f_code
            if code is boundary:
                return None, user
            if user is None and not is_foreign(code.co_filename):
                user = outer
            if code is running.forward and _is_called_by_torch(outer):
                break
            if outer.f_trace is not None and self._begins_in(outer):
                break
            # The locals of other frames are not read: Python keeps alive the objects that
            # `f_locals` has shown.
            is_method = code.co_argcount and code.co_varnames[0] == "self"
            owner = outer.f_locals.get("self") if is_method else None
            entry = None
            if isinstance(owner, torch.nn.Module):
                entry = self._scopes.registry.module(owner)
            if entry is not None and entry is running.entry:
                if outer is frame and user is None:
                    # In a forward of torch's own, the line that called the module is the user's.
                    return None, None
                break
            if entry not in (None, called) and self._scopes.call_of(entry) is None:
                return entry, user or self._locator.user_frame(outer)
            outer = outer.f_back
        return None, user or self._locator.user_frame(outer)

    # -- function calls --------------------------------------------------------------------

    def _enter(self, frame: FrameType | None, key: object) -> tuple[CallFrame | None, int]:
        """Return the `CallFrame` and the offset of what a frame calls; tag frames on the way.

        Args:
            frame: The frame.
            key: The scope of the running module call, which all its function calls share.
        """
        passed, new = self._passed, list[FrameType]()
        run: CallFrame | None = None
        outer: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                break
            mark = self._mark_of(frame) if frame.f_trace is not None else None
            if mark is not None and (mark.begins or mark.key is key):
                run, outer = mark.run, frame
                break
            skip = passed.get(code.co_filename)
            if skip is None:
                skip = self._passes(code.co_filename)
            if skip == _ENDS:
                break
            if not skip and not code.co_flags & _BY_TURNS:
                new.append(frame)
            frame = frame.f_back
        step = self._locator.spot(outer)[1] if outer else 0
        for frame in reversed(new):
            run = self._new_run(frame.f_code, run, step)
            self._mark(frame, run, key)
            step = self._locator.spot(frame)[1]
        return run, step

    def _mark(self, frame: FrameType, run: CallFrame, key: object) -> _FrameTag:
        """Tag a frame; an older tag of this recorder is replaced, any other callback is kept."""
        traced: Any = frame.f_trace
        if type(traced) is _FrameTag and traced.owner is self._own:
            traced = traced.traced
        spots = self._locator.spots_of(frame.f_code)
        frame.f_trace = mark = _FrameTag(self._own, run, key, traced, spots, self._own)
        return mark

    def _passes(self, file: str) -> int:
        """Return 0 to search the frames of a new file, 1 to skip them, `_ENDS` to end the walk."""
        own = is_own_file(file) and not file.startswith(_WATCHING)
        self._passed[file] = skip = _ENDS if own else int(self._locator.is_foreign(file))
        return skip

    def _new_run(self, code: CodeType, around: CallFrame | None, step: int) -> CallFrame:
        entry = self._functions.get(id(code))
        if entry is None:
            nested = "<locals>" in code.co_qualname
            function = Function(_name_of(code), _loops_of(code), nested)
            entry = self._functions[id(code)] = (code, function)
        return CallFrame(entry[1], around, step)


def _is_called_by_torch(frame: FrameType) -> bool:
    """Whether torch's call of a module has called a frame; its locals are not read for that."""
    caller = frame.f_back
    return caller is not None and caller.f_code is CALL_CODE


def _name_of(code: CodeType) -> str:
    """Return the name of a function for a user; empty for a part of another function."""
    name = code.co_name
    if name in _BY_CLASS:
        return code.co_qualname.split(".")[-2] if "." in code.co_qualname else name
    if name == "<lambda>":
        return "lambda"
    return "" if name.startswith("<") else name


def _loops_of(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return the first and the last bytecode offset of each loop, by the backward jumps."""
    steps = code.co_code
    ends: dict[int, int] = {}
    # A pattern is fast: this reads the whole code of each function that runs.
    for jump in _BACKWARDS.finditer(steps[::2]):
        at = 2 * jump.start()
        argument, shift, before = steps[at + 1], 8, at - 2
        while before >= 0 and steps[before] == _EXTENDED:
            argument |= steps[before + 1] << shift
            shift, before = shift + 8, before - 2
        # A jump counts units of two bytes, from the end of its own instruction.
        ends[at + 2 - 2 * argument] = at
    return tuple(ends.items())
