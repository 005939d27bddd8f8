"""Work of several threads for one run: each has a recorder of its own, which adds to one graph.

Nodes and calls are in the order in which the threads record them, one thread at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tbscope.ir.graph import Note, Source
from tbscope.sources.eager.record.events import Block, Handler, result_of_failure
from tbscope.sources.eager.record.recorder import Recorder


class ThreadWork:
    """The work of all threads for one run.

    Args:
        trunk: The recorder of the thread that runs the model.
    """

    def __init__(self, trunk: Recorder) -> None:
        self._trunk, self._over = trunk, False
        # The recorders of threads at work, each with the name of the thread and the line that has
        # handed the work over.
        self._running: dict[Recorder, tuple[str, Source | None]] = {}
        trunk.connect(self._locked, self._locked_block)
        trunk.threads = self

    @contextmanager
    def recorder(self, handed_over: Recorder) -> Iterator[Recorder]:
        """Return a block with the recorder of this thread, for work that was handed over to it.

        Args:
            handed_over: A copy of the recorder at the time when the work was handed over.
        """
        source = handed_over.scopes.running.source
        recorder = handed_over.branch(source)
        recorder.connect(self._locked, self._locked_block)
        with self._trunk.lock:
            recorder.suspended = self._over
            self._running[recorder] = threading.current_thread().name, source
        try:
            yield recorder
        finally:
            with self._trunk.lock:
                self._running.pop(recorder, None)

    def stop(self) -> None:
        """End the recording as the call is over; add a note for each thread still at work."""
        with self._trunk.lock:
            self._over = True
            for recorder, (thread, source) in self._running.items():
                recorder.suspended = True
                text = (
                    f"the thread {thread!r} had not done its work when the call was over: what it "
                    "did after is not in the graph"
                )
                self._trunk.graph.notes.append(Note(text, source))
            self._running.clear()

    def _locked(self, name: str, handler: Handler) -> Handler:
        """Return a function that takes the event while no other thread records."""

        def locked(*args: object, **kwargs: object) -> Any:
            with self._trunk.lock:
                if self._over:
                    return result_of_failure(name, args)
                return handler(*args, **kwargs)

        return locked

    def _locked_block(self, _: str, handler: Block) -> Block:
        """Return a block that is entered while no other thread records."""

        @contextmanager
        def locked(*args: object, **kwargs: object) -> Iterator[Any]:
            with ExitStack() as stack:
                with self._trunk.lock:
                    entered = stack.enter_context(handler(*args, **kwargs))
                yield entered

        return locked
