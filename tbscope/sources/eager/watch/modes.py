"""The two modes that watch torch: operations as the user wrote them, and their kernels.

`OperationMode` sees each torch function before it runs, `KernelMode` below it each
ATen kernel. Both hand everything on unchanged.
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
from tbscope.sources.eager.thread_state import watching
from tbscope.sources.eager.watch.call_log import NO_RESULT, CallLog
from tbscope.sources.eager.watch.dtensor_mode import InsideMode
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import (
    RUNS_FOR_ITSELF,
    DispatchMode,
    dispatch_modes,
    is_being_traced,
    is_of_its_own,
    run_composite,
    running_node,
    without_functions,
)
from tbscope.sources.torch.fake import StandIns
from tbscope.sources.torch.operations import (
    ASKS_GRADIENT,
    COPIES_DEEP,
    KERNELS,
    QUESTIONS,
    SET_DATA,
    SETS_GRADIENT,
    SETTERS,
    KernelFacts,
    add_signature,
    body_name,
    kernel_facts,
    operation_name,
    positional_names,
)
from tbscope.sources.torch.subclasses import PLAIN, hands_on

__all__ = [
    "KernelMode",
    "OperationMode",
    "lent",
    "modes_of",
]

_NO_KEYWORDS: dict[str, Any] = {}
# What most operations give; a list or tuple may hold tensors of any class.
_USUAL = PLAIN | {tuple, list, type(None)}


class OperationMode(TorchFunctionMode):
    """Tells a recorder of each torch function that the watched code calls.

    Args:
        recorder: Whom it tells.
        log: Where each call is noted; None for nowhere.

    Attributes:
        inside: Whether one runs now, so that torch has put the mode aside.
    """

    def __init__(self, recorder: Recorder, log: CallLog | None = None) -> None:
        super().__init__()
        self.inside = False
        self._recorder = recorder
        self._operations = recorder.operations
        self._log = log
        # By function, or by function and the classes of what it was given.
        self._names: dict[Any, str] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # Functions that are written in Python name the classes of plain tensors, too.
        plain = not types or PLAIN.issuperset(types)
        if func in QUESTIONS and plain and len(args) == 1 and not kwargs:
            return func(*args)
        recorder, operations = self._recorder, self._operations
        if kwargs is None:
            kwargs = _NO_KEYWORDS
        if RUNS_FOR_ITSELF and not recorder.paused and is_of_its_own(sys._getframe(1)):
            recorder.paused = True
            try:
                return func(*args, **kwargs)
            finally:
                recorder.paused = False
        if func in SETTERS:
            for tensor in collect_tensors(args[0], []):
                recorder.about_to_set(tensor)
            if func == ASKS_GRADIENT and plain and self._log is None and recorder.knows_gradients:
                return func(*args)
            if func == SETS_GRADIENT and operations.running is None and not recorder.paused:
                func(*args, **kwargs)
                with without_functions():
                    recorder.gradient_was_set(args[0])
                return None
            if func == SET_DATA and not recorder.paused and operations.running is None:
                return self._set_data(args, sys._getframe(1))
        if recorder.paused or operations.running is not None:
            return func(*args, **kwargs)
        if not plain and not all(issubclass(kind, torch.Tensor) for kind in types):
            return self._by_its_own(func, types, args, kwargs)
        # Not `operations.begin()`: sizes, dtypes and flags are asked for at every turn, and
        # this is most of what such a question costs. One without kernels serves again.
        operation = operations.idle or Operation(operations)
        operations.idle = None
        operations.running = operation
        self.inside = True
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            recorder.fail_operation(self._name(func, args), args, kwargs, error, sys._getframe(1))
            raise
        finally:
            operations.running = None
            self.inside = False
        kind = type(result)
        if kind in NO_RESULT and not operation.written:
            if not operation.kernels:
                operations.idle = operation
            elif args:
                # Few of these questions are for contents.
                recorder.add_read(self._name(func, args), args[0], sys._getframe(1))
            return result
        node = None
        if result is not None or operation.kernels:
            name, frame = self._names.get(func) or self._name(func, args), sys._getframe(1)
            if func is COPIES_DEEP and operation.kernels:
                # Its memo is no data: copies of other tensors, by the addresses of these. What it
                # sets to the memory of its tensor, to copy that, is no write into it.
                args, operation.written = args[:1], []
            if plain and kind in _USUAL:
                node = recorder.add_operation(name, args, kwargs, result, operation, frame)
            else:
                # A subclass may answer questions for its shape by code of its own.
                with without_functions():
                    node = recorder.add_operation(name, args, kwargs, result, operation, frame)
        if self._log is not None and kind not in NO_RESULT:
            self._log.add(func, node)
        return result

    def again(self, *, logs: bool = False) -> "OperationMode":
        """Return a mode that does the same, to watch what a function runs, or a backward pass.

        Args:
            logs: Whether it notes calls, too.
        """
        again = copy(self)
        again.inside, again._log = False, self._log if logs else None
        return again

    def _set_data(self, args: tuple[Any, ...], frame: FrameType) -> None:
        """Give a tensor the content of another one, which no kernel does."""
        recorder = self._recorder
        SET_DATA(*args)
        operation = Operation(self._operations)
        operation.written = [args[0]]
        with without_functions():
            # It is filled, and not read.
            filled = {"out": args[0]}
            recorder.add_operation("set_data", args[1:], filled, args[0], operation, frame)

    def _by_its_own(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Do what an object that is no tensor does with a torch function, and watch that."""
        with self:
            for kind in types:
                result = kind.__torch_function__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        return func(*args, **kwargs)

    def _name(self, func: Callable[..., Any], args: tuple[Any, ...]) -> str:
        # Of a function whose overloads name arguments otherwise, each form of a call is looked at.
        kinds = tuple(map(type, args)) if None in positional_names(func) else ()
        key = (func, *kinds) if kinds else func
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = operation_name(func, as_kernel=True)
            add_signature(self._recorder.graph.signatures, name, func, kinds)
        return name


