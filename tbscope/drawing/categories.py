"""Categories: the label by which TensorBoard colours a node under "XLA cluster".

Any text will do: the page gives each its own colour, and a box stripes by the share of
each label in it (tensorboard/plugins/graph/tf_graph_common/graph.ts, `_XlaCluster`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Nest, Node
from tbscope.ir.metadata import ranks_text, split_device
from tbscope.ir.scope_io import OPERATIONS, Nearest
from tbscope.messages import near_names, shown
from tbscope.utils.validation import ask, entries_of, is_word

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["KINDS", "Category", "ColorBy", "check_color_by", "label_nodes"]

Category: TypeAlias = Literal[
    "class",
    "kind",
    "trainable",
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


# The first of them of which a word is found, in the name of the operation or of a kernel.
_KINDS = (
    ("recurrent", r"lstm|gru|rnn"),
    ("attention", r"attention"),
    ("convolution", r"conv"),
    ("norm", r"norm"),
    ("pooling", r"pool"),
    ("dropout", r"dropout"),
    ("embedding", r"embedding"),
    (
        "activation",
        r"[a-z]*relu6?|[cs]?elu|gelu|silu|swish|mish|glu|[a-z]*sigmoid|[a-z]*tanh|softplus|softsign"
        r"|[a-z]*softmax|[a-z]*softmin|hardtanh|threshold|[a-z]*shrink",
    ),
    ("linear", r"linear|b?addb?mm|addmm|addmv|mm|bmm|mv|matmul|baddbmm|einsum|dot|bilinear"),
    ("loss", r"loss|cross_entropy"),
    (
        "shape",
        r"cat|concat|stack|split|chunk|unbind|pad|flip|roll|repeat|gather|select|index|getitem"
        r"|view|reshape|flatten|permute|transpose|expand|squeeze|unsqueeze|slice|narrow|contiguous"
        r"|clone|copy|to|upsample|interpolate|pixel_shuffle|t",
    ),
    ("reduction", r"sum|mean|prod|max|min|argmax|argmin|amax|amin|var|std|topk|cumsum"),
    (
        "arithmetic",
        r"add|sub|rsub|mul|div|neg|pow|sqrt|rsqrt|exp|log|sin|cos|abs|clamp|where|eq|ne|lt|le|gt|ge"
        r"|masked_fill|bitwise_[a-z]+|logical_[a-z]+|maximum|minimum",
    ),
)
KINDS = frozenset({"other", *(kind for kind, _ in _KINDS)})
"""The kinds of operations, by which drawings are coloured by default."""
# These are found within a name, the others are all of one, but for what torch puts around it.
_WITHIN = frozenset({"recurrent", "attention", "convolution", "norm", "pooling"})
_WITHIN |= {"dropout", "embedding", "loss"}
_PATTERNS = [
    (kind, re.compile(words if kind in _WITHIN else rf"_*(?:native_)?(?:{words})[0-9]*d?_*"))
    for kind, words in _KINDS
]


def check_color_by(color_by: ColorBy | None) -> None:
    """Raise ArgumentError unless this is something that nodes can be coloured by."""
    known = get_args(Category)
    is_function = callable(color_by) and not isinstance(color_by, type)
    if isinstance(color_by, Mapping):
        _labels_of(color_by)
    elif not (color_by is None or is_function or is_word(color_by, known)):
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
        return _rank_labels(graph, by_stage=color_by == "stage")
    if color_by == "class":
        return _class_labels(graph)
    if isinstance(color_by, str):
        give = _CATEGORIES[color_by]
        return {node: label for node in graph.nodes if (label := give(node)) is not None}
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        about = originals.get(node) if originals else None
        if about is None:
            told = facts.get(node) if facts else None
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


def _trainable(node: Node) -> str | None:
    """Tell whether what a node reads of parameters is learnt; None where it reads none."""
    held = [value.producer for value in node.inputs] if node.kind != "parameter" else [node]
    flags = [one.attributes.get("requires_grad") for one in held if one.kind == "parameter"]
    if not flags:
        return None
    return "trainable" if all(flags) else "partly frozen" if any(flags) else "frozen"


def _mesh(node: Node) -> str | None:
    return None if node.collective is None else node.collective.mesh or "no mesh"


def _difference(node: Node) -> str | None:
    """Return what became of a node, where it stands in the graph of a difference."""
    told = node.attributes.get("difference")
    return told if isinstance(told, str) else None


def kind_of(node: Node) -> str | None:
    """Return the kind of an operation: "convolution", "shape"; None for what runs nothing.

    A gradient is of the kind of the operation that it differentiates, and what a parameter gets
    is of that of the gradient: so a module has the same colours in the model and in `gradients`.
    """
    if node.kind not in OPERATIONS:
        return None
    while "gradient_of" in node.attributes and node.inputs:
        before = node.inputs[-1].producer
        if before.phase != "backward" or before.kind not in OPERATIONS:
            break
        node = before
    of = node.attributes.get("differentiates")
    if isinstance(of, str) and (kind := _kind(of, ())) != "other":
        return kind
    if node.role == "view":
        return "shape"
    called = node.attributes.get("operation")
    return _kind(called if isinstance(called, str) else node.op, tuple(node.kernels))


@lru_cache(4096)
def _kind(operation: str, kernels: tuple[str, ...]) -> str:
    """Return the kind of what is called so and ran these; a model repeats a few of them."""
    names = [operation.lower(), *(kernel.removeprefix("aten::") for kernel in kernels)]
    for kind, pattern in _PATTERNS:
        find = pattern.search if kind in _WITHIN else pattern.fullmatch
        if any(find(one) for one in names):
            return kind
    return "other"


_CATEGORIES: dict[str, Callable[[Node], str | None]] = {
    "kind": kind_of,
    "trainable": _trainable,
    "difference": _difference,
    "mesh": _mesh,
}

# -- classes and ranks ----------------------------------------------------------------------


def _class_labels(graph: Graph) -> dict[Node, str]:
    """Return the class of each node.

    That is the class of the module that a node stands for, or which holds the parameter; the
    operation, where it is none. What a training step does for a module is of its class, and
    a gradient is of the operation that it differentiates.
    """
    # By the path of each module that was called: its class, and whether it is drawn as a node.
    classes = {call.scope.parts: (call.scope.part.label, False) for call in graph.calls}
    for node in graph.nodes:
        if node.kind == "module" and node.scope is not None:
            classes[node.scope.parts] = node.op, True

    @cache
    def served(scope: "Scope") -> tuple[str, bool] | None:
        """Find the innermost module that a scope of a training step mirrors."""
        path = scope.parts
        parts = (path[begin:end] for end in range(len(path), 1, -1) for begin in range(1, end))
        return next((classes[part] for part in parts if part in classes), None)

    labels: dict[Node, str] = {}
    for node in graph.nodes:
        scope, runs = node.scope, node.kind in OPERATIONS
        if runs:
            labels[node] = node.op
        elif scope is not None:
            labels[node] = scope.part.label
        if scope is None or "forward" == node.phase == scope.phase:
            continue
        found = served(scope)
        if found is not None and (found[1] or scope.phase == "optimizer"):
            labels[node] = found[0]
        elif runs and node.phase == "backward":
            labels[node] = str(node.attributes.get("differentiates", node.op))
    return labels


def _rank_labels(graph: Graph, *, by_stage: bool) -> dict[Node, str]:
    """Return the ranks of each node in words, or the stage of a pipeline that they run.

    Args:
        graph: The graph as it is drawn.
        by_stage: Whether the stage is asked for, which not all nodes have.
    """
    stages = {part.scope: part.stage for part in graph.parts}
    ranks_in: dict[str, list[int]] = {}
    for part in graph.parts:
        ranks_in.setdefault(part.scope, []).extend(part.ranks)
    # Nothing is around the graph of ranks that all ran the same. In each phase of a training step
    # the box of a rank has the same name.
    box_around = Nearest[str](
        lambda scope: str(scope.part) if scope.kind == "rank" else None, top=""
    )
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        box = box_around(node.scope) or ""
        if by_stage:
            if stages.get(box) is not None:
                labels[node] = f"stage {stages[box]}"
            continue
        devices = (value.device for value in chain(node.outputs, node.inputs))
        of_device = split_device(next(devices, ""))[0]
        labels[node] = of_device or ranks_text(ranks_in.get(box, [graph.rank]))
    return labels
