"""The calls of a run in order, and which node each made: so that another run can be matched.

A call is a torch function that no other is around, or a kernel that no function is
around. Runs that only measure see the calls and no nodes; the log tells whose they are.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.operations import operation_name

__all__ = ["NO_RESULT", "CallLog", "Calls"]

NO_RESULT = frozenset(
    {
        torch.Size,
        bool,
        int,
        float,
        complex,
        str,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
"""Functions that are no operations: they return sizes, dtypes and flags, and are called often."""

# So many calls are compared at a time: what that takes grows with their square.
_WINDOW = 1_000


class CallLog:
    """Notes the calls of the run of which the graph is made.

    Attributes:
        in_body: Whether a function runs that an operator was given (`cond`). A mode for
            kernels keeps the operator whole, so that its calls are seen only without one.
    """

    def __init__(self) -> None:
        self.in_body = False
        self._entries: list[_Entry] = []

    def add(self, call: Any, node: Node | None) -> None:
        """Note a call that has returned, and the node that was made of it, if one was."""
        in_body = self.in_body
        self._entries.append(_Entry(call, None if in_body else node, in_body))

    def functions(self) -> "Calls":
        """Return the calls seen by a run in which only functions are watched."""
        return Calls([entry for entry in self._entries if not isinstance(entry.call, str)])

    def functions_and_kernels(self) -> "Calls":
        """Return the calls seen by a run in which kernels are watched, too."""
        return Calls([entry for entry in self._entries if not entry.in_body])


class _Entry(NamedTuple):
    call: Any
    node: Node | None
    in_body: bool


class Calls:
    """The calls that a run is expected to make, in order.

    Attributes:
        calls: The function, or the name of the kernel (`aten::mm`).
        nodes: For each call its node; None where it has none.
    """

    def __init__(self, entries: list[_Entry]) -> None:
        self.calls = [entry.call for entry in entries]
        self.nodes = [entry.node for entry in entries]

    def match(self, calls: Sequence[Any]) -> list[tuple[int, Node]]:
        """Match the calls that a run has made to nodes.

        Args:
            calls: The calls of that run, in order.
        Returns:
            Pairs of a position among these calls and the node that it made in this run.
            Calls that were not expected, and those that changed places, are in none.
        """
        if calls == self.calls:
            pairs = [(at, at) for at in range(len(calls))]
        else:
            pairs = list(_common(_names(self.calls), _names(calls)))
        nodes = self.nodes
        return [(there, node) for here, there in pairs if (node := nodes[here]) is not None]


def _names(calls: Sequence[Any]) -> list[str]:
    # Functions that are made anew for each call are equal only in their names.
    return [call if isinstance(call, str) else operation_name(call) for call in calls]


def _common(one: list[str], other: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of positions at which two lists match, in order, found window by window."""
    here = there = 0
    while here < len(one) and there < len(other):
        windows = one[here : here + _WINDOW], other[there : there + _WINDOW]
        found = [
            (block.a + at, block.b + at)
            for block in SequenceMatcher(None, *windows, autojunk=False).get_matching_blocks()
            for at in range(block.size)
        ]
        yield from ((here + first, there + second) for first, second in found)
        first, second = found[-1] if found else (_WINDOW - 1, _WINDOW - 1)
        here, there = here + first + 1, there + second + 1
