"""Measurement of a graph's operations: the time of each, and the memory in use.

The run that makes a graph is too slow to be timed, because it is recorded. So the call is repeated,
each time from the same state and with the same random numbers: several times unwatched, for the
total time, alternating with as many runs that only read a clock around each operation, and once
more to count memory. Everything is restored after each run.
"""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles

import torch

from tbscope.analysis.costs import has_backward
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Note, Profile
from tbscope.messages import shown
from tbscope.sources.eager.measure.clocks import ProcessorClock, clock_of
from tbscope.sources.eager.measure.live_bytes import LiveBytes
from tbscope.sources.eager.measure.meter_modes import CallWatch, KernelWatch
from tbscope.sources.eager.measure.repeats import Repeats
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.call_log import CallLog, Calls
from tbscope.sources.eager.watch.changes_outside_modes import SETTERS
from tbscope.sources.eager.watch.compiler_bypass import UNOBSERVED, running_eagerly
from tbscope.sources.eager.watch.launches import LAUNCHES

_STEPS = 5
# More runs would take days without better figures.
_MOST_STEPS = 10_000
_WARMUP = 2


def check_profile(profile: bool | int) -> int:
    """Return the number of runs to measure; 0 for none.

    Raises:
        ArgumentError: The argument is neither a bool nor a number of runs.
    """
    if isinstance(profile, bool):
        return _STEPS if profile else 0
    if type(profile) is int and 0 < profile <= _MOST_STEPS:
        return profile
    raise ArgumentError(
        f"profile={shown(profile)} is no number of runs",
        why=f"profile is True, False, or how many runs are measured: 1 to {_MOST_STEPS:,}",
        fix=f"profile=True to measure {_STEPS} runs",
    )


def profile_graph(
    graph: Graph, log: CallLog, repeats: Repeats, *, steps: int, recorder: Recorder
) -> None:
    """Measure the nodes of a graph, and set the graph's `Profile`.

    Args:
        graph: The graph of the call.
        log: Calls of the run from which the graph was made.
        repeats: The call, for repetition.
        steps: Number of measured runs.
        recorder: The recorder that made the graph; it is suspended.
    Raises:
        TraceError: The model raised, or could not be restored.
    """
    # Compiled functions run as written, as in the run that made the graph.
    with running_eagerly, UNOBSERVED, LAUNCHES:
        _Measurement(graph, log, repeats, recorder).measure(steps)
    if repeats.disturbed:
        graph.notes.append(
            Note(
                "the model was written into while it was measured, it seems by another thread: "
                "the times are of a processor that both shared, and what a single run of the "
                "model itself may have written is not put back"
            )
        )


