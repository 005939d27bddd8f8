"""What a recorder knows of other ranks: collectives, and the tensors that are spread over ranks."""

from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.record.collectives import Collectives
from tbscope.sources.eager.record.operation import Joined, Operation, Operations
from tbscope.sources.eager.record.serving import settle
from tbscope.sources.eager.record.steps import StepRecorder
from tbscope.sources.torch.communication import SAME, exchange_of, is_wait
from tbscope.sources.torch.internals import map_tensors, without_functions
from tbscope.sources.torch.literals import FILLED, collect_tensors
from tbscope.sources.torch.operations import LOOPS, KernelFacts
from tbscope.sources.torch.ranks import (
    is_distributed,
    is_of_c10d,
    is_of_meshes,
    is_spread,
    world_size,
)
from tbscope.sources.torch.registry import Registry
from tbscope.sources.torch.wrapping import held_tensors

__all__ = ["RankRecorder"]


# Parts of the names of torch's functions that make tensors to have something to hand in.
_OF_ITS_OWN = ("object", "barrier")


class RankRecorder(StepRecorder):
    """Knows what the operations of one run do together with other ranks.

    Args:
        builder: The door to the graph.
        operations: The operation that runs, and those around it.
        open_ended: Whether an unknown tensor is an input where no module runs.

    Attributes:
        distributed: Whether this is a process of a distributed run.
        collectives: Its collectives.
    """

    def __init__(self, builder: GraphBuilder, operations: Operations, *, open_ended: bool) -> None:
        super().__init__(builder, operations, open_ended=open_ended)
        self.distributed = is_distributed()
        # Not of the recorder itself: with a way back it would be garbage for the collector alone.
        self.collectives = Collectives(builder, self._values, partial(_meshes_of, self.registry))
        builder.graph.world_size = world_size()

    def _tell_of_ranks(self) -> None:
        """Have the graph tell of its mesh, once the run is over."""
        if self.distributed:
            self.graph.mesh = self.collectives.groups.mesh()
            settle(self.graph)
        self.collectives.forget()

    def waited(self, work: Any, frame: FrameType) -> None:
        """Take note that a Python frame has waited for what runs in the background."""
        if not self.paused:
            with without_functions():
                self.collectives.waited(work, frame, self._place_of_wait)

    def _place_of_wait(
        self, frame: FrameType, read: list[torch.Tensor], values: list[Value]
    ) -> Any:
        """Return the scope, the source, the run and the step of a wait: where an operation stands.

        Args:
            frame: The Python frame that waits.
            read: The tensors that it waits for.
            values: Their values.
        """
        place = self._where.of_operation(frame)
        scope, source, run, step = place
        if self.backward is not None and self.backward.passes:
            self.backward.begin(frame)
            scope, run, step = self.backward.place(scope, values), None, 0
        if self.optimizers is not None:
            scope = self.optimizers.place(scope, (place, frame), read, values)
        return scope, source, run, step

    def is_bookkeeping(self, frame: FrameType | None) -> bool:
        """Tell whether torch calls for itself in this frame: to pack an object, say."""
        if not self.distributed or frame is None:
            return False
        code = frame.f_code
        if is_of_meshes(code.co_filename):
            return True
        return any(map(code.co_qualname.__contains__, _OF_ITS_OWN)) and is_of_c10d(code.co_filename)

    def _told_by_exchange(
        self, facts: KernelFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, tuple[Any, ...]]:
        """Return what a kernel that communicates is called, and what of its arguments is told."""
        assert facts.exchange is not None
        return facts.exchange.kind, facts.exchange.tensors(facts.kernel, args, kwargs)

    def _read_inner(
        self, name: str, operation: Operation, read: list[torch.Tensor], values: list[Value]
    ) -> None:
        """Make an operation read what ran inside of it by itself, and nothing took up again.

        These are the results of its functions, what ranks have told each other for it, and the
        parameters and buffers of modules that it has called.
        """
        read += operation.fed
        values += map(self.value_of, operation.fed)
        if not operation.given:
            return
        taken = {value for node in self.graph.nodes for value in node.inputs}
        if name in LOOPS:
            taken.update(self._deciding(operation, taken))
        for tensor in operation.given:
            value = self.value_of(tensor)
            if value not in taken:
                taken.add(value)
                read.append(tensor)
                values.append(value)

    def _deciding(self, operation: Operation, taken: set[Value]) -> Iterator[Value]:
        """Have each turn of a loop wait for the condition that let it run; yield the conditions.

        Args:
            operation: The loop.
            taken: The values that something reads.
        """
        # The function that decides runs first, and then by turns with the other one.
        conditions, turns = operation.turns[::2], operation.turns[1::2]
        for (_, results), (first, _) in zip(conditions, turns, strict=False):
            waiting = next((node for node in self.graph.nodes[first:] if node.kind == "op"), None)
            for value in map(self.value_of, results):
                if waiting is not None and value not in taken:
                    waiting.control_inputs.append(value.producer)
                    yield value

    def _without_filled(
        self, joined: Sequence[Joined], given: tuple[Any, ...], filled: list[torch.Tensor]
    ) -> Any:
        """Return arguments without the tensors that nobody has seen, and that are only filled.

        Args:
            joined: What the operation has done together with others.
            given: Its arguments.
            filled: Takes the tensors that are left out.
        """
        for exchange, kernel, args, kwargs, _ in joined:
            if exchange.taken != exchange.given:
                taken = exchange.tensors(kernel, args, kwargs)[-1 if exchange.taken else 1 :]
                unseen = [
                    each
                    for each in collect_tensors(taken, [])
                    if not self._discovery.is_known(each)
                ]
                filled += unseen
        if not filled:
            return given
        left = {id(tensor) for tensor in filled}
        return map_tensors(lambda each: FILLED if id(each) in left else each, given)

    def _tell_in_body(self, node: Node) -> None:
        """Have the kernel that communicates, among those of a node, tell so too."""
        for kernel in () if node.body is None else node.body.nodes:
            if any(map(exchange_of, kernel.kernels)):
                kernel.collective = node.collective

    def _is_the_same(self, kernels: list[str], args: tuple[Any, ...], result: Any) -> bool:
        """Tell whether an operation gave what it was given; that holds the same value then."""
        if kernels != SAME or not isinstance(result, torch.Tensor):
            return False
        self._values.hold(result, self.value_of(args[0]))
        return True

    def _know_handed_in(self, joined: Sequence[Joined]) -> None:
        """Make known the tensors that are handed in and that nobody has seen, by their memory.

        torch collects gradients in a tensor of its own, of which each is a view.
        """
        for exchange, kernel, args, kwargs, _ in joined:
            for tensor in collect_tensors(exchange.tensors(kernel, args, kwargs)[:1], []):
                if not self._discovery.is_known(tensor):
                    self._discovery.add_bucket(tensor)

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor holds a value, or is a parameter or buffer of a module."""
        return self._discovery.is_known(tensor)

    def took_over(
        self, facts: KernelFacts, outer: tuple[Any, ...], args: tuple[Any, ...], node: Node | None
    ) -> bool:
        """Have those that hold what was waited for hold what the wait gave.

        Args:
            facts: A kernel that ran inside of another one.
            outer: The arguments of the other one.
            args: Its own arguments.
            node: Its node.
        Returns:
            Whether any of the arguments of the other one holds it.
        """
        if node is None or not is_wait(facts.name):
            return False
        found = False
        for tensor in collect_tensors(outer, []):
            if type(tensor) is not torch.Tensor and any(
                part is args[0] for _, part in held_tensors(tensor)
            ):
                self._values.hold_whole(tensor, node.outputs[0])
                found = True
        return found


def _meshes_of(registry: Registry) -> Iterator[Any]:
    """Return the device meshes that the parameters and buffers of a run lie on."""
    for tensor in registry.tensors():
        if is_spread(type(tensor)):
            yield getattr(tensor, "device_mesh")  # noqa: B009 (a subclass has it)
