"""Logs are read back: ours as they were, others' as far as they tell, damaged ones refused."""

import json
import os
import re
import shutil
import zlib

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from build import chain
from log_files import graph_def, head, log, metadata, record, tagged
from log_writers import FILES, MODEL, X, read
from real_graphs import real_graph
from same_graph import differences
from tensorboard.compat.proto.event_pb2 import Event, TaggedRunMetadata
from torch import nn

import tbscope
from tbscope.formats.compressed import RECORD_FIELD, graph_of_record, record_of
from tbscope.formats.json import compact_json
from tbscope.graphdef.wire import delimited, varint
from tbscope.ir.graph import Note
from tests.agreement import disagreements

SMALL = graph_def("x: Placeholder()", "y: Relu(x)")


def entries(logged):
    return [(one.run, one.tag, one.step) for one in logged]


@pytest.mark.parametrize("name", ["BertModel", "Qwen2_5_VLForConditionalGeneration"])
def test_a_graph_of_ours_comes_back_as_it_was(name, tmp_path):
    graph = real_graph(name)
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(graph)
    (logged,) = tbscope.read_log(tmp_path)
    assert differences(graph, logged.graph) == []
    assert str(tbscope.load(tmp_path)) == str(graph)


@pytest.mark.parametrize("kind", FILES)
def test_it_comes_back_from_the_file_of_any_writer(kind, tmp_path):
    writer = FILES[kind](str(tmp_path))
    graph = tbscope.add_graph(writer, tbscope.trace(MODEL, X))
    tbscope.add_graph(writer, graph, tag="tagged")
    writer.close()
    logged = tbscope.read_log(tmp_path)
    assert entries(logged) == [(".", None, 0), (".", "tagged", 0)]
    assert [differences(graph, one.graph) for one in logged] == [[], []]


def test_every_graph_of_every_run_tag_and_step_comes_back(tmp_path):
    with tbscope.SummaryWriter(tmp_path / "a") as writer:
        for width in (1, 2):
            writer.add_graph(chain(width), tag="t")
            writer.add_scalar("loss", 1.0, width)
        writer.add_graph(chain(3), run_name="eval/deep")
        writer.add_overlay("flops", chain(4))
    logged = tbscope.read_log(str(tmp_path))
    assert entries(logged) == [
        *[("a", "t", 0), ("a", "t", 1), ("a", "flops", 0), ("a/eval/deep", None, 0)],
    ]
    assert [len(one.graph.calls) - 1 for one in logged] == [1, 2, 4, 3]
    assert all(os.path.isfile(one.file) and one.wall_time > 1e9 for one in logged)
    assert repr(logged[1]) == "<LoggedGraph a, tag 't', step 1: <Graph Chain: 7 nodes, 3 calls>>"


