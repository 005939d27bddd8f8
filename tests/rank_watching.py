"""What several processes run in the tests of `watch(ranks=...)`: trainings whose step is drawn."""

import json
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tbscope


class Net(nn.Module):
    """A layer, and on request an operation more; or what nobody can record."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.more = self.broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.broken:
            tbscope.pop_scope()
        x = self.layer(x)
        return x.relu() if self.more else x


def _train(folder: Any, steps: int = 3, broken: int = -1, **options: Any) -> dict[str, Any]:
    """Train on all ranks, of which one draws; give what came of it on this one."""
    rank, model = dist.get_rank(), Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    writer = tbscope.SummaryWriter(folder / "log") if rank == 0 else None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        watched = tbscope.watch(writer, model, ranks_timeout=20.0, **{"ranks": "all", **options})
        model.broken = broken == rank
        for step in range(steps):
            model.more = step >= 2
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4) * (rank + 1)).sum()
            loss.backward()
            optimizer.step()
            dist.barrier()
    if writer is not None:
        writer.close()
    graphs = tbscope.read_log(folder / "log") if rank == 0 else []
    return {
        "parts": [[list(part.ranks) for part in one.graph.parts] for one in graphs],
        "notes": [[str(note) for note in one.graph.notes] for one in graphs],
        "drew": watched.graph is not None,
        "over": watched.is_over,
        "warned": [str(one.message) for one in warned],
        "weight": json.dumps(model.layer.weight.tolist()),
    }


def plain(folder: Any) -> dict[str, Any]:
    """All ranks are drawn."""
    return _train(folder)


def some(folder: Any) -> dict[str, Any]:
    """Two of three ranks are drawn."""
    return _train(folder, ranks=[0, 2])


def again(folder: Any) -> dict[str, Any]:
    """Each step is recorded anew, and drawn where it is another one."""
    return _train(folder, steps=4, every=1)


def cannot_be_drawn(folder: Any) -> dict[str, Any]:
    """The rank that draws fails to, after all have handed their graphs on."""
    return _train(folder, color_by=lambda node: 1 // 0)


def one_fails(folder: Any) -> dict[str, Any]:
    """On one rank nothing can be recorded."""
    return _train(folder, broken=1)


def first_fails(folder: Any) -> dict[str, Any]:
    """On the rank that draws nothing can be recorded."""
    return _train(folder, broken=0)
