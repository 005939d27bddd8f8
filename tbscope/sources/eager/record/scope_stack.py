"""The scopes of a run: which are open, and where each module stands.

A module stands below the nearest of its holders that runs now, along the path of
the module tree; containers that are never called stand in between. Each further
call of a module in the same place opens a new scope, numbered.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tbscope.errors import ScopeError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Call, Source
from tbscope.ir.scopes import PHASE_BOXES, Phase, Scope, ScopeKind
from tbscope.sources.torch.registry import ModulePlace, Registry
from tbscope.words import shown

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Frame", "ScopeStack"]


class Frame:
    """A module call that runs, or the top level of a recording.

    Attributes:
        scope: Its scope; None for the top level.
        place: The place of the module; None for the top level.
        call: The call; None for the top level and for a container.
        inner: Where what runs directly in it belongs: its own scope, or the innermost
            block by hand that is open in it.
        blocks: The names of the blocks by hand open in it, each with what `inner` was.
        source: Where the module was called.
        begun: How many operations had run when it opened.
        first: How many nodes there were when it opened.
        forward: The code of its own forward; None where it has none.
    """

    __slots__ = (
        "begun",
        "blocks",
        "call",
        "first",
        "forward",
        "inner",
        "place",
        "scope",
        "source",
    )

    def __init__(
        self,
        scope: Scope | None,
        place: ModulePlace | None = None,
        call: Call | None = None,
        source: Source | None = None,
        begun: int = 0,
    ) -> None:
        self.scope = scope
        self.place = place
        self.call = call
        self.inner = scope
        self.blocks: list[tuple[str, Scope | None]] = []
        self.source = source
        self.begun = begun
        self.first = 0
        self.forward: CodeType | None = None


class ScopeStack:
    """Opens and closes the scopes of one run.

    Args:
        builder: The door to the graph, which numbers them.

    Attributes:
        registry: The places of the modules.
        top: The frame of the top level.
        running: The innermost frame.
        adopted: Told of each module that runs though no known module registered it, before
            it runs; None where nobody wants to know.
        phases: The boxes of backward passes and of optimizers' steps, and how many there were
            before each.
        again: Returns where what a script opens in a scope stands while a backward pass runs: in
            that of the pass, apart from what mirrors the model. None where no pass runs.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._new_scope = builder.new_scope
        self.registry = Registry()
        self._places = self.registry.by_module
        self.top = Frame(None)
        self.running = self.top
        self.adopted: Callable[[torch.nn.Module], None] | None = None
        self.again: Callable[[Scope | None], Scope | None] | None = None
        self._stack = [self.top]
        # The latest scope of each place, by the one around it.
        self._opened: dict[tuple[Scope | None, ModulePlace], Scope] = {}
        self._adopted = itertools.count()
        self.phases: dict[Scope, int] = {}
        # The place of each scope of a module, and how many phases there were before it.
        self._opened_after: dict[Scope, tuple[ModulePlace, int]] = {}

    def forget(self) -> None:
        """Let go of all modules and tensors."""
        self.adopted = None
        self.registry.forget()
        self._opened.clear()
        self._opened_after.clear()

    @property
    def at_top(self) -> bool:
        """Whether no module call runs."""
        return self.running is self.top

    # -- modules ---------------------------------------------------------------------

    def place_of(self, module: torch.nn.Module) -> ModulePlace:
        """Return the place of a module that is called now; adopt a module that nobody registers."""
        # Not `registry.module()`: this is asked for each call of a module.
        place = self._places.get(id(module))
        if place is not None:
            return place
        known = self.registry.count
        place = self._adopt(module)
        if self.adopted is not None:
            for late in self.registry.modules_since(known):
                self.adopted(late)
        return place

    def _adopt(self, module: torch.nn.Module) -> ModulePlace:
        holder = next((frame.place for frame in reversed(self._stack) if frame.place), None)
        if holder is None:
            return self.registry.add_root(module)
        # A module made during forward, and registered since.
        self.registry.refresh(holder)
        place = self.registry.module(module)
        if place is not None:
            return place
        attribute = f"?{next(self._adopted)}"
        prefix = f"{holder.name}." if holder.name else ""
        place = self.registry.add_root(
            module, name=prefix + attribute, attribute=attribute, registered=False
        )
        place.adopter = holder
        return place

    def calls_of(self, place: ModulePlace) -> list[Frame]:
        """Return the calls of a module that run now, innermost last."""
        return place.frames

    def branch(self, source: Source | None) -> "ScopeStack":
        """Return the scopes of work that another thread does for what runs now.

        Args:
            source: The line that has handed the work over.
        """
        return _Branch(self, source)

    def open_call(self, place: ModulePlace, frame: Frame) -> None:
        """Make a frame, whose scope `call_scope` gave, the running one."""
        place.frames.append(frame)
        self._stack.append(frame)
        self.running = frame

    def close_call(self, frame: Frame) -> None:
        """Close a frame, and any that were left open in it (by an abandoned generator)."""
        stack = self._stack
        while True:
            last = stack.pop()
            if last.place is not None:
                last.place.frames.remove(last)
            if last is frame:
                break
        self.running = stack[-1]

    def call_scope(self, place: ModulePlace) -> Scope:
        """Open the scope of a call of this module."""
        holder = place.parent
        calls = None if holder is None else self.calls_of(holder)
        # Mostly the holder runs.
        parent = self._inner(calls[-1]) if calls else self._parent_of(place)
        opened = self._opened.get((parent, place))
        if opened is not None and opened.kind == "container" and self.over_since(opened) is None:
            # It has stood as the container of what was called in it: the same scope.
            opened.kind = "module"
            return opened
        return self._open_place(place, parent, "module")

    def container(self, place: ModulePlace) -> Scope:
        """Return the scope that stands for a module which is not called itself."""
        return self._container(place, self._parent_of(place, again=False), again=False)

    def home(self, place: ModulePlace) -> Scope:
        """Return the scope in which a module's own parameters stand: that of its first call."""
        return place.first_scope or self.container(place)

    @contextmanager
    def inside(self, module: torch.nn.Module, begun: int) -> Iterator[None]:
        """Make everything that runs in a block stand in a module, though no call of it runs."""
        place = self.registry.add_root(module)
        frame = Frame(self.container(place), place=place, begun=begun)
        self.open_call(place, frame)
        try:
            yield
        finally:
            self.close_call(frame)

    def _parent_of(self, place: ModulePlace, *, again: bool = True) -> Scope | None:
        """Return the scope in which a module stands: that of the nearest holder that runs.

        Args:
            place: The module.
            again: Whether holders that do not run have new boxes where a phase has begun.
        """
        holder = place.parent
        if holder is None:
            return self._inner(self.running if place.adopter or self.at_top else self.top)
        between = []
        while holder is not None and not self.calls_of(holder):
            between.append(holder)
            holder = holder.parent
        if holder is not None:
            scope: Scope | None = self._inner(self.calls_of(holder)[-1])
        else:
            scope = self._parent_of(between[-1])
        for container in reversed(between):
            scope = self._container(container, scope, again=again)
        return scope

    def _inner(self, frame: Frame) -> Scope | None:
        """Return where what a script opens in a call stands."""
        return frame.inner if self.again is None else self.again(frame.inner)

    def _container(self, place: ModulePlace, parent: Scope | None, *, again: bool) -> Scope:
        opened = self._opened.get((parent, place))
        if opened is not None and not (again and self.over_since(opened) is not None):
            return opened
        return self._open_place(place, parent, "container")

    def over_since(self, scope: Scope | None) -> int | None:
        """Return the number of the first phase that has begun since a module's box was opened.

        Phases read what stands in the box; what reads phases is to stand in another one. None
        where no phase has begun, or a call of the module runs, or it is a list: the members of
        that stand beside each other where its box would circle.
        """
        known = self._opened_after.get(scope)  # type: ignore[arg-type]
        if known is None or known[1] == len(self.phases):
            return None
        place, after = known
        is_list = place.parent is not None and type(place.module).forward is torch.nn.Module.forward
        return None if place.frames or is_list else after

    def phase_of(self, scope: Scope | None) -> int | None:
        """Return the number of the phase in which a scope stands; None where in none."""
        while scope is not None and scope not in self.phases:
            scope = scope.parent
        return None if scope is None else self.phases[scope]

    def open_again(self, scope: Scope) -> Scope:
        """Return a new box for what a module runs while no call of it does."""
        place, _ = self._opened_after[scope]
        return self._container(place, self._parent_of(place), again=True)

    def _open_place(self, place: ModulePlace, parent: Scope | None, kind: ScopeKind) -> Scope:
        scope = self._new_scope(place.label, place.attribute, parent=parent, kind=kind)
        self._opened[parent, place] = scope
        self._opened_after[scope] = place, len(self.phases)
        scope.qualified_name = place.qualified_name
        if place.first_scope is None:
            place.first_scope = scope
        return scope

    # -- blocks by hand ----------------------------------------------------------------

    def open_phase(self, phase: Phase) -> Scope:
        """Open the box of a backward pass, or of an optimizer's step; return its scope."""
        scope = self.open_block(PHASE_BOXES[phase])
        scope.phase = phase
        self.phases[scope] = len(self.phases)
        return scope

    def open_block(self, name: str, *, by_script: bool = False) -> Scope:
        """Open a block by hand in the call that runs; return its scope.

        Args:
            name: What it is called.
            by_script: Whether a script has opened it; else it is of a pass or of an optimizer.
        """
        frame = self.running
        parent = self._inner(frame) if by_script else frame.inner
        frame.blocks.append((name, frame.inner))
        frame.inner = scope = self._new_scope(name, None, parent=parent, kind="hand")
        return scope

    def close_block(
        self, name: str | None, *, failed: bool = False, frame: Frame | None = None
    ) -> None:
        """Close the innermost block by hand; after a failure also those left open in it.

        Args:
            name: What it is called; None for any name.
            failed: Whether a failure ends it.
            frame: In which call it is open; None for the one that runs.
        Raises:
            ScopeError: None is open in the call, or one of another name.
        """
        frame = frame or self.running
        blocks = frame.blocks
        if failed and any(block[0] == name for block in blocks):
            while blocks[-1][0] != name:
                blocks.pop()
        if not blocks or (name is not None and blocks[-1][0] != name):
            if failed:
                # The failure that is under way tells more than this would.
                return
            raise _unbalanced(name, blocks[-1][0] if blocks else None)
        frame.inner = blocks.pop()[1]

    def check_closed(self, frame: Frame) -> None:
        """Check that no block by hand is left open in a frame.

        Raises:
            ScopeError: One is.
        """
        if not frame.blocks:
            return
        name = frame.blocks[-1][0]
        raise ScopeError(
            f"the scope {shown(name)} was opened in {frame.scope or 'the recording'} and never "
            "closed",
            why="each push_scope() needs a pop_scope() in the same module call",
            fix=f"call pop_scope({shown(name)}) before it ends, "
            f"or write 'with tbscope.scope({shown(name)}):'",
        )


