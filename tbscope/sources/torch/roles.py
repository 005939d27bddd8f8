"""The roles of torch's operations, as their kernels tell them: views, casts, copies, makers.

A pass asks a node for its role and knows no name of a kernel; whoever saw the node run says
it, and asks here.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from tbscope.ir.nodes import Argument, Nest, Role
from tbscope.sources.torch.operations import RANDOM

__all__ = ["is_random", "role_of"]

# The kernels that describe one tensor anew, cast it or copy it, and compute nothing of it.
# Source: aten/src/ATen/native/native_functions.yaml.
_VIEWS = (
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "view_as", "alias", "as_strided"),
    *("t", "transpose", "permute", "movedim", "swapaxes", "swapdims", "numpy_T", "adjoint"),
    *("squeeze", "unsqueeze", "flatten", "unflatten", "expand", "expand_as", "unfold"),
    *("slice", "select", "narrow", "diagonal", "detach", "detach_"),
    *("lift", "lift_fresh"),
    *("view_as_real", "view_as_complex", "_conj", "_neg_view", "conj", "real", "imag"),
    *("resolve_conj", "resolve_neg"),
)
_CASTS = ("_to_copy", "to")
_COPIES = ("clone", "contiguous")
_OF_A_TENSOR: Mapping[str, Role] = {
    **{f"aten::{name}": "view" for name in _VIEWS},
    **{f"aten::{name}": "cast" for name in _CASTS},
    **{f"aten::{name}": "copy" for name in _COPIES},
    # A tensor inside of one that is made of several, as torch.export tells it.
    "export::access_subclass_inner_tensor": "view",
}

# The kernels of what is made of nothing but numbers, and is the same in every run.
# Source: aten/src/ATen/native/native_functions.yaml, those without a `self`.
_MAKERS = frozenset(
    f"aten::{name}"
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "range", "zeros"),
        *("scalar_tensor", "tril_indices", "triu_indices", "empty_strided", "lift_fresh"),
        *("hann_window", "hamming_window", "blackman_window", "kaiser_window", "lift"),
        *("_to_copy", "detach", "alias"),
    )
)

# An operation of kernels of several roles has the last of these.
_RANKS: tuple[Role, ...] = ("view", "copy", "cast")
_MAY_DROP = re.compile(r"attention|rnn|lstm|gru")


def role_of(kernels: Sequence[str], *, reads: bool) -> Role | None:
    """Return the role of an operation; None for one that computes something.

    Args:
        kernels: Its kernels by name (`aten::view`).
        reads: Whether it reads a tensor.
    """
    if not kernels:
        return None
    if not reads:
        return "maker" if _MAKERS.issuperset(kernels) else None
    # The last kernel is the first to look at: most operations compute something, and by it.
    role = _OF_A_TENSOR.get(kernels[-1])
    if role is None or len(kernels) == 1:
        return role
    roles = [_OF_A_TENSOR.get(kernel) for kernel in kernels]
    if None in roles:
        return None
    return max((role for role in roles if role is not None), key=_RANKS.index)


def is_random(
    kernels: Collection[str], arguments: Iterable[Argument], names: Sequence[str | None]
) -> bool:
    """Tell whether an operation drew random numbers.

    Not all that can do so each time: fused attention and recurrent layers only if they were
    asked for dropout.

    Args:
        kernels: Its kernels by name, each met before by `kernel_facts`.
        arguments: Its arguments.
        names: The names of its positional arguments, as far as they are known.
    """
    if RANDOM.isdisjoint(kernels):
        return False
    given: dict[str | None, Nest] = {
        argument.name or (names[place] if place < len(names) else None): argument.nest
        for place, argument in enumerate(arguments)
    }
    if given.get("training", given.get("train")) is False:
        return False
    if any(not _MAY_DROP.search(kernel) for kernel in RANDOM.intersection(kernels)):
        return True
    return bool(given.get("dropout_p")) or _recurrent_drops(arguments)


def _recurrent_drops(arguments: Iterable[Argument]) -> bool:
    """Tell whether a recurrent layer was asked for dropout: by its one float, before `train`.

    Its overloads differ in the names and the number of the arguments before these.
    """
    for dropout, train in pairwise([argument.nest for argument in arguments]):
        if type(dropout) is float:
            return dropout > 0 and train is True
    return False
