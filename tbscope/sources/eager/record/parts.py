"""A step of an optimizer, the parts of its work, and the tensors that it holds for each."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.scope_stack import Frame
from tbscope.sources.torch.nests import tensor_leaves

__all__ = ["Part", "Step", "held_by", "tensors_in"]

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


@dataclass(slots=True, eq=False)
class Step:
    """One step of an optimizer.

    Attributes:
        optimizer: The optimizer.
        caller: The identity of the Python frame in which it runs.
        frame: The module call, or the top level, in which it was begun.
        outer: Where what runs directly in that frame stood before.
        around: The box of the step.
        root: The scope in it that names the optimizer.
        parts: The part of each tensor that the optimizer holds, by identity; each is held weakly,
            as a closure may make gradients anew.
        held: What the optimizer keeps, by identity: itself, weakly, its part, and its name.
        made: The part of each value that the step has made.
        scopes: The scope of each part.
        ran: Whether one of its operations has run.
        passes: How many backward passes ran when it was begun.
        loose: Its operations that read nothing which belongs to a part, in order.
        names: The name of each parameter, by the node that stands for it; None for what is none.
        parameters: Those of the optimizer, by identity.
        unnamed: The parameters whose nodes are not known yet; None until one is asked for.
    """

    optimizer: torch.optim.Optimizer
    caller: int
    frame: Frame
    outer: Scope | None
    around: Scope
    root: Scope
    parts: dict[int, tuple[ref[torch.Tensor], Part]] = field(default_factory=dict)
    held: dict[int, tuple[ref[torch.Tensor], Part, str]] = field(default_factory=dict)
    made: dict[Value, Part] = field(default_factory=dict)
    scopes: dict[Part, Scope] = field(default_factory=dict)
    ran: bool = False
    passes: int = 0
    loose: list[Node] = field(default_factory=list)
    names: dict[Node, str | None] = field(default_factory=dict)
    parameters: dict[int, torch.Tensor] = field(default_factory=dict)
    unnamed: deque[torch.Tensor] | None = None


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
