"""Modes that watch torch: functions as the user wrote them, and the kernels inside of them.

`OperationMode` sees each torch function before it runs; below it, `KernelMode` sees each ATen
kernel. Both pass every call on unchanged.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tbscope.sources.eager.record.operation import Operation
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.call_log import NO_RESULT, CallLog
from tbscope.sources.eager.watch.dtensor_mode import DTensorMode
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import (
    RUNS_FOR_ITSELF,
    DispatchMode,
    is_being_traced,
    is_of_its_own,
    run_composite,
    without_functions,
)
from tbscope.sources.torch.fake import FakeTensors
from tbscope.sources.torch.operations import (
    COPIES_DEEP,
    GET_GRADIENT,
    KERNELS,
    METADATA_QUERIES,
    SET_DATA,
    SET_GRADIENT,
    SETTERS,
    KernelInfo,
    add_signature,
    body_name,
    kernel_info,
    operation_name,
    positional_names,
)
from tbscope.sources.torch.subclasses import PLAIN, any_wrapper

_NO_KEYWORDS: dict[str, Any] = {}
# Result classes of most operations; a list or tuple may contain tensors of any class.
_USUAL = PLAIN | {tuple, list, type(None)}


class OperationMode(TorchFunctionMode):
    """Reports to a recorder each torch function that the watched code calls.

    Args:
        recorder: The recorder.
        log: Log of the calls; None for no log.

    Attributes:
        inside: Whether a function is running, so that torch has disabled the mode.
    """

    def __init__(self, recorder: Recorder, log: CallLog | None = None) -> None:
        super().__init__()
        self.inside = False
        self._recorder = recorder
        self._operations = recorder.operations
        self._log = log
        # Names by function, or by function and the classes of its arguments.
        self._names: dict[Any, str] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # `types` of functions written in Python contain classes of plain tensors, too.
        plain = not types or PLAIN.issuperset(types)
        # Metadata queries of plain tensors (`shape`, `dtype`) are frequent, and no operations.
        if func in METADATA_QUERIES and plain and len(args) == 1 and not kwargs:
            return func(*args)
        recorder, operations = self._recorder, self._operations
        if kwargs is None:
            kwargs = _NO_KEYWORDS
        # Operations of torch itself (checkpointing, import of the compiler) are not the model's.
        if RUNS_FOR_ITSELF and not recorder.suspended and is_of_its_own(sys._getframe(1)):
            recorder.suspended = True
            try:
                return func(*args, **kwargs)
            finally:
                recorder.suspended = False
        if func in SETTERS:
            for tensor in collect_tensors(args[0], []):
                recorder.events.about_to_set(tensor)
            training = recorder.training
            if (
                func == GET_GRADIENT
                and plain
                and self._log is None
                and training is not None
                # No pass runs, so that every gradient has a value.
                and not training.backward.passes
            ):
                return func(*args)
            if func == SET_GRADIENT and operations.running is None and not recorder.suspended:
                func(*args, **kwargs)
                with without_functions():
                    recorder.events.gradient_set(args[0])
                return None
            if func == SET_DATA and not recorder.suspended and operations.running is None:
                return self._set_data(args, sys._getframe(1))
        if recorder.suspended or operations.running is not None:
            return func(*args, **kwargs)
        if not plain and not all(issubclass(kind, torch.Tensor) for kind in types):
            return self._by_its_own(func, types, args, kwargs)
        # Not `operations.begin()`: reads of sizes, dtypes and flags are the most frequent calls,
        # and this is most of their cost. An operation without kernels is used again.
        operation = operations.idle or Operation(operations)
        operations.idle = None
        operations.running = operation
        self.inside = True
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            recorder.events.operation_failed(
                self._name(func, args), args, kwargs, error, sys._getframe(1)
            )
            raise
        finally:
            operations.running = None
            self.inside = False
        kind = type(result)
        if kind in NO_RESULT and not operation.written:
            if not operation.kernels:
                operations.idle = operation
            elif args:
                # Of these functions, only those that run kernels read contents (`item()`).
                recorder.events.content_read(self._name(func, args), args[0], sys._getframe(1))
            return result
        node = None
        if result is not None or operation.kernels:
            name, frame = self._names.get(func) or self._name(func, args), sys._getframe(1)
            if func is COPIES_DEEP and operation.kernels:
                # The memo contains earlier copies by address, and no inputs. To copy the memory, it
                # sets the copy to the memory of the source, which is no write into it.
                args, operation.written = args[:1], []
            record = recorder.events.operation_ended
            if plain and kind in _USUAL:
                node = record(name, args, kwargs, result, operation, frame)
            else:
                # A subclass may compute its shape in code of its own, which is not watched.
                with without_functions():
                    node = record(name, args, kwargs, result, operation, frame)
        if self._log is not None and kind not in NO_RESULT:
            self._log.add(func, node)
        return result

    def again(self, *, logs: bool = False) -> "OperationMode":
        """Return a copy of the mode, to watch a function inside of a call, or a backward pass.

        Args:
            logs: Whether the copy logs calls, too.
        """
        clone = copy(self)
        clone.inside, clone._log = False, self._log if logs else None
        return clone

    def _set_data(self, args: tuple[Any, ...], frame: FrameType) -> None:
        """Set the `data` of a tensor, and record this as an operation, because no kernel runs."""
        recorder = self._recorder
        SET_DATA(*args)
        operation = Operation(self._operations)
        operation.written = [args[0]]
        with without_functions():
            # The tensor is an output: its old content is not read.
            filled = {"out": args[0]}
            recorder.events.operation_ended("set_data", args[1:], filled, args[0], operation, frame)

    def _by_its_own(
        self, func: Callable[..., Any], types: Any, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the `__torch_function__` of a class that is no tensor, and watch it."""
        with self:
            for kind in types:
                result = kind.__torch_function__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        return func(*args, **kwargs)

    def _name(self, func: Callable[..., Any], args: tuple[object, ...]) -> str:
        # Overloads with different argument names need a name for each combination of classes.
        kinds = tuple(map(type, args)) if None in positional_names(func) else ()
        key = (func, *kinds) if kinds else func
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = operation_name(func, as_kernel=True)
            add_signature(self._recorder.graph.signatures, name, func, kinds)
        return name


