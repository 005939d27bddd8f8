"""Random module trees with random wiring, traced and held against the zoo's oracles."""

import warnings
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.sweeps import counted
from tests.zoo.check import check

WIDTH = 4
LEAVES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "relu_": lambda: nn.ReLU(inplace=True),
    "tanh": nn.Tanh,
    "identity": nn.Identity,
    "dropout": lambda: nn.Dropout(0.5),
}


class Program(nn.Module):
    """A module that runs a list of steps over its modules and the values so far."""

    def __init__(self, parts: list[tuple[str, Any]], steps: list[tuple], result: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.named = nn.ModuleDict()
        self.order = []
        for place, part in parts:
            self._hold(place, part)
        self.steps = steps
        self.result = result

    def _hold(self, place: str, part: Any) -> None:
        number = len(self.order)
        if place == "shared" and self.order:
            part = self.order[0]
        if place == "list":
            self.parts.append(part)
        elif place == "dict":
            self.named[f"key {number}"] = part
        else:
            setattr(self, f"part{number}", part)
        self.order = [*self.order, part]

    def forward(self, x: torch.Tensor, extra: dict | None = None) -> Any:
        values = [x, *(extra or {}).values()]
        for kind, which, at, other in self.steps:
            one, two = values[at % len(values)], values[other % len(values)]
            values.append(self._step(kind, which, one, two))
        if self.result == "tensor":
            return values[-1]
        if self.result == "tuple":
            return values[-1], None, values[-2]
        return {"last": values[-1], "more": [values[0], 3]}

    def _step(self, kind: str, which: int, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        if kind == "call" and self.order:
            part = self.order[which % len(self.order)]
            given = part(one, {"two": two}) if isinstance(part, Program) else part(one * 1)
            while isinstance(given, tuple | dict):
                given = given["last"] if isinstance(given, dict) else given[0]
            return given
        if kind == "write":
            whole = one * 1
            whole[:, 1:3] = two[:, :2]
            return whole
        if kind == "view":
            whole = one + 0
            half = whole.view(-1, 2)[::2]
            half.mul_(two[:, :2].sum())
            return whole
        return one + two if kind == "add" else torch.cat([one, two], 1)[:, ::2]


def steps():
    kinds = st.sampled_from(["call", "call", "call", "add", "cat", "write", "view"])
    number = st.integers(0, 7)
    return st.lists(st.tuples(kinds, number, number, number), min_size=1, max_size=6)


def programs(parts):
    held = st.tuples(st.sampled_from(["attribute", "list", "dict", "shared"]), parts)
    results = st.sampled_from(["tensor", "tuple", "dict"])
    return st.builds(Program, st.lists(held, max_size=4), steps(), results)


leaves = st.sampled_from(sorted(LEAVES)).map(lambda name: LEAVES[name]())
models = programs(st.recursive(leaves, programs, max_leaves=6))


@settings(
    max_examples=counted(40, 16),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, training=st.booleans())
def test_a_random_model_is_drawn_as_the_oracles_saw_it(model, training):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = check(model, (torch.randn(4, WIDTH),), training=training)
    assert verdict.wrong == {}
