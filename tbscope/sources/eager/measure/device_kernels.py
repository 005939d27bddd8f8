"""The kernels that operations launch on a CUDA device, as torch.profiler tells them.

The profiler links each kernel with the operation of ATen that launched it. Which operation of the
graph that was is told by marks: ranges of no length between the calls, by number. Nothing is
profiled unless a device works.

Source: torch/autograd/profiler_util.py, `FunctionEvent.kernels`
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.internals import outside_modes

__all__ = ["DeviceKernel", "Launches", "Marks", "profiled", "tell_kernels"]

_MARK = "tbscope mark "


class DeviceKernel(NamedTuple):
    """A kernel that ran on a device.

    Attributes:
        name: The name that it was compiled under.
        duration_us: How long it ran there.
    """

    name: str
    duration_us: float


class Marks:
    """A meter whose readings are marks in the profile that is made meanwhile."""

    def __init__(self) -> None:
        self._count = 0

    def read(self) -> int:
        """Set a mark; return its number."""
        number = self._count
        self._count += 1
        # The profiler's own operators are no part of the run.
        with outside_modes(), torch.profiler.record_function(f"{_MARK}{number}"):
            return number


class Launches:
    """Which kernels were launched between two marks.

    Args:
        events: Those of the profile: each has `name`, `thread`, `time_range` and `kernels`, of
            which each has `name` and `duration`, in microseconds.
    """

    def __init__(self, events: Iterable[Any]) -> None:
        # By thread, as each has its own order: when operations began, and what they launched.
        self._begun: dict[int, list[float]] = defaultdict(list)
        self._kernels: dict[int, list[list[DeviceKernel]]] = defaultdict(list)
        self._marks: dict[int, tuple[int, float, float]] = {}
        for event in sorted(events, key=lambda event: float(event.time_range.start)):
            thread, times = event.thread, event.time_range
            if event.name.startswith(_MARK):
                number = int(event.name.removeprefix(_MARK))
                self._marks[number] = thread, times.start, times.end
            elif event.kernels:
                kernels = [DeviceKernel(each.name, each.duration) for each in event.kernels]
                self._begun[thread].append(times.start)
                self._kernels[thread].append(kernels)

    def between(self, before: int, after: int) -> list[DeviceKernel]:
        """Return the kernels that were launched between two marks of one thread, in order.

        None for marks that the profile does not hold, or that two threads have set.
        """
        if before not in self._marks or after not in self._marks:
            return []
        thread, _, begun = self._marks[before]
        other, ended, _ = self._marks[after]
        if thread != other:
            return []
        times = self._begun[thread]
        inside = self._kernels[thread][bisect_left(times, begun) : bisect_right(times, ended)]
        return [kernel for kernels in inside for kernel in kernels]


@contextmanager
def profiled() -> Iterator[Callable[[], Iterable[Any]]]:
    """Profile a block, on the processor and on CUDA devices.

    Returns:
        Gives the events, once the block has ended.
    """
    wanted = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
    there: set[Any] = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    with torch.profiler.profile(activities=[each for each in wanted if each in there]) as profile:
        yield lambda: profile.events() or ()


def tell_kernels(node: Node, kernels: Iterable[DeviceKernel]) -> None:
    """Tell of a node which kernels it launched, as the attribute `device_kernels`.

    Those of one name are told together: the name, how many of them, and the time of all.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        times[kernel.name].append(kernel.duration_us)
    told = [
        f"{name}{f' x{len(each)}' if len(each) > 1 else ''}: {sum(each):.4g} us"
        for name, each in times.items()
    ]
    if told:
        node.attributes["device_kernels"] = "; ".join(told)
