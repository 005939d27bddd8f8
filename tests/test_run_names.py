"""Graphs in runs of their own, below the run of a writer."""

import os
import threading

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from browser import TensorBoard
from served import info, names
from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch import nn

import tbscope

X = torch.ones(1, 2)


class Keeper:
    """Takes events and tells nothing."""

    def __init__(self):
        self.events = []

    def add_event(self, event):
        self.events.append(event)


@pytest.mark.parametrize(
    "make",
    [
        tbscope.SummaryWriter,
        torch.utils.tensorboard.SummaryWriter,
        tensorboardX.SummaryWriter,
        EventFileWriter,
    ],
)
def test_a_run_below_that_of_the_writer_holds_graphs_of_its_own(tmp_path, make):
    writer = make(str(tmp_path))
    tbscope.add_graph(writer, nn.ReLU(), X)
    graph = tbscope.add_graph(writer, nn.Tanh(), X, run_name="eval")
    tbscope.add_graph(writer, graph, tag="tagged", run_name="eval/large")
    tbscope.add_overlay(writer, "calls", graph, run_name="eval")
    writer.close()
    with TensorBoard(tmp_path) as server:
        listed = info(server)
        assert {run: list(facts["tags"]) for run, facts in listed.items()} == {
            ".": [],
            "eval": ["calls"],
            "eval/large": ["tagged"],
        }
        assert {run for run, facts in listed.items() if facts["run_graph"]} == {".", "eval"}
        assert "ReLU" in names(server)
        assert "Tanh" in names(server, "eval")
        assert "Tanh" in names(server, "eval/large", "tagged")


def test_steps_of_each_run_go_up_by_themselves(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(nn.ReLU(), X, step=5)
        writer.add_graph(nn.Tanh(), X, step=2, run_name="eval")
        with pytest.raises(tbscope.ArgumentError, match="at step 2 comes too late"):
            writer.add_graph(nn.Tanh(), X, step=2, run_name="eval")
    message = "at step 1 comes too late"
    with (
        tbscope.SummaryWriter(tmp_path / "eval") as writer,
        pytest.raises(tbscope.ArgumentError, match=message),
    ):
        writer.add_graph(nn.Tanh(), X, step=1)


def test_the_file_of_a_run_is_closed_and_one_that_fails_is_not_made(tmp_path):
    threads = threading.active_count()
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(nn.ReLU(), X, step=3, run_name="eval")
        assert threading.active_count() == threads + 1
        before = os.listdir(tmp_path / "eval")
        with pytest.raises(tbscope.ArgumentError):
            writer.add_graph(nn.ReLU(), X, step=3, run_name="eval")
        assert os.listdir(tmp_path / "eval") == before
    loaded = DirectoryWatcher(str(tmp_path / "eval"), EventFileLoader).Load()
    assert [event.step for event in loaded if event.WhichOneof("what") == "graph_def"] == [3]


@pytest.mark.parametrize(
    "name",
    ["", "/eval", "eval/", "a//b", ".", "..", "../eval", "a/./b", "a\\b", "c:x", "a\nb", " ", 3],
)
def test_what_is_no_path_below_the_log_directory_is_an_error(tmp_path, name):
    with tbscope.SummaryWriter(tmp_path) as writer, pytest.raises(tbscope.ArgumentError) as error:
        writer.add_graph(nn.ReLU(), X, run_name=name)
    assert str(error.value) == (
        f"a run below the writer's own cannot be called {name!r}\n"
        "  why: it is a directory below the log directory, so its name is one part or more "
        "with / between them, none of them empty, '.' or '..', none of more than 255 bytes, "
        'and without ", \\, : and control characters\n'
        "  fix: run_name='eval', or 'eval/large'"
    )
    assert sorted(path.is_dir() for path in tmp_path.iterdir()) == [False]


def test_a_writer_that_tells_no_directory_has_no_runs_below_it():
    keeper = Keeper()
    with pytest.raises(tbscope.WriterError) as error:
        tbscope.add_graph(keeper, nn.ReLU(), X, run_name="eval")
    assert str(error.value) == (
        "cannot write a run 'eval' below that of <test_run_names.Keeper>\n"
        "  why: it has no attribute with its log directory\n"
        "  fix: give a writer of that run: tbscope.SummaryWriter('runs/x/eval')"
    )
    assert keeper.events == []
    tbscope.add_graph(keeper, nn.ReLU(), X)
    assert len(keeper.events) == 1