class _Branch(ScopeStack):
    """The scopes of work that another thread does: it stands where it was handed over.

    Which calls of a module run is for each thread its own affair.
    """

    def __init__(self, trunk: ScopeStack, source: Source | None) -> None:
        # All that is shared; what is not follows.
        self.__dict__.update(trunk.__dict__)
        around = trunk.running
        self.running = base = Frame(around.scope, around.place, None, source, around.begun)
        base.inner = around.inner
        if trunk.at_top:
            self.top = base
        self._stack = [*trunk._stack, base]

    def calls_of(self, place: ModulePlace) -> list[Frame]:
        return [frame for frame in self._stack if frame.place is place]

    def open_call(self, place: ModulePlace, frame: Frame) -> None:
        self._stack.append(frame)
        self.running = frame

    def close_call(self, frame: Frame) -> None:
        while self._stack.pop() is not frame:
            pass
        self.running = self._stack[-1]


def _unbalanced(name: str | None, innermost: str | None) -> ScopeError:
    """Return the error for a scope closed out of order.

    Args:
        name: The name that was to be closed; None for the innermost one.
        innermost: The name of the innermost open scope by hand; None where none is open.
    """
    called = f"pop_scope({'' if name is None else shown(name)})"
    if innermost is None:
        return ScopeError(
            f"{called} without a scope to close",
            why="no scope opened by hand is open in the module call that runs",
            fix="call push_scope(name) first, once for each pop_scope()",
        )
    return ScopeError(
        f"{called} while the scope {shown(innermost)} is the innermost",
        why="scopes close in the reverse order in which they were opened",
        fix=f"close it first: pop_scope({shown(innermost)})",
    )
