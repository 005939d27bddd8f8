"""Work of several threads for one run, recorded as one graph that is the same in each run.

The order of the threads is chance. So nodes and calls are put in order after the run: as if work
had been done where it was handed over, as far as its inputs existed by then.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tbscope.ir.graph import Call, Node, Note, Source
from tbscope.ir.nodes import OWNED, STATE, sources_of
from tbscope.sources.eager.record.events import Block, Guard, Handler, result_of_failure
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.utils.components import in_order

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


_Position: TypeAlias = tuple[float, ...]


@dataclass(slots=True, eq=False)
class _ThreadOrder:
    """The work of one thread for a run, in its own order.

    Attributes:
        position: Its position in the order of the whole run.
        steps: Counts the nodes and calls of the thread.
        thread: The name of the thread.
        source: The line that has handed the work over; None for the thread of the run itself.
    """

    position: _Position
    steps: Iterator[int]
    thread: str = ""
    source: Source | None = None

    def next(self) -> _Position:
        return *self.position, next(self.steps)


class Handover(NamedTuple):
    """Work that was handed over to other threads, once or several times.

    Attributes:
        recorder: A copy of the recorder at the point where the work was handed over.
        position: That point in the order of the run.
        source: The line.
    """

    recorder: Recorder
    position: _Position
    source: Source | None


@dataclass(slots=True, eq=False)
class ThreadWork:
    """The work of all threads for one run, in which only one thread records at a time.

    Args:
        trunk: The recorder of the thread that runs the model.
    """

    trunk: Recorder
    _over: bool = False
    # Position of each node and each call; nodes from before have no entry.
    _places: dict[Node | Call, _Position] = field(default_factory=dict)
    _orders: dict[Recorder, _ThreadOrder] = field(default_factory=dict)
    _running: dict[Recorder, _ThreadOrder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trunk = self.trunk
        self._guard(trunk, _ThreadOrder((), itertools.count(len(trunk.graph.nodes))))
        trunk.threads, trunk.before_closing = self, self._put_in_order

    def hand_over(self, recorder: Recorder, source: Source | None) -> Handover:
        """Record that the thread of this recorder hands over work now."""
        with self.trunk.lock:
            position = self._orders[recorder].next()
            return Handover(recorder.branch(source), position, source)

    def begin(self, handover: Handover, number: int) -> Recorder:
        """Return the recorder for this thread, which begins a part of work that was handed over.

        Args:
            handover: The work.
            number: The number of the part.
        """
        with self.trunk.lock:
            recorder = handover.recorder.branch(handover.source)
            name = threading.current_thread().name
            order = _ThreadOrder(
                (*handover.position, number), itertools.count(), name, handover.source
            )
            self._guard(recorder, order)
            self._running[recorder] = order
            recorder.suspended = recorder.suspended or self._over
            return recorder

    def end(self, recorder: Recorder) -> None:
        """Record that a thread has done its part."""
        with self.trunk.lock:
            self._running.pop(recorder, None)

    def stop(self) -> None:
        """End the recording as the call is over; add a note for each thread still at work."""
        with self.trunk.lock:
            self._over = True
            for recorder, order in self._running.items():
                recorder.suspended = True
                self.trunk.graph.notes.append(
                    Note(
                        f"the thread {order.thread!r} had not done its work when the call was "
                        "over: what it did after is not in the graph",
                        order.source,
                    )
                )
            self._running.clear()

    def _guard(self, recorder: Recorder, order: _ThreadOrder) -> None:
        """Have the events of a recorder take the lock, and its nodes the order of its thread."""
        self._orders[recorder] = order
        guard = self._guard_of(order)
        recorder.guard(guard, self._lock_block)
        operations = recorder.operations
        operations.about_to_write = guard("about_to_write", operations.about_to_write)

    def _guard_of(self, order: _ThreadOrder) -> Guard:
        """Return a guard that takes the lock, and records the order of new nodes and calls."""
        graph, places = self.trunk.graph, self._places

        def guard(name: str, handler: Handler) -> Handler:
            def guarded(*args: object, **kwargs: object) -> Any:
                with self.trunk.lock:
                    if self._over:
                        return result_of_failure(name, args)
                    node_count, call_count = len(graph.nodes), len(graph.calls)
                    try:
                        return handler(*args, **kwargs)
                    finally:
                        new: list[Node | Call] = [*graph.nodes[node_count:]]
                        for made in (*new, *graph.calls[call_count:]):
                            if made not in places:
                                places[made] = order.next()

            return guarded

        return guard

    def _lock_block(self, _: str, handler: Block) -> Block:
        """Return a block that is entered while the thread has the lock."""

        @contextmanager
        def guarded(*args: object, **kwargs: object) -> Iterator[Any]:
            with ExitStack() as stack:
                with self.trunk.lock:
                    entered = stack.enter_context(handler(*args, **kwargs))
                yield entered

        return guarded

    # -- the order ---------------------------------------------------------------------

    def _put_in_order(self) -> None:
        """Order, number and name all nodes, calls and scopes independently of thread timing."""
        trunk, graph = self.trunk, self.trunk.graph
        self._order_nodes()
        positions = [self._places.get(call, (-1, at)) for at, call in enumerate(graph.calls)]
        order = sorted(range(len(positions)), key=positions.__getitem__)
        graph.calls[:] = [graph.calls[at] for at in order]
        modules = trunk.calls.modules
        modules[:] = [modules[at] for at in order]
        self._number_scopes()
        self._rename()
        trunk.guard()
        trunk.threads = None
        self._orders.clear()

    def _order_nodes(self) -> None:
        """Order nodes by their positions; parameters and constants go before their first reader."""
        nodes = self.trunk.graph.nodes
        places = {node: self._places.get(node, (at,)) for at, node in enumerate(nodes)}
        # The thread that came first has found a parameter; its node goes before the first node that
        # reads it.
        owned: dict[Node, _Position] = {}
        for node in nodes:
            for position, value in enumerate(node.inputs):
                source = value.producer
                if source.kind in OWNED and source in self._places:
                    *prefix, step = places[node]
                    # Between the reader and the node before it.
                    before = (*prefix, step - 0.5, position)
                    owned[source] = min(owned.get(source, before), before)
        places.update(owned)
        ranked = sorted(nodes, key=places.__getitem__)
        order = {node: at for at, node in enumerate(ranked)}
        # Each node goes after its inputs and its control dependencies.
        steps = (
            (order[earlier], order[node])
            for node in ranked
            for earlier in sources_of(node)
            if earlier in order
        )
        nodes[:] = [ranked[at] for at in in_order(len(ranked), steps)]

    def _number_scopes(self) -> None:
        """Number scopes of one name in the order of calls and nodes; move parameters along."""
        graph = self.trunk.graph
        alike: dict[tuple[Scope | None, str, str | None], list[Scope]] = defaultdict(list)
        for scope in graph.scopes():
            alike[scope.parent, scope.part.label, scope.part.attribute].append(scope)
        for scopes in alike.values():
            numbers = sorted([scope.part.index for scope in scopes])
            for scope, number in zip(scopes, numbers, strict=True):
                scope.renumber(number)
        # The tensors of a module are in the scope of its first call.
        first: dict[str | None, Scope] = {}
        for call in graph.calls:
            first.setdefault(call.qualified_name, call.scope)
        for node in graph.nodes:
            if node.kind in STATE and node in self._places and node.scope is not None:
                node.scope = first.get(node.scope.qualified_name, node.scope)

    def _rename(self) -> None:
        """Number the nodes of the threads in their order."""
        numbered = [
            node
            for node in self.trunk.graph.nodes
            if node in self._places and node.kind not in STATE and node.name.isdecimal()
        ]
        names = sorted([int(node.name) for node in numbered])
        for node, name in zip(numbered, names, strict=True):
            node.name = str(name)
            for kernel in node.body.nodes if node.body else ():
                kernel.name = f"{name}.{kernel.name.rpartition('.')[2]}"
