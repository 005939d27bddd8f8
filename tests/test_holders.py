"""Writers of other libraries, proxies of writers, and what is none."""

import pytest
import torch
import torch.utils.tensorboard
from tensorboard import summary
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch import nn

import tbscope
from tbscope.writing.event_sinks import check_writer

X = torch.ones(1, 2)


class Holder:
    """Holds what it is given, as trainers hold their loggers."""

    def __init__(self, **held):
        vars(self).update(held)


@pytest.fixture
def writer(tmp_path):
    with torch.utils.tensorboard.SummaryWriter(str(tmp_path)) as writer:
        yield writer


def test_what_holds_a_writer_is_no_writer_and_the_writer_in_it_is_one(writer):
    accelerator = Holder(trackers=[Holder(writer=writer)])
    with pytest.raises(tbscope.WriterError) as raised:
        check_writer(accelerator)
    assert raised.value.fix == "give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')"
    assert tbscope.add_graph(accelerator.trackers[0], nn.ReLU(), X).nodes


# -- writers of other kinds -------------------------------------------------------------------


class Proxy:
    """Hands on whatever it is asked, and has nothing of its own."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Grumpy:
    """Raises when it is asked for what it does not have."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name} before start()")


def test_a_writer_of_tensorboard_summary_takes_a_graph_among_its_scalars(tmp_path):
    writer = summary.Writer(str(tmp_path))
    for step in range(3):
        writer.add_scalar("loss", step, step)
        tbscope.add_graph(writer, nn.ReLU(), X, tag="loss")
    tbscope.add_graph(writer, nn.Tanh(), X, run_name="eval")
    writer.close()
    reader = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in reader.Tensors("loss")] == [0, 1, 2]
    assert len(reader.Tensors("loss ")) == 3
    assert EventAccumulator(str(tmp_path / "eval")).Reload().Graph().node
    with pytest.raises(tbscope.WriterError, match="closed"):
        tbscope.add_graph(writer, nn.ReLU(), X)


def test_a_writer_of_tensorboard_summary_with_an_output_of_ones_own_is_refused():
    class Output(summary.Output):
        def emit_scalar(self, **_):
            raise AssertionError

        flush = close = emit_scalar

    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(summary.Writer(Output()), nn.ReLU(), X)
    assert raised.value.what.endswith("<tensorboard.summary._writer.Writer>")
    assert raised.value.fix == "give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')"


def test_a_proxy_of_a_file_writer_takes_a_graph(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    tbscope.add_graph(Proxy(writer), nn.ReLU(), X)
    writer.close()
    assert EventAccumulator(str(tmp_path)).Reload().Graph().node


def test_an_object_that_raises_when_it_is_asked_is_refused():
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(Grumpy(), nn.ReLU(), X)
    assert raised.value.why.endswith("has none in it")


def test_a_logger_that_cannot_open_its_writer_is_told_of():
    class Logger:
        @property
        def experiment(self):
            raise PermissionError(13, "Permission denied", "/logs")

    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(Logger(), nn.ReLU(), X)
    assert str(raised.value).startswith(
        "cannot write to /logs\n  why: PermissionError: Permission denied\n"
    )
