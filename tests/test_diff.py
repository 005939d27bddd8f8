"""Differences: each single change of a model is told, and nothing else."""


import pytest
import torch
from torch import nn
from torch.nn import functional

import tbscope
from tbscope.ir.graph import Graph


class Block(nn.Module):
    """A little of all: layers, a shortcut, operations of its own, constants."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(8, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x, mask=None, *, factor=2.0):
        y = self.fc2(self.drop(self.act(self.fc1(x))))
        y = y * self.scale + self.shift
        y = torch.clamp(y * factor, -1.0, 1.0)
        if mask is not None:
            y = y - mask
        return self.norm(x + y)


class Net(nn.Module):
    """Four equal blocks in a list, with a head."""

    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 4)

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, mask)
        return {"out": self.head(x), "hidden": x}


X = torch.rand(2, 4)
MASK = torch.rand(2, 4)


def told(before, after, inputs=(X, MASK), others=None):
    """Give what a difference tells, each change as one line."""
    one = before if isinstance(before, Graph) else tbscope.trace(before, inputs)
    other = after if isinstance(after, Graph) else tbscope.trace(after, others or inputs)
    difference = tbscope.diff(one, other)
    tbscope.verify(difference.graph)
    return [line(change) for change in difference.changes]


def line(change):
    """Give a change as a text: its fate, its kind, its name or names, and what differs."""
    names = [change.before, change.after]
    if change.before == change.after:
        names = [change.name]
    names = [name for name in names if name is not None]
    details = ", ".join(map(str, change.details)) if change.fate == "changed" else ""
    return f"{change.fate} {change.kind} {' -> '.join(names)} {details}".rstrip()


def changed(change):
    """Give a net that is like `Net` but for one change."""
    net = Net()
    change(net)
    return net


def swap(name, make):
    """Give a change that puts another module in the place of one."""

    def change(net):
        above, _, last = name.rpartition(".")
        setattr(net.get_submodule(above), last, make())

    return change


def forward(old, new):
    """Give a change of one line of the code of a block: of the second one alone."""

    def change(net):
        import inspect
        import textwrap

        code = textwrap.dedent(inspect.getsource(Block.forward))
        assert code.count(old) == 1, old
        space = {"torch": torch, "functional": functional}
        exec(code.replace(old, new), space)
        kind = type("Block", (Block,), {"forward": space["forward"], "__module__": __name__})
        net.blocks[1].__class__ = kind

    return change


SINGLE = {
    "a rate": (
        swap("blocks.1.drop", lambda: nn.Dropout(0.3)),
        ["changed module blocks.1.drop p 0.1 -> 0.3"],
    ),
    "an epsilon": (
        swap("blocks.3.norm", lambda: nn.LayerNorm(4, eps=1e-3)),
        [
            "changed module blocks.3.norm eps 1e-05 -> 0.001",
            "changed operation blocks.3.norm.layer_norm() eps 1e-05 -> 0.001",
        ],
    ),
    "no bias": (
        swap("head", lambda: nn.Linear(4, 2, bias=False)),
        [
            "changed module head bias True -> False, bias parameter Float(2) removed",
            "changed operation head.linear() reads input, weight, bias -> input, weight, "
            "argument 2 % -> None",
        ],
    ),
    "another activation": (
        swap("blocks.0.act", nn.GELU),
        ["changed module blocks.0.act class ReLU -> GELU"],
    ),
    "a dtype": (
        lambda net: net.spare.double(),
        ["changed module spare weight Float(4, 4) -> Double(4, 4), bias Float(4) -> Double(4)"],
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_change_is_all_that_is_told(name):
    change, expected = SINGLE[name]
    assert told(Net(), changed(change)) == expected
    assert told(changed(change), changed(change)) == []
