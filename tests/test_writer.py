"""Models into event files, read back by TensorBoard itself."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from google.protobuf import text_format
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch import nn
from werkzeug.test import Client

from tbscope.api.add_graph import add_graph
from tbscope.errors import ArgumentError, TraceError, WriterError
from tbscope.pipeline import to_graph_def
from tbscope.sources.eager.trace import trace
from tbscope.writer import SummaryWriter


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x):
        x = self.stem(x).relu()
        for layer in self.layers:
            x = x + layer(x)
        return x


class Broken(Net):
    def forward(self, x):
        raise ValueError("too bad", super().forward(x).shape)


def an_input():
    return torch.zeros(2, 3)


def graph_events(directory):
    paths = sorted(Path(directory).rglob("*tfevents*"))
    events = [event for path in paths for event in LegacyEventFileLoader(str(path)).Load()]
    return [GraphDef.FromString(event.graph_def) for event in events if event.graph_def]


def files_of(directory):
    return {path: path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}


def test_tensorboard_reads_the_graph_that_was_added(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(Net(), an_input())
    reader = EventAccumulator(str(tmp_path)).Reload()
    assert reader.Graph() == to_graph_def(graph)
    assert "layers/0" in {node.name for node in reader.Graph().node}


@pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated")
def test_tensorboard_serves_the_graph_that_was_added(tmp_path):
    from tensorboard.backend import application
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.graph.graphs_plugin import GraphsPlugin

    with SummaryWriter(tmp_path / "run") as writer:
        graph = writer.add_graph(Net(), an_input())
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
    plugin = GraphsPlugin(base_plugin.TBContext(data_provider=provider))
    client = Client(application.TensorBoardWSGI([plugin], data_provider=provider))
    (run,) = json.loads(client.get("/data/plugin/graphs/info").data).values()
    assert run["run_graph"] is True
    served = client.get("/data/plugin/graphs/graph?run=run&conceptual=false")
    assert text_format.Parse(served.text, GraphDef()) == to_graph_def(graph)


def test_the_positional_signature_is_that_of_torch():
    theirs = list(inspect.signature(torch.utils.tensorboard.SummaryWriter.add_graph).parameters)
    ours = inspect.signature(SummaryWriter.add_graph).parameters.values()
    positional = [one for one in ours if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert [one.name for one in positional][1:] == theirs[1:]
    assert [one.default for one in positional[2:]] == [None, False, True]


def test_the_writer_takes_the_arguments_of_torchs():
    theirs, ours = (
        inspect.signature(cls).parameters.values()
        for cls in (torch.utils.tensorboard.SummaryWriter, SummaryWriter)
    )
    assert [(one.name, one.default) for one in ours] == [(one.name, one.default) for one in theirs]


def test_the_ends_of_what_the_writer_takes_are_taken(tmp_path):
    for number, given in enumerate(
        [
            {"purge_step": 0, "max_queue": 1, "flush_secs": 0.5},
            {"purge_step": np.int64(7), "max_queue": 0, "flush_secs": 0},
            {"purge_step": 2**63 - 1, "filename_suffix": "", "comment": "x"},
        ]
    ):
        with SummaryWriter(tmp_path / str(number), **given) as writer:
            writer.add_scalar("loss", 1, 0)
        assert EventAccumulator(str(tmp_path / str(number))).Reload().Tags()["scalars"] == ["loss"]


def test_code_that_calls_torchs_runs_unchanged(tmp_path, capsys):
    with SummaryWriter(str(tmp_path), comment="x", flush_secs=30) as writer:
        graph = writer.add_graph(Net(), an_input(), True, False)
    assert capsys.readouterr().out == f"{graph}\n"


def test_nothing_is_printed_unless_asked(tmp_path, capsys):
    with SummaryWriter(tmp_path) as writer:
        writer.add_graph(Net(), an_input())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "writer_class", [torch.utils.tensorboard.SummaryWriter, tensorboardX.SummaryWriter]
)
def test_other_summary_writers_take_the_same_graph(tmp_path, writer_class):
    writer = writer_class(str(tmp_path))
    graph = add_graph(writer, Net(), an_input())
    writer.close()
    assert graph_events(tmp_path) == [to_graph_def(graph)]


def test_options_reach_the_trace_and_the_conversion(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        options = {"style": "torch", "leaves": "box"}
        graph = writer.add_graph(Net(), kwargs={"x": an_input()}, training=True, **options)
    assert graph.calls[0].training
    assert graph_events(tmp_path) == [to_graph_def(graph, **options)]


def test_a_model_without_weights_is_drawn_by_a_fake_run(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(Net().to("meta"), an_input().to("meta"), fake=True)
    assert graph_events(tmp_path) == [to_graph_def(graph)]


def test_a_graph_already_made_is_written_as_it_is(tmp_path):
    graph = trace(Net(), an_input())
    with SummaryWriter(tmp_path) as writer:
        assert writer.add_graph(graph) is graph
    assert graph_events(tmp_path) == [to_graph_def(graph)]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"input_to_model": torch.zeros(1)}, "input_to_model=tensor([0.])"),
        ({"kwargs": {}}, "kwargs={}"),
    ],
)
def test_a_graph_takes_no_inputs(tmp_path, inputs, told):
    graph = trace(Net(), an_input())
    with SummaryWriter(tmp_path) as writer:
        before = files_of(tmp_path)
        with pytest.raises(ArgumentError) as raised:
            writer.add_graph(graph, **inputs)
        assert files_of(tmp_path) == before
    assert str(raised.value) == (
        f"{told} is given with the graph of Net\n"
        "  why: a graph has run already, and takes no inputs and no options of a run\n"
        "  fix: leave it out, or pass the model in place of its graph"
    )


def test_scalars_and_a_graph_live_in_one_file(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for step in range(5):
            writer.add_scalar("loss", 1 / (step + 1), step)
        writer.add_graph(Net(), an_input())
        writer.add_scalar("loss", 0.1, 5)
    assert len(files_of(tmp_path)) == 1
    reader = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in reader.Scalars("loss")] == list(range(6))
    assert reader.Graph().node


def test_hyperparameters_are_written_as_torch_does(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_hparams({"lr": 0.1}, {"accuracy": 1.0}, run_name="trial")
    assert EventAccumulator(str(tmp_path / "trial")).Reload().Scalars("accuracy")


def test_a_model_that_raises_leaves_the_log_directory_as_it_was(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("loss", 1.0)
        writer.flush()
        before = files_of(tmp_path)
        with pytest.raises(TraceError):
            writer.add_graph(Broken(), an_input())
        writer.flush()
        assert files_of(tmp_path) == before


def test_a_model_that_raises_opens_no_file_for_a_closed_writer(tmp_path):
    writer = SummaryWriter(tmp_path)
    writer.close()
    before = files_of(tmp_path)
    with pytest.raises(TraceError):
        writer.add_graph(Broken(), an_input())
    assert files_of(tmp_path) == before


def test_a_model_that_raises_does_not_wake_a_logger(tmp_path):
    class Logger:
        experiment = property(lambda _self: SummaryWriter(tmp_path / "log"))

    with pytest.raises(TraceError):
        add_graph(Logger(), Broken(), an_input())
    assert not (tmp_path / "log").exists()


def test_an_object_that_is_no_writer_is_refused_before_the_model_runs():
    with pytest.raises(WriterError, match=r"^cannot write a graph to 'runs/x'\n"):
        add_graph("runs/x", Broken(), an_input())


def test_a_stand_in_for_a_writer_gives_the_graph_and_no_file(tmp_path):
    writer = tensorboardX.SummaryWriter(str(tmp_path / "log"), write_to_disk=False)
    assert add_graph(writer, Net(), an_input()).calls
    writer.close()
    assert not (tmp_path / "log").exists()


def test_the_graph_is_on_disk_when_add_graph_returns(tmp_path):
    writer = SummaryWriter(tmp_path, max_queue=100, flush_secs=1000)
    graph = writer.add_graph(Net(), an_input())
    assert graph_events(tmp_path) == [to_graph_def(graph)]
    writer.close()


def test_after_close_a_graph_goes_into_a_new_file(tmp_path):
    writer = SummaryWriter(tmp_path)
    writer.close()
    writer.close()
    writer.flush()
    assert len(files_of(tmp_path)) == 1
    writer.add_graph(Net(), an_input())
    writer.close()
    assert len(files_of(tmp_path)) == 2
    assert len(graph_events(tmp_path)) == 1


def test_a_training_script_goes_on_with_one_warning(tmp_path):
    model, wrong = torch.nn.Linear(3, 5), torch.rand(1, 4)
    said = "tbscope drew no graph"
    with SummaryWriter(tmp_path) as writer, pytest.warns(UserWarning, match=said) as caught:
        graphs = [writer.add_graph(model, wrong, on_error="warn") for _ in range(3)]
    assert [str(warning.message).splitlines()[0] for warning in caught] == [
        "tbscope drew no graph: the model raised while it was being traced, in Linear"
    ]
    assert {Path(warning.filename).name for warning in caught} == {"test_writer.py"}
    assert all(graph.nodes == [] and len(graph.notes) == 1 for graph in graphs)


def test_of_a_model_that_raises_is_drawn_what_ran_where_asked(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(3, 5))
    with SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(model, torch.rand(1, 3), partial=True)
    assert "error" in graph.nodes[-1].attributes


def test_on_error_is_raise_or_warn(tmp_path):
    with SummaryWriter(tmp_path) as writer, pytest.raises(ArgumentError) as error:
        writer.add_graph(torch.nn.ReLU(), torch.rand(1), on_error="ignore")
    assert str(error.value) == (
        "on_error cannot be 'ignore'\n"
        "  why: on_error is 'raise' or 'warn'\n"
        "  fix: on_error='raise', or leave on_error out"
    )