class _Measurement:
    """Measured runs of one graph's call."""

    def __init__(self, graph: Graph, log: CallLog, repeats: Repeats, recorder: Recorder) -> None:
        self._graph = graph
        self._functions = log.functions()
        self._all = log.functions_and_kernels()
        self._differentiates = has_backward(graph)
        self._repeats = repeats
        self._recorder = recorder
        self._clock = ProcessorClock(torch.device("cpu"))
        self._by_device = {"cpu": self._clock}
        nodes = [node for node in self._all.nodes if node is not None]
        self._clocks = {node: clock_of(node, self._by_device) for node in nodes}
        self._times: dict[Node, list[float]] = defaultdict(list)

    def measure(self, steps: int) -> None:
        """Make all runs, and set the figures of the nodes and of the graph."""
        unwatched, watched = [], []
        kernels = any(isinstance(call, str) for call in self._all.calls)
        for step in range(-_WARMUP, steps):
            if step == 0:
                # The times of the warm-up runs are dropped.
                self._times.clear()
            with self._repeats.prepared():
                unwatched.append(self._wall_us())
            watched.append(self._timed_us(self._functions))
            if kernels:
                # A mode for kernels slows down functions, so functions keep their times from the
                # run before.
                self._timed_us(self._all, kernels=True)
        peak_bytes = self._count_bytes()
        operations_us = self._describe()
        clocks = {self._clocks[node].name for node in self._clocks} or {self._clock.name}
        unwatched, watched = unwatched[_WARMUP:], watched[_WARMUP:]
        self._graph.profile = Profile(
            steps,
            _WARMUP,
            forward_us=median(unwatched),
            watched_us=median(watched),
            operations_us=operations_us,
            clock=" and ".join(sorted(clocks)),
            peak_bytes=peak_bytes,
            spread_us=_spread(unwatched),
        )

    def _timed_us(self, calls: Calls, *, kernels: bool = False) -> float:
        """Time the calls of one run for their nodes; return the duration of the whole run."""
        meters = [self._clocks[node] if node else self._clock for node in calls.nodes]
        watch = CallWatch(meters, self._clock)
        with self._repeats.prepared(), self._suspended(watch), ExitStack() as stack:
            if kernels:
                stack.enter_context(KernelWatch(watch))
            stack.enter_context(watch)
            wall_us = self._wall_us()
        for at, node in _matched(calls, watch).items():
            reading, clock = watch.readings[at], self._clocks[node]
            # If calls have changed places, a call may have been timed by the clock of another call.
            if reading.meter is clock and kernels == isinstance(reading.call, str):
                self._times[node].append(clock.passed_us(reading.before, reading.after))
        return wall_us

    def _wall_us(self) -> float:
        """Run the prepared call; return its duration until all devices were done."""
        self._settle()
        begun = time.perf_counter_ns()
        result = self._repeats.run()
        self._settle()
        ended = time.perf_counter_ns()
        del result
        return (ended - begun) / 1e3

    def _settle(self) -> None:
        for clock in self._by_device.values():
            clock.settle()

    def _count_bytes(self) -> int:
        """Count the live bytes during one run, for its nodes; return the peak of the whole run."""
        alive = LiveBytes()
        watch = CallWatch((), alive)
        with (
            self._repeats.prepared(),
            self._suspended(watch),
            KernelWatch(watch, alive),
            watch,
        ):
            result = self._repeats.run()
        del result
        nodes = _matched(self._all, watch)
        places = [*nodes]
        for at, node in nodes.items():
            node.measure(peak_bytes=watch.readings[at].after, at_peak_bytes=0)
        for maker, size_bytes in alive.held_at_highest().items() if nodes else ():
            # Bytes of a call without a node count for the node before it.
            node = nodes[places[max(bisect_right(places, maker) - 1, 0)]]
            node.measure(at_peak_bytes=(node.at_peak_bytes or 0) + size_bytes)
        return alive.highest

    @contextmanager
    def _suspended(self, watch: CallWatch) -> Iterator[None]:
        """Let torch take its unwatched paths, although modes of ours are active.

        Args:
            watch: The mode that also measures backward passes.
        """
        recorder = self._recorder
        recorder.suspended = True
        with ExitStack() as stack:
            stack.callback(setattr, watching, "entered", watching.entered)
            stack.callback(setattr, watching, "measuring", watching.measuring)
            watching.entered = (*watching.recorders, recorder)
            if self._differentiates:
                watching.measuring = watch.backward_pass
                stack.enter_context(SETTERS)
            yield

    def _describe(self) -> float:
        """Set the time of each node, add notes on nodes without times, and return the sum."""
        missed = []
        operations_us = 0.0
        for node in self._graph.nodes:
            if node in self._times:
                duration_us = median(self._times[node])
                operations_us += duration_us
                node.measure(duration_us=duration_us)
            elif node in self._clocks or (node.kind == "op" and node.kernels):
                missed.append(node)
            elif node.kind == "op":
                # A node without kernels passes its input on: it took no time.
                node.measure(duration_us=0.0)
        if missed:
            text = (
                f"{len(missed)} operations have no times: the measured runs did not run them, or "
                "not in this order, or inside of others, whose times are theirs, too"
            )
            self._graph.notes.append(Note(text, missed[0].source, missed[0]))
        return operations_us


def _matched(calls: Calls, watch: CallWatch) -> dict[int, Node]:
    """Return the nodes of the calls that a mode has read, by the index of the reading."""
    return dict(calls.match([reading.call for reading in watch.readings]))


def _spread(times: list[float]) -> float:
    """Return the interquartile range of some times."""
    if len(times) == 1:
        return 0.0
    first, _, third = quantiles(times, n=4, method="inclusive")
    return third - first
