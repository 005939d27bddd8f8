"""Categories: the label by which TensorBoard colours a node under "XLA cluster".

Any text will do: the page gives each its own colour, and a box stripes by the share of
each label in it (tensorboard/plugins/graph/tf_graph_common/graph.ts, `_XlaCluster`).
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, get_args

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import Nearest

__all__ = ["Category", "ColorBy", "check_color_by", "label_nodes"]

Category: TypeAlias = Literal["class", "dtype", "trainable", "device", "source file", "rank"]
"""A category that tbscope knows by itself."""

ColorBy: TypeAlias = Category | Mapping[str, str] | Callable[[Node], str | None]
"""What a node is coloured by: a category; a mapping from the name of a node, or from a
qualified name or printed path of a scope, to a label; or a function of a node."""


def check_color_by(color_by: ColorBy | None) -> None:
    """Raise ArgumentError unless this is something that nodes can be coloured by."""
    known = get_args(Category)
    if color_by is None or isinstance(color_by, Mapping) or callable(color_by):
        return
    if color_by not in known:
        near = difflib.get_close_matches(str(color_by), known, n=1)
        raise ArgumentError(
            f"nodes cannot be coloured by {color_by!r}",
            why=f"color_by is one of {', '.join(map(repr, known))}, a mapping, or a function",
            fix=f"color_by={(near or ['class'])[0]!r}",
        )


def label_nodes(graph: Graph, color_by: ColorBy) -> dict[Node, str]:
    """Return the label of each node that has one.

    Args:
        graph: The graph as it is drawn.
        color_by: The category, the mapping or the function.
    Returns:
        Labels by node. Nodes without one keep the page's neutral colour.
    Raises:
        ArgumentError: `color_by` is none, its function gave no text, or its mapping names
            nothing in the graph.
    """
    check_color_by(color_by)
    if isinstance(color_by, Mapping):
        return _by_mapping(graph, color_by)
    if color_by == "rank":
        # Until graphs of several ranks are joined, one graph is of one.
        return dict.fromkeys(graph.nodes, f"rank {graph.rank}")
    give = _CATEGORIES[color_by] if isinstance(color_by, str) else color_by
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        label = give(node)
        if label is None:
            continue
        if not isinstance(label, str):
            raise ArgumentError(
                f"the color_by function gave {label!r} for the node {node.name!r}",
                why=f"a label is a str, or None for no colour; this is {type(label).__name__}",
                fix="give str(...) of it",
            )
        labels[node] = label
    return labels


# -- mappings -------------------------------------------------------------------------------


def _by_mapping(graph: Graph, labels: Mapping[str, str]) -> dict[Node, str]:
    of_scope = Nearest[str](
        lambda scope: labels.get(scope.qualified_name or "", labels.get(scope.path))
    )
    found: dict[Node, str] = {}
    for node in graph.nodes:
        label = labels.get(node.name, of_scope(node.scope))
        if label is not None:
            found[node] = str(label)
    if labels and not found:
        first = next(iter(labels))
        known = [scope.qualified_name or scope.path for scope in graph.scopes()]
        near = difflib.get_close_matches(str(first), known, n=3, cutoff=0.4)
        raise ArgumentError(
            f"color_by names nothing that the graph of {graph.name} holds, such as {first!r}",
            why="its keys are names of nodes, or qualified names or paths of scopes",
            fix=f"did you mean {', '.join(map(repr, near))}?" if near else "see graph.scopes()",
        )
    return found


# -- categories -----------------------------------------------------------------------------


def _class(node: Node) -> str | None:
    if node.kind == "module":
        return node.op
    return node.scope.part.label if node.scope else None


def _dtype(node: Node) -> str | None:
    return node.outputs[0].dtype if node.outputs else None


def _trainable(node: Node) -> str | None:
    """Tell whether what a node reads of parameters is learnt; None where it reads none."""
    held = [value.producer for value in node.inputs] if node.kind != "parameter" else [node]
    flags = [one.attributes.get("requires_grad") for one in held if one.kind == "parameter"]
    if not flags:
        return None
    return "trainable" if all(flags) else "partly frozen" if any(flags) else "frozen"


def _device(node: Node) -> str | None:
    return node.outputs[0].device if node.outputs else None


def _source_file(node: Node) -> str | None:
    return node.source.file if node.source else None


_CATEGORIES: dict[str, Callable[[Node], str | None]] = {
    "class": _class,
    "dtype": _dtype,
    "trainable": _trainable,
    "device": _device,
    "source file": _source_file,
}
