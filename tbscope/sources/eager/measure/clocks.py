"""What tells the time of an operation: the processor's clock, or events on a device.

Code that runs on an accelerator returns before its work is done. There the time is
taken on the device: by events in its stream, which cost the run next to nothing, or
where torch has none for it, by waiting until all work is done.

The clocks of accelerators were written by torch's documentation, and have not been
run on one.
"""

import time
from abc import ABC, abstractmethod
from typing import Any

import torch

from tbscope.ir.graph import Node

__all__ = ["Clock", "EventClock", "ProcessorClock", "WaitingClock", "clock_of"]


class Clock(ABC):
    """Something that is read before and after an operation.

    Attributes:
        name: What it is called in a `Profile`.
    """

    name: str

    @abstractmethod
    def read(self) -> Any:
        """Take a reading, to be compared with another one once the run is over."""

    @abstractmethod
    def passed_us(self, begun: Any, ended: Any) -> float:
        """Return the microseconds between two readings; `settle` must have been called."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all work that was begun is done, and readings can be compared."""


class ProcessorClock(Clock):
    """The processor's monotonic clock."""

    name = "perf_counter"
    read = staticmethod(time.perf_counter_ns)

    def passed_us(self, begun: int, ended: int) -> float:
        """Return the microseconds between two readings."""
        return (ended - begun) / 1e3

    def settle(self) -> None:
        """Do nothing: the processor's work is done when the call returns."""


class EventClock(Clock):
    """Events in the stream that a CUDA or ROCm device works on at that moment.

    Between two of them is the work of that device, without the processor's, as long as
    the processor is ahead; a device that waits for the processor waits between them, too.

    Args:
        device: Which device.
    """

    name = "events"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> Any:
        """Record an event behind all work that the device was given so far."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed_us(self, begun: Any, ended: Any) -> float:
        """Return the microseconds between two events."""
        return float(begun.elapsed_time(ended)) * 1e3

    def settle(self) -> None:
        """Wait until the device has done all its work, and with it all events."""
        torch.cuda.synchronize(self._device)


class WaitingClock(ProcessorClock):
    """The processor's clock, read once a device that has no events has done all its work.

    Args:
        device: Which device.
    """

    name = "perf_counter after synchronize"

    def __init__(self, device: torch.device) -> None:
        module = getattr(torch, device.type, None)
        self._wait = getattr(module, "synchronize", None)

    def read(self) -> int:
        """Wait for the device, and return the time."""
        self.settle()
        return time.perf_counter_ns()

    def settle(self) -> None:
        """Wait until the device has done all its work."""
        if self._wait is not None:
            self._wait()


def clock_of(node: Node, clocks: dict[str, Clock]) -> Clock:
    """Return the clock that times a node: that of its accelerator, if it runs on one.

    A copy from an accelerator to the processor runs on the accelerator: the processor's
    clock would take in all the work that the copy has to wait for.

    Args:
        node: The node, with its inputs and outputs.
        clocks: Clocks by device, to which new ones are added.
    """
    device = "cpu"
    for value in (*node.outputs, *node.inputs):
        if value.device != "cpu":
            device = value.device
            break
    if device not in clocks:
        clocks[device] = _new_clock(torch.device(device))
    return clocks[device]


def _new_clock(device: torch.device) -> Clock:
    if device.type == "cpu":
        return ProcessorClock()
    return EventClock(device) if device.type == "cuda" else WaitingClock(device)
