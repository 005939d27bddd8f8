"""The reader of TorchScript: how a node of its graphs becomes one of ours, as those of programs do.

What a node gives is told by its own type, or by its operation on stand-ins; what it reads, writes
and shows, by the schema of its operator.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Source, Value
from tbscope.sources.programs.places import Places
from tbscope.sources.programs.reader import ProgramNode, Reader
from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.programs.types import TensorType

__all__ = ["Before", "Changed", "ScriptReader", "Step"]


class Step(NamedTuple):
    """A node of TorchScript, as the reader of programs takes it.

    Attributes:
        name: Its name in the graph.
        target: What it calls.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        told: What it gives, with a `TensorType` for each tensor; None where that is not known.
        stack: The module calls around it (`Places.scope_of`).
        source: Its line.
        has_others: Tells whether the code around it has operations that do something.
    """

    name: str
    target: Any = None
    args: Any = ()
    kwargs: Any = MappingProxyType({})
    told: Any = None
    stack: Mapping[str, Any] = MappingProxyType({})
    source: Source | None = None
    has_others: Callable[[], bool] = bool

    @property
    def meta(self) -> Any:
        """What its program tells of it."""
        return {"nn_module_stack": self.stack}


class Before(NamedTuple):
    """What a slot held before something wrote into it.

    Attributes:
        slot: The slot.
        value: Its value.
        at: The number of the node that gave the value.
        type: What was known of it.
    """

    slot: Slot
    value: Value | None
    at: int
    type: TensorType


class Changed(NamedTuple):
    """What a list or a dict held before something changed it.

    Attributes:
        container: The list or dict.
        content: A copy of what it held.
    """

    container: Any
    content: Any


class ScriptReader(Reader):
    """Reads the nodes of TorchScript's graphs.

    Args:
        builder: The door to the graph.
        places: The scopes of the program.
    """

    def __init__(self, builder: GraphBuilder, places: Places) -> None:
        super().__init__(builder, places)
        self._journals: list[list[Before | Changed]] = []

    def of(self, given: Any) -> Held:
        """Return what a step is given, which is as it is held."""
        return given

    def type_of(self, node: ProgramNode) -> Any:
        """Return what is known of what a node gives."""
        return node.told if isinstance(node, Step) else super().type_of(node)

    def line(self, node: ProgramNode) -> Source | None:
        """Return the line of a node."""
        return node.source if isinstance(node, Step) else super().line(node)

    def _is_all(self, node: Any) -> bool:
        """Tell whether an operation may be the only one of its scope.

        A trace has what was given read what gave it back: such an operation would stand between.
        """
        others = isinstance(node, Step) and node.has_others()
        return self.where(node)[0] not in self._busy and not others

    def give(
        self,
        node: Node,
        told: Any,
        read: Sequence[Slot] = (),
        written: Sequence[Slot] = (),
        shows: Mapping[int, Slot] | None = None,
    ) -> Held:
        """Give an operation its outputs; note what each slot held into which it writes."""
        if self._journals:
            self._journals[-1] += [Before(slot, slot.value, slot.at, slot.type) for slot in written]
        return super().give(node, told, read, written, shows)

    def change(self, container: Any) -> None:
        """Note what a list or a dict holds, which is about to change."""
        if self._journals:
            self._journals[-1].append(Changed(container, container.copy()))

    @contextmanager
    def journal(self) -> Iterator[list[Before | Changed]]:
        """Note what slots, lists and dicts held that change while a block runs."""
        journal: list[Before | Changed] = []
        self._journals.append(journal)
        try:
            yield journal
        finally:
            self._journals.pop()
            if self._journals:
                self._journals[-1] += journal

    def constant(self, number: Any) -> Slot:
        """Return a number as a tensor without dimensions, which is in the graph from now on."""
        with torch.no_grad():
            tensor = torch.tensor(number)
        dtype = str(tensor.dtype).removeprefix("torch.")
        typed = TensorType((), dtype, "cpu", stride=())
        return Slot(typed, self.add_source("constant", None, typed, attributes={"value": number}))
