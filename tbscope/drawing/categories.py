"""Categories: the labels by which TensorBoard colours nodes under "XLA cluster".

A label may be any text: the page assigns a colour to each, and stripes a box by the share of
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
from tbscope.ir.scope_io import OPERATIONS, NearestProperty
from tbscope.messages import near_names, shown
from tbscope.utils.validation import ask, entries_of, is_word

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


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
"""A built-in category; "none" means no colours, like None."""

ColorBy: TypeAlias = Category | Mapping[str, str] | Callable[[Node], str | None]
"""The source of labels: a category; a mapping from the name of a node, or from the qualified name
or printed path of a scope, to a label; or a function of a node."""


# The kind of an operation is the first in this order whose words match the name of the operation
# or of one of its kernels.
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
# The words of these kinds match anywhere in a name. The words of all other kinds must be the whole
# name, apart from prefixes and suffixes that torch adds (`native_`, `2d`).
_WITHIN = frozenset({"recurrent", "attention", "convolution", "norm", "pooling"})
_WITHIN |= {"dropout", "embedding", "loss"}
_PATTERNS = [
    (kind, re.compile(words if kind in _WITHIN else rf"_*(?:native_)?(?:{words})[0-9]*d?_*"))
    for kind, words in _KINDS
]


def check_color_by(color_by: ColorBy | None) -> None:
    """Raise ArgumentError unless this is a valid value of the option `color_by`."""
    categories = get_args(Category)
    is_function = callable(color_by) and not isinstance(color_by, type)
    if isinstance(color_by, Mapping):
        _labels_of(color_by)
    elif not (color_by is None or is_function or is_word(color_by, categories)):
        near = near_names(color_by, categories, most=1, cutoff=0.6)
        raise ArgumentError(
            f"nodes cannot be coloured by {shown(color_by)}",
            why=f"color_by is one of {', '.join(map(repr, categories))}, a mapping, or a function",
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
        facts: The info card's facts of each node that represents a module. If the node has no
            original, a user's function finds these facts in the `attributes` of its argument.
        originals: The node of the user's graph (in `graph.nodes`) of which each node is a copy.
            A user's function is called with the original.
    Returns:
        Labels by node. Nodes without a label keep the page's neutral colour.
    Raises:
        ArgumentError: `color_by` is invalid, its function returned neither a text nor None, or
            its mapping matches nothing in the graph.
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
    if color_by == "kind":
        return _kind_labels(graph)
    if isinstance(color_by, str):
        label_of = _CATEGORIES[color_by]
        return {node: label for node in graph.nodes if (label := label_of(node)) is not None}
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        argument = originals.get(node) if originals else None
        if argument is None:
            card_facts = facts.get(node) if facts else None
            argument = node if card_facts is None else replace(node, attributes=card_facts)
        label = ask(
            *(color_by, argument),
            option="color_by",
            place=f"the node {shown(node.name)}",
            fix="return a text, or None for no colour, for every node",
        )
        if label is None:
            continue
        if type(label) is not str:
            raise ArgumentError(
                f"the color_by function returned {shown(label)} for the node {shown(node.name)}",
                why=f"a label is a str, or None for no colour; this is {type(label).__name__}",
                fix="give str(...) of it",
            )
        labels[node] = label
    return labels


# -- mappings -------------------------------------------------------------------------------


def _labels_of(color_by: Mapping[Any, object]) -> dict[str, str]:
    """Check a mapping from names to labels, and return it with all labels as texts."""
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
    of_scope = NearestProperty[str](
        lambda scope: labels.get(scope.qualified_name or "", labels.get(scope.path))
    )
    label_of: dict[Node, str] = {}
    for node in graph.nodes:
        label = labels.get(node.name, of_scope(node.scope))
        if label is not None:
            label_of[node] = label
    if labels and not label_of:
        first = next(iter(labels))
        names = [scope.qualified_name or scope.path for scope in graph.scopes()]
        near = near_names(first, names)
        raise ArgumentError(
            f"color_by names nothing in the graph of {graph.name}, such as {shown(first)}",
            why="its keys are names of nodes, or qualified names or paths of scopes",
            fix=f"did you mean {', '.join(map(repr, near))}?" if near else "see graph.scopes()",
        )
    return label_of


# -- categories -----------------------------------------------------------------------------


def _trainable(node: Node) -> str | None:
    """Return whether the parameters that a node reads are trainable; None if it reads none.

    A parameter counts as its own reader.
    """
    sources = [value.producer for value in node.inputs] if node.kind != "parameter" else [node]
    flags = [
        source.attributes.get("requires_grad") for source in sources if source.kind == "parameter"
    ]
    if not flags:
        return None
    return "trainable" if all(flags) else "partly frozen" if any(flags) else "frozen"


def _mesh(node: Node) -> str | None:
    return None if node.collective is None else node.collective.mesh or "no mesh"


def _difference(node: Node) -> str | None:
    """Return the change of a node in the graph of a difference; None in any other graph."""
    change = node.attributes.get("difference")
    return change if isinstance(change, str) else None


def _kind_labels(graph: Graph) -> dict[Node, str]:
    """Return the kind of each operation: "convolution", "shape".

    A gradient has the kind of the operation that it differentiates, and the node that stores
    the gradient of a parameter has the kind of that gradient: so a module has equal colours in
    the model and in the box `gradients`.
    """
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        if node.kind not in OPERATIONS:
            continue
        colored = node
        while "gradient_of" in colored.attributes and colored.inputs:
            gradient = colored.inputs[-1].producer
            if gradient.phase != "backward" or gradient.kind not in OPERATIONS:
                break
            colored = gradient
        differentiated = colored.attributes.get("differentiates")
        if isinstance(differentiated, str) and (kind := _kind(differentiated, ())) != "other":
            labels[node] = kind
        elif colored.role == "view":
            labels[node] = "shape"
        else:
            operation = colored.attributes.get("operation")
            op = operation if isinstance(operation, str) else colored.op
            labels[node] = _kind(op, tuple(colored.kernels))
    return labels


@lru_cache(4096)
def _kind(operation: str, kernels: tuple[str, ...]) -> str:
    """Return the kind of an operation by its name and kernels.

    Results are cached, since a model repeats a few operations.
    """
    names = [operation.lower(), *(kernel.removeprefix("aten::") for kernel in kernels)]
    for kind, pattern in _PATTERNS:
        find = pattern.search if kind in _WITHIN else pattern.fullmatch
        if any(find(name) for name in names):
            return kind
    return "other"


_CATEGORIES: dict[str, Callable[[Node], str | None]] = {
    "trainable": _trainable,
    "difference": _difference,
    "mesh": _mesh,
}

# -- classes and ranks ----------------------------------------------------------------------


def _class_labels(graph: Graph) -> dict[Node, str]:
    """Return the class of each node.

    A node that represents a module has the class of that module, and a parameter, buffer or
    constant the class of the module in whose scope it is. Any other operation has its own name.
    In a training step, the nodes in the optimizer's scope of a module, or in the gradients'
    scope of a module drawn as a node, have the class of that module; other gradients have the
    name of the operation that they differentiate.
    """
    # The class of each called module, and whether it is drawn as a node, by path.
    classes = {call.scope.parts: (call.scope.part.label, False) for call in graph.calls}
    for node in graph.nodes:
        if node.kind == "module" and node.scope is not None:
            classes[node.scope.parts] = node.op, True

    @cache
    def served(scope: "Scope") -> tuple[str, bool] | None:
        """Return the innermost module that a scope of a training step mirrors.

        The path of this kind of scope contains the path of the module.
        """
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
        module = served(scope)
        if module is not None and (module[1] or scope.phase == "optimizer"):
            labels[node] = module[0]
        elif runs and node.phase == "backward":
            labels[node] = str(node.attributes.get("differentiates", node.op))
    return labels


def _rank_labels(graph: Graph, *, by_stage: bool) -> dict[Node, str]:
    """Return the ranks of each node as text, or the pipeline stage that they run.

    Args:
        graph: The graph as it is drawn.
        by_stage: Whether labels are stages, which not all nodes have, and not ranks.
    """
    ranks_in: dict[str, list[int]] = {}
    for part in graph.parts:
        ranks_in.setdefault(part.scope, []).extend(part.ranks)
    # A graph of ranks that all ran the same operations has no box for them. The box of a rank has
    # an equal name in each phase of a training step.
    box_around = NearestProperty[str](
        lambda scope: str(scope.part) if scope.kind == "rank" else None, top=""
    )
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        box = box_around(node.scope) or ""
        if by_stage:
            if box.startswith("stage "):
                labels[node] = " ".join(box.split()[:2])
            continue
        devices = (value.device for value in chain(node.outputs, node.inputs))
        of_device = split_device(next(devices, ""))[0]
        labels[node] = of_device or ranks_text(ranks_in.get(box, [graph.rank]))
    return labels
