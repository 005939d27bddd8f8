"""Finds where an operation stands: its scope, the line that called it, the run of a function."""

from collections.abc import Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch.overrides import handle_torch_function

from tbscope.ir.facts import Run
from tbscope.ir.graph import Source
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.runs import BY_TURNS, Mark, Runs
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.locate import Locator
from tbscope.sources.torch.module_internals import CALL_CODE
from tbscope.sources.torch.registry import ModulePlace, Registry

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


class _Methods:
    """Finds the module of which a frame runs a method, whatever its first parameter is called.

    A function is a method by being written in the class of a module, or by being an attribute of
    that or of the module. Others may be given a module first, too. Only where a method is likely
    are the locals of a frame read: Python keeps alive what it has shown of them.

    Args:
        registry: The places of the modules.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # By identity, as hashing a code object reads all of it; the code is kept alive. With the
        # name of its first parameter if it may be a method, and the number of modules known then.
        self._firsts: dict[int, tuple[CodeType, str, int]] = {}
        # The code of the functions in each class of modules, their names, and modules' own.
        self._seen = 0
        self._names: set[str] = set()
        self._held: dict[type, dict[int, CodeType]] = {torch.nn.Module: {}, object: {}}
        self._own: dict[int, CodeType] = {}

    def first_of(self, code: CodeType) -> str:
        """Return the name of the first parameter of a likely method; empty for any other code."""
        known = self._firsts.get(id(code))
        if known is None or not (known[1] or known[2] == self._registry.count):
            first = code.co_varnames[0] if code.co_argcount else ""
            likely = first == "self" or (first and self._is_likely(code))
            known = code, first if likely else "", self._registry.count
            self._firsts[id(code)] = known
        return known[1]

    def owner(self, frame: FrameType, first: str) -> torch.nn.Module | None:
        """Return the module of which a frame runs a method; None where it runs none.

        Args:
            frame: The frame.
            first: The name of its first parameter.
        """
        owner = frame.f_locals.get(first)
        if not isinstance(owner, torch.nn.Module):
            return None
        return owner if first == "self" or _has(owner, frame.f_code, self._held) else None

    def _is_likely(self, code: CodeType) -> bool:
        """Whether any known module has a function of this code."""
        for module in self._registry.modules_since(self._seen):
            for cls in type(module).__mro__:
                if cls not in self._held:
                    self._held[cls] = _codes_in(vars(cls).values())
                    self._names.add(cls.__qualname__)
            self._own |= _codes_in(_bound_in(module))
        self._seen = self._registry.count
        if code.co_qualname.rpartition(".")[0] in self._names or id(code) in self._own:
            return True
        return any(id(code) in held for held in self._held.values())


def _codes_in(attributes: Iterable[Any]) -> dict[int, CodeType]:
    """Return by identity the code of functions, and of those that decorators have wrapped."""
    codes: dict[int, CodeType] = {}
    for held in attributes:
        function = held
        while type(function) is FunctionType and id(function.__code__) not in codes:
            codes[id(function.__code__)] = function.__code__
            function = vars(function).get("__wrapped__")
    return codes


def _bound_in(module: torch.nn.Module) -> list[Any]:
    """Return the functions that were made methods of one module alone."""
    return [held.__func__ for held in vars(module).values() if type(held) is MethodType]


def _has(module: torch.nn.Module, code: CodeType, held: dict[type, dict[int, CodeType]]) -> bool:
    """Whether a module has a method of this code; a static one may be given any module."""
    body, _, name = code.co_qualname.rpartition(".")
    for cls in type(module).__mro__:
        if cls.__qualname__ == body:
            return type(vars(cls).get(name)) is not staticmethod
        if id(code) in held.get(cls, ()):
            return True
    return id(code) in _codes_in(_bound_in(module))


class Whereabouts:
    """Finds the scope and the source of operations by the Python frames that call them.

    Args:
        scopes: The scopes that are open.
        boundary: The code of the function that wraps each module call (see `Locator`).
    """

    def __init__(self, scopes: ScopeStack, boundary: CodeType) -> None:
        self._scopes = scopes
        self._registry = scopes.registry
        self._boundary = boundary
        self._locator = locator = Locator(boundary)
        self._runs = Runs(boundary, locator)
        self._methods = _Methods(scopes.registry)
        # The paths of modules in others that call them, and of which they are no parts.
        self._paths: dict[tuple[ModulePlace, ModulePlace], str] = {}

    def branch(self, scopes: ScopeStack) -> "Whereabouts":
        """Return one for the operations of another thread."""
        return Whereabouts(scopes, self._boundary)

    def begin_at(self, frame: FrameType) -> None:
        """Set the Python frame in which a region begins; those around it are not looked at."""
        # What enters blocks for others (an ExitStack) is gone by the time that anything runs.
        self._runs.begin_at(self._locator.user_frame(frame) or frame)

    def end_in(self, frame: FrameType) -> None:
        """Let go of the frame in which the region began, once it ends in this one."""
        self._runs.end_in(frame)

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
        if mark is None:
            if _is_forward(frame, running) and self._locator.is_foreign(frame.f_code.co_filename):
                # A forward of torch's own: the line that called the module is the user's.
                return running.inner, running.source, None, 0
        elif mark.__class__ is _Spot:
            if mark.owner is self and mark.running is running and mark.place[0] is running.inner:
                return mark.place
        elif mark.__class__ is Mark and mark.owner is self._runs and mark.key is running.scope:
            # Most operations are called by the forward of the module that runs.
            spot = mark.spots.get(frame.f_lasti)
            if spot is not None and spot[0] is not None and mark.scope is running.inner:
                return running.inner, spot[0], mark.run, spot[1]
        return self._looked_for(frame, running)

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
        if self._methods.first_of(code):
            return frame
        return caller if self._locator.is_foreign(code.co_filename) else frame

    def _looked_for(self, frame: FrameType, running: Frame) -> Place:
        """Find where an operation stands by going out from the frame that calls it."""
        owner, user = self._look(frame, running)
        # The parameters of an optimizer tell where it stands, whoever called it.
        if owner is None or _in_optimizer(running.inner):
            scope = running.inner
        else:
            scope = self._scopes.container(owner)
        place = scope, *self._called_by(user, frame)
        if scope is not running.inner:
            return place
        # What is around a frame stays as long as it lives: its next operation stands there, too.
        code, mark = frame.f_code, frame.f_trace
        if user is frame:
            if type(mark) is Mark and mark.owner is self._runs and mark.key is running.scope:
                mark.scope = scope
            return place
        alone = mark is None or (type(mark) is _Spot and mark.owner is self)
        if alone and code is not _ONCE and not code.co_flags & BY_TURNS:
            frame.f_trace = _Spot(self, running, place)
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
        path = self._paths.get((caller, called))
        if path is None:
            path = self._paths[caller, called] = caller.path_of(called)
        return running.inner if owner is None else self._scopes.container(owner), path

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
            source, step = mark.spots.get(user.f_lasti) or self._locator.spot(user)
            return source or running.source, mark.run, step
        run, step = self._runs.enter(frame, running.scope)
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
        boundary, methods = self._boundary, self._methods
        is_foreign, begins_at = self._locator.is_foreign, self._runs.begins_at
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
            if around.f_trace is not None and begins_at(around):
                break
            first = methods.first_of(code)
            owner = methods.owner(around, first) if first else None
            place = None if owner is None else self._registry.module(owner)
            if place is not None and place is running.place:
                if around is frame and user is None:
                    # A forward of torch's own: the line that called the module is the user's.
                    return None, None
                break
            if place not in (None, called) and not self._scopes.calls_of(place):
                return place, user or self._locator.user_frame(around)
            around = around.f_back
        return None, user or self._locator.user_frame(around)


def _is_forward(frame: FrameType, running: Frame) -> bool:
    """Whether a frame is the forward of the running module, which torch itself has called.

    Most modules do one thing: so is found without a look at what the frame holds.
    """
    if frame.f_code is not running.forward:
        return False
    caller = frame.f_back
    return caller is not None and caller.f_code is CALL_CODE


def _in_optimizer(scope: Scope | None) -> bool:
    """Tell whether a scope is that of an optimizer's step, or stands in one."""
    while scope is not None and scope.phase != "optimizer":
        scope = scope.parent
    return scope is not None
