"""Kernels that are launched past torch's dispatcher: Triton's, and those of a CUDA graph.

A Triton kernel is reported as an operation that writes into tensors. The kernels in a CUDA graph
were captured earlier: a note reports its replay, which may write into any tensor on the device.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function

from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.patch import Patches, SharedBlock
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import function_modes, is_fake
from tbscope.sources.torch.triton_kernels import (
    kernel_function,
    stored_parameters,
)


class _Launch:
    """A launch of a Triton kernel, which the modes see as a torch function.

    Launches of one kernel are equal, so that measured runs find the operation again.

    Args:
        function: The Python function of the kernel.
        run: Launches the kernel.

    Attributes:
        result: The result of `run`.
    """

    def __init__(self, function: Callable[..., object], run: Callable[[], object]) -> None:
        self.function, self.__name__ = function, function.__name__
        self.result: object = None
        self._run: Callable[[], object] | None = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Launch) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.function)

    def __call__(self, **arguments: object) -> list[torch.Tensor]:
        """Launch the kernel; return the tensors that it writes into."""
        stored = stored_parameters(self.function)
        written = collect_tensors([arguments[name] for name in arguments if name in stored], [])
        for recorder in watching.recorders:
            if recorder.operations.running is not None:
                recorder.operations.running.launch(f"triton::{self.__name__}", written)
        # Caches of names by function keep the launch alive, but must not keep its tensors.
        run, self._run = self._run, None
        tensors = collect_tensors(arguments, [])
        # A fake tensor has no memory that a kernel could use.
        if run is not None and not any(is_fake(type(each)) or each.is_meta for each in tensors):
            self.result = run()
        return written


def _report_launches() -> Callable[[], None]:
    patches = Patches()

    @patches.of(torch.cuda.CUDAGraph, "replay")
    def replay(graph: object) -> None:
        for recorder in watching.recorders:
            if not recorder.suspended:
                recorder.events.graph_replayed(sys._getframe(1))
        replay.original(graph)

    # The base of kernels that are launched as `kernel[grid](...)`, if Triton is loaded.
    interface = getattr(sys.modules.get("triton.runtime.jit"), "KernelInterface", None)
    if interface is not None:

        @patches.of(interface, "__getitem__")
        def launcher(kernel: object, grid: object) -> Any:
            launch = launcher.original(kernel, grid)

            def run(*args: object, **kwargs: object) -> object:
                tensors = collect_tensors((args, kwargs), [])
                if not (tensors and watching.recorders and function_modes()):
                    return launch(*args, **kwargs)
                function = kernel_function(kernel)
                named = dict(zip(inspect.signature(function).parameters, args, strict=False))
                operation = _Launch(function, lambda: launch(*args, **kwargs))
                handle_torch_function(operation, tensors, **named, **kwargs)
                return operation.result

            return run

    return patches.put()


LAUNCHES = SharedBlock(_report_launches)
"""Block in which launches of kernels past torch's dispatcher are reported."""