def test_what_was_measured_and_the_numbers_of_overlays_come_back(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(MODEL, X, profile=1)
        writer.add_overlay("mine", graph, {graph.nodes[-1]: 5})
    first, overlay = tbscope.read_log(tmp_path)
    assert differences(graph, first.graph) == []
    assert differences(graph, overlay.graph) == []
    numbers = {name: one.peak_bytes for name, one in overlay.figures.items() if one.peak_bytes}
    assert numbers == {"Linear": 5}


def test_tensorboard_reads_of_a_log_what_it_read_before(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(MODEL, X)
        writer.add_graph(MODEL, X, tag="t")
    held = read(tmp_path)
    assert held.Graph() == tbscope.to_graph_def(graph)
    assert held.Tags()["tensors"] == ["t "]
    told = {kind: tags for kind, tags in held.Tags().items() if tags and kind != "tensors"}
    assert told == {"graph": True}


@pytest.mark.parametrize("name", ["BertModel", "ResNetForImageClassification"])
def test_a_record_is_less_than_a_third_of_its_drawing(name):
    drawing = tbscope.to_graph_def(real_graph(name)).ByteSize()
    assert len(record_of(real_graph(name))) < 0.3 * drawing


# -- others' ------------------------------------------------------------------------------


class Nested(nn.Module):
    """Lists in lists, which torch's own graphs misplace, and a module that is called twice."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.ModuleList([nn.Linear(2, 2)]), nn.Sequential(nn.Linear(2, 2), nn.ReLU())]
        )
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        x = self.norm(self.blocks[0][0](x))
        return self.norm(self.blocks[1](x) + x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [torch.utils.tensorboard, tensorboardX])
def test_a_log_of_torchs_is_drawn_right_by_reading_and_writing_it(module, tmp_path):
    model, x = Nested().eval(), torch.ones(3, 2)
    with module.SummaryWriter(str(tmp_path / "old")) as writer:
        writer.add_graph(model, x)
    eager = tbscope.trace(model, x)
    graph = tbscope.load(tmp_path / "old")
    with tbscope.SummaryWriter(tmp_path / "new") as writer:
        writer.add_graph(str(tmp_path / "old"))

    again = tbscope.load(tmp_path / "new")
    assert differences(graph, again) == []
    assert [call.scope.path for call in again.calls] == [call.scope.path for call in eager.calls]
    assert [node.outputs[0].shape for node in again.nodes if node.kind == "op"] == [
        node.outputs[0].shape for node in eager.nodes if node.kind == "op"
    ]
    owned = {node.name for node in again.nodes if node.kind in ("parameter", "buffer")}
    assert owned == {n.name for n in eager.nodes if n.kind in ("parameter", "buffer")}
    assert "left out, as no node has these names" in again.notes[0].text
    assert tbscope.lint(tbscope.to_graph_def(again)) == []


class Owner(nn.Module):
    """Has parameters of its own and in lists, which torch never calls."""

    def __init__(self, inner=None):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.several = nn.ParameterList([nn.Parameter(torch.ones(2))])
        self.named = nn.ParameterDict({"a": nn.Parameter(torch.ones(2))})
        self.inner = inner

    def forward(self, x):
        x = (x * self.w + self.several[0]) * self.named["a"]
        return x if self.inner is None else self.inner(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [torch.utils.tensorboard, tensorboardX])
@pytest.mark.parametrize("inner", [None, Owner()])
def test_parameters_of_the_model_itself_and_of_lists_have_their_names(module, inner, tmp_path):
    model, x = Owner(inner), torch.ones(3, 2)
    with module.SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(model, x)

    graph = tbscope.load(tmp_path)
    owned = {node.name for node in graph.nodes if node.kind == "parameter"}
    assert owned == {name for name, _ in model.named_parameters()}
    eager = tbscope.trace(model, x)
    for one in (eager, graph):
        # torch's logs have the class of a module without its Python module.
        for call in one.calls:
            call.class_name = call.class_name.rpartition(".")[2]
    assert disagreements(eager, graph) == {}


def test_the_times_of_a_log_stand_at_the_nodes(tmp_path):
    figures = TaggedRunMetadata(tag="step1", run_metadata=metadata(y=30))
    path = log(
        tmp_path / "events.out.tfevents.1",
        Event(graph_def=SMALL.SerializeToString(), step=4),
        Event(tagged_run_metadata=figures),
        tagged("tagged", "graph_run_metadata", metadata(SMALL, y=50)),
        tagged("plain", "graph_run_metadata_graph", metadata(SMALL)),
        tagged("loss", "scalars", b""),
    )
    logged = tbscope.read_log(path)
    assert entries(logged) == [(".", None, 4), (".", "tagged", 0), (".", "plain", 0)]
    assert [one.graph.nodes[-1].duration_us for one in logged] == [30, 50, None]


def test_a_conceptual_graph_of_keras_comes_back(tmp_path):
    layers = [
        {"class_name": "Dense", "config": {"name": name, "dtype": "float32"}} for name in "ab"
    ]
    model = json.dumps({"config": {"name": "m", "layers": layers}})
    path = log(tmp_path / "tfevents", tagged("keras", "graph_keras_model", model.encode()))
    graph = tbscope.load(path)
    assert (graph.name, [node.op for node in graph.nodes]) == ("m", ["a", "b"])
    assert graph.nodes[1].inputs == graph.nodes[0].outputs
    assert graph.nodes[0].attributes["keras_class"] == "Dense"
    broken = log(tmp_path / "tfevents.2", tagged("keras", "graph_keras_model", b'{"config": 3}'))
    with pytest.raises(tbscope.ArgumentError, match="a conceptual graph of Keras is damaged"):
        tbscope.read_log(broken)


# -- which one ------------------------------------------------------------------------------


def test_the_later_graph_of_a_tag_is_loaded(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        for width in (1, 2):
            writer.add_graph(chain(width))
    assert len(tbscope.load(tmp_path).calls) == 3, "the later one of a tag"


def test_of_one_run_its_own_graph_is_loaded_and_a_warning_tells_the_others(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(chain(2), tag="t")
        writer.add_graph(chain(1))
        writer.add_graph(chain(3), tag="u")
    with pytest.warns(UserWarning, match="the graph of the run; 2 beside it: 't', 'u'$"):
        assert len(tbscope.load(tmp_path).calls) == len(chain(1).calls)


@pytest.mark.parametrize("runs", [("a", "b"), (".", "b")])
def test_one_graph_of_several_runs_is_none(tmp_path, runs):
    for run in runs:
        with tbscope.SummaryWriter(tmp_path / run) as writer:
            writer.add_graph(chain(1))
    with pytest.raises(tbscope.ArgumentError, match="no one graph can be read") as caught:
        tbscope.load(tmp_path)
    assert f"it has 2 of them: {runs[0]}: Default, {runs[1]}: Default" in str(caught.value)


def test_one_graph_of_several_tags_is_none(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(chain(1), tag="t")
        writer.add_graph(chain(1), tag="u")
    with pytest.raises(tbscope.ArgumentError, match="it has 2 of them") as caught:
        tbscope.load(tmp_path)
    assert ".: 't', .: 'u'" in str(caught.value)


def test_a_log_without_graphs_gives_none(tmp_path):
    path = log(tmp_path / "tfevents.1", Event(step=3))
    assert tbscope.read_log(path) == []
    with pytest.raises(tbscope.ArgumentError, match="the log has none"):
        tbscope.load(path)


def test_links_that_lead_back_are_followed_once(tmp_path):
    with tbscope.SummaryWriter(tmp_path / "elsewhere") as writer:
        writer.add_graph(chain(1))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "logs")
    assert entries(tbscope.read_log(tmp_path / "logs")) == [("run", None, 0)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (3, "it takes the path of an event file or of a directory"),
        ("nowhere/at/all", "there is no such file or directory"),
        (os.devnull, "it is no event file: its first bytes are no record with a checksum"),
        ("\0", "there is no such file or directory"),
    ],
)
def test_what_is_no_log_is_refused(given, why):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.read_log(given)
    assert caught.value.why == why


def test_a_directory_without_event_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("tfevents")
    with pytest.raises(tbscope.ArgumentError, match="there is no event file in it, nor below"):
        tbscope.read_log(tmp_path)


def test_a_log_on_another_machine_is_read_through_tensorboards_own_layer(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    writer = tbscope.SummaryWriter("memory://room/run")
    graph = writer.add_graph(MODEL, X)
    writer.close()
    (logged,) = tbscope.read_log("memory://room")
    assert logged.run == "run"
    assert differences(graph, logged.graph) == []
    assert str(tbscope.load(logged.file)) == str(graph)
    fsspec.filesystem("memory").rm("/room", recursive=True)


# -- damaged files --------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path):
    """The path of an event file with one graph, its bytes, and where its last record starts."""
    log(tmp_path / "tfevents.1", Event(graph_def=SMALL.SerializeToString()))
    data = (tmp_path / "tfevents.1").read_bytes()
    return tmp_path / "tfevents.1", data, len(data) - len(record(b"")) - 2 - SMALL.ByteSize()


def test_a_file_is_refused_wherever_it_is_cut(whole):
    path, data, start = whole
    assert len(tbscope.read_log(path)) == 1
    for size in range(start + 1, len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(tbscope.ArgumentError, match=f"the record at byte {start} is cut off"):
            tbscope.read_log(path)


def test_a_file_is_refused_whichever_bit_is_turned(whole):
    path, data, start = whole
    for place in range(start, len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(tbscope.ArgumentError, match=f"the record at byte {start} is damaged"):
            tbscope.read_log(path)


def test_a_damaged_file_of_a_directory_stops_no_other(whole, tmp_path):
    path, data, start = whole
    shutil.copy(path, tmp_path / "tfevents.3")
    # One is cut behind its first graph, as where a run was killed, and one holds nothing.
    (tmp_path / "tfevents.2").write_bytes(data + data[start:-1])
    (tmp_path / "tfevents.4").write_bytes(b"")
    path.write_bytes(data[:start] + data[start + 1 :])

    with pytest.warns(UserWarning, match="is read without what is damaged") as warned:
        logged = tbscope.read_log(tmp_path)

    assert [os.path.basename(one.file) for one in logged] == ["tfevents.2", "tfevents.3"]
    told = str(warned.pop().message)
    assert re.findall(r"tfevents\.\d': the record at byte (\d+) is", told) == [
        *(f"{start}", f"{len(data)}"),
    ]


def test_of_a_directory_with_one_file_all_before_the_damage_is_read(whole, tmp_path):
    path, data, start = whole
    path.write_bytes(data + data[start:-1])
    with pytest.warns(UserWarning, match="is read without what is damaged"):
        assert len(tbscope.read_log(tmp_path)) == 1
    with pytest.raises(tbscope.ArgumentError, match="is cut off"):
        tbscope.read_log(path)


def test_a_graph_that_cannot_be_read_stops_no_other(tmp_path):
    with_record(tmp_path / "a" / "tfevents.1", zlib.compress(b"{}"))
    with pytest.raises(tbscope.ArgumentError, match="the graph of the run, step 0, cannot be"):
        tbscope.load(tmp_path)
    with_record(tmp_path / "b" / "tfevents.1", WHOLE)
    with pytest.warns(UserWarning, match='/a/tfevents.1\': .*format is not "tbscope.Graph"'):
        assert str(tbscope.load(tmp_path)) == str(chain(1))


def test_a_log_in_which_nothing_can_be_read_is_refused(whole, tmp_path):
    path, data, start = whole
    path.write_bytes(data[:-1])
    shutil.copy(path, tmp_path / "tfevents.2")
    with pytest.raises(tbscope.ArgumentError, match=f"the record at byte {start} is cut off"):
        tbscope.read_log(tmp_path)


def test_at_most_eight_damaged_files_are_listed(whole, tmp_path):
    data = whole[1]
    for number in range(10):
        (tmp_path / f"tfevents.0{number}").write_bytes(data[:-1])
    with pytest.warns(UserWarning, match=r"tfevents\.07': .*\n  and 2 more$") as warned:
        assert len(tbscope.read_log(tmp_path)) == 1
    assert warned[0].filename == __file__


def test_a_record_that_claims_more_than_there_is_takes_no_memory(whole):
    path, data, start = whole
    path.write_bytes(data[:start] + head(2**60) + b"12345")
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.read_log(path)
    assert caught.value.why == (
        f"the record at byte {start} is cut off: it claims 1,152,921,504,606,846,976 bytes, and 1 "
        "are left"
    )


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (b"\x22\x05ab", "DecodeError"),
        (b"\x0b", "DecodeError"),
        (b"\x00\x01", "DecodeError"),
        (b"\x10" + b"\xff" * 11, "DecodeError"),
        (b"\x10\xff", "DecodeError"),
        (b"\x42\x03\x0a\x01\xff", "DecodeError"),
        (b"\x2a\x08\x0a\x06graph_", "DecodeError"),
        (b"\x22\x02\x0a\xff", "the graph of the run, step 0, cannot be read"),
        (b"\x22\x05\x0a\x03\x0a\x01\xff", "DecodeError"),
    ],
)
def test_an_event_that_is_none_is_refused_by_its_place(event, why, tmp_path):
    path = log(tmp_path / "tfevents.1", event)
    with pytest.raises(tbscope.ArgumentError, match=re.escape(why)) as caught:
        tbscope.read_log(path)
    assert "cannot be read" in str(caught.value)


# -- damaged records ------------------------------------------------------------------------


def with_record(path, data):
    event = Event(graph_def=SMALL.SerializeToString()).SerializeToString()
    return log(path, event + varint(RECORD_FIELD << 3 | 2) + delimited(data))


WHOLE = record_of(chain(1))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (WHOLE[:-1], "it is cut off"),
        (WHOLE[:20] + b"\0" + WHOLE[21:], "zlib: "),
        (b"{}", "zlib: "),
        (zlib.compress(b" " * 10**7), "it contains more than"),
        (zlib.compress(b"{}"), 'format is not "tbscope.Graph"'),
        (zlib.compress(compact_json(chain(1))[:-9]), "this is no JSON"),
        (zlib.compress(b'{"format": "tbscope.Graph", "version": 7}'), "is of version 7 of its"),
    ],
)
def test_a_record_that_is_none_is_refused_by_its_tag(data, why, tmp_path):
    with pytest.raises(tbscope.ArgumentError, match=re.escape(why)) as caught:
        tbscope.read_log(with_record(tmp_path / "tfevents.1", data))
    assert caught.value.what.startswith("the graph of the run, step 0, cannot be read from '")


@pytest.mark.parametrize("repeats", [10, 50_000])
def test_a_record_that_says_the_same_again_and_again_is_read(repeats):
    graph = tbscope.Graph("Net", notes=[Note("the same")] * repeats)
    assert differences(graph, graph_of_record(record_of(graph))) == []


def test_a_record_stands_before_what_the_drawing_tells(tmp_path):
    graph = tbscope.load(with_record(tmp_path / "tfevents.1", WHOLE))
    assert differences(graph, graph_of_record(WHOLE)) == []
    shutil.rmtree(tmp_path)
