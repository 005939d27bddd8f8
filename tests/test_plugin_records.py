"""The graphs of a log with their records: what the tab has beside the drawings."""

import threading
import zlib

import pytest
import torch
from log_files import graph_def, log
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.context import RequestContext
from torch import nn

import tbscope
from tbscope.formats.compressed import RECORD_FIELD, record_of
from tbscope.graphdef.wire import delimited, varint
from tbscope.plugin import graphs
from tbscope.plugin.graphs import GraphLocation, LoggedGraphs

CONTEXT = RequestContext()


def logged(logdir, *, known=True):
    """Return the graphs of a log directory as TensorBoard's own data provider has them."""
    runs = EventMultiplexer().AddRunsFromDirectory(str(logdir))
    runs.Reload()
    provider = MultiplexerDataProvider(runs, str(logdir))
    return LoggedGraphs(provider, str(logdir) if known else "")


def place(run=".", tag="", step=None):
    return GraphLocation("", run, tag, step)


def write(logdir, *models, tag=None):
    """Write the graphs of models; give them."""
    with tbscope.SummaryWriter(str(logdir)) as writer:
        return [writer.add_graph(model, torch.ones(1, 2), tag=tag) for model in models]


def refusal(found, at):
    """Return why the record of a place cannot be read; its drawing is read all the same."""
    with pytest.raises(tbscope.ArgumentError) as refused:
        found.record_of(CONTEXT, at)
    assert found.record(CONTEXT, at) is None
    assert found.levels(CONTEXT, at).inside
    return refused.value.why


def event(record):
    """Return the bytes of an event with a drawing, and a record beside it."""
    drawing = graph_def("a: Op()", "b: Op(a)").SerializeToString()
    data = Event(wall_time=3, step=0, graph_def=drawing).SerializeToString()
    return data + varint(RECORD_FIELD << 3 | 2) + delimited(record)


@pytest.mark.parametrize("run", [".", "deep/run", "..dots..", "a b/c%d"])
def test_a_graph_comes_back_with_all_that_its_drawing_leaves_out(tmp_path, run):
    (graph,) = write(tmp_path / run, nn.Linear(2, 1))
    found = logged(tmp_path)
    again = found.record_of(CONTEXT, place(run))
    assert str(again) == str(graph)
    assert [str(note) for note in again.notes] == [str(note) for note in graph.notes]
    assert found.record(CONTEXT, place(run)) is again


def test_each_tag_and_each_step_has_its_own_record(tmp_path):
    for tag in ("net", "other"):
        write(tmp_path, nn.ReLU(), nn.Tanh(), tag=tag)
    write(tmp_path, nn.Sigmoid())
    found = logged(tmp_path)
    names = {
        (one["tag"], step): found.record_of(CONTEXT, place(tag=one["tag"], step=step)).name
        for one in found.runs(CONTEXT, "")
        for step in one["steps"]
    }
    assert names == {
        ("", 0): "Sigmoid",
        **{(f"{tag} ", 0): "ReLU" for tag in ("net", "other")},
        **{(f"{tag} ", 1): "Tanh" for tag in ("net", "other")},
    }


def test_of_several_steps_the_latest_is_shown_unless_one_is_named(tmp_path):
    write(tmp_path, nn.ReLU(), nn.Tanh(), tag="net")
    found = logged(tmp_path)
    told = [found.record_of(CONTEXT, place(tag="net ", step=step)).name for step in (None, 0, 1)]
    assert told == ["Tanh", "ReLU", "Tanh"]


def test_a_run_of_several_event_files_is_read_without_the_runs_below_it(tmp_path, monkeypatch):
    log(tmp_path / "events.out.tfevents.1", Event(wall_time=1, step=1))
    write(tmp_path, nn.ReLU())
    write(tmp_path / "below", nn.Tanh())
    read = []
    found_in_file = graphs.contents_of_file
    monkeypatch.setattr(
        graphs, "contents_of_file", lambda path: (read.append(path), found_in_file(path))[1]
    )
    assert logged(tmp_path).record_of(CONTEXT, place()).name == "ReLU"
    assert len(read) == 2
    assert not [path for path in read if "below" in path]


