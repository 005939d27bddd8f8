"""The calls and scopes of a run: which are open, and where each module stands.

A module stands below the nearest of its holders that runs now, along the path of
the module tree; containers that are never called stand in between. Each further
call of a module in the same place opens a new scope, numbered.
"""

import itertools
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import Any, Generic, TypeVar

import torch

from tbscope.errors import ScopeError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Call, Graph, Source
from tbscope.ir.placement.borrowed_calls import is_shared
from tbscope.ir.scopes import PHASE_BOXES, Phase, Scope, ScopeKind, upward
from tbscope.messages import shown
from tbscope.sources.torch.calling.deferred_results import LAZY_ITERATORS
from tbscope.sources.torch.module_names import ModulePlace, Registry

__all__ = ["RESUMED", "Failures", "Frame", "Resumed", "ScopeStack", "is_empty"]

RESUMED: frozenset[type] = frozenset({*LAZY_ITERATORS, CoroutineType, AsyncGeneratorType})
"""What a forward gives that has run nothing of it yet."""

_Place = TypeVar("_Place")
_KEPT = 4


@dataclass(slots=True, eq=False)
class Frame:
    """A module call that runs, or the top level of a recording.

    Attributes:
        scope: Its scope; None for the top level.
        inner: Where what runs directly in it belongs: its own scope, or the innermost
            block by hand that is open in it.
        place: The place of the module; None for the top level.
        call: The call; None for the top level and for a container.
        source: Where the module was called.
        begun: How many operations had run when it opened.
        first: How many nodes there were when it opened.
        forward: The code of its own forward; None where it has none.
        blocks: The names of the blocks by hand open in it, each with what `inner` was.
    """

    scope: Scope | None
    inner: Scope | None
    place: ModulePlace | None = None
    call: Call | None = None
    source: Source | None = None
    begun: int = 0
    first: int = 0
    forward: CodeType | None = None
    blocks: list[tuple[str, Scope | None]] = field(default_factory=list)


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
        self.top = Frame(None, None)
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
        place = self.registry.module(module)
        if place is not None:
            return place
        known = self.registry.count
        holder = next((frame.place for frame in reversed(self._stack) if frame.place), None)
        if holder is not None:
            # A module made during forward, and registered since.
            self.registry.refresh(holder)
            place = self.registry.module(module)
        if place is None and holder is not None:
            attribute = f"?{next(self._adopted)}"
            prefix = f"{holder.name}." if holder.name else ""
            place = self.registry.add_root(
                module, name=prefix + attribute, attribute=attribute, registered=False
            )
            place.adopter = holder
        place = place or self.registry.add_root(module)
        if self.adopted is not None:
            for late in self.registry.modules_since(known):
                self.adopted(late)
        return place

    def call_of(self, place: ModulePlace) -> Frame | None:
        """Return the innermost call of a module that runs now; None where none does."""
        if self.running.place is place:
            return self.running
        return next((frame for frame in reversed(self._stack) if frame.place is place), None)

    def branch(self, source: Source | None) -> "ScopeStack":
        """Return the scopes of work that another thread does: it stands where it was handed over.

        Which calls of a module run is for each thread its own affair.

        Args:
            source: The line that has handed the work over.
        """
        branch, around = copy(self), self.running
        branch.running = base = replace(around, call=None, source=source, blocks=[], forward=None)
        if self.at_top:
            branch.top = base
        branch._stack = [*self._stack, base]
        return branch

    def open_call(self, frame: Frame) -> None:
        """Make a frame, whose scope `call_scope` gave, the running one."""
        self._stack.append(frame)
        self.running = frame

    def close_call(self, frame: Frame) -> None:
        """Close a frame, and any that were left open in it (by an abandoned generator)."""
        while self._stack.pop() is not frame:
            pass
        self.running = self._stack[-1]

    def call_scope(self, place: ModulePlace) -> Scope:
        """Open the scope of a call of this module."""
        parent = self._parent_of(place)
        opened = self._opened.get((parent, place))
        if opened is not None and opened.kind == "container" and self.over_since(opened) is None:
            # It has stood as the container of what was called in it: the same scope.
            opened.kind = "module"
            return opened
        return self._open_place(place, parent, "module")

    def container(self, place: ModulePlace, *, again: bool = False) -> Scope:
        """Return the scope that stands for a module which is not called itself.

        Args:
            place: The module.
            again: Whether holders that do not run have new boxes where a phase has begun.
        """
        parent = self._parent_of(place, again=again)
        opened = self._opened.get((parent, place))
        if opened is not None and not (again and self.over_since(opened) is not None):
            return opened
        return self._open_place(place, parent, "container")

    def home(self, place: ModulePlace) -> Scope:
        """Return the scope in which a module's own parameters stand: that of its first call."""
        return place.first_scope or self.container(place)

    @contextmanager
    def inside(self, module: torch.nn.Module, begun: int) -> Iterator[None]:
        """Make everything that runs in a block stand in a module, though no call of it runs."""
        place = self.registry.add_root(module)
        scope = self.container(place)
        frame = Frame(scope, scope, place, begun=begun)
        self.open_call(frame)
        try:
            yield
        finally:
            self.close_call(frame)

    def _parent_of(self, place: ModulePlace, *, again: bool = True) -> Scope | None:
        """Return the scope in which a module stands: that of the nearest holder that runs."""
        holder = place.parent
        if holder is None:
            return self._inner(self.running if place.adopter or self.at_top else self.top)
        call = self.call_of(holder)
        return self.container(holder, again=again) if call is None else self._inner(call)

    def _inner(self, frame: Frame) -> Scope | None:
        """Return where what a script opens in a call stands."""
        return frame.inner if self.again is None else self.again(frame.inner)

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
        return None if is_list or self.call_of(place) else after

    def open_again(self, scope: Scope) -> Scope:
        """Return a new box for what a module runs while no call of it does."""
        return self.container(self._opened_after[scope][0], again=True)

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