class FakedOperationMode(OperationMode):
    """Watches functions, and hands them stand-ins for the tensors of the model.

    Args:
        recorder: Whom it tells.
        stand_ins: The stand-ins.
    """

    def __init__(self, recorder: Recorder, stand_ins: StandIns) -> None:
        super().__init__(recorder)
        self._stand_ins = stand_ins

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = self._stand_ins.for_call(func, args, kwargs)
        # Fake tensors are made for one thread at a time.
        with self._recorder.turn:
            return super().__torch_function__(func, types, args, kwargs)


@contextmanager
def lent() -> Iterator[bool]:
    """Have those watch this thread of autograd's, during a block, who watch what it works for.

    Autograd's threads take modes along, and nothing else: they are told of no module call.

    Returns:
        Whether anyone does.
    """
    found: tuple[Recorder, ...] = ()
    if running_node() is not None:
        modes = dispatch_modes()
        found = tuple(mode.recorder for mode in modes if isinstance(mode, KernelMode))
    before, watching.recorders = watching.recorders, found
    try:
        yield bool(found)
    finally:
        watching.recorders = before


class KernelMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Tells a recorder of each ATen kernel, and of what it is about to write into.

    Args:
        recorder: Whom it tells.
        functions: The mode that sees the functions around kernels.
        log: Where each kernel that no function is around is noted; None for nowhere.

    Attributes:
        recorder: Whom it tells.
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
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        recorder = self.recorder
        if kwargs is None:
            kwargs = _NO_KEYWORDS
        facts = KERNELS.get(id(func)) or kernel_facts(func)
        if recorder.paused or facts.query:
            return func(*args, **kwargs)
        if (
            facts.composite
            and not (types and hands_on(types))
            and not any(tensor.is_nested for tensor in collect_tensors((args, kwargs), []))
        ):
            # In inference mode, and for tensors made there, torch takes no operator apart: only
            # those of which it is made tell what they write. What is nested has ways of its own.
            with self:
                return run_composite(func, args, kwargs)
        if types and recorder.distributed and hands_on(types):
            frame = sys._getframe().f_back
            with InsideMode(recorder, args):
                running = recorder.operations.running
                if running is not None:
                    return running.run(facts, args, kwargs)
                return self._run(facts, args, kwargs, frame)
        if facts.higher_order:
            args, kwargs = self._show_functions(args, kwargs)
        running = recorder.operations.running
        if running is not None and not recorder.scripted:
            return running.run(facts, args, kwargs)
        # What TorchScript forks runs in a thread of its own, where Python has called nothing.
        frame = sys._getframe().f_back
        if recorder.scripted:
            with recorder.turn:
                if frame is None:
                    recorder.tell_of_fork()
                return self._run(facts, args, kwargs, frame)
        return self._run(facts, args, kwargs, frame)

    def _run(
        self,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> Any:
        recorder = self.recorder
        operations = recorder.operations
        running = operations.running
        if running is not None:
            return running.run(facts, args, kwargs)
        # No torch function is around it: the kernel is itself the operation.
        operation = operations.begin()
        try:
            # C++ has called a native one, and no mode for functions has seen that.
            with without_functions() if facts.native else nullcontext():
                result = operation.run(facts, args, kwargs)
        except BaseException as error:
            recorder.fail_operation(facts.label, args, kwargs, error, frame)
            raise
        finally:
            operations.end()
        with without_functions():
            node = recorder.add_kernel(facts, args, kwargs, result, operation, frame)
        if self._log is not None:
            self._log.add(facts.name, node)
        return result

    def _show_functions(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Have the functions that an operator is given (`cond`, `scan`) watched as they run."""
        recorder = self.recorder
        operands = collect_tensors((args, kwargs), [])

        def shown(given: Any) -> Any:
            if isinstance(given, torch.nn.Module) or not callable(given):
                return given

            @functools.wraps(given)
            def body(*inner_args: Any, **inner_kwargs: Any) -> Any:
                if is_being_traced():
                    return given(*inner_args, **inner_kwargs)
                with self._watching(body_name(given)) as gave:
                    recorder.add_slices(operands, (inner_args, inner_kwargs))
                    result = given(*inner_args, **inner_kwargs)
                    gave(result)
                return result

            # A `partial` has no name for `wraps` to take over; the graph prints it.
            body.__qualname__ = getattr(given, "__qualname__", body_name(given))
            return body

        return tuple(map(shown, args)), {key: shown(given) for key, given in kwargs.items()}

    @contextmanager
    def _watching(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Watch a block again, though the operator that runs it has put the modes aside."""
        functions = self._functions
        with ExitStack() as stack:
            gave = stack.enter_context(self.recorder.function(name))
            stack.enter_context(KernelMode(self.recorder, functions))
            if functions.inside:
                functions.inside = False
                stack.callback(setattr, functions, "inside", True)
                stack.enter_context(functions.again())
            elif self._log is not None and not self._log.in_body:
                self._log.in_body = True
                stack.callback(setattr, self._log, "in_body", False)
            yield gave


def modes_of(
    recorder: Recorder, log: CallLog | None = None, *, stand_ins: StandIns | None = None
) -> tuple[KernelMode, OperationMode]:
    """Return the modes that tell a recorder of what a thread runs, in the order to enter them.

    Args:
        recorder: The recorder.
        log: Where each call is noted; None for nowhere.
        stand_ins: What functions are given in place of the model's tensors; None for nothing.
    """
    operations: OperationMode
    if stand_ins is None:
        operations = OperationMode(recorder, log)
    else:
        operations = FakedOperationMode(recorder, stand_ins)
    recorder.functions = functools.partial(operations.again, logs=True)
    return KernelMode(recorder, operations, log), operations
