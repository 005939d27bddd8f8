"""The values that nodes of TorchScript, its graphs and its blocks take and give.

Asked for by number, and nodes one from the other: to iterate over them costs ten times as much, as
torch ends each iteration by an exception of its own.
"""

from typing import Any

__all__ = ["gives", "nodes_of", "numbers", "starts", "stops", "takes"]


def takes(node: Any) -> list[Any]:
    """Return what a node takes, in order."""
    at = node.inputsAt
    return [at(place) for place in range(node.inputsSize())]


def gives(node: Any) -> list[Any]:
    """Return what a node gives, in order."""
    at = node.outputsAt
    return [at(place) for place in range(node.outputsSize())]


def numbers(node: Any) -> list[int]:
    """Return the numbers of what a node takes, in order."""
    at = node.inputsAt
    return [at(place).unique() for place in range(node.inputsSize())]


def nodes_of(block: Any) -> list[tuple[str, Any]]:
    """Return the nodes of a graph, or of a block of one, in order, each with its kind."""
    node = _last(block)
    if not hasattr(node, "prev"):
        return [(node.kind(), node) for node in block.nodes()]
    found: list[tuple[str, Any]] = []
    while True:
        node = node.prev()
        kind = node.kind()
        if kind == "prim::Param":
            return found[::-1]
        found.append((kind, node))


def starts(block: Any) -> list[Any]:
    """Return what a graph, or a block of one, is given."""
    node = block.param_node() if hasattr(block, "param_node") else block.paramNode()
    return gives(node)


def stops(block: Any) -> list[Any]:
    """Return what a graph, or a block of one, gives in the end."""
    return takes(_last(block))


def _last(block: Any) -> Any:
    return block.return_node() if hasattr(block, "return_node") else block.returnNode()
