"""Objects that hold a writer without being one: the error names the attribute."""

import types

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from tensorboard import summary
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch import nn

import tbscope
from tbscope.writing.holders import find_writer
from tbscope.writing.sinks import check_writer

X = torch.ones(1, 2)


class Holder:
    """Holds what it is given, as trainers hold their loggers."""

    def __init__(self, **held):
        vars(self).update(held)


class LightningLogger:
    """Opens its writer when it is asked for `experiment`."""

    @property
    def experiment(self):
        raise AssertionError


class LightningTrainer:
    """Shows its loggers by a property, which nobody may read before there are some."""

    def __init__(self, logger):
        self._loggers = [logger]

    @property
    def loggers(self):
        raise AssertionError


class Slotted:
    __slots__ = ("empty", "log")

    def __init__(self, log):
        self.log = log


def nested(depth, held):
    for _ in range(depth):
        held = Holder(inner=held)
    return held


def module_with(held):
    module = types.ModuleType("module")
    module.held = held
    return module


def diamonds():
    """Give an object that holds another in ten ways, and this a third, six deep."""
    held = Holder()
    for _ in range(6):
        held = [held] * 10
    return held


INNER = ".inner" * 5


@pytest.fixture
def writer(tmp_path):
    with torch.utils.tensorboard.SummaryWriter(str(tmp_path)) as writer:
        yield writer


HOLDERS = {
    "an Accelerator": (lambda w: Holder(trackers=[Holder(writer=w)]), ".trackers[0].writer"),
    "a list of trackers": (lambda w: [Holder(run=None), Holder(writer=w)], "[1].writer"),
    "a Trainer of transformers": (
        lambda w: Holder(model=nn.ReLU(), handler=Holder(callbacks=[print, Holder(tb_writer=w)])),
        ".handler.callbacks[1].tb_writer",
    ),
    "a Trainer of Lightning": (lambda w: LightningTrainer(Holder(log=w)), ".loggers[0].log"),
    "an idle Trainer of Lightning": (lambda _: LightningTrainer(LightningLogger()), ".loggers[0]"),
    "a mapping": (lambda w: {"eval": None, "train": w}, "['train']"),
    "slots": (Slotted, ".log"),
    "a private attribute": (lambda w: Holder(_w=w), "._w"),
    "beside a module": (lambda w: Holder(os=module_with(w), x=(1, {"y": w})), ".x[1]['y']"),
    "the nearest": (
        lambda w: Holder(first=Holder(log=w.file_writer), near=w, last=Holder(log=w.file_writer)),
        ".near",
    ),
    "behind one thing held often": (
        lambda w: Holder(many=diamonds(), x=nested(5, w)),
        ".x" + INNER,
    ),
    "a name of TensorBoard's": (lambda w: Holder(_output=w), "._output"),
    "a file writer": (lambda w: Holder(deep=Holder(log=w.file_writer)), ".deep.log"),
    "six steps": (lambda w: nested(6, w), ".inner" * 6),
    "among many": (lambda w: [*(object() for _ in range(4998)), w], "[4998]"),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_the_error_names_the_way_to_the_writer(writer, name):
    make, way = HOLDERS[name]
    holder = make(writer)
    with pytest.raises(tbscope.WriterError) as raised:
        check_writer(holder)
    kind = type(holder).__name__
    assert raised.value.fix == f"give the writer that it holds: the {way} of the {kind}"


@pytest.mark.parametrize("name", [name for name in HOLDERS if "idle" not in name])
def test_what_the_error_names_is_a_writer(writer, name):
    make, way = HOLDERS[name]
    found = make(writer)
    if name == "a Trainer of Lightning":
        found.__class__ = type("Trainer", (), {"loggers": found._loggers})
    found = eval(f"found{way}")
    assert tbscope.add_graph(found, nn.ReLU(), X).nodes


def circle():
    first = Holder()
    first.second = Holder(first=first)
    return first


@pytest.mark.parametrize(
    "holder",
    [
        Holder(
            name="runs/x", model=nn.Linear(2, 2), classes=[torch.utils.tensorboard.SummaryWriter]
        ),
        Holder(add=Holder(add_event=3)),
        circle(),
        nested(7, EventFileWriter.__new__(EventFileWriter)),
        [*(object() for _ in range(5000)), EventFileWriter.__new__(EventFileWriter)],
    ],
    ids=["none", "no writer", "a circle", "too deep", "too many"],
)
def test_where_no_writer_is_held_a_new_one_is_named(holder):
    assert find_writer(holder) == ""
    with pytest.raises(tbscope.WriterError) as raised:
        check_writer(holder)
    assert raised.value.fix == "give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')"


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
    assert "its ._output is an object of class" in raised.value.why
    assert raised.value.fix == "give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')"


@pytest.mark.parametrize("make", [EventFileWriter, tensorboardX.writer.FileWriter])
def test_a_proxy_of_a_file_writer_takes_a_graph(tmp_path, make):
    writer = make(str(tmp_path))
    tbscope.add_graph(Proxy(writer), nn.ReLU(), X)
    writer.close()
    assert EventAccumulator(str(tmp_path)).Reload().Graph().node


def test_an_object_that_raises_when_it_is_asked_is_refused():
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(Grumpy(), nn.ReLU(), X)
    assert raised.value.why.startswith("asked for an attribute, it raised RuntimeError: no ")


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
