"""Slots: what each node of a program holds now, and who has written into the same memory.

A program names results, and writes into some of them. A tensor that is written into holds a
new value from then on; what reads the same memory through another tensor waits for the writer.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from tbscope.ir.graph import Node, Value
from tbscope.sources.programs.types import TensorType, replaced
from tbscope.sources.torch.nests import leaves_in

__all__ = ["Held", "Memory", "Slot", "slots_in", "slots_of"]

Held: TypeAlias = Any
"""A `Slot`, a constant, or a container of these: the result of one node of a program."""


class Memory:
    """The memory that one or more tensors show.

    Attributes:
        writes: Who wrote into it, with the number of the node, in order.
    """

    __slots__ = ("writes",)

    def __init__(self) -> None:
        self.writes: list[tuple[int, Node]] = []


class Slot:
    """A tensor of a program.

    Args:
        typed: What is known of it.
        value: The value that it holds now; None for one whose node is made once it is read.
        make: Makes that node, and returns its value.
        memory: What it shows; None for a memory of its own.

    Attributes:
        type: What is known of it.
        at: The number of the node that gave the value.
    """

    __slots__ = ("at", "make", "memory", "type", "value")

    def __init__(
        self,
        typed: TensorType,
        value: Value | None = None,
        *,
        make: Callable[[], Value] | None = None,
        memory: Memory | None = None,
        at: int = 0,
    ) -> None:
        self.type = typed
        self.value = value
        self.make = make
        self.memory = memory or Memory()
        self.at = at

    def read(self) -> Value:
        """Return the value that it holds now."""
        if self.value is None:
            assert self.make is not None
            self.value = self.make()
        return self.value

    def writers(self) -> Iterator[Node]:
        """Return who wrote into its memory, through another tensor, since it got its value."""
        for at, node in self.memory.writes:
            if at > self.at:
                yield node

    def write(self, node: Node, value: Value, at: int) -> None:
        """Let it hold a new value, which a node wrote into it."""
        self.value, self.at = value, at
        self.memory.writes.append((at, node))


def slots_in(held: Held) -> Iterator[Slot]:
    """Return the slots of a nest from left to right."""
    return leaves_in(held, Slot)


def slots_of(told: Any) -> Held:
    """Return a nest with a new slot for each type of a tensor; the rest as it is."""
    return replaced(told, TensorType, Slot)
