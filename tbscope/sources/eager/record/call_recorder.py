"""What a recorder knows of module calls, scopes by hand, and functions that operations run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Call
from tbscope.sources.eager.record.failures import Failures
from tbscope.sources.eager.record.lazy import look_away
from tbscope.sources.eager.record.leaving import leave, leave_unfinished
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.eager.record.rank_recorder import RankRecorder
from tbscope.sources.eager.record.resumed import RESUMED
from tbscope.sources.eager.record.scope_stack import Frame
from tbscope.sources.eager.record.whereabouts import Whereabouts
from tbscope.sources.torch.module_internals import ScriptModule, calls_unseen
from tbscope.sources.torch.signatures import Arrangements

__all__ = ["CallRecorder"]

# As `Argument(name, nest)`, in a third of the time.
_argument = partial(tuple.__new__, Argument)


class CallRecorder(RankRecorder):
    """Knows the module calls of one run.

    Args:
        builder: The door to the graph.
        operations: The operation that runs, and those around it.
        open_ended: Whether the run is a region of code rather than one call.
        boundary: The function that wraps each module call (see `Locator`).

    Attributes:
        failures: The operation and the module call in which the latest error arose.
        modules_called: The module of each call of the graph.
        scripted: Whether a scripted module was called, which may run in several threads.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        operations: Operations,
        *,
        open_ended: bool,
        boundary: Callable[..., Any],
    ) -> None:
        super().__init__(builder, operations, open_ended=open_ended)
        self.failures = Failures()
        self.modules_called: list[torch.nn.Module] = []
        self.scripted = False
        self._open_ended = open_ended
        self._arrangements = Arrangements()
        self._where = Whereabouts(self.scopes, boundary.__code__)

    def open_scope(self, name: str) -> None:
        """Open a scope by hand in the call that runs."""
        if not self.paused:
            self.scopes.open_block(name, by_script=True)

    def close_scope(self, name: str | None, *, failed: bool = False) -> None:
        """Close the innermost scope by hand; after a failure also those left open in it."""
        if not self.paused:
            self.scopes.close_block(name, failed=failed)

    def enter_call(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: FrameType,
    ) -> Frame | None:
        """Open the scope of a module call; return the frame that `leave_call` closes.

        None for a wrapper that has no scope of its own, and for what runs inside of an operation
        (a hook in `torch.autograd.grad`, an operator of the user's own): that is part of it.
        """
        scopes = self.scopes
        if self.operations.running is not None:
            known = scopes.registry.tensor
            held = *module.parameters(recurse=False), *module.buffers(recurse=False)
            self.operations.running.feed(tensor for tensor in held if known(tensor) is not None)
            return None
        place = scopes.place_of(module)
        if place.wrapper is module:
            if not calls_unseen(module):
                return None
            module = place.module
        if place.lazy:
            look_away(self, module)
        source, run, step = self._where.of_call(caller)
        calling, path = self._where.caller_of(place, caller)
        forward = module.forward
        names, given = self._arrangements.of(forward, args, kwargs)
        if self._open_ended and scopes.at_top:
            self._discovery.add_unknown(list(zip(names, given, strict=True)))
        nest = self.nest
        scope = scopes.call_scope(place)
        arguments = [
            _argument((name, nest(value))) for name, value in zip(names, given, strict=True)
        ]
        call = Call(
            scope=scope,
            class_name=place.label,
            qualified_name=place.qualified_name,
            arguments=arguments,
            # A scripted module that is frozen has no mode; it does what it does in evaluation.
            training=getattr(module, "training", False),
            source=source,
            run=run,
            step=step,
            caller=calling,
            called_as=path,
        )
        self.graph.calls.append(call)
        self.modules_called.append(module)
        frame = Frame(scope, place, call, source, self.builder.operations)
        frame.first = len(self.graph.nodes)
        frame.forward = getattr(forward, "__code__", None)
        if isinstance(module, ScriptModule):
            self.scripted = True
        scopes.open_call(place, frame)
        return frame

    def leave_call(
        self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """Close a module call that returned; return what its caller gets of it."""
        if type(result) in RESUMED:
            return leave_unfinished(self, frame, (args, kwargs), result)
        leave(self, frame, (args, kwargs), result)
        return result

    def fail_call(self, frame: Frame, error: BaseException) -> None:
        """Close a module call that raised; remember the innermost one of each error."""
        self.failures.left_call(error, frame)
        self.scopes.close_call(frame)

    @contextmanager
    def function(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Record the run of a function that is an operation's argument, in a scope of its own.

        Args:
            name: What the function is called.
        Returns:
            Takes what the function gave.
        """
        with self.operations.function(len(self.graph.nodes)) as gave:
            self.scopes.open_block(name)
            failed = True
            try:
                yield gave
                failed = False
            finally:
                self.scopes.close_block(name, failed=failed)
