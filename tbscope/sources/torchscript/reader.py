"""The reader of TorchScript: how a node of its graphs becomes one of ours, as those of programs do.

What a node gives is told by its own type, or by its operation on stand-ins; what it reads, writes
and shows, by the schema of its operator.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.graph import Node, Source
from tbscope.sources.fx.aliasing import Given, Held, Slot, TensorType, dtype_name
from tbscope.sources.fx.reader import ProgramNode, Reader
from tbscope.sources.fx.scopes import Places

__all__ = ["Journal", "ScriptReader", "Step"]

Journal: TypeAlias = dict[int, tuple[Any, Any]]
"""The slots, lists and dicts that changed, by `id`, each with what it held before: of a slot its
value, the number of the node that gave it, and its type; else a copy."""


class Step(NamedTuple):
    """A node of TorchScript, as the reader of programs takes it.

    Attributes:
        name: Its name in the graph.
        target: What it calls.
        arguments: What that is given.
        told: What it gives, with a `TensorType` for each tensor; None where that is not known.
        stack: The module calls around it (`Places.scope_of`).
        source: Its line.
    """

    name: str
    target: Any
    arguments: Given
    told: Any
    stack: Mapping[str, Any]
    source: Source | None

    @property
    def meta(self) -> Any:
        """What its program tells of it."""
        return {"nn_module_stack": self.stack}


class ScriptReader(Reader):
    """Reads the nodes of TorchScript's graphs (see `Reader`)."""

    def __init__(
        self, places: Places, kinds: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> None:
        super().__init__(places, kinds, tensors)
        self._journals: list[Journal] = []

    def given(self, node: ProgramNode) -> Given:
        """Return the arguments of a step, which are as they are held."""
        arguments: Given = node.arguments
        return arguments

    def type_of(self, node: ProgramNode) -> Any:
        """Return what is known of what a node gives."""
        return node.told

    def line(self, node: ProgramNode) -> Source | None:
        """Return the line of a node."""
        source: Source | None = node.source
        return source

    def give(
        self,
        node: Node,
        told: Any,
        read: Sequence[Slot] = (),
        written: Sequence[Slot] = (),
        shows: Mapping[int, Slot] | None = None,
    ) -> Held:
        """Give an operation its outputs; note what each slot held into which it writes."""
        for slot in written:
            self.note(slot)
        return super().give(node, told, read, written, shows)

    def note(self, thing: Any) -> None:
        """Note what a slot, a list or a dict holds, which is about to change."""
        if self._journals and id(thing) not in self._journals[-1]:
            is_slot = type(thing) is Slot
            before = (thing.value, thing.at, thing.type) if is_slot else thing.copy()
            self._journals[-1][id(thing)] = thing, before

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Note what slots, lists and dicts held that change while a block runs."""
        journal: Journal = {}
        self._journals.append(journal)
        try:
            yield journal
        finally:
            self._journals.pop()
            if self._journals:
                for key, entry in journal.items():
                    self._journals[-1].setdefault(key, entry)

    def constant(self, number: Any) -> Slot:
        """Return a number as a tensor without dimensions, which is in the graph from now on."""
        with torch.no_grad():
            dtype = dtype_name(torch.tensor(number).dtype)
        typed = TensorType((), dtype, "cpu", stride=())
        value = self.state.add_source("constant", None, typed, attributes={"value": number})
        return Slot(typed, value)
