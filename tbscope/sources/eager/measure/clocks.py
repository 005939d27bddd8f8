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
    """The processor's monotonic clock.

    Attributes:
        name: The name of the clock in a `Profile`.
    """

    name = "perf_counter"

    def start(self) -> Any:
        """Take the reading before a call."""
        return self.read()

    def read(self) -> Any:
        """Take a reading, to be compared with another reading once the run is over."""
        return time.perf_counter_ns()

    def passed_us(self, begun: object, ended: Any) -> float:
        """Return the microseconds between two readings; `settle` must have been called before."""
        return float(ended - begun) / 1e3

    def settle(self) -> None:
        """Wait until all started work is done, so that readings can be compared."""


class EventClock(ProcessorClock):
    """Events in the current stream of a CUDA or ROCm device.

    The time between two events is the device's own, without the processor's, as long as the
    processor is ahead. So the device waits before a call whenever it has nearly caught up.

    Args:
        device: The device.
    """

    name = "events"

    def __init__(self, device: torch.device) -> None:
        self._device = device
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

    def settle(self) -> None:
        """Wait until the device has done all its work, and has reached all events."""
        torch.cuda.synchronize(self._device)


class WaitingClock(ProcessorClock):
    """The processor's clock, read after a device without events has done all its work.

    Args:
        device: The device.
    """

    name = "perf_counter after synchronize"

    def __init__(self, device: torch.device) -> None:
        self._wait = getattr(getattr(torch, device.type, None), "synchronize", lambda: None)

    def read(self) -> Any:
        """Wait for the device, and return the time."""
        self.settle()
        return super().read()

    def settle(self) -> None:
        """Wait until the device has done all its work."""
        self._wait()


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
        torch_device = torch.device(device)
        clocks[device] = (
            ProcessorClock() if torch_device.type == "cpu" else WaitingClock(torch_device)
        )
        if torch_device.type == "cuda":
            clocks[device] = EventClock(torch_device)
    return clocks[device]