def test_a_file_that_grows_gives_what_is_in_it(tmp_path):
    write(tmp_path, nn.ReLU())
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b"\x00\x00\x00half of a record")
    assert logged(tmp_path).record_of(CONTEXT, place()).name == "ReLU"


def test_a_log_of_another_library_says_that_it_has_the_drawing_alone(tmp_path):
    with torch.utils.tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2))
    assert "the log has its drawing alone" in refusal(logged(tmp_path), place())


def test_without_a_log_directory_it_says_how_tensorboard_is_started(tmp_path):
    write(tmp_path, nn.ReLU())
    why = refusal(logged(tmp_path, known=False), place())
    assert why == "TensorBoard was started without --logdir, and hands on drawings alone"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"none", "zlib: Error -3"),
        (zlib.compress(b"{}")[:-2], "it is cut off"),
        (zlib.compress(b"0" * 1_000_000), "it contains more than"),
        (zlib.compress(b"[" * 100_000, 0), "its lists are nested too deep"),
        (zlib.compress(b"[]"), ""),
        (record_of(tbscope.trace(nn.ReLU(), torch.ones(1)))[:-9], "it is cut off"),
    ],
)
def test_a_record_that_is_damaged_or_a_trap_gives_a_message(tmp_path, record, why):
    log(tmp_path / "events.out.tfevents.1", event(record))
    assert why in refusal(logged(tmp_path), place())


def test_a_file_that_is_gone_or_damaged_since_gives_a_message(tmp_path):
    write(tmp_path, nn.ReLU())
    found = logged(tmp_path)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert "damaged" in refusal(found, place())
    path.unlink()
    assert refusal(found, place()) == "no event file of the run has this graph"
    tmp_path.rmdir()
    assert "FileNotFoundError" in refusal(found, place())


@pytest.mark.parametrize("run", ["..", "../other", "a/../../other", "/etc"])
def test_a_name_that_leads_out_of_the_log_directory_is_refused(tmp_path, run):
    write(tmp_path / "other", nn.ReLU())
    (tmp_path / "logs").mkdir()
    with pytest.raises(tbscope.ArgumentError, match="leads out of the log directory"):
        graphs.recorded_graph(str(tmp_path / "logs"), place(run, step=0), 0.0)
    with pytest.raises(tbscope.ArgumentError, match="the log has no graph of the run"):
        logged(tmp_path / "logs").record_of(CONTEXT, place(run))


def test_a_record_is_read_once_for_all_threads_and_while_its_graph_is_open(tmp_path, monkeypatch):
    for at in range(graphs._MOST_OPEN + 1):
        write(tmp_path / str(at), nn.ReLU())
    found = logged(tmp_path)
    read, results = [], []
    recorded = graphs.recorded_graph

    def slow(logdir, at, wall_time):
        read.append(at.run)
        return recorded(logdir, at, wall_time)

    monkeypatch.setattr(graphs, "recorded_graph", slow)
    threads = [
        threading.Thread(target=lambda: results.append(found.record_of(CONTEXT, place("0"))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == ["0"]
    assert len({id(graph) for graph in results}) == 1
    for at in range(1, graphs._MOST_OPEN + 1):
        found.record_of(CONTEXT, place(str(at)))
    assert len(found._open) == graphs._MOST_OPEN
    found.record_of(CONTEXT, place("0"))
    assert read.count("0") == 2


def test_a_remote_log_directory_is_read(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    try:
        write("memory://panels/run", nn.ReLU())
        found = logged("memory://panels")
        assert found.record_of(CONTEXT, place("run")).name == "ReLU"
        write("memory://panels", nn.Tanh())
        assert logged("memory://panels/").record_of(CONTEXT, place(".")).name == "Tanh"
    finally:
        fsspec.filesystem("memory").rm("/panels", recursive=True)
