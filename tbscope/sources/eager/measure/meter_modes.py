"""Modes that read a meter before and after each call, and have no other effect.

They see the calls that are in a `CallLog`, in runs of which no graph is made. Without the mode for
kernels, the kernels inside of a function run as in an unwatched run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.overrides import TorchFunctionMode

from tbscope.sources.eager.measure.clocks import ProcessorClock
from tbscope.sources.eager.measure.live_bytes import LiveBytes
from tbscope.sources.eager.watch.call_log import NO_RESULT
from tbscope.sources.torch.compat.tensors import DispatchMode
from tbscope.sources.torch.operations import kernel_info

Meter: TypeAlias = ProcessorClock | LiveBytes
"""Source of readings: a clock, or the counter of live bytes."""


class CallReading(NamedTuple):
    """Readings of a meter before and after a call.

    Attributes:
        call: The function, or the name of the kernel.
        meter: The meter.
        before: Its reading before the call.
        after: Its reading after the call.
    """

    call: Any
    meter: Meter
    before: object
    after: Any


class CallWatch(TorchFunctionMode):
    """Reads a meter before and after each call of a torch function.

    Args:
        meters: The meter for each call, in order.
        otherwise: The meter for further calls.

    Attributes:
        readings: Readings of the calls that have returned, in order.
        inside: Whether a call is running.
    """

    def __init__(self, meters: Sequence[Meter], otherwise: Meter) -> None:
        super().__init__()
        self.readings: list[CallReading] = []
        self.inside = False
        self._meters = meters
        self._otherwise = otherwise

    def meter(self) -> Meter:
        """Return the meter for the next call."""
        at = len(self.readings)
        return self._meters[at] if at < len(self._meters) else self._otherwise

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Read meters around the functions that autograd's engine runs in a block.

        The pass as a whole is not measured as one call.
        """
        inside, self.inside = self.inside, False
        try:
            with self if inside else nullcontext():
                yield
        finally:
            self.inside = inside

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        meter = self.meter()
        self.inside = True
        try:
            before = meter.start()
            result = func(*args, **kwargs)
            after = meter.read()
        finally:
            self.inside = False
        if type(result) not in NO_RESULT:
            self.readings.append(CallReading(func, meter, before, after))
        return result


class KernelWatch(DispatchMode):  # type: ignore[no-untyped-call]
    """Reads the meter of a `CallWatch` around kernels outside of functions.

    Args:
        calls: The mode for functions, which is active, too.
        alive: Counter of live bytes that receives all kernels; None for none.
    """

    def __init__(self, calls: CallWatch, alive: LiveBytes | None = None) -> None:
        super().__init__()
        self._calls = calls
        self._alive = alive

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        facts, calls, alive = kernel_info(func), self._calls, self._alive
        # Index of the reading for the enclosing call, or for this kernel.
        maker = len(calls.readings)
        within = calls.inside
        if facts.query:
            return func(*args, **kwargs)
        # A kernel inside of a function only counts for live bytes.
        meter = None if within else calls.meter()
        calls.inside = True
        try:
            before = meter and meter.start()
            result = func(*args, **kwargs)
            if alive is not None:
                alive.add(facts, args, kwargs, result, maker=maker)
            after = meter and meter.read()
        finally:
            calls.inside = within
        if meter is not None:
            calls.readings.append(CallReading(facts.name, meter, before, after))
        return result


class WriteWatch(DispatchMode):  # type: ignore[no-untyped-call]
    """Reports the tensors that kernels of this thread write into.

    Args:
        about_to_write: Receives each tensor before the write.
    """

    def __init__(self, about_to_write: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._about_to_write = about_to_write

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        for tensor in kernel_info(func).written(args, kwargs):
            self._about_to_write(tensor)
        return func(*args, **kwargs)