class FakedOperationMode(OperationMode):
    """Watches functions, and replaces the tensors of the model by fake tensors.

    Args:
        recorder: The recorder.
        stand_ins: The fake tensors.
    """

    def __init__(self, recorder: Recorder, stand_ins: FakeTensors) -> None:
        super().__init__(recorder)
        self._stand_ins = stand_ins

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = self._stand_ins.for_call(func, args, kwargs)
        # The creation of fake tensors is not thread-safe.
        with self._recorder.lock:
            return super().__torch_function__(func, types, args, kwargs)


class KernelMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Reports to a recorder each ATen kernel, and the tensors that it is about to write into.

    Args:
        recorder: The recorder.
        functions: The mode that sees the functions around kernels.
        log: Log of the kernels outside of functions; None for no log.

    Attributes:
        recorder: The recorder.
    """

    def __init__(
        self, recorder: Recorder, functions: OperationMode, log: CallLog | None = None
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self._functions = functions
        self._log = log

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorder = self.recorder
        if kwargs is None:
            kwargs = _NO_KEYWORDS
        facts = KERNELS.get(id(func)) or kernel_info(func)
        if recorder.suspended or facts.query:
            return func(*args, **kwargs)
        if (
            facts.composite
            and not (types and any_wrapper(types))
            and not any(tensor.is_nested for tensor in collect_tensors((args, kwargs), []))
        ):
            # In inference mode, and for tensors made there, torch does not decompose composite
            # operators; only their parts report writes, so they are decomposed here. Nested tensors
            # have kernels of their own.
            with self:
                return run_composite(func, args, kwargs)
        if types and recorder.distributed and any_wrapper(types):
            frame = sys._getframe().f_back
            with DTensorMode(recorder, args):
                return self._run(facts, args, kwargs, frame)
        if facts.higher_order:
            args, kwargs = self._show_functions(args, kwargs)
        operations = recorder.operations
        running = operations.running
        if running is not None and not operations.scripted:
            return running.run(facts, args, kwargs)
        # Work that TorchScript forks runs in a thread without Python frames.
        frame = sys._getframe().f_back
        if operations.scripted:
            with recorder.lock:
                return self._run(facts, args, kwargs, frame)
        return self._run(facts, args, kwargs, frame)

    def _run(
        self,
        facts: KernelInfo,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> Any:
        recorder = self.recorder
        operations = recorder.operations
        running = operations.running
        if running is not None:
            return running.run(facts, args, kwargs)
        # No torch function encloses it: the kernel itself is the operation.
        operation = operations.begin()
        try:
            # C++ calls native operators without any function mode.
            with without_functions() if facts.native else nullcontext():
                result = operation.run(facts, args, kwargs)
        except BaseException as error:
            recorder.events.operation_failed(facts.label, args, kwargs, error, frame)
            raise
        finally:
            operations.running = None
        with without_functions():
            node = recorder.events.kernel_ended(facts, args, kwargs, result, operation, frame)
        if self._log is not None:
            self._log.add(facts.name, node)
        return result

    def _show_functions(
        self, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wrap the functions among an operator's arguments (`cond`, `scan`) to watch their runs."""
        recorder = self.recorder
        operands = collect_tensors((args, kwargs), [])

        def watched(function: object) -> Any:
            if isinstance(function, torch.nn.Module) or not callable(function):
                return function

            @functools.wraps(function)
            def body(*inner_args: object, **inner_kwargs: object) -> Any:
                if is_being_traced():
                    return function(*inner_args, **inner_kwargs)
                with self._watching(body_name(function)) as take_result:
                    recorder.events.slices_made(operands, (inner_args, inner_kwargs))
                    result = function(*inner_args, **inner_kwargs)
                    take_result(result)
                return result

            # `wraps` copies no name from a `partial`, and the graph prints it.
            body.__qualname__ = getattr(function, "__qualname__", body_name(function))
            return body

        keywords = {key: watched(arg) for key, arg in kwargs.items()}
        return tuple(map(watched, args)), keywords

    @contextmanager
    def _watching(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Watch a block inside of an operator, for which torch has disabled the modes."""
        functions = self._functions
        with ExitStack() as stack:
            take_result = stack.enter_context(self.recorder.events.function_runs(name))
            stack.enter_context(KernelMode(self.recorder, functions))
            if functions.inside:
                functions.inside = False
                stack.callback(setattr, functions, "inside", True)
                stack.enter_context(functions.again())
            elif self._log is not None and not self._log.in_body:
                self._log.in_body = True
                stack.callback(setattr, self._log, "in_body", False)
            yield take_result


def modes_of(
    recorder: Recorder, log: CallLog | None = None, *, stand_ins: FakeTensors | None
) -> tuple[KernelMode, OperationMode]:
    """Return the modes that report a thread's operations to a recorder, in the order to enter them.

    Args:
        recorder: The recorder.
        log: Log of the calls; None for no log.
        stand_ins: Fake tensors that replace the model's tensors; None for no replacement.
    """
    operations = (
        OperationMode(recorder, log)
        if stand_ins is None
        else FakedOperationMode(recorder, stand_ins)
    )
    if recorder.training is not None:
        recorder.training.functions = functools.partial(operations.again, logs=True)
    return KernelMode(recorder, operations, log), operations
