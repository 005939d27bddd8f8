"""Clocks for the times of operations: the processor's clock, or events on a device.

Code that runs on an accelerator returns before its work is done. There the time is taken on the
device: by events in its stream, which cost the run next to nothing, or, if torch has no events
for the device, by waiting until all work is done.
"""

import time
from typing import Any

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.compat.tensors import wait_on_cuda

# About 3 ms.
_WAIT_CYCLES = 5_000_000


class ProcessorClock:
    """The processor's monotonic clock, read after a device without events has done all its work.

    Args:
        device: The device.

    Attributes:
        name: The name of the clock in a `Profile`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits = device.type != "cpu"
        self.name = "perf_counter after synchronize" if self._waits else "perf_counter"

    def start(self) -> Any:
        """Take the reading before a call."""
        return self.read()

    def read(self) -> Any:
        """Take a reading, to be compared with another reading once the run is over."""
        self.settle()
        return time.perf_counter_ns()

    def passed_us(self, begun: object, ended: Any) -> float:
        """Return the microseconds between two readings; `settle` must have been called before."""
        return float(ended - begun) / 1e3

    def settle(self) -> None:
        """Wait until all started work is done, so that readings can be compared."""
        if self._waits:
            torch.accelerator.synchronize(self._device)


class EventClock(ProcessorClock):
    """Events in the current stream of a CUDA or ROCm device.

    The time between two events is the device's own, without the processor's, as long as the
    processor is ahead. So the device waits before a call whenever it has nearly caught up.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.name = "events"
        # The event between two waits: in the second one, the processor is hardly ahead.
        self._caught_up: Any = None

    def start(self) -> Any:
        """Have the device wait if it has nearly caught up; record an event."""
        if self._caught_up is None or self._caught_up.query():
            with torch.cuda.device(self._device):
                wait_on_cuda(_WAIT_CYCLES)
                self._caught_up = self.read()
                wait_on_cuda(_WAIT_CYCLES)
        return self.read()

    def read(self) -> Any:
        """Record an event after all work that the device has received so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed_us(self, begun: Any, ended: object) -> float:
        """Return the microseconds between two events."""
        return float(begun.elapsed_time(ended)) * 1e3


def clock_of(node: Node, clocks: dict[str, ProcessorClock]) -> ProcessorClock:
    """Return the clock for a node: its accelerator's if it runs on one, else the processor's.

    A copy from an accelerator to the processor runs on the accelerator: the processor's clock would
    include all the work that the copy has to wait for.

    Args:
        node: The node, with its inputs and outputs.
        clocks: Clocks by device; new clocks are added.
    """
    devices = [value.device for value in (*node.outputs, *node.inputs) if value.device != "cpu"]
    device = next(iter(devices), "cpu")
    if device not in clocks:
        made = torch.device(device)
        clocks[device] = EventClock(made) if made.type == "cuda" else ProcessorClock(made)
    return clocks[device]
