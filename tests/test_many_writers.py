"""Several writers and processes on one log directory: nothing is lost, nothing is mixed."""

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from browser import TensorBoard
from processes import on_ranks
from served import info, names
from torch import nn

import tbscope

X = torch.ones(1, 2)


def write(rank, count, directory):
    """Write graphs, overlays and scalars, from the moment on in which all ranks are ready."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(rank + 1)))
    writer = tbscope.SummaryWriter(directory)
    graph = tbscope.trace(model, X)
    torch.distributed.barrier()
    for number in range(5):
        writer.add_graph(graph, tag=f"{rank}/{number}")
        writer.add_overlay(f"{rank}/calls", graph, "calls")
        writer.add_scalar("loss", number, number)
    writer.add_graph(graph, run_name=str(rank))
    writer.close()


def layers(drawn):
    """Give how many layers a graph has, told from the names of its nodes."""
    return len({name for name in drawn if name.endswith("/weight")})


@pytest.mark.parametrize(
    "other",
    [tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter, tensorboardX.SummaryWriter],
)
def test_two_writers_on_one_directory_lose_nothing(tmp_path, other):
    # tensorboardX names files by the second alone.
    suffix = {"filename_suffix": ".other"} if other is tensorboardX.SummaryWriter else {}
    ours, theirs = tbscope.SummaryWriter(tmp_path), other(str(tmp_path), **suffix)
    for number, model in enumerate((nn.ReLU(), nn.Tanh(), nn.Sigmoid())):
        tbscope.add_graph(ours, model, X, tag=f"ours {number}")
        tbscope.add_graph(theirs, model, X, tag=f"theirs {number}")
        theirs.add_scalar("loss", number, number)
    tbscope.add_graph(theirs, nn.Linear(2, 2), X)
    ours.close()
    theirs.close()
    with TensorBoard(tmp_path) as server:
        tags = info(server)["."]["tags"]
        assert set(tags) == {f"{who} {number}" for who in ("ours", "theirs") for number in range(3)}
        for number, name in enumerate(("ReLU", "Tanh", "Sigmoid")):
            assert name in names(server, ".", f"ours {number}")
            assert name in names(server, ".", f"theirs {number}")
        assert "Linear" in names(server)


def test_two_writers_of_one_process_share_the_steps_of_a_directory(tmp_path):
    first, second = tbscope.SummaryWriter(tmp_path), tbscope.SummaryWriter(tmp_path)
    first.add_graph(nn.ReLU(), X, tag="model")
    second.add_graph(nn.Tanh(), X, tag="model")
    with pytest.raises(tbscope.ArgumentError, match="at step 1 comes too late"):
        first.add_graph(nn.Sigmoid(), X, tag="model", step=1)
    first.close()
    second.close()
    with TensorBoard(tmp_path) as server:
        assert "Tanh" in names(server, ".", "model")


def test_three_processes_write_into_one_directory_at_the_same_time(tmp_path):
    logdir, store = tmp_path / "logs", tmp_path / "store"
    store.mkdir()
    on_ranks(write, 3, store, str(logdir))
    with TensorBoard(logdir) as server:
        listed = info(server)
        assert set(listed) == {".", "0", "1", "2"}
        wanted = {f"{name}/{what}" for name in range(3) for what in (*range(5), "calls")}
        assert set(listed["."]["tags"]) == wanted
        for name in range(3):
            assert layers(names(server, str(name))) == name + 1
            assert listed["."]["tags"][f"{name}/calls"]["profile"]
            for tag in (f"{name}/0", f"{name}/4", f"{name}/calls"):
                assert layers(names(server, ".", tag)) == name + 1
