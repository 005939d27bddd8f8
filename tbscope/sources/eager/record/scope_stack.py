"""Open module calls and scopes of a run, and the scope of each module.

The scope of a module is inside the scope of its nearest parent module that runs now, along the path
of the module tree; containers that are never called get the scopes in between. Each further call of
a module in the same enclosing scope opens a new scope, numbered.
"""

import itertools
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType
from typing import Any, Generic, TypeVar

import torch

from tbscope.errors import ScopeError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Call, Graph, Source
from tbscope.ir.placement.borrowed_calls import is_shared
from tbscope.ir.scopes import PHASE_BOXES, Phase, Scope, ScopeKind, self_and_ancestors
from tbscope.messages import shown
from tbscope.sources.eager.record.events import ignore_event
from tbscope.sources.torch.calling.deferred_results import LAZY_ITERATORS
from tbscope.sources.torch.module_names import ModuleEntry, Registry

RESUMED: frozenset[type] = frozenset({*LAZY_ITERATORS, CoroutineType, AsyncGeneratorType})
"""Types of results of forward methods whose code has not run yet."""

_Origin = TypeVar("_Origin")
_KEPT = 4


@dataclass(slots=True, eq=False)
class Frame:
    """A running module call, or the top level of a recording.

    Attributes:
        scope: Its scope; None for the top level.
        inner: The scope of operations that run directly in it: its own scope, or the innermost
            named scope that is open in it.
        entry: The entry of the module; None for the top level.
        call: The call; None for the top level and for a container.
        source: The line that called the module.
        begun: The number of operations recorded before it opened.
        first: The number of nodes before it opened.
        forward: The code of its own forward; None if it has none.
        blocks: The names of the scopes opened by name in it that are still open, each with the
            `inner` from before.
    """

    scope: Scope | None
    inner: Scope | None
    entry: ModuleEntry | None = None
    call: Call | None = None
    source: Source | None = None
    begun: int = 0
    first: int = 0
    forward: CodeType | None = None
    blocks: list[tuple[str, Scope | None]] = field(default_factory=list)


