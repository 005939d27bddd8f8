"""The latest graph of a tag is shown, in whatever order TensorBoard reads the event files."""

import os
import threading
import time

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from browser import TensorBoard
from served import figures_of, info, names
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.summary.writer import event_file_writer
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch import nn

import tbscope
from tbscope.writing.event_sinks import open_sink
from tbscope.writing.records import file_name

X = torch.ones(1, 2)
OURS, TORCHS = tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter
MODELS = (nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Softplus())


def counted_from(number):
    """Let the next event file of this process end in this number."""
    event_file_writer._global_uid._value = number


def other_writer(directory):
    """Make tensorboardX's, whose files are named by the second and what is added here alone."""
    return tensorboardX.SummaryWriter(directory, filename_suffix=".other")


def wait_for_a_second():
    """Wait until a second begins, so that what follows falls in one."""
    time.sleep(1 - time.time() % 1)


def steps_by_file(directory):
    """Give the steps of the graphs in each event file that has some, as the files are read."""
    files = [LegacyEventFileLoader(str(path)).Load() for path in sorted(directory.iterdir())]
    steps = [[event.step for event in file if not event.HasField("file_version")] for file in files]
    return [found for found in steps if found]


# Where the numbers of the files begin, who writes, and whose turn it is, graph by graph.
CASES = {
    "9-10": (9, (OURS, OURS), (0, 1)),
    "99-100": (99, (TORCHS, TORCHS), (0, 1)),
    "10-9": (9, (OURS, TORCHS), (1, 0)),
    "8-9": (8, (OURS, OURS), (1, 0, 1, 1)),
    "then-other": (9, (OURS, other_writer), (0, 1, 0)),
    "other-then": (99, (other_writer, OURS), (0, 1)),
}


@pytest.fixture
def _counter(monkeypatch):
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """Give a log directory with a run for each case, where each graph is of another model."""
    found = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
        for name, (start, makers, turns) in CASES.items():
            wait_for_a_second()
            counted_from(start)
            writers = [make(str(found / name)) for make in makers]
            for turn, model in zip(turns, MODELS, strict=False):
                tbscope.add_graph(writers[turn], model, X)
                tbscope.add_graph(writers[turn], model, X, tag="model")
            for writer in writers:
                writer.close()
    return found


@pytest.mark.parametrize("options", [(), ("--load_fast=false",)], ids=["rust", "python"])
def test_the_latest_graph_is_shown_whichever_file_was_opened_last(logdir, options):
    latest = {name: type(MODELS[len(turns) - 1]).__name__ for name, (_, _, turns) in CASES.items()}
    with TensorBoard(logdir, *options) as server:
        assert info(server).keys() == latest.keys()
        for tag in (None, "model"):
            shown = {run: names(server, run, tag) for run in latest}
            assert {run: name for run, name in latest.items() if name not in shown[run]} == {}


@pytest.mark.usefixtures("_counter")
def test_figures_go_with_the_graph_of_the_run(tmp_path):
    wait_for_a_second()
    counted_from(9)
    graph = tbscope.trace(nn.Sequential(nn.ReLU()), X, profile=1)
    with OURS(tmp_path) as first, OURS(tmp_path) as second:
        first.add_graph(graph)
        second.add_graph(graph, style="torch")
    assert steps_by_file(tmp_path) == [[0, 0], [1, 1]]
    with TensorBoard(tmp_path) as server:
        (device,) = figures_of(server, ".", "profile").step_stats.dev_stats
        assert "ReLU[0]" in {stats.node_name for stats in device.node_stats}
        assert "ReLU[0]" in names(server)


@pytest.mark.usefixtures("_counter")
def test_graphs_of_a_run_below_are_read_in_their_order(tmp_path):
    wait_for_a_second()
    counted_from(8)
    with OURS(tmp_path) as writer:
        for model in MODELS:
            writer.add_graph(model, X, tag="model", run_name="eval")
    assert steps_by_file(tmp_path / "eval") == [[0], [1], [2], [3]]


@pytest.mark.usefixtures("_counter")
def test_no_thread_is_left_behind_by_files_that_were_opened_for_their_names(tmp_path):
    wait_for_a_second()
    counted_from(9)
    with OURS(tmp_path) as first, OURS(tmp_path) as second:
        threads = threading.active_count()
        for writer in (first, second, first):
            writer.add_graph(nn.ReLU(), X)
        assert threading.active_count() == threads


@pytest.mark.usefixtures("_counter")
def test_a_writer_keeps_to_its_own_file_while_that_is_read_last(tmp_path):
    wait_for_a_second()
    counted_from(8)
    with OURS(tmp_path) as first, OURS(tmp_path) as second:
        for writer in (first, first, second, second):
            writer.add_graph(nn.ReLU(), X)
        # Another tag has an order of its own.
        first.add_graph(nn.ReLU(), X, tag="model")
    assert steps_by_file(tmp_path) == [[0, 1, 0], [2, 3]]


@pytest.mark.parametrize("make", [OURS, TORCHS, other_writer, EventFileWriter])
def test_every_writer_tells_the_name_of_its_file(tmp_path, make):
    writer = make(str(tmp_path))
    (name,) = os.listdir(tmp_path)
    assert file_name(open_sink(writer)) == name
    writer.close()


def test_what_tells_no_name_has_none():
    for other in (None, object(), "runs", nn.ReLU()):
        assert file_name(other) == ""
