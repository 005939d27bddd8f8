"""The two modes that watch torch: operations as the user wrote them, and their kernels.

`OperationMode` sees each torch function before it runs, `KernelMode` below it each
ATen kernel. Both hand everything on unchanged.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tbscope.sources.operations import kernel_facts, operation_name
from tbscope.sources.recorder import Recorder

__all__ = ["KernelMode", "OperationMode"]

_NO_KEYWORDS: dict[str, Any] = {}
_NO_RESULT = frozenset(
    {
        torch.Size,
        bool,
        int,
        float,
        complex,
        str,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)


class OperationMode(TorchFunctionMode):  # type: ignore[misc]
    """Tells a recorder of each torch function that the watched code calls."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._names: dict[Callable[..., Any], str] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorder = self._recorder
        if kwargs is None:
            kwargs = _NO_KEYWORDS
        if recorder.paused or recorder.kernels is not None:
            return func(*args, **kwargs)
        recorder.kernels = kernels = []
        try:
            result = func(*args, **kwargs)
        except BaseException:
            recorder.written = []
            raise
        finally:
            recorder.kernels = None
        kind = type(result)
        if kind in _NO_RESULT and not recorder.written:
            if args and kind is not torch.Size:
                recorder.add_read(self._name(func), args[0], sys._getframe(1))
            return result
        if result is None and not kernels:
            return result
        recorder.add_operation(self._name(func), args, kwargs, result, kernels, sys._getframe(1))
        return result

    def _name(self, func: Callable[..., Any]) -> str:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = operation_name(func)
        return name


class KernelMode(TorchDispatchMode):  # type: ignore[misc]
    """Tells a recorder of each ATen kernel, and of what it is about to write into."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch wraps the method below by importing all of torch._dynamo.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorder = self._recorder
        if kwargs is None:
            kwargs = _NO_KEYWORDS
        if recorder.paused:
            return func(*args, **kwargs)
        facts = kernel_facts(func)
        if facts.writes:
            recorder.will_write(facts, args, kwargs)
        kernels = recorder.kernels
        if kernels is not None:
            kernels.append(facts.name)
            return func(*args, **kwargs)
        # No torch function is around it: the kernel is itself the operation.
        recorder.kernels = []
        try:
            result = func(*args, **kwargs)
        except BaseException:
            recorder.written = []
            raise
        finally:
            recorder.kernels = None
        recorder.add_kernel(facts, args, kwargs, result, sys._getframe(1))
        return result
