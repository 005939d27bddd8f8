"""Mode that watches the local operations of a DTensor inside of one kernel."""

import sys
from types import FrameType
from typing import Any

import torch

from tbscope.sources.eager.record.operation import Operation
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import DispatchMode, without_functions
from tbscope.sources.torch.distributed import is_wait
from tbscope.sources.torch.operations import KernelInfo, kernel_info
from tbscope.sources.torch.subclasses import any_wrapper


class DTensorMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Reports to a recorder the local operations that a DTensor runs inside of one kernel.

    Only communication is reported, with the operations that lead to it; all other operations count
    as part of the kernel.

    Args:
        recorder: The recorder.
        outer: The arguments of the kernel.
    """

    def __init__(self, recorder: Recorder, outer: tuple[Any, ...]) -> None:
        super().__init__()
        self._recorder = recorder
        self._outer = outer
        # The kernel call that made each tensor, by the tensor's identity; the references to the
        # results keep the identities unique.
        self._made: dict[int, tuple[Any, KernelInfo, Any, Any]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and any_wrapper(types):
            # The class handles the kernel first; its own kernels then arrive here.
            return NotImplemented
        facts = kernel_info(func)
        kwargs = kwargs or {}
        if self._recorder.suspended or (facts.exchange is None and not is_wait(facts.name)):
            result = func(*args, **kwargs)
            for tensor in collect_tensors(result, []):
                self._made[id(tensor)] = result, facts, args, kwargs
            return result
        return self._run_communication(facts, args, kwargs)

    def _run_communication(
        self, facts: KernelInfo, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a communicating kernel as an operation of its own."""
        recorder, operations = self._recorder, self._recorder.operations
        outer, frame = operations.running, sys._getframe(2)
        operation = operations.begin()
        try:
            result = operation.run(facts, args, kwargs)
        finally:
            operations.running = outer
        with without_functions():
            for tensor in collect_tensors((args, kwargs), []):
                self._lead_to(tensor, frame)
            node = recorder.events.kernel_ended(facts, args, kwargs, result, operation, frame)
        if not recorder.events.wait_inside(facts, self._outer, args, node) and outer is not None:
            outer.feed(collect_tensors(result, []))
        return result

    def _lead_to(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Record the kernels that made a tensor, if the tensor has no value yet."""
        recorder = self._recorder
        if id(tensor) in self._made and not recorder.flow.sources.is_known(tensor):
            result, facts, args, kwargs = self._made[id(tensor)]
            for each in collect_tensors(result, []):
                self._made.pop(id(each), None)
            for each in collect_tensors((args, kwargs), []):
                self._lead_to(each, frame)
            operation = Operation(recorder.operations)
            operation.kernels.append(facts.name)
            recorder.events.kernel_ended(facts, args, kwargs, result, operation, frame)
