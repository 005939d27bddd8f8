"""What several processes run in the tests of gathering: small models, and ranks that fail."""

import os
import signal
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tbscope
from tbscope.formats.json import graph_to_json

# Seconds: on a busy machine the ranks that do come may take one or two.
_PATIENCE = 6.0


def waits(program: Any) -> Any:
    """Mark a program that waits for a rank which does not come: others may run meanwhile."""
    program.waits = True
    return program


def net() -> nn.Module:
    """Give a small model, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def _draw(
    folder: Any, x: Any = None, before: Any = None, model: Any = None, **options: Any
) -> dict[str, Any]:
    """Draw on all ranks, and tell what came of it on this one."""
    rank, model = dist.get_rank(), net() if model is None else model
    writer = tbscope.SummaryWriter(folder / "log") if rank == 0 else None
    x = torch.ones(3, 4) if x is None else x
    error, graph = "", None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            if before is not None:
                before()
            graph = tbscope.add_graph(writer, model, x, **{"ranks": "all", **options})
        except Exception as raised:  # noqa: BLE001  It is told.
            error = str(raised)
    if writer is not None:
        writer.flush()
    return {
        "graph": None if graph is None else graph_to_json(graph),
        "own": graph_to_json(tbscope.trace(model, x)) if not error and not warned else "",
        "warned": [str(one.message) for one in warned],
        "error": error,
        "drawn": 0 if writer is None else len(tbscope.read_log(folder / "log")),
    }


def same(folder: Any) -> dict[str, Any]:
    """All ranks run the same."""
    return _draw(folder)


def uneven(folder: Any) -> dict[str, Any]:
    """The batch of the last rank is smaller."""
    return _draw(folder, torch.ones(2 if dist.get_rank() == 2 else 3, 4))


def some(folder: Any) -> dict[str, Any]:
    """Two ranks are drawn, and all run the model."""
    return _draw(folder, ranks=[2, 0])


def unfolded(folder: Any) -> dict[str, Any]:
    """Each rank has a box."""
    return _draw(folder, ranks="unfolded")


def twice(folder: Any) -> dict[str, Any]:
    """A second drawing of the same program gathers anew."""
    _draw(folder)
    return _draw(folder, torch.ones(5, 4), tag="second")


def raises(folder: Any) -> dict[str, Any]:
    """One rank raises, and training goes on."""
    x = torch.ones(3, 5 if dist.get_rank() == 1 else 4)
    told = _draw(folder, x, on_error="warn")
    dist.barrier()
    return told


def raises_first(folder: Any) -> dict[str, Any]:
    """The rank that draws raises, and draws what the others have."""
    return _draw(folder, torch.ones(3, 4 if dist.get_rank() else 5), on_error="warn")


@waits
def is_slow(folder: Any) -> dict[str, Any]:
    """One rank comes when nobody waits for it any more."""
    gone = folder / "gone"

    def wait() -> None:
        while dist.get_rank() == 1 and not gone.exists():
            time.sleep(0.01)

    told = _draw(folder, before=wait, ranks_timeout=_PATIENCE, on_error="warn")
    if dist.get_rank() == 0:
        gone.touch()
    return told


def _kill_one(folder: Any) -> None:
    """Have rank 1 be killed by a signal, once all ranks have met."""
    (folder / f"here{dist.get_rank()}").touch()
    _wait_for(*[folder / f"here{rank}" for rank in range(dist.get_world_size())])
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(*files: Any) -> None:
    while not all(file.exists() for file in files):
        time.sleep(0.01)


def _told_when_over(folder: Any, told: dict[str, Any]) -> dict[str, Any]:
    """Stay until the rank that draws is done: with the last of its processes goes the store."""
    over = folder / "over"
    if dist.get_rank() == 0:
        over.touch()
    _wait_for(over)
    return told


@waits
def is_killed(folder: Any) -> dict[str, Any]:
    """One rank is gone, and an error tells so."""
    told = _draw(folder, before=lambda: _kill_one(folder), ranks_timeout=_PATIENCE)
    return _told_when_over(folder, told)


class Meeting(nn.Module):
    """Sums up over all ranks, after something else was done."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self.fc, self.before = nn.Linear(4, 4), before

    def forward(self, x: Any) -> Any:
        x = self.fc(x)
        self.before()
        dist.all_reduce(x)
        return x


@waits
def is_killed_inside(folder: Any) -> dict[str, Any]:
    """One rank is gone while the others wait for it in the model; they go on."""
    model = Meeting(lambda: _kill_one(folder))
    told = _draw(folder, model=model, ranks_timeout=_PATIENCE, on_error="warn")
    return _told_when_over(folder, {**told, "goes on": net()(torch.ones(1, 4)).shape[0]})


@waits
def leaves_what_came(folder: Any) -> dict[str, Any]:
    """One rank is gone before it draws; the others are drawn, and train on."""
    told = _draw(folder, before=lambda: _kill_one(folder), ranks_timeout=_PATIENCE, on_error="warn")
    return _told_when_over(folder, told)


def has_no_writer(folder: Any) -> dict[str, Any]:
    """The rank that draws was given none."""
    try:
        tbscope.add_graph(None, net(), torch.ones(3, 4), ranks="all")
    except tbscope.WriterError as error:
        return {"error": str(error)}
    return {"error": ""}