class ScopeStack:
    """The stack of open scopes of one run.

    Args:
        builder: The graph builder, which numbers scopes.

    Attributes:
        registry: The places of the modules.
        top: The frame of the top level.
        running: The innermost frame.
        adopted: Called with each module that runs though no registered module contains it, before
            it runs.
        phases: The boxes of backward passes and optimizer steps, each with the number of boxes
            before it.
        boxes: The boxes of the steps of sharded modules, by enclosing scope and name.
        again: Returns the enclosing scope for scopes that a script opens in a scope while a
            backward pass runs: it is in the box of the pass, apart from the scopes that mirror the
            model. None if no pass runs.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._new_scope = builder.new_scope
        self.registry = Registry()
        self.top = Frame(None, None)
        self.running = self.top
        self.adopted: Callable[[torch.nn.Module], None] = ignore_event
        self.again: Callable[[Scope | None], Scope | None] | None = None
        self._stack = [self.top]
        # The latest scope of each module, by enclosing scope.
        self._opened: dict[tuple[Scope | None, ModuleEntry], Scope] = {}
        self._adopted = itertools.count()
        self.phases: dict[Scope, int] = {}
        self.boxes: dict[tuple[Scope | None, str], Scope] = {}
        # By scope of a module: its entry, and the number of phases before it opened.
        self._opened_after: dict[Scope, tuple[ModuleEntry, int]] = {}

    def forget(self) -> None:
        """Release all modules and tensors."""
        self.adopted = ignore_event
        self.registry.forget()
        self._opened.clear()
        self._opened_after.clear()

    @property
    def at_top(self) -> bool:
        """Whether no module call runs."""
        return self.running is self.top

    # -- modules ---------------------------------------------------------------------

    def entry_of(self, module: torch.nn.Module) -> ModuleEntry:
        """Return the entry of a module that is called now; adopt an unregistered module."""
        registry = self.registry
        entry = registry.module(module)
        if entry is not None:
            return entry
        count_before = len(registry.by_module)
        parent = next((frame.entry for frame in reversed(self._stack) if frame.entry), None)
        if parent is not None:
            # The module may be new: made during forward, and registered by its parent since.
            registry.refresh(parent)
            entry = registry.module(module)
        if entry is None and parent is not None:
            attribute = f"?{next(self._adopted)}"
            prefix = f"{parent.name}." if parent.name else ""
            entry = registry.add_root(
                module, name=prefix + attribute, attribute=attribute, registered=False
            )
            entry.adopter = parent
        entry = entry or registry.add_root(module)
        for new_module in registry.modules(since=count_before):
            self.adopted(new_module)
        return entry

    def call_of(self, entry: ModuleEntry) -> Frame | None:
        """Return the innermost running call of a module, or None if the module does not run."""
        if self.running.entry is entry:
            return self.running
        return next((frame for frame in reversed(self._stack) if frame.entry is entry), None)

    def begin_thread(self, source: Source | None) -> None:
        """Begin with the scopes of work in another thread, in the scope that handed it over.

        Args:
            source: The line that has handed the work over.
        """
        base = replace(self.running, call=None, source=source, blocks=[], forward=None)
        if self.at_top:
            self.top = base
        self.running, self.again = base, None
        self._stack = [*self._stack, base]

    def open_call(self, frame: Frame) -> None:
        """Push a frame, whose scope came from `call_scope`."""
        self._stack.append(frame)
        self.running = frame

    def close_call(self, frame: Frame) -> None:
        """Pop a frame, and frames that an abandoned generator left open in it."""
        while self._stack.pop() is not frame:
            pass
        self.running = self._stack[-1]

    def call_scope(self, entry: ModuleEntry) -> Scope:
        """Open the scope of a call of this module."""
        parent = self._parent_of(entry)
        opened = self._opened.get((parent, entry))
        if opened is not None and opened.kind == "container" and self.phase_since(opened) is None:
            # The scope was the container for calls of modules in it: the call gets the same scope.
            opened.kind = "module"
            if self.again is None:
                entry.scope = opened
            return opened
        return self._open_module(entry, parent, "module")

    def container(self, entry: ModuleEntry, *, again: bool = False) -> Scope:
        """Return the scope of a module that is not called itself.

        Args:
            entry: The module.
            again: Whether modules that do not run get new boxes after a phase has begun.
        """
        parent = self._parent_of(entry, again=again)
        opened = self._opened.get((parent, entry))
        if opened is not None and not (again and self.phase_since(opened) is not None):
            return opened
        return self._open_module(entry, parent, "container")

    def own_scope(self, entry: ModuleEntry) -> Scope:
        """Return the scope of a module's own parameters: of its first call, or a container."""
        return entry.first_scope or self.container(entry)

    @contextmanager
    def inside(self, module: torch.nn.Module, begun: int) -> Iterator[None]:
        """Run a block in the scope of a module, though no call of the module runs.

        Args:
            module: The module.
            begun: The number of operations recorded before the block.
        """
        entry = self.registry.add_root(module)
        scope = self.container(entry)
        frame = Frame(scope, scope, entry, begun=begun)
        self.open_call(frame)
        try:
            yield
        finally:
            self.close_call(frame)

    def _parent_of(self, entry: ModuleEntry, *, again: bool = True) -> Scope | None:
        """Return the scope that encloses a module: the scope of its nearest running parent."""
        parent, running = entry.parent, self.running
        if parent is None:
            call: Frame | None = running if entry.adopter or self.at_top else self.top
        else:
            call = running if running.entry is parent else self.call_of(parent)
        if call is None:
            assert parent is not None
            return self.container(parent, again=again)
        return call.inner if self.again is None else self.again(call.inner)

    def phase_since(self, scope: Scope | None) -> int | None:
        """Return the number of the first phase that has begun since a module's box was opened.

        A phase reads values from the box. A node that reads results of the phase needs another box,
        because edges to and fro would make a cycle of the boxes. Return None if no phase has begun,
        if a call of the module runs, or if the module is a list: the members of a list are drawn
        side by side if its box would be part of a cycle.
        """
        opened = self._opened_after.get(scope)  # type: ignore[arg-type]
        if opened is None or opened[1] == len(self.phases):
            return None
        entry, after = opened
        is_list = entry.parent is not None and type(entry.module).forward is torch.nn.Module.forward
        return None if is_list or self.call_of(entry) else after

    def reopen(self, scope: Scope) -> Scope:
        """Return a new box for operations that a module runs outside of its calls."""
        return self.container(self._opened_after[scope][0], again=True)

    def _open_module(self, entry: ModuleEntry, parent: Scope | None, kind: ScopeKind) -> Scope:
        scope = self._new_scope(entry.label, entry.attribute, parent=parent, kind=kind)
        self._opened[parent, entry] = scope
        self._opened_after[scope] = entry, len(self.phases)
        scope.qualified_name = entry.qualified_name
        if entry.first_scope is None:
            entry.first_scope = scope
        if self.again is None and (kind == "module" or entry.scope is None):
            entry.scope = scope
        return scope

    # -- named scopes ------------------------------------------------------------------

    def open_phase(self, phase: Phase) -> Scope:
        """Open the box of a backward pass or of an optimizer step; return its scope."""
        scope = self.open_block(PHASE_BOXES[phase])
        scope.phase = phase
        self.phases[scope] = len(self.phases)
        return scope

    def box(self, parent: Scope | None, name: str) -> Scope:
        """Return the box of this name for all steps of a sharded module in a scope."""
        box = self.boxes.get((parent, name))
        if box is None:
            box = self.boxes[parent, name] = self._new_scope(name, None, parent=parent, kind="hand")
            box.phase = "forward" if parent is None else parent.phase
        return box

    def open_block(self, name: str, *, by_script: bool = False) -> Scope:
        """Open a named scope in the running call; return it.

        Args:
            name: Its name.
            by_script: Whether a script has opened it; otherwise it belongs to a backward pass, an
                optimizer or a function.
        """
        frame = self.running
        parent = frame.inner
        if by_script and self.again is not None:
            parent = self.again(parent)
        frame.blocks.append((name, frame.inner))
        frame.inner = scope = self._new_scope(name, None, parent=parent, kind="hand")
        return scope

    def close_block(
        self, name: str | None, *, failed: bool = False, frame: Frame | None = None
    ) -> None:
        """Close the innermost named scope; after a failure also named scopes left open in it.

        Args:
            name: Its name; None for any name.
            failed: Whether a failure ends it.
            frame: The call in which it is open; None for the running call.
        Raises:
            ScopeError: No named scope is open in the call, or the innermost has another name.
        """
        frame = frame or self.running
        blocks = frame.blocks
        if failed and any(block[0] == name for block in blocks):
            while blocks[-1][0] != name:
                blocks.pop()
        if not blocks or (name is not None and blocks[-1][0] != name):
            if failed:
                # The failure that is under way is more helpful than this error would be.
                return
            raise _unbalanced(name, blocks[-1][0] if blocks else None)
        frame.inner = blocks.pop()[1]

    def check_closed(self, frame: Frame) -> None:
        """Check that no named scope is left open in a frame.

        Raises:
            ScopeError: A named scope is open.
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
        name: The name that was to be closed; None for the innermost scope.
        innermost: The name of the innermost named scope that is open; None if none is open.
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


class Failures(Generic[_Origin]):
    """The places at which the latest errors arose, as each error may be caught, or end the run.

    Several errors are kept, as threads and coroutines may fail side by side; but few, as errors
    keep tensors alive.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[BaseException, _Origin]] = deque(maxlen=_KEPT)

    def add(self, error: BaseException, origin: _Origin) -> None:
        """Record where an error arose, unless an inner origin is recorded for it already."""
        if self.of(error) is None:
            self._kept.append((error, origin))

    def of(self, error: BaseException) -> _Origin | None:
        """Return the origin of this error, or None if it is not recorded."""
        return next((origin for kept_error, origin in self._kept if kept_error is error), None)


