"""The calls around the operations of a program of which it tells none.

Passes over a program put operations in, and tell of no module: a tensor is quantised between two
layers. What is made of a result of one part, and read by another, stands in the call around both.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

__all__ = ["stacks_between"]

_Stack: TypeAlias = tuple[tuple[str, Any], ...]


def stacks_between(graph: "torch.fx.Graph") -> dict["torch.fx.Node", Mapping[str, Any]]:
    """Return the calls around each node that tells of none, and stands between some that do.

    What reads the state of a program alone, or its inputs, is in none of them.

    Args:
        graph: The nodes of a program, or of a body.
    """
    nodes = [node for node in graph.nodes if node.op.startswith("call_")]
    silent = [node for node in nodes if not node.meta.get("nn_module_stack")]
    if not silent or len(silent) == len(nodes):
        # As nearly always.
        return {}
    told = {node: _told(node) for node in nodes}
    before: dict[torch.fx.Node, _Stack | None] = {}
    after: dict[torch.fx.Node, _Stack | None] = {}
    for node in nodes:
        before[node] = told[node] or _common(before.get(each) for each in node.all_input_nodes)
    for node in reversed(nodes):
        after[node] = told[node] or _common(after.get(each) for each in node.users)
    found: dict[torch.fx.Node, Mapping[str, Any]] = {}
    for node in silent:
        if before[node] and after[node]:
            found[node] = dict(_common([before[node], after[node]]) or ())
    return found


def _told(node: "torch.fx.Node") -> _Stack:
    """Return the calls that a node tells of; none where one of them is no call."""
    stack = node.meta.get("nn_module_stack")
    if not isinstance(stack, Mapping):
        return ()
    entries = tuple(stack.items())
    return entries if all(map(_is_call, entries)) else ()


def _is_call(entry: tuple[Any, Any]) -> bool:
    key, told = entry
    pair = isinstance(told, tuple) and len(told) == 2
    return isinstance(key, str) and pair and isinstance(told[0], str)


def _common(stacks: Iterable[_Stack | None]) -> _Stack | None:
    """Return the calls that several stacks have in common; None where none of them is known."""
    known = [stack for stack in stacks if stack is not None]
    if not known:
        return None
    levels = zip(*known, strict=False)
    return tuple(
        [level[0] for level in takewhile(lambda level: len({key for key, _ in level}) == 1, levels)]
    )
