"""Categories: the label by which TensorBoard colours a node under "XLA cluster".

Any text will do: the page gives each its own colour, and a box stripes by the share of
each label in it (tensorboard/plugins/graph/tf_graph_common/graph.ts, `_XlaCluster`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from tbscope.checks import ask, entries_of, is_word
from tbscope.drawing.classes import class_labels
from tbscope.drawing.kinds import kind_of
from tbscope.drawing.rank_labels import rank_labels
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Nest, Node
from tbscope.ir.regions import OWNED, Nearest
from tbscope.words import near_names, shown

__all__ = ["Category", "ColorBy", "check_color_by", "label_nodes"]

Category: TypeAlias = Literal[
    "class",
    "kind",
    "resolution",
    "dtype",
    "trainable",
    "device",
    "source file",
    "rank",
    "stage",
    "mesh",
    "difference",
    "none",
]
"""A category that tbscope knows by itself; "none" gives no colours, as None does."""

ColorBy: TypeAlias = Category | Mapping[str, str] | Callable[[Node], str | None]
"""What a node is coloured by: a category; a mapping from the name of a node, or from a qualified
name or printed path of a scope, to a label; or a function of a node."""


# The batch, the channels, height and width.
_IMAGE = 4


def check_color_by(color_by: ColorBy | None) -> None:
    """Raise ArgumentError unless this is something that nodes can be coloured by."""
    known = get_args(Category)
    if isinstance(color_by, Mapping):
        _labels_of(color_by)
        return
    if color_by is None or (callable(color_by) and not isinstance(color_by, type)):
        return
    if not is_word(color_by, known):
        near = near_names(color_by, known, most=1, cutoff=0.6)
        raise ArgumentError(
            f"nodes cannot be coloured by {shown(color_by)}",
            why=f"color_by is one of {', '.join(map(repr, known))}, a mapping, or a function",
            fix=f"color_by={(near or ['class'])[0]!r}",
        )


def label_nodes(
    graph: Graph,
    color_by: ColorBy,
    facts: Mapping[Node, dict[str, Nest]] | None = None,
    originals: Mapping[Node, Node] | None = None,
) -> dict[Node, str]:
    """Return the label of each node that has one.

    Args:
        graph: The graph as it is drawn.
        color_by: The category, the mapping or the function.
        facts: What is told of each node that stands for a module. A function of the user's
            finds it in the node's `attributes`, if that node is none of the user's graph.
        originals: The node of the user's graph, as `graph.nodes` has it, of which each one is
            the copy. A function is asked for that.
    Returns:
        Labels by node. Nodes without one keep the page's neutral colour.
    Raises:
        ArgumentError: `color_by` is none, its function gave no text, or its mapping names
            nothing in the graph.
    """
    check_color_by(color_by)
    if color_by == "none":
        return {}
    if isinstance(color_by, Mapping):
        return _by_mapping(graph, _labels_of(color_by))
    if color_by in ("rank", "stage"):
        return rank_labels(graph, by_stage=color_by == "stage")
    if color_by == "class":
        return class_labels(graph)
    if isinstance(color_by, str):
        give = _CATEGORIES[color_by]
        return {node: label for node in graph.nodes if (label := give(node)) is not None}
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        told = facts.get(node) if facts else None
        about = originals.get(node) if originals else None
        if about is None:
            about = node if told is None else replace(node, attributes=told)
        label = ask(
            *(color_by, about),
            option="color_by",
            place=f"the node {shown(node.name)}",
            fix="have it give a text, or None for no colour, for every node",
        )
        if label is None:
            continue
        if type(label) is not str:
            raise ArgumentError(
                f"the color_by function gave {shown(label)} for the node {shown(node.name)}",
                why=f"a label is a str, or None for no colour; this is {type(label).__name__}",
                fix="give str(...) of it",
            )
        labels[node] = label
    return labels


# -- mappings -------------------------------------------------------------------------------


def _labels_of(color_by: Mapping[Any, Any]) -> dict[str, str]:
    """Read a mapping from names to labels."""
    labels = entries_of(color_by, option="color_by")
    for name, label in labels.items():
        if type(name) is not str or type(label) not in (str, int, float, bool):
            raise ArgumentError(
                f"color_by gives {shown(label)} for {shown(name)}",
                why="its keys are names of nodes or scopes, and its values the labels, as texts",
                fix="color_by={'layer1': 'frozen'}",
            )
    return {name: label if type(label) is str else shown(label) for name, label in labels.items()}


def _by_mapping(graph: Graph, labels: Mapping[str, str]) -> dict[Node, str]:
    of_scope = Nearest[str](
        lambda scope: labels.get(scope.qualified_name or "", labels.get(scope.path))
    )
    found: dict[Node, str] = {}
    for node in graph.nodes:
        label = labels.get(node.name, of_scope(node.scope))
        if label is not None:
            found[node] = label
    if labels and not found:
        first = next(iter(labels))
        known = [scope.qualified_name or scope.path for scope in graph.scopes()]
        near = near_names(first, known)
        raise ArgumentError(
            f"color_by names nothing that the graph of {graph.name} holds, such as {shown(first)}",
            why="its keys are names of nodes, or qualified names or paths of scopes",
            fix=f"did you mean {', '.join(map(repr, near))}?" if near else "see graph.scopes()",
        )
    return found


# -- categories -----------------------------------------------------------------------------


def _resolution(node: Node) -> str | None:
    """Return height and width of an image or a map of features: `64x64`."""
    shape = node.outputs[0].shape if node.outputs and node.kind not in OWNED else None
    if shape is None or len(shape) < _IMAGE or None in shape[-2:]:
        return None
    return f"{shape[-2]}x{shape[-1]}"


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


def _mesh(node: Node) -> str | None:
    return None if node.collective is None else node.collective.mesh or "no mesh"


def _source_file(node: Node) -> str | None:
    return node.source.file if node.source else None


def _difference(node: Node) -> str | None:
    """Return what became of a node, where it stands in the graph of a difference."""
    told = node.attributes.get("difference")
    return told if isinstance(told, str) else None


_CATEGORIES: dict[str, Callable[[Node], str | None]] = {
    "kind": kind_of,
    "resolution": _resolution,
    "dtype": _dtype,
    "trainable": _trainable,
    "device": _device,
    "source file": _source_file,
    "difference": _difference,
    "mesh": _mesh,
}
