"""The parts of an optimizer's work, and the tensors that it holds for each."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from tbscope.sources.torch.nests import tensor_leaves

__all__ = ["Part", "held_by", "tensors_in"]

# What optimizers keep beside tensors, mostly.
_NUMBERS = (int, float, bool, str, type(None))


class Part(NamedTuple):
    """The part of an optimizer's work: for one parameter, one group, or all.

    Attributes:
        group: The number of the group; None for all of them.
        parameter: The identity of the parameter; None for several.
    """

    group: int | None = None
    parameter: int | None = None

    def joined(self, other: "Part") -> "Part":
        """Return the least part that holds both."""
        if self == other:
            return self
        return Part(self.group) if self.group == other.group else Part()


def held_by(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[Part, torch.Tensor, list[tuple[str, torch.Tensor]]]]:
    """Return each parameter with its part, and the tensors that are kept for it, with their names.

    An optimizer that keeps something for one of them alone works on all at once (LBFGS).
    """
    parameters = [
        (Part(number, id(each)), each)
        for number, group in enumerate(optimizer.param_groups)
        for each in group["params"]
    ]
    alone = len(optimizer.state) == 1 and len(parameters) > 1
    for part, parameter in parameters:
        kept = optimizer.state.get(parameter, {})
        yield (Part() if alone else part), parameter, tensors_in(kept)


def tensors_in(held: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that an optimizer holds, also in lists and the like, with their names."""
    found: list[tuple[str, torch.Tensor]] = []
    for name, each in held.items():
        if isinstance(each, torch.Tensor):
            found.append((name, each))
        elif type(each) not in _NUMBERS:
            found += tensor_leaves(each, name)
    return found