class Failures(Generic[_Place]):
    """Keeps in mind where the latest errors arose, as each may be caught, or end the run.

    Several, as threads and coroutines may fail side by side; few, as errors hold tensors.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[BaseException, _Place]] = deque(maxlen=_KEPT)

    def add(self, error: BaseException, place: _Place) -> None:
        """Keep in mind where an error arose, unless it is known to have arisen further inside."""
        if self.of(error) is None:
            self._kept.append((error, place))

    def of(self, error: BaseException) -> _Place | None:
        """Return where this error arose; None where that is not known."""
        return next((place for other, place in self._kept if other is error), None)


def is_empty(graph: Graph, frame: Frame) -> bool:
    """Tell whether nothing stands in a call: what it called stands under another module."""
    nodes = graph.nodes
    # Most call nothing last but operations of their own.
    if len(nodes) > frame.first and nodes[-1].scope is frame.scope:
        return False
    for node in itertools.islice(reversed(nodes), len(nodes) - frame.first):
        if any(scope is frame.scope for scope in upward(node.scope)):
            return False
    calls = itertools.takewhile(lambda call: call is not frame.call, reversed(graph.calls))
    return frame.scope not in {
        one for call in calls if is_shared(call) for one in upward(call.caller)
    }


@dataclass(slots=True, eq=False)
class Resumed:
    """A module call that goes on whenever somebody asks for its next step.

    What such a forward gives (`async def forward`, and one that yields) runs step by step, between
    other code. Each step stands in the scope of its call all the same, for as long as it runs.

    Attributes:
        scopes: The scopes of the run.
        frame: The call, which is closed between its steps.
        failed: Told of an error that ends it.
        yields: Told of each entry of a generator.
        ends: Told of what a coroutine gives, or a generator returns, while the call is open.
    """

    scopes: ScopeStack
    frame: Frame
    failed: Callable[[BaseException, Frame], None]
    yields: Callable[[Any], None]
    ends: Callable[[Any], None]

    def stands_for(self, given: Any) -> Any:
        """Return what the caller of the module gets instead: it gives the same.

        Args:
            given: What forward gave: of one of the types `RESUMED`.
        """
        if type(given) is CoroutineType:
            return self._coroutine(given)
        if type(given) is AsyncGeneratorType:
            return self._async_generator(given)
        if type(given) is not GeneratorType:
            given = (entry for entry in given)
        return self._steps(given)

    async def _coroutine(self, given: Any) -> Any:
        return await _awaited(replace(self, yields=_nothing)._steps(given))

    async def _async_generator(self, given: Any) -> Any:
        sent, silent = None, replace(self, yields=_nothing, ends=_nothing)
        while True:
            try:
                entry = await _awaited(silent._steps(given.asend(sent)))
            except StopAsyncIteration:
                self._step(self.ends, None)
                return
            self.yields(entry)
            try:
                sent = yield entry
            except GeneratorExit:
                await given.aclose()
                raise

    def _steps(self, given: Any) -> Generator[Any, Any, Any]:
        resume, sent = given.send, None
        while True:
            try:
                entry = self._step(resume, sent)
            except StopIteration as end:
                self._step(self.ends, end.value)
                return end.value
            self.yields(entry)
            try:
                resume, sent = given.send, (yield entry)
            except GeneratorExit:
                self._step(lambda _: given.close(), None)
                raise
            except BaseException as error:  # noqa: BLE001 (handed on to the model)
                resume, sent = given.throw, error

    def _step(self, resume: Callable[[Any], Any], sent: Any) -> Any:
        """Go on with the call until it gives something; others may open calls until it goes on."""
        frame, scopes = self.frame, self.scopes
        scopes.open_call(frame)
        try:
            return resume(sent)
        except (StopIteration, StopAsyncIteration):
            raise
        except Exception as error:
            self.failed(error, frame)
            raise
        finally:
            scopes.close_call(frame)


@types.coroutine
def _awaited(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from steps)


def _nothing(_: Any) -> None:
    pass
