"""Icons: the sizes that a leaf module was made with, beside its node: `64-128_k3_s2`.

The page draws a node whose op type ends in `Summary` as a small icon at the right of the node
that it reads, with its name (tensorboard/plugins/graph/tf_graph_common/graph.ts,
`outEmbedding`). Such an icon takes no place of its own in the layout.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tbscope.drawing.layout import NodeHead
from tbscope.ir.graph import Graph
from tbscope.page.ops import is_embedded

__all__ = ["hyperparameter_icons"]

_OP = "HyperparametersSummary"
# Of a longer one the page shows the beginning.
_MOST_TEXT = 14
# Smaller numbers keep a division from failing (`eps`), and tell of no size.
_LEAST = 1e-3
_SIDES = re.compile(r"(?:in|out)_")


def hyperparameter_icons(graph: Graph, heads: Sequence[NodeHead]) -> list[NodeHead]:
    """Return an icon for each node that stands for a module with sizes to tell.

    A node without a neighbour in its own box gets none: the page would put it aside for it
    (see `drawing/circles.py`).

    Args:
        graph: The graph as it is drawn.
        heads: One for each of its nodes.
    Returns:
        Heads of further nodes, which nothing reads.
    """
    made = {call.scope: call.hyperparameters for call in graph.calls}
    taken = {head.name for head in heads}
    beside = _with_neighbours(heads)
    icons = []
    for node, head in zip(graph.nodes, heads, strict=True):
        if node.kind != "module" or node.scope is None or head.name not in beside:
            continue
        text = sizes_text(made.get(node.scope, {}))
        name = f"{head.name}/{text}"
        if text and name not in taken:
            icons.append(NodeHead(name, _OP, [head.name]))
    return icons


def sizes_text(hyperparameters: Mapping[str, Any]) -> str:
    """Return the sizes among hyper-parameters in few characters; empty where there are none.

    Those of the two sides come first (`64-128`), the others with the first letter of their names
    (`k3`). Flags, texts, 0 and 1 are left out, as most of them are defaults.
    """
    sides, others = [], []
    for name, told in hyperparameters.items():
        size = _size(told)
        if not size:
            continue
        if _SIDES.match(name):
            sides.append(size)
        elif size != "1":
            others.append(f"{name[0]}{size}")
    text = "-".join(sides)
    for other in others:
        longer = f"{text}_{other}" if text else other
        if len(longer) > _MOST_TEXT:
            break
        text = longer
    return text if len(text) <= _MOST_TEXT else ""


def _size(told: Any) -> str:
    """Return a number other than 0, or several, as a text that names may hold."""
    if isinstance(told, tuple | list):
        sizes = [_size(one) for one in told]
        if not sizes or "" in sizes:
            return ""
        return sizes[0] if len(set(sizes)) == 1 else "x".join(sizes)
    if type(told) not in (int, float) or abs(told) < _LEAST:
        return ""
    text = f"{told:g}" if type(told) is float else str(told)
    return text if re.fullmatch(r"[0-9.]+", text) else ""


def _with_neighbours(heads: Sequence[NodeHead]) -> set[str]:
    """Return the names of nodes that an edge joins to something in their own box."""
    drawn = {head.name for head in heads if not is_embedded(head.op)}
    found = set()
    for head in heads:
        if head.name not in drawn:
            continue
        box = head.name[: head.name.rfind("/") + 1]
        for text in head.inputs:
            source = text.removeprefix("^").partition(":")[0]
            if source not in drawn:
                continue
            if source.startswith(box):
                found.add(head.name)
            if head.name.startswith(source[: source.rfind("/") + 1]):
                found.add(source)
    return found
