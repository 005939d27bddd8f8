"""Collectives: what the operations of a run do together with other ranks, and who waits for them.

A kernel that communicates tells what it hands in and what it gets; torch's groups tell with
whom. What runs on in the background is over where Python waits for it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.facts import Collective
from tbscope.ir.graph import Argument, Node, Value
from tbscope.sources.eager.record.operation import Joined
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.communication import is_blocking
from tbscope.sources.torch.ranks import Groups, is_of_c10d, same_work

__all__ = ["Collectives"]

_ONE_TO_ONE = frozenset({"send", "recv"})


class _Begun:
    """A collective that runs on while Python goes on.

    Attributes:
        work: What a kernel gave to wait for it, in a box.
        node: Its node.
        tensors: What it fills, weakly.
    """

    __slots__ = ("node", "tensors", "work")

    def __init__(self, work: Any, node: Node, tensors: Sequence[torch.Tensor]) -> None:
        self.work = work
        self.node = node
        self.tensors = [ref(tensor) for tensor in tensors]


class Collectives:
    """Knows the collectives of one run.

    Args:
        builder: The door to the graph.
        values: The values that tensors hold.
        meshes: Returns the device meshes that the tensors of the run lie on.

    Attributes:
        groups: The process groups that were met.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        values: TensorValues,
        meshes: Callable[[], Iterable[Any]],
    ) -> None:
        self.groups = Groups(meshes)
        self._builder = builder
        self._values = values
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._begun: list[_Begun] = []

    def told_by(self, joined: Joined) -> Collective:
        """Return what a kernel has done, numbered on in its group."""
        exchange, kernel, args, kwargs, result = joined
        told = exchange.collective(kernel, args, kwargs, result, groups=self.groups)
        key: tuple[Any, ...] = (told.group, told.ranks)
        if told.kind in _ONE_TO_ONE:
            key = (*key, told.kind, told.peer)
        number = self._counts[key]
        self._counts[key] += 1
        return replace(told, sequence=number)

    def join(self, node: Node, joined: Sequence[Joined], written: list[torch.Tensor]) -> None:
        """Have a node tell what its kernels have done together with others.

        Args:
            node: The node, with its outputs.
            joined: What they have done; of several, those of one kind are told as one.
            written: The tensors that they have filled.
        """
        told = [self.told_by(one) for one in joined]
        node.collective = _merged(told)
        for one in joined:
            work = None if is_blocking(*one[1:4]) else _work_of(one.result)
            if work is not None:
                self._begun.append(_Begun(work, node, written))

    def waited(
        self,
        work: Any,
        frame: FrameType,
        where: Callable[[FrameType, list[torch.Tensor], list[Value]], Any],
    ) -> None:
        """Take note that Python has waited for what runs in the background.

        Args:
            work: What it has waited for.
            frame: The Python frame that waits.
            where: Returns the scope, the source, the run and the step of a wait in a frame, for
                tensors and their values.
        """
        begun = next((one for one in self._begun if same_work(one.work, work)), None)
        if begun is None:
            return
        self._begun.remove(begun)
        code, outer = frame.f_code, frame.f_back
        if code.co_name == "wait" and outer is not None and is_of_c10d(code.co_filename):
            # What holds several works (a coalescing manager) waits for each.
            frame = outer
        if is_of_c10d(frame.f_code.co_filename):
            # A blocking call waits for itself.
            return
        node = begun.node
        if node.collective is not None:
            node.collective = replace(node.collective, asynchronous=True)
        filled = [tensor for held in begun.tensors if (tensor := held()) is not None]
        read: list[torch.Tensor] = []
        values: list[Value] = []
        for tensor in filled:
            value = self._values.find(tensor)
            if value is not None and value.producer is node:
                read.append(tensor)
                values.append(value)
        if values:
            self._add_wait(read, values, where(frame, read, values))

    def _add_wait(self, read: list[torch.Tensor], values: list[Value], place: Any) -> None:
        scope, source, run, step = place
        arguments = [Argument(None, value) for value in values]
        node = self._builder.append_op("wait", scope, values, arguments, [], source, [])
        node.run, node.step = run, step
        if scope is not None:
            node.phase = scope.phase
        node.writes = tuple(range(len(values)))
        self._values.give_written(node, read, [], read)

    def forget(self) -> None:
        """Let go of what still runs, once the run is over."""
        self._begun.clear()


def _merged(told: Sequence[Collective]) -> Collective:
    """Return several collectives of one node as one: the bytes and tensors of all."""
    first = told[0]
    if len(told) == 1:
        return first
    return replace(
        first,
        input_bytes=sum(one.input_bytes for one in told),
        output_bytes=sum(one.output_bytes for one in told),
        tensors=len(told),
    )


def _work_of(result: Any) -> Any:
    """Return what a kernel gave to wait for it; None where it gave nothing such."""
    last = result[-1] if isinstance(result, tuple) and result else result
    return last if isinstance(last, torch.ScriptObject) else None
