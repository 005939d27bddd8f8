"""The last operation of each call of a program, known before the program is read."""

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["last_nodes"]

_TELL = ("val", "example_value", "tensor_meta")


def last_nodes(graph: "torch.fx.Graph") -> dict[tuple[str, ...], "torch.fx.Node"]:
    """Return the last node that computes something, for the stack of each module call.

    Numbers made of sizes, checks, and taking one of several results compute nothing.

    Args:
        graph: The nodes of a program, or of a body.
    """
    found: dict[tuple[str, ...], torch.fx.Node] = {}
    for node in reversed(graph.nodes):
        if not node.op.startswith("call_") or node.target is operator.getitem:
            continue
        if not any(_is_tensor(node.meta.get(word)) for word in _TELL):
            continue
        stack = tuple(node.meta.get("nn_module_stack") or ())
        while stack not in found:
            found[stack] = node
            stack = stack[:-1]
    return found


def _is_tensor(told: object) -> bool:
    if isinstance(told, tuple | list):
        return hasattr(told, "dtype") or any(map(_is_tensor, told))
    return hasattr(told, "dtype")
