"""The operations of a round of an optimizer's, as they are learnt while the round is watched."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.dispatch_internals import keys_of
from tbscope.sources.torch.wrapping import PLAIN

if TYPE_CHECKING:
    from tbscope.ir.nodes import Role

__all__ = ["Learnt", "Turn", "is_held"]

# A graph holds no integers beyond, where they are given by name.
_LARGE = 2**62


def is_held(given: Any) -> bool:
    """Tell whether a graph holds a number that is given by name as it is."""
    return type(given) is not int or -_LARGE < given < _LARGE


class Turn:
    """One operation of a round.

    The tensors of a round are numbered in the order in which they are met.

    Attributes:
        func: The function.
        name: What the operation is called.
        kinds: The classes of its arguments.
        names: Their names; None for those that are given by position.
        keys: What the dispatcher goes by, of each tensor among them.
        tensors: The place of each tensor among the arguments, with its number.
        met: Those of them that no operation of the round before it has read or given.
        kernels: Its one kernel.
        role: Its role.
        writes: Which of its inputs it writes into.
        gives: The number of the tensor that it gives.
        over: The numbers of those that nothing reads after it.
        anew: Whether something else is recorded before it, so that no tensor is known by then.
    """

    __slots__ = (
        *("anew", "func", "gives", "keys", "kernels", "kinds", "met", "name", "names"),
        *("over", "role", "tensors", "writes"),
    )

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> None:
        self.func = func
        given = (*args, *kwargs.values())
        self.kinds = tuple(map(type, given))
        self.names = (*(None for _ in args), *kwargs)
        places = [place for place, kind in enumerate(self.kinds) if kind in PLAIN]
        self.keys = [keys_of(given[place]) for place in places]
        self.tensors: list[tuple[int, int]] = []
        self.met: list[tuple[int, int]] = []
        self.over: tuple[int, ...] = ()
        self.name = ""
        self.kernels: list[str] = []
        self.role: Role | None = None
        self.writes: tuple[int, ...] = ()
        self.gives = 0
        self.anew = False

    def tell(self, node: Node, tensors: list[tuple[int, int]], met: int, gives: int) -> None:
        """Take over all that is known of the operation by now.

        Args:
            node: Its node.
            tensors: The place of each tensor among its arguments, with its number.
            met: How many of the round were known before it.
            gives: The number of the tensor that it gives.
        """
        self.name, self.kernels, self.role = node.op, node.kernels, node.role
        self.writes, self.gives, self.tensors = node.writes, gives, tensors
        firsts = {number: place for place, number in reversed(tensors) if number >= met}
        self.met = sorted((place, number) for number, place in firsts.items())


class Learnt:
    """A round while it is watched.

    Attributes:
        turns: Its operations so far.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        # By identity the tensors met, held weakly, and their numbers.
        self._met: dict[int, tuple[ref[torch.Tensor], int]] = {}
        self._count = 0

    def begin_anew(self) -> None:
        """Take note that something else was recorded, by which all may have changed."""
        self._met.clear()

    def add(self, turn: Turn, node: Node, given: tuple[Any, ...], result: torch.Tensor) -> bool:
        """Take note of an operation; tell whether it writes into nothing but what it gives.

        Args:
            turn: The operation.
            node: Its node.
            given: Its arguments.
            result: What it gave.
        """
        before = self._count
        places = [place for place, kind in enumerate(turn.kinds) if kind in PLAIN]
        tensors = [(place, self._number(given[place])) for place in places]
        gives = self._number(result)
        turn.tell(node, tensors, before, gives)
        self.turns.append(turn)
        return all(tensors[place][1] == gives for place in node.writes)

    def _number(self, tensor: torch.Tensor) -> int:
        known = self._met.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        self._met[id(tensor)] = ref(tensor), self._count
        self._count += 1
        return self._count - 1

    def whole(self) -> tuple[list[Turn], int]:
        """Return the operations of the round that is over, and how many tensors it has."""
        last: dict[int, Turn] = {}
        for turn in self.turns:
            for number in (*(number for _, number in turn.tensors), turn.gives):
                last[number] = turn
        for number, turn in last.items():
            turn.over = (*turn.over, number)
        return self.turns, self._count
