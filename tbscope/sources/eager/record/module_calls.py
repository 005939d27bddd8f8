"""Module calls, the scopes that a script opens, and the functions that operators call.

Each module call opens a scope; its arguments and results become pytrees of values. A call without
nodes of its own gets a node, so that each call is drawn.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import CoroutineType, FrameType
from typing import Any

import torch

from tbscope.ir.graph import Call, Node
from tbscope.sources.eager.record.dataflow import Dataflow, argument
from tbscope.sources.eager.record.scope_stack import RESUMED, Failures, Frame, Resumed, is_empty
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.calling.signatures import bound_arguments
from tbscope.sources.torch.compat.modules import ScriptModule, has_stale_call, prepares_lazily
from tbscope.sources.torch.compat.tensors import STOP_RECOMPUTATION


class ModuleCalls:
    """The module calls of one run.

    Args:
        flow: The operations of the run.
        suspend: Returns a block in which nothing is recorded.

    Attributes:
        modules: The module of each call of the graph.
        failed: The calls that the latest errors left.
    """

    def __init__(self, flow: Dataflow, suspend: Callable[[], AbstractContextManager[None]]) -> None:
        self.modules: list[torch.nn.Module] = []
        self.failed = Failures[Frame]()
        # The numbers of the parameters in whose place other tensors were used.
        self._replaced: set[int] = set()
        # The node that frees memory in the running step of a sharded module, if any.
        self._freed: list[Node] = []
        self._flow, self._scopes, self._suspend = flow, flow.scopes, suspend
        self._graph, self._builder = flow.graph, flow.builder

    def forget(self) -> None:
        """Release all modules after the run."""
        self.modules.clear()
        self._suspend = nullcontext

    # -- calls ----------------------------------------------------------------------------

    def enter_call(
        self,
        module: torch.nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        caller: FrameType,
    ) -> Frame | None:
        """Open the scope of a module call; return the frame that `leave_call` closes.

        Return None for a wrapper that has no scope of its own, and for a call inside of an
        operation (a hook in `torch.autograd.grad`, a custom operator): that call is part of the
        operation.
        """
        flow, scopes = self._flow, self._scopes
        running = flow.operations.running
        if running is not None:
            entry_of_tensor = scopes.registry.tensor
            tensors = *module.parameters(recurse=False), *module.buffers(recurse=False)
            running.feed(tensor for tensor in tensors if entry_of_tensor(tensor) is not None)
            return None
        entry = scopes.entry_of(module)
        if entry.wrapper is module:
            if not has_stale_call(module):
                return None
            module = entry.module
        if entry.lazy:
            self._suspend_lazy_hooks(module)
        source, run, step = flow.where.of_call(caller)
        calling, path = None, ""
        if entry.parent is not scopes.running.entry:
            calling, path = flow.where.caller_of(entry, caller)
        forward = module.forward
        names, bound = bound_arguments(forward, args, kwargs)
        if flow.sources.open_ended and scopes.at_top:
            if flow.training is not None:
                around = None if entry.parent is None else scopes.container(entry.parent)
                unseen = flow.training.backward.add_unseen_arguments
                unseen((args, kwargs), around, flow.sources.value_of)
            flow.sources.add_unknown(list(zip(names, bound, strict=True)))
        scope = scopes.call_scope(entry)
        arguments = list(map(argument, zip(names, flow.nests(bound), strict=True)))
        call = Call(
            scope=scope,
            class_name=entry.label,
            qualified_name=entry.qualified_name,
            arguments=arguments,
            # A frozen scripted module has no mode, and behaves as in evaluation.
            training=getattr(module, "training", False),
            source=source,
            run=run,
            step=step,
            caller=calling,
            called_as=path,
        )
        self._graph.calls.append(call)
        self.modules.append(module)
        begun, first = self._builder.operations, len(self._graph.nodes)
        code = getattr(forward, "__code__", None)
        frame = Frame(scope, scope, entry, call, source, begun, first, code)
        if isinstance(module, ScriptModule):
            flow.operations.scripted = True
        scopes.open_call(frame)
        return frame

    def _suspend_lazy_hooks(self, module: torch.nn.Module) -> None:
        """Suspend recording while a lazy module makes its parameters: this computes nothing."""
        hooks = module._forward_pre_hooks
        for key, hook in hooks.items():
            if prepares_lazily(hook):
                # Once it has run, the hook removes its entry, and with it this replacement.
                hooks[key] = partial(self._call_suspended, hook)

    def _call_suspended(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function while recording is suspended."""
        with self._suspend():
            return function(*args)

    def leave_call(
        self, frame: Frame, args: tuple[object, ...], kwargs: dict[str, Any], result: object
    ) -> Any:
        """Close a module call that returned; return the object that its caller receives.

        If the result is a lazy iterator or a coroutine, code of forward has yet to run: the call
        then continues at each step of the result (`Resumed`).
        """
        arguments, call = (args, kwargs), frame.call
        assert call is not None
        if type(result) not in RESUMED:
            try:
                self._check_end(frame, arguments, result)
            finally:
                self._scopes.close_call(frame)
            (call.results,) = self._flow.nests((result,))
            return result
        self._scopes.close_call(frame)
        call.results = entries = []

        def ends(value: object) -> None:
            self._check_end(frame, arguments, value)
            if type(result) is CoroutineType:
                call.results = self._flow.nest(value)

        return Resumed(
            self._scopes,
            frame,
            failed=self.failed.add,
            yields=lambda entry: entries.append(self._flow.nest(entry)),
            ends=ends,
        ).wrap(result)

    def _check_end(self, frame: Frame, arguments: object, result: object) -> None:
        """Complete a module call that is about to end: a call without nodes gets a node.

        Args:
            frame: The call.
            arguments: A pytree of its arguments.
            result: Its return value.
        Raises:
            ScopeError: A scope of the user is still open in the call.
        """
        if frame.blocks:
            self._scopes.check_closed(frame)
        flow = self._flow
        flow.take_out(result)
        if self._builder.operations != frame.begun and not is_empty(self._graph, frame):
            return
        # The call was an identity, whose inputs are its outputs, or it returned no tensor.
        read, returned = collect_tensors(arguments, []), collect_tensors(result, [])
        tensors = returned or read
        values = [flow.value_of(tensor) for tensor in tensors]
        assert frame.entry is not None
        inputs = [*dict.fromkeys(values)]
        node = flow.values.append(frame.entry.label, frame.scope, inputs, frame.source)
        node.control_inputs = flow.values.earlier_writers(tensors, values)
        for tensor in {id(tensor): tensor for tensor in returned}.values():
            flow.values.give(node, flow.sources.stand_in(tensor))

    def fail_call(self, frame: Frame, error: BaseException) -> None:
        """Close a module call that raised; remember the innermost call of each error."""
        # A checkpoint raises an error to end its recomputation: kept, it would keep all tensors.
        if not isinstance(error, STOP_RECOMPUTATION):
            self.failed.add(error, frame)
        self._scopes.close_call(frame)

    # -- scopes ---------------------------------------------------------------------------

    def close_scope(self, name: str | None, *, failed: bool = False, result: object = None) -> None:
        """Close the innermost scope of the user; after a failure also scopes left open in it.

        Args:
            name: Its name; None for any name.
            failed: Whether a failure ends it.
            result: The result of the function that the scope contains, if it contains one.
        """
        self._flow.take_out(result)
        self._scopes.close_block(name, failed=failed)

    @contextmanager
    def function(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Record the run of a function that is an operation's argument, in a scope of its own.

        Args:
            name: The name of the function.
        Returns:
            A callable that takes the result of the function.
        """
        with self._flow.operations.function(len(self._graph.nodes)) as take_result:
            self._scopes.open_block(name)
            failed = True
            try:
                yield take_result
                failed = False
            finally:
                self._scopes.close_block(name, failed=failed)

    @contextmanager
    def shard_step(self, module: torch.nn.Module | None, name: str) -> Iterator[None]:
        """Record a step of a sharded module in a box beside the children of the module.

        The module may run later (its parameters are gathered early), or have run before.

        Args:
            module: The module; None if it is unknown.
            name: The name of the box: `gather`, `free` or `reduce_scatter`.
        """
        flow, scopes = self._flow, self._scopes
        entry = None if module is None else scopes.registry.module(module)
        training = flow.training
        if flow.operations.running is not None or entry is None:
            yield
            return
        call, parent = scopes.call_of(entry), None
        if call is not None:
            parent = call.inner
        elif training is not None:
            parent = training.backward.mirror_of(entry, after=name != "gather")
        parent = parent or scopes.container(entry, again=True)
        box, before = scopes.box(parent, name), self._freed
        freed = self._freed = []
        frame = Frame(box, box, source=scopes.running.source, begun=self._builder.operations)
        scopes.open_call(frame)
        try:
            yield
        finally:
            scopes.close_call(frame)
            if freed and self._builder.operations == frame.begun + 1:
                # A box around a single node would only hide it.
                freed[0].scope = parent
            self._freed = before

    def add_free(self, storage: torch.UntypedStorage) -> None:
        """Record that a step of a sharded module frees the memory of a tensor."""
        running, tensors = self._scopes.running, self._flow.values
        values = tensors.writes.values_in(storage)
        # Only the frame of a step has a scope without a module.
        if running.scope is None or running.entry is not None or not values:
            return
        if not self._freed:
            self._freed.append(tensors.append("free", running.scope, [], running.source))
        node = self._freed[0]
        node.phase = running.scope.phase
        node.inputs += values
        node.arguments += [argument((None, value)) for value in values]

    # -- replaced tensors -----------------------------------------------------------------

    @contextmanager
    def replacing(self, module: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
        """Replace tensors of a module and its parts by other tensors, for a block.

        The module is registered now, with its own tensors, though it is called in the block.

        Args:
            module: The module.
            names: The names of the replaced parameters and buffers, as in `named_parameters()`.
        """
        registry, replaced = self._scopes.registry, self._flow.sources.replaced
        entry = self._scopes.entry_of(module)
        replaced.append(entry)
        tensors = dict(module.named_parameters(remove_duplicate=False))
        for name in tensors.keys() & set(names):
            tensor_entry = registry.tensor(tensors[name])
            if tensor_entry is not None:
                self._replaced.add(tensor_entry.number)
        try:
            yield
        finally:
            replaced.remove(entry)

    def replaced_parameters(self) -> set[int]:
        """Return the numbers of the parameters in whose place other tensors were used."""
        registry, values = self._scopes.registry, self._flow.values
        tensors = registry.tensors() if values.table.any_composed else ()
        used = [registry.tensor(each) for each in tensors if values.find(each)]
        return self._replaced.union(entry.number for entry in used if entry is not None)
