"""Events find their way into anything like a SummaryWriter."""

import os
import types

import pytest
import tensorboardX
import tensorboardX.proto.event_pb2
import torch.utils.tensorboard
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard.writer import FileWriter

from tbscope.errors import WriterError
from tbscope.writing.event_sinks import check_writer, open_sink, write_graph_event

GRAPH_DEF = b"\x0a\x03\x0a\x01x"


class Holder:
    """Holds what it is given, as loggers and trackers hold their writers."""

    def __init__(self, **held):
        vars(self).update(held)


class Logger:
    """Opens its writer when it is first asked for, as Lightning's logger does."""

    def __init__(self, directory):
        self.directory = directory

    @property
    def experiment(self):
        return torch.utils.tensorboard.SummaryWriter(self.directory)


class Proxy:
    """Hands on whatever it is asked, as wrappers of writers do."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class StandIn:
    """Takes any name and does nothing, as Lightning's `_DummyExperiment` does."""

    def nothing(self, *_args, **_kwargs):
        return None

    def __getattr__(self, _name):
        return self.nothing


class OwnWriter(torch.utils.tensorboard.SummaryWriter):
    """Has an `add_event` that means something else."""

    def add_event(self, tag, step):
        raise AssertionError


WRITERS = {
    "torch": torch.utils.tensorboard.SummaryWriter,
    "torch's subclass": OwnWriter,
    "torch's file writer": FileWriter,
    "tensorboard's file writer": EventFileWriter,
    "tensorboardX": tensorboardX.SummaryWriter,
    "tensorboardX's file writer": tensorboardX.writer.FileWriter,
    "a proxy": lambda path: Proxy(torch.utils.tensorboard.SummaryWriter(path)),
    "file_writer": lambda path: Holder(file_writer=FileWriter(path)),
    "_get_file_writer": lambda path: Holder(_get_file_writer=lambda: FileWriter(path)),
    "event_writer": lambda path: Holder(event_writer=EventFileWriter(path)),
    "Lightning's logger": Logger,
    "Accelerate's tracker": lambda path: Holder(writer=torch.utils.tensorboard.SummaryWriter(path)),
    "transformers' callback": lambda path: Holder(tb_writer=tensorboardX.SummaryWriter(path)),
    "two steps": lambda path: Holder(experiment=Holder(writer=FileWriter(path))),
}


def events_in(directory):
    paths = sorted(directory.iterdir())
    return [event for path in paths for event in LegacyEventFileLoader(str(path)).Load()]


@pytest.mark.parametrize("make", WRITERS.values(), ids=WRITERS)
def test_a_graph_goes_through_any_writer_into_its_file(tmp_path, make):
    writer = make(str(tmp_path))
    check_writer(writer)
    sink = open_sink(writer)
    write_graph_event(sink, GRAPH_DEF, step=0)
    sink.close()
    *_, event = events_in(tmp_path)
    assert event.graph_def == GRAPH_DEF
    assert event.wall_time > 1.7e9


@pytest.mark.parametrize("name", ["torch", "tensorboard's file writer", "Lightning's logger"])
def test_a_graph_is_on_disk_before_its_writer_is_closed(tmp_path, name):
    sink = open_sink(WRITERS[name](str(tmp_path)))
    write_graph_event(sink, GRAPH_DEF, step=0)
    assert events_in(tmp_path)[-1].graph_def == GRAPH_DEF
    sink.close()


def test_a_sink_of_ones_own_is_given_tensorboards_events():
    events = []
    write_graph_event(types.SimpleNamespace(add_event=events.append), GRAPH_DEF, step=0)
    assert [type(event) for event in events] == [Event]


def test_a_subclass_of_tensorboardx_is_given_tensorboardx_events():
    class Collector(tensorboardX.writer.FileWriter):
        def __init__(self):
            self.events = []

        def add_event(self, event):
            self.events.append(event)

        def flush(self):
            pass

    sink = Collector()
    write_graph_event(sink, GRAPH_DEF, step=0)
    assert [type(event) for event in sink.events] == [tensorboardX.proto.event_pb2.Event]


def test_a_stand_in_writes_nothing():
    for writer in (StandIn(), Holder(experiment=StandIn()), Holder(writer=StandIn())):
        check_writer(writer)
        assert open_sink(writer) is None


def test_a_blank_tracker_of_accelerate_writes_nothing():
    blank = type("GeneralTracker", (), {"__module__": "accelerate.tracking"})()
    check_writer(blank)
    assert open_sink(blank) is None


def test_tensorboardx_without_a_disk_writes_nothing(tmp_path):
    writer = tensorboardX.SummaryWriter(str(tmp_path / "log"), write_to_disk=False)
    write_graph_event(open_sink(writer), GRAPH_DEF, step=0)
    writer.close()
    assert not (tmp_path / "log").exists()


def test_a_check_opens_no_file(tmp_path):
    check_writer(Logger(str(tmp_path / "log")))
    assert not (tmp_path / "log").exists()


WHY = """\
  why: {} is no writer, logger or tracker of event files, and has none in it
  fix: give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')"""


@pytest.mark.parametrize(
    ("writer", "described"),
    [
        ("runs/x", "'runs/x'"),
        (None, "None"),
        (object(), "<object>"),
        (Holder(add_event=None), "<test_sinks.Holder>"),
        (Holder(add_event=3), "<test_sinks.Holder>"),
        (Holder(writer=None), "<test_sinks.Holder>"),
        (
            torch.utils.tensorboard.SummaryWriter,
            "<class 'torch.utils.tensorboard.writer.SummaryWriter'>",
        ),
    ],
)
def test_an_object_that_is_no_writer_is_refused_at_once(writer, described):
    with pytest.raises(WriterError) as raised:
        check_writer(writer)
    expected = f"cannot write a graph to {described}\n{WHY.format(type(writer).__name__)}"
    assert str(raised.value) == expected.replace("test_sinks", __name__)
    with pytest.raises(WriterError, match=r"^cannot write a graph to"):
        open_sink(writer)


def test_a_logger_of_another_kind_is_refused_when_its_writer_is_seen():
    writer = Holder(experiment=Holder(log=print))
    check_writer(writer)
    with pytest.raises(WriterError) as raised:
        open_sink(writer)
    assert str(raised.value) == (
        f"cannot write a graph to <{__name__}.Holder>\n{WHY.format('Holder')}"
    )


def test_a_circle_of_holders_is_refused():
    circle = Holder()
    circle.writer = circle
    with pytest.raises(WriterError, match="has none in it"):
        open_sink(circle)


def test_seven_holders_may_stand_around_a_writer_and_no_more():
    sink = types.SimpleNamespace(add_event=print)

    def held(depth):
        return Holder(writer=held(depth - 1)) if depth else sink

    assert open_sink(held(7)) is sink
    with pytest.raises(WriterError, match="has none in it"):
        open_sink(held(8))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_writer_of_the_process_before_a_fork_is_refused(tmp_path):
    sink = open_sink(torch.utils.tensorboard.SummaryWriter(str(tmp_path)))
    reading, writing = os.pipe()
    if not os.fork():
        try:
            write_graph_event(sink, GRAPH_DEF, step=0)
        except WriterError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.wait()
    assert os.read(reading, 1000).decode() == (
        "cannot write a graph to the FileWriter of another process\n"
        "  why: this process was forked, and the thread that writes its events was not\n"
        "  fix: make a writer in this process: writer = tbscope.SummaryWriter(log_dir)"
    )
    assert [event.graph_def for event in events_in(tmp_path)] == [b""]
    sink.close()
