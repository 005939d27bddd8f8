"""What the gradients are like that a backward pass has left: how large, and how many zeros.

Nothing of it is seen by whoever watches, and nothing of the training changes by it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isfinite

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.internals import outside_modes
from tbscope.sources.torch.wrapping import PLAIN

__all__ = ["tell_sizes"]


def tell_sizes(leaves: Iterable[tuple[Node, torch.Tensor]]) -> None:
    """Tell of the nodes that give parameters their gradients what these are like.

    The attribute `gradient_norm` is the Euclidean norm, where that is a number,
    `gradient_zeros` how many elements are 0, `gradient_nan` and `gradient_inf` how many are none
    or infinite, where some are. Gradients that hold nothing (on "meta"), or not all of their
    elements (sparse ones), are left out.

    Args:
        leaves: The nodes, each with the parameter.
    """
    with outside_modes(), torch.no_grad():
        found = [(node, leaf.grad) for node, leaf in leaves]
        told = [(node, given) for node, given in found if given is not None and _is_told(given)]
        norms = _numbers([_norm(given) for _, given in told])
        filled = _numbers([_count_of_filled(given) for _, given in told])
        for (node, given), norm, count in zip(told, norms, filled, strict=True):
            node.attributes["gradient_zeros"] = given.numel() - int(count)
            if isfinite(norm):
                node.attributes["gradient_norm"] = norm
                continue
            for name, which in (("gradient_nan", torch.isnan), ("gradient_inf", torch.isinf)):
                wrong = int(torch.count_nonzero(which(given)))
                if wrong:
                    node.attributes[name] = wrong


def _is_told(gradient: torch.Tensor) -> bool:
    plain = type(gradient) in PLAIN and not gradient.is_meta
    return plain and gradient.layout is torch.strided


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    # The squares of small types overflow.
    small = gradient.dtype in (torch.float16, torch.bfloat16)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32 if small else None)
    return norm


def _count_of_filled(gradient: torch.Tensor) -> torch.Tensor:
    # Of truths torch counts twice as fast as of numbers, the making of them included.
    return torch.count_nonzero(gradient.bool())


def _numbers(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the numbers of tensors of one element, with one wait for each device."""
    places = defaultdict(list)
    for at, tensor in enumerate(tensors):
        places[tensor.device, tensor.dtype].append(at)
    numbers = [0.0] * len(tensors)
    for together in places.values():
        told = torch.stack([tensors[at] for at in together]).tolist()
        for at, number in zip(together, told, strict=True):
            numbers[at] = number
    return numbers
