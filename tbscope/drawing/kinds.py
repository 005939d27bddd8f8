"""Kinds: what an operation is good for, in the words of those who read models.

It is told by the kernels that ran and by the name under which they were called, whatever class
a module has.
"""

import re
from functools import lru_cache

from tbscope.ir.graph import Node
from tbscope.ir.regions import OPERATIONS

__all__ = ["KINDS", "kind_of"]

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
