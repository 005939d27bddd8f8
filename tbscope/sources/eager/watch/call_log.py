"""Log of a run's calls, in order, with the node of each call, so that another run can be matched.

A call is a torch function outside of other functions, or a kernel outside of functions. Runs that
only measure see calls and no nodes; the log maps their calls to the nodes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.operations import operation_name

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
"""Result types of functions that are no operations: sizes, dtypes and flags, which are frequent."""


class CallLog:
    """Log of the calls in the run of which the graph is made.

    Attributes:
        in_body: Whether an operator runs a function that is its argument (`cond`). With a mode for
            kernels, the operator is not entered, so such calls appear only without that mode.
    """

    def __init__(self) -> None:
        self.in_body = False
        self._entries: list[_Entry] = []

    def add(self, call: object, node: Node | None) -> None:
        """Log a call that has returned, and its node, if it has one."""
        in_body = self.in_body
        self._entries.append(_Entry(call, None if in_body else node, in_body))

    def functions(self) -> "Calls":
        """Return the calls that a run sees if only functions are watched."""
        return Calls([entry for entry in self._entries if not isinstance(entry.call, str)])

    def functions_and_kernels(self) -> "Calls":
        """Return the calls that a run sees if kernels are watched, too."""
        return Calls([entry for entry in self._entries if not entry.in_body])


class _Entry(NamedTuple):
    call: Any
    node: Node | None
    in_body: bool


class Calls:
    """Expected calls of a run, in order.

    Attributes:
        calls: Functions, and names of kernels (`aten::mm`).
        nodes: The node of each call; None for a call without a node.
    """

    def __init__(self, entries: list[_Entry]) -> None:
        self.calls = [entry.call for entry in entries]
        self.nodes = [entry.node for entry in entries]

    def match(self, calls: Sequence[object]) -> list[tuple[int, Node]]:
        """Match the calls of a run to nodes.

        Args:
            calls: The calls of the run, in order.
        Returns:
            Pairs of an index in `calls` and the node of that call. The calls from the first to the
            last difference are left out.
        """
        nodes = self.nodes
        if calls != self.calls:
            expected, made = _names(self.calls), _names(calls)
            begin = _count_equal(expected, made)
            end = _count_equal(expected[begin:][::-1], made[begin:][::-1])
            differing = [None] * (len(made) - begin - end)
            nodes = [*nodes[:begin], *differing, *nodes[len(nodes) - end :]]
        return [(at, node) for at, node in enumerate(nodes) if node is not None]


def _names(calls: Sequence[Any]) -> list[str]:
    # Functions that are created for each call are equal only in their names.
    return [call if isinstance(call, str) else operation_name(call) for call in calls]


def _count_equal(left: list[str], right: list[str]) -> int:
    """Return the number of equal entries at the beginning of two lists."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))
