"""Models that torch.compile cannot take as a whole, and what tells its state."""

import copy

import torch
import torch._dynamo
from torch import nn
from torch._dynamo import pgo

__all__ = ["Branches", "Linear", "Prints", "Repeats", "compiler_state", "entries"]


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        return self.fc(x).relu() + self.shift


class Prints(nn.Module):
    """Prints between two layers, and writes into a buffer there."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        y = self.first(x)
        print("between")
        return self.last(y.relu())


class Branches(nn.Module):
    """Chooses by the sum of a tensor, and hands a number to Python."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        if y.sum() > 0:
            y = y + 1
        return y * y.mean().item()


class Repeats(nn.Module):
    """Calls layers that print, in a loop."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Prints(), Prints()])

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([layer(x), layer(x)], dim=1)
        return x


def entries(model):
    """Give how many graphs the compiler keeps for the forward of a model."""
    code = type(model).forward.__code__
    return len(torch._dynamo.eval_frame._debug_get_cache_entry_list(code))


def compiler_state():
    """Give the sizes that the compiler has seen, and its limits."""
    return copy.deepcopy(
        (
            {str(key): str(value) for key, value in pgo.get_code_state().items()},
            # Its name up to torch 2.6 is the latter.
            getattr(torch._dynamo.config, "recompile_limit", None),
            getattr(torch._dynamo.config, "cache_size_limit", None),
        )
    )
