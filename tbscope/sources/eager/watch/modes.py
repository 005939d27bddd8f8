"""The two modes that watch torch: operations as the user wrote them, and their kernels.

`OperationMode` sees each torch function before it runs, `KernelMode` below it each
ATen kernel. Both hand everything on unchanged.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tbscope.sources.eager.record.bodies import KernelRun
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.call_log import NO_RESULT, CallLog
from tbscope.sources.torch.formulas import Formula
from tbscope.sources.torch.internals import DispatchMode, is_being_traced
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.operation_arguments import add_signature
from tbscope.sources.torch.operations import KernelFacts, body_name, kernel_facts, operation_name

__all__ = ["KernelMode", "OperationMode"]

_NO_KEYWORDS: dict[str, Any] = {}


class OperationMode(TorchFunctionMode):
    """Tells a recorder of each torch function that the watched code calls.

    Args:
        recorder: Whom it tells.
        log: Where each call is noted; None where nobody asks.

    Attributes:
        inside: Whether one runs now, so that torch has put the mode aside.
    """

    def __init__(self, recorder: Recorder, log: CallLog | None = None) -> None:
        super().__init__()
        self.inside = False
        self._recorder = recorder
        self._log = log
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
        kernels: list[str] = []
        recorder.kernels = kernels
        if recorder.runs is not None:
            recorder.runs = []
        self.inside = True
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            recorder.fail_operation(self._name(func), args, kwargs, error, sys._getframe(1))
            raise
        finally:
            recorder.kernels = None
            self.inside = False
        kind = type(result)
        if kind in NO_RESULT and not recorder.written:
            # Sizes, dtypes and flags are asked for at every turn; few of these are contents.
            if kernels:
                recorder.forget_work()
                if args:
                    recorder.add_read(self._name(func), args[0], sys._getframe(1))
            return result
        node = None
        if result is not None or kernels:
            name = self._name(func)
            node = recorder.add_operation(name, args, kwargs, result, kernels, sys._getframe(1))
        if self._log is not None and kind not in NO_RESULT:
            self._log.add(func, node)
        return result

    def _name(self, func: Callable[..., Any]) -> str:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = operation_name(func)
            add_signature(self._recorder.graph.signatures, name, func)
        return name


class KernelMode(DispatchMode):  # type: ignore[no-untyped-call]
    """Tells a recorder of each ATen kernel, and of what it is about to write into.

    Args:
        recorder: Whom it tells.
        operations: The mode that sees the functions around kernels.
        log: Where each kernel that no function is around is noted; None where nobody asks.
    """

    def __init__(
        self, recorder: Recorder, operations: OperationMode, log: CallLog | None = None
    ) -> None:
        super().__init__()
        self._recorder = recorder
        self._operations = operations
        self._log = log

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
        facts = kernel_facts(func)
        if recorder.paused or facts.query:
            return func(*args, **kwargs)
        if facts.writes:
            recorder.will_write(facts, args, kwargs)
        kernels = recorder.kernels
        if facts.higher_order:
            args, kwargs = self._show_bodies(args, kwargs)
        formula = recorder.formulas[facts]
        if kernels is not None:
            kernels.append(facts.name)
            runs = recorder.runs
            copies = recorder.copies
            if formula is None and runs is None and not (facts.copies or copies):
                return func(*args, **kwargs)
            result = func(*args, **kwargs)
            if facts.copies:
                copies.add(args[0], result)
            elif copies and facts.makes_tensor:
                copies.forget(result)
            if formula is not None:
                self._add_work(formula, facts, args, kwargs, result)
            if runs is not None:
                runs.append(KernelRun(facts, args, kwargs, result, self._flops(facts)))
            return result
        # No torch function is around it: the kernel is itself the operation.
        recorder.kernels = []
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            recorder.fail_operation(facts.label, args, kwargs, error, sys._getframe(1))
            raise
        finally:
            recorder.kernels = None
        if formula is not None:
            self._add_work(formula, facts, args, kwargs, result)
        node = recorder.add_kernel(facts, args, kwargs, result, sys._getframe(1))
        if self._log is not None:
            self._log.add(facts.name, node)
        return result

    def _add_work(
        self,
        formula: Formula,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        recorder = self._recorder
        try:
            work = formula(args, kwargs, result)
        except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
            recorder.formulas.fail(facts, error)
            return
        recorder.work.append(recorder.copies.trace(work) if recorder.copies else work)

    def _flops(self, facts: KernelFacts) -> int | None:
        """Give what the latest kernel has computed; None where no formula tells."""
        recorder = self._recorder
        if facts.name in recorder.formulas.uncounted:
            return None
        return recorder.work[-1][0] if recorder.formulas[facts] is not None else 0

    def _show_bodies(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Have the functions that an operator is given (`cond`, `scan`) watched as they run."""
        recorder = self._recorder
        operands = collect_tensors((args, kwargs), [])

        def shown(given: Any) -> Any:
            if isinstance(given, torch.nn.Module) or not callable(given):
                return given

            @functools.wraps(given)
            def body(*inner_args: Any, **inner_kwargs: Any) -> Any:
                if is_being_traced():
                    return given(*inner_args, **inner_kwargs)
                with self._watching_body(body_name(given)):
                    recorder.enter_body(operands, (inner_args, inner_kwargs))
                    result = given(*inner_args, **inner_kwargs)
                    recorder.leave_body(result)
                return result

            return body

        return tuple(map(shown, args)), {key: shown(given) for key, given in kwargs.items()}

    @contextmanager
    def _watching_body(self, name: str) -> Iterator[None]:
        """Watch a block again, though the operator that runs it has put the modes aside."""
        operations = self._operations
        with ExitStack() as stack:
            stack.enter_context(self._recorder.body(name))
            stack.enter_context(KernelMode(self._recorder, operations))
            if operations.inside:
                operations.inside = False
                stack.callback(setattr, operations, "inside", True)
                stack.enter_context(OperationMode(self._recorder))
            elif self._log is not None and not self._log.in_body:
                self._log.in_body = True
                stack.callback(setattr, self._log, "in_body", False)
            yield
