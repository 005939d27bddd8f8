"""Reader of TorchScript nodes, as a `Reader` that takes `NodeAdapter`s for the nodes of a program.

The type of a result is in the graph, or follows from running the operation on meta or fake
tensors; the schema of the operator lists the tensors that are read, written and viewed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.graph import Node, Source
from tbscope.sources.fx.aliasing import CallArguments, Content, Slot
from tbscope.sources.fx.reader import ProgramNode, Reader
from tbscope.sources.fx.scopes import ModuleStack, State
from tbscope.sources.fx.tensor_types import TensorType, Types
from tbscope.sources.torch.subclasses import dtype_name

__all__ = ["Journal", "ScriptReader", "NodeAdapter"]

Journal: TypeAlias = dict[int, tuple[Content, Content]]
"""Changed slots, lists and dicts with their earlier states, by `id`. The state of a slot is its
value, the number of the node that returned the value, and its type; a container's is a copy."""


class NodeAdapter(NamedTuple):
    """A node of TorchScript, in the form that `Reader` takes.

    Attributes:
        name: Its name in the graph: the name of its first output.
        target: The callee.
        arguments: The arguments of the call.
        types: The results, with a `TensorType` for each tensor; None if they are unknown.
        stack: The enclosing module calls, for `ProgramScopes.scope_of`.
        source: The source line.
    """

    name: str
    target: Any
    arguments: CallArguments
    types: Types
    stack: ModuleStack
    source: Source | None

    @property
    def meta(self) -> dict[str, object]:
        """The metadata in which `Reader.where` looks up the enclosing module calls."""
        return {"nn_module_stack": self.stack}


class ScriptReader(Reader):
    """Reads the nodes of TorchScript's graphs (see `Reader`), and journals changes of state."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._journals: list[Journal] = []

    def arguments_of(self, node: ProgramNode) -> CallArguments:
        """Return the arguments of a node, which need no conversion."""
        arguments: CallArguments = node.arguments
        return arguments

    def type_of(self, node: ProgramNode) -> Types:
        """Return the types of a node's results, or None."""
        return node.types

    def line(self, node: ProgramNode) -> Source | None:
        """Return the source line of a node, or None."""
        source: Source | None = node.source
        return source

    def add_outputs(
        self,
        node: Node,
        types: Types,
        read: Sequence[Slot] = (),
        written: Sequence[Slot] = (),
        shows: Mapping[int, Slot] | None = None,
    ) -> Content:
        """Add the outputs of an operation; record the state of each slot before its write."""
        for slot in written:
            self.note(slot)
        return super().add_outputs(node, types, read, written, shows)

    def note(self, content: Content) -> None:
        """Record the state of a slot, list or dict before a change, in the innermost open journal.

        Only the first change in a journal counts.
        """
        if self._journals and id(content) not in self._journals[-1]:
            is_slot = type(content) is Slot
            before = (content.value, content.at, content.type) if is_slot else content.copy()
            self._journals[-1][id(content)] = content, before

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """Record the earlier state of slots, lists and dicts that change while a block runs."""
        journal: Journal = {}
        self._journals.append(journal)
        try:
            yield journal
        finally:
            self._journals.pop()
            if self._journals:
                # Changes in the block are changes in the enclosing one, whose states are older.
                for key, entry in journal.items():
                    self._journals[-1].setdefault(key, entry)

    def constant(self, number: object) -> Slot:
        """Add a number to the graph as a constant without dimensions; return its slot."""
        typed = TensorType((), dtype_name(torch.tensor(number).dtype), "cpu", stride=())
        value = self.state.add_source("constant", None, typed, attributes={"value": number})
        return Slot(typed, value)