def is_empty(graph: Graph, frame: Frame) -> bool:
    """Whether a call contains no node: the modules that it called belong to another module."""
    for node in itertools.islice(reversed(graph.nodes), len(graph.nodes) - frame.first):
        scope = node.scope
        while scope is not None:
            if scope is frame.scope:
                return False
            scope = scope.parent
    calls = itertools.takewhile(lambda call: call is not frame.call, reversed(graph.calls))
    return frame.scope not in {
        enclosing
        for call in calls
        if is_shared(call)
        for enclosing in self_and_ancestors(call.caller)
    }


@dataclass(slots=True, eq=False)
class Resumed:
    """A module call that continues at each step of its result.

    The result of an `async def` forward, or of a forward that yields, runs step by step, between
    other code. Each step is in the scope of its call, for as long as the step runs.

    Attributes:
        scopes: The scopes of the run.
        frame: The call, which is closed between its steps.
        failed: Called with an error that ends it.
        yields: Called with each entry of a generator.
        ends: Called with the result of a coroutine, or the return value of a generator, while the
            call is open.
    """

    scopes: ScopeStack
    frame: Frame
    failed: Callable[[BaseException, Frame], None]
    yields: Callable[[Any], None]
    ends: Callable[[Any], None]

    def wrap(self, result: Any) -> Any:
        """Return the object that replaces a result of forward; it yields and returns the same.

        Args:
            result: The result of forward, of one of the types `RESUMED`.
        """
        if type(result) is CoroutineType:
            return self._coroutine(result)
        if type(result) is AsyncGeneratorType:
            return self._async_generator(result)
        if type(result) is not GeneratorType:
            result = (entry for entry in result)
        return self._steps(result)

    async def _coroutine(self, coroutine: object) -> Any:
        return await _awaited(replace(self, yields=_nothing)._steps(coroutine))

    async def _async_generator(self, generator: Any) -> Any:
        """Yield the entries of an async generator; the call is open only while an entry is made."""
        sent, silent = None, replace(self, yields=_nothing, ends=_nothing)
        while True:
            try:
                entry = await _awaited(silent._steps(generator.asend(sent)))
            except StopAsyncIteration:
                self._step(self.ends, None)
                return
            self.yields(entry)
            try:
                sent = yield entry
            except GeneratorExit:
                await generator.aclose()
                raise

    def _steps(self, generator: Any) -> Generator[Any, Any, Any]:
        """Yield the entries of a generator, and forward values, errors and the end from its reader.

        The call is open only while the generator runs.
        """
        resume, sent = generator.send, None
        while True:
            try:
                entry = self._step(resume, sent)
            except StopIteration as end:
                self._step(self.ends, end.value)
                return end.value
            self.yields(entry)
            try:
                resume, sent = generator.send, (yield entry)
            except GeneratorExit:
                self._step(lambda _: generator.close(), None)
                raise
            except BaseException as error:  # noqa: BLE001 (handed on to the model)
                resume, sent = generator.throw, error

    def _step(self, resume: Callable[[Any], Any], sent: object) -> Any:
        """Continue the call until it yields or returns; then other calls may open."""
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
def _awaited(steps: Generator[object, object, object]) -> Generator[Any, Any, Any]:
    return (yield from steps)


def _nothing(_: object) -> None:
    pass
