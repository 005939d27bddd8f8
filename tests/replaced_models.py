"""Models that give a tensor other content, or a module another parameter, while they run."""

from collections.abc import Callable
from typing import Any

import torch
from cases import add, adding, adding_to_a_module
from torch import Tensor, nn

torch.manual_seed(0)
X = torch.rand(2, 4) + 0.5
ROWS = torch.rand(4, 4) + 0.5


def made(x: Tensor) -> Tensor:
    """Give what stands in for a weight."""
    return x.sin() * 2


# -- another parameter -----------------------------------------------------------------------


@adding_to_a_module("a parameter that is set", X, ROWS)
def _(self: Any, x: Tensor, rows: Tensor) -> Tensor:
    self.lin.weight = nn.Parameter(made(rows))
    return self.lin(x)


@adding_to_a_module("a parameter that is made of itself", X)
def _(self: Any, x: Tensor) -> Tensor:
    self.lin.weight = nn.Parameter(made(self.lin.weight))
    return self.lin(x)


@adding_to_a_module("a parameter that is registered", X, ROWS)
def _(self: Any, x: Tensor, rows: Tensor) -> Tensor:
    self.lin.register_parameter("weight", nn.Parameter(made(rows).detach()))
    return self.lin(x)


@adding_to_a_module("parameters that are loaded in place of others", X, ROWS)
def _(self: Any, x: Tensor, rows: Tensor) -> Tensor:
    self.lin.load_state_dict({"weight": made(rows), "bias": x[0]}, assign=True)
    return self.lin(x)


# -- other content ---------------------------------------------------------------------------


def _set(change: Callable[[Any, Tensor], None]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def run(self: Any, x: Tensor, rows: Tensor) -> Tensor:
        change(self, made(rows))
        return self.lin(x) * self.shift

    return run


@adding_to_a_module("the content of a parameter", X, ROWS)
@_set
def _(self: Any, rows: Tensor) -> None:
    self.lin.weight.data = rows


@adding_to_a_module("the content of a buffer", X, ROWS)
@_set
def _(self: Any, rows: Tensor) -> None:
    self.shift.data = rows[0]


# They are asked for their shapes.
@adding_to_a_module("parameters out of a vector", X, ROWS, may={"lin.weight", "lin.bias"})
@_set
def _(self: Any, rows: Tensor) -> None:
    vector = torch.cat([rows.flatten(), rows[0]])
    nn.utils.vector_to_parameters(vector, self.lin.parameters())


@adding("the content of a tensor that was viewed", X, ROWS)
def _(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    changed = x.clone()
    flat = changed.view(-1)
    changed.data = made(rows)
    return flat + 1, changed + 1


@adding("content that is written into afterwards", X, ROWS)
def _(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    changed, held = torch.zeros(2, 4), x * 2
    changed.data = held
    held.add_(rows[:2])
    return changed + 1, held + 1


@adding("contents that are swapped", X, ROWS)
def _(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    one, other = x * 2, made(rows)
    one.data, other.data = other.data, one.data
    return one + 1, other + 1


add("content that is of another type", lambda x, y: _typed(x.clone(), y), X, ROWS)


def _typed(x: Tensor, rows: Tensor) -> Tensor:
    x.data = rows.double()
    return x + 1


# -- a gradient ------------------------------------------------------------------------------


@adding_to_a_module("a gradient that is set", X, ROWS)
def _(self: Any, x: Tensor, rows: Tensor) -> Tensor:
    self.lin.weight.grad = made(rows)
    return x @ self.lin.weight.grad
