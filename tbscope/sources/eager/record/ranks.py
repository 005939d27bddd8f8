"""Ranks: the communication of a run with the other processes of a distributed program.

A kernel that communicates reports its inputs and outputs, torch's process groups report the ranks.
An asynchronous collective is over once Python waits for it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any
from weakref import ref

import torch

from tbscope.ir.graph import Node
from tbscope.sources.eager.record.operation import KernelRun
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.distributed import (
    Groups,
    is_blocking,
    is_bookkeeping_file,
    is_boxed_work,
    is_dtensor,
    is_of_c10d,
    is_wait,
)
from tbscope.sources.torch.module_names import Registry
from tbscope.sources.torch.operations import KernelInfo
from tbscope.sources.torch.subclasses import inner_tensors

# Parts of the names of torch's functions that make tensors only to communicate them.
_OF_ITS_OWN = ("object", "barrier")


class Ranks:
    """The collectives of one run, and the tensors that they fill.

    Args:
        values: The values of tensors.
        registry: The modules and their tensors.

    Attributes:
        groups: The process groups seen so far.
        begun: The asynchronous collectives that still run: the boxed work object that the kernel
            returned to wait for it, the node, and weak references to the tensors that it fills.
    """

    def __init__(self, values: TensorValues, registry: Registry) -> None:
        def meshes() -> Iterator[Any]:
            # The meshes of the parameters and buffers of the run.
            for tensor in registry.tensors():
                if is_dtensor(type(tensor)):
                    yield getattr(tensor, "device_mesh")  # noqa: B009 (a subclass has it)

        self.groups = Groups(meshes)
        self._values = values
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self.begun: list[tuple[Any, Node, list[ref[torch.Tensor]]]] = []

    def join(self, node: Node, joined: Sequence[KernelRun], written: list[torch.Tensor]) -> None:
        """Describe the communication of a node's kernels in `node.collective`.

        Args:
            node: The node, with its outputs.
            joined: The kernels that have communicated; several are described as one, with the
                first one's kind.
            written: The tensors that the kernels have filled.
        """
        collectives = []
        for facts, args, kwargs, result, _ in joined:
            assert facts.exchange is not None, "it has communicated"
            kernel = facts.kernel
            collective = facts.exchange.collective(kernel, args, kwargs, result, groups=self.groups)
            key: tuple[Any, ...] = (collective.group, collective.ranks)
            if collective.kind in ("send", "recv"):
                key = (*key, collective.kind, collective.peer)
            # Collectives are numbered within their group, point-to-point ones for each peer.
            collectives.append(replace(collective, sequence=self._counts[key]))
            self._counts[key] += 1
            work = result[-1] if isinstance(result, tuple) and result else result
            if isinstance(work, torch.ScriptObject) and not is_blocking(kernel, args, kwargs):
                self.begun.append((work, node, list(map(ref, written))))
        node.collective = collectives[0]
        if len(collectives) > 1:
            node.collective = replace(
                collectives[0],
                input_bytes=sum(collective.input_bytes for collective in collectives),
                output_bytes=sum(collective.output_bytes for collective in collectives),
                tensors=len(collectives),
            )

    def awaited(self, work: object, frame: FrameType) -> list[torch.Tensor]:
        """Record that Python has waited for an asynchronous collective.

        Args:
            work: The work object.
            frame: The Python frame that waits.
        Returns:
            The tensors that are filled by then; an empty list if the graph needs no node for the
                wait.
        """
        boxed = (is_boxed_work(entry[0], work) for entry in self.begun)
        # By its index: torch raises where boxed work objects are compared.
        index = next((index for index, is_it in enumerate(boxed) if is_it), None)
        if index is None:
            return []
        _, node, tensors = self.begun.pop(index)
        if node.collective is None or is_of_c10d(frame.f_code.co_filename):
            # The wait is part of a blocking call, and needs no node.
            return []
        node.collective = replace(node.collective, asynchronous=True)
        filled = [tensor for reference in tensors if (tensor := reference()) is not None]
        find = self._values.find
        return [each for each in filled if (value := find(each)) and value.producer is node]

    def take_over(
        self,
        facts: KernelInfo,
        outer: tuple[object, ...],
        args: tuple[object, ...],
        node: Node | None,
    ) -> bool:
        """Make the result of a wait the value of the tensors that wrap the tensor waited for.

        Args:
            facts: A kernel that ran inside of another kernel.
            outer: The arguments of the other kernel.
            args: Its own arguments.
            node: Its node.
        Returns:
            Whether any argument of the other kernel wraps the tensor.
        """
        if node is None or not is_wait(facts.name):
            return False
        wrapping = [
            tensor
            for tensor in collect_tensors(outer, [])
            if type(tensor) is not torch.Tensor
            and any(part is args[0] for _, part in inner_tensors(tensor))
        ]
        for tensor in wrapping:
            self._values.table.set_value(tensor, node.outputs[0])
        return bool(wrapping)


def is_bookkeeping(frame: FrameType | None) -> bool:
    """Whether torch communicates on its own behalf in this frame: to pickle an object, say."""
    if frame is None:
        return False
    code = frame.f_code
    if is_bookkeeping_file(code.co_filename):
        return True
    return any(map(code.co_qualname.__contains__, _OF_ITS_OWN)) and is_of_c10d(code.co_filename)
