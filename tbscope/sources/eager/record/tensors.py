"""What becomes of tensors where no operation is seen.

They stand in for others, show others, are swapped, or go through a module as they are.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument
from tbscope.sources.eager.record.discovery import Discovery
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.fake import StandIns
from tbscope.sources.torch.internals import without_functions
from tbscope.sources.torch.literals import Literals, collect_tensors
from tbscope.sources.torch.wrapping import same_storage

__all__ = ["TensorRecorder", "tell_nobody"]


def tell_nobody(*_: Any) -> None:
    """Take note of nothing."""


class TensorRecorder:
    """Knows the tensors of one run.

    Args:
        builder: The door to the graph.
        open_ended: Whether an unknown tensor is an input where no module runs.

    Attributes:
        builder: The door to the graph.
        graph: What has been recorded so far.
        scopes: The scopes that are open.
        registry: The places of the modules and their tensors.
        paused: Whether it looks away.
        left: Whether it looks away for good, as its thread did not end it.
        turn: Held by the thread that records, where several do.
        value_of: Returns the value that a tensor holds now; a new one if it was never seen.
        nest: Returns a nest with the values of its tensors.
        add_input: Makes a tensor an input of the graph under a path.
        add_hidden_input: Makes it one as soon as something reads it.
        live_results: Returns what operations made, somebody holds, and nothing has read.
        about_to_set: To be told of a tensor that is about to be set by what is no operation.
        about_to_accumulate: To be told that a backward pass is about to add to gradients.
        about_to_step: To be told of an optimizer that is about to make a step.
    """

    def __init__(self, builder: GraphBuilder, *, open_ended: bool) -> None:
        self.builder = builder
        self.graph = builder.graph
        self.scopes = ScopeStack(builder)
        self.registry = self.scopes.registry
        self.paused = self.left = False
        self.turn = threading.RLock()
        self._values = TensorValues(self.graph.nodes)
        self._discovery = Discovery(
            builder, self.scopes, values=self._values, open_ended=open_ended
        )
        self.value_of = self._discovery.value_of
        self.add_input = self._discovery.add_input
        self.add_hidden_input = self._discovery.add_hidden_input
        self.live_results = self._values.unread
        # Told of what changes a tensor and is no operation; nobody, where nothing is put back.
        self.about_to_set: Callable[[torch.Tensor], None] = tell_nobody
        self.about_to_accumulate: Callable[[], None] = tell_nobody
        self.about_to_step: Callable[[torch.optim.Optimizer], None] = tell_nobody
        self._stand_in: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._replaced: set[int] = set()
        self._append_op = builder.append_op
        self.nest = Literals(self.value_of, self._discovery.lying_in).nest

    # -- stand-ins ----------------------------------------------------------------------

    def use(self, stand_ins: StandIns) -> None:
        """Take the stand-ins of tensors for those tensors."""
        self._stand_in = self._discovery.stand_in = stand_ins.of
        for module in self.registry.modules():
            self.add_stand_ins(module, stand_ins)

    def add_stand_ins(self, module: torch.nn.Module, stand_ins: StandIns) -> None:
        """Have stand-ins made for the tensors of one module, and know them."""
        for tensor, twin in stand_ins.add(module):
            self.registry.add_stand_in(tensor, twin)

    @contextmanager
    def others_stand_in(self, module: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
        """Have other tensors stand in for those that a module and its parts hold, for a block.

        The module is met now, with what it holds, though it is called in the block.

        Args:
            module: The module.
            names: Which of its parameters and buffers these are, as in `named_parameters()`.
        """
        with self.turn:
            place = self.scopes.place_of(module)
            self._discovery.replaced.append(place)
            held = dict(module.named_parameters(remove_duplicate=False))
            for name in held.keys() & set(names):
                known = self.registry.tensor(held[name])
                if known is not None:
                    self._replaced.add(known.number)
        try:
            yield
        finally:
            self._discovery.replaced.remove(place)

    def _replaced_parameters(self) -> set[int]:
        """Return the numbers of the parameters in whose place others were used."""
        if not self._values.wrappers.any:
            return self._replaced
        found = set(self._replaced)
        for tensor in self.registry.tensors():
            place = self.registry.tensor(tensor)
            if place is not None and self._values.find(tensor) is not None:
                found.add(place.number)
        return found

    # -- what no operation tells ----------------------------------------------------------

    def add_face(self, face: torch.Tensor, tensor: torch.Tensor) -> None:
        """Take note of a tensor that shows another one by a class of its own."""
        self._discovery.add_face(face, tensor)

    @contextmanager
    def swapping(self, one: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
        """Have two tensors swapped, in a block: after it each is what the other was.

        torch swaps none to which anyone has a weak reference.
        """
        with self.turn:
            value_of = self._values.find if self.paused else self.value_of
            values = value_of(one), value_of(other)
            for tensor in (one, other):
                self._values.wrappers.let_go(tensor)
        swapped = False
        try:
            yield
            swapped = True
        finally:
            tensors = (other, one) if swapped else (one, other)
            for tensor, value in zip(tensors, values, strict=True):
                if value is not None:
                    self._values.wrappers.keep(tensor, value)

    def know(self, result: Any) -> None:
        """Take note of what a function gave, before its scope is closed."""
        if self._values.wrappers.any:
            self._discovery.know(collect_tensors(result, []))

    def _know_places(self, written: list[torch.Tensor]) -> None:
        """Make known the parameters and buffers among tensors that were written into."""
        for tensor in written:
            if self.registry.tensor(tensor) is not None:
                self.value_of(tensor)

    def append_pass_through(self, frame: Frame, read: list[torch.Tensor], given: Any) -> None:
        """Append a node for a module call that reads tensors and gives them back as they are."""
        assert frame.place is not None
        inputs = list(dict.fromkeys(self.value_of(tensor) for tensor in read))
        arguments = [Argument(None, value) for value in inputs]
        node = self._append_op(
            frame.place.label, frame.scope, inputs, arguments, [], frame.source, []
        )
        for tensor in {id(tensor): tensor for tensor in given}.values():
            self._values.give(node, tensor if self._stand_in is None else self._stand_in(tensor))

    def add_slices(self, operands: list[torch.Tensor], given: Any) -> None:
        """Make known the parts of its operands that an operation hands to a function.

        Args:
            operands: The tensors that the operation was given.
            given: What it hands on; the slices among it were cut unseen.
        """
        for tensor in collect_tensors(given, []):
            if not self._discovery.is_known(tensor):
                with without_functions():
                    whole = [one for one in operands if same_storage(one, tensor)] or operands
                values = [self.value_of(one) for one in whole]
                arguments = [Argument(None, value) for value in values]
                scope = self.scopes.running.inner
                node = self._append_op("slice", scope, values, arguments, [], None, [])
                self._values.give(node, tensor)

    def add_output(self, name: str, tensor: torch.Tensor) -> None:
        """Make the value that a tensor holds now an output of the graph under this path."""
        if self._stand_in is not None:
            tensor = self._stand_in(tensor)
        value = self.value_of(tensor)
        writers = self._values.earlier_writers([tensor], [value])
        self.builder.add_output(name, value, control_inputs=writers)
