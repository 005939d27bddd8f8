"""What torch documents of its SummaryWriter holds with ours in its place.

Each test of what is no graph runs with torch's own writer, too: it is what tells what is right.
"""

import io
import os
import socket
import threading

import numpy as np
import pytest
import torch
import torch.utils.tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import (
    EventFileLoader,
    LegacyEventFileLoader,
)
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.plugins.pr_curve.plugin_data_pb2 import PrCurvePluginData
from tensorboard.util import tensor_util
from torch import nn

import tbscope

BOTH = pytest.mark.parametrize(
    "make",
    [tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter],
    ids=["ours", "torch's"],
)
RELOADS_ALL = {"scalars": 0, "histograms": 0, "tensors": 0, "images": 0}


def read(directory):
    return EventAccumulator(str(directory), RELOADS_ALL).Reload()


def events(directory):
    found = []
    for path in sorted(directory.glob("*tfevents*")):
        found += LegacyEventFileLoader(str(path)).Load()
    return found


def content(directory, tag):
    """Give the plugin and its data of a tag, as new TensorBoards see it."""
    (path,) = directory.glob("*tfevents*")
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == tag:
                return value.metadata.plugin_data
    raise LookupError(tag)


# -- the writer itself ------------------------------------------------------------------------


@BOTH
def test_the_default_directory_has_the_time_the_host_and_the_comment(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with make(comment="_LR_0.1") as writer:
        directory = writer.log_dir
    head, tail = os.path.split(directory)
    assert head == "runs"
    assert tail.endswith(f"{socket.gethostname()}_LR_0.1")
    assert len(os.listdir(tmp_path / directory)) == 1


@BOTH
def test_a_comment_has_no_effect_beside_a_directory(tmp_path, make):
    with make(str(tmp_path / "log"), comment="x") as writer:
        assert writer.get_logdir() == str(tmp_path / "log")
    assert os.listdir(tmp_path) == ["log"]


@BOTH
@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_directory_is_a_text_or_a_path_and_made_with_its_parents(tmp_path, make, kind):
    with make(kind(tmp_path / "a" / "b")) as writer:
        writer.add_scalar("test", 1)
    assert read(tmp_path / "a" / "b").Scalars("test")[0].value == 1


@BOTH
def test_the_suffix_ends_every_file_name(tmp_path, make):
    with make(tmp_path, filename_suffix=".mine") as writer:
        writer.add_scalar("x", 1)
        writer.close()
        writer.add_scalar("x", 2)
        writer.add_scalars("group", {"a": 1})
    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert len(names) == 3
    assert all("tfevents" in name and name.endswith(".mine") for name in names)


@BOTH
def test_a_purge_step_begins_the_file_with_the_start_of_a_session(tmp_path, make):
    with make(tmp_path) as writer:
        for step in range(5):
            writer.add_scalar("loss", step, step)
    with make(tmp_path, purge_step=3, filename_suffix=".2") as writer:
        assert writer.purge_step is None
        writer.add_scalar("loss", 30, 3)
    second = [event for event in events(tmp_path) if event.HasField("session_log")]
    assert [(event.step, event.session_log.status) for event in second] == [(3, 1)]
    scalars = read(tmp_path).Scalars("loss")
    assert [(event.step, event.value) for event in scalars] == [(0, 0), (1, 1), (2, 2), (3, 30)]


@BOTH
def test_a_context_closes_its_writer(tmp_path, make):
    threads = threading.active_count()
    with make(tmp_path) as writer:
        assert writer.file_writer is not None
        writer.add_scalar("test", 1)
    assert writer.file_writer is None
    assert writer.all_writers is None
    assert threading.active_count() == threads
    assert read(tmp_path).Scalars("test")


@BOTH
def test_a_context_closes_its_writer_when_it_is_left_by_an_error(tmp_path, make):
    writer = make(tmp_path)
    writer.add_scalar("test", 1)
    with pytest.raises(KeyError), writer:
        raise KeyError
    assert writer.file_writer is None
    assert read(tmp_path).Scalars("test")


@BOTH
def test_opening_and_closing_often_leaves_no_file_and_no_thread_open(tmp_path, make):
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for number in range(50):
        make(tmp_path / str(number)).close()
    assert len(os.listdir("/proc/self/fd")) == files
    assert threading.active_count() == threads


@BOTH
def test_a_flush_writes_what_was_added_and_a_second_close_does_nothing(tmp_path, make):
    writer = make(tmp_path, max_queue=1000, flush_secs=1000)
    for step in range(30):
        writer.add_scalar("loss", step, step)
    writer.flush()
    assert len(read(tmp_path).Scalars("loss")) == 30
    writer.close()
    writer.close()
    writer.flush()


@BOTH
def test_what_is_added_after_close_goes_to_a_new_file(tmp_path, make):
    writer = make(tmp_path)
    for step in range(3):
        writer.add_scalar("loss", step, step)
        writer.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert [event.step for event in read(tmp_path).Scalars("loss")] == [0, 1, 2]


@BOTH
def test_every_file_begins_with_its_version(tmp_path, make):
    make(tmp_path).close()
    assert events(tmp_path)[0].file_version == "brain.Event:2"


# -- scalars ------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "value",
    [2, 2.0, np.float32(2), np.array([2]), torch.tensor(2), nn.Parameter(torch.ones(1) * 2)],
)
def test_a_scalar_is_a_number_an_array_or_a_tensor(tmp_path, make, value):
    with make(tmp_path) as writer:
        writer.add_scalar("x", value, 3)
    (event,) = read(tmp_path).Scalars("x")
    assert (event.value, event.step) == (2, 3)


@BOTH
def test_a_scalar_has_the_time_that_is_given(tmp_path, make):
    with make(tmp_path) as writer:
        writer.add_scalar("x", 1, 0, walltime=17.0)
        writer.add_scalar("x", 1, np.int64(1))
    first, second = read(tmp_path).Scalars("x")
    assert first.wall_time == 17
    assert second.wall_time > 1.7e9


@BOTH
@pytest.mark.parametrize("options", [{"new_style": True}, {"double_precision": True}])
def test_a_scalar_is_written_in_the_style_that_is_asked_for(tmp_path, make, options):
    with make(tmp_path) as writer:
        writer.add_scalar("x", 0.1, 0, **options)
        writer.add_scalar("y", 0.1, 0, new_style=True, double_precision=True)
    (value,) = events(tmp_path)[1].summary.value
    assert value.HasField("tensor") == ("new_style" in options)
    (double,) = events(tmp_path)[2].summary.value
    assert tensor_util.make_ndarray(double.tensor) == 0.1


@BOTH
def test_a_group_of_scalars_has_a_run_for_each(tmp_path, make):
    with make(tmp_path) as writer:
        for step in range(3):
            writer.add_scalars("data/group", {"sin": step, "cos": -step}, step, walltime=5.0)
    for name, sign in (("sin", 1), ("cos", -1)):
        found = read(tmp_path / f"data_group_{name}").Scalars("data/group")
        assert [(event.step, event.value) for event in found] == [(n, sign * n) for n in range(3)]


# -- everything else that is no graph ------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("bins", ["tensorflow", "auto", "fd", "doane", [0.0, 2.0, 9.0]])
def test_a_histogram_counts_its_values(tmp_path, make, bins):
    with make(tmp_path) as writer:
        writer.add_histogram("h", torch.arange(9.0), 1, bins=bins)
        writer.add_histogram("half", torch.rand(50, dtype=torch.bfloat16), 1)
    (event,) = read(tmp_path).Histograms("h")
    value = event.histogram_value
    assert (value.min, value.max, value.num, value.sum) == (0, 8, 9, 36)
    assert sum(value.bucket) == 9
    with make(tmp_path / "empty") as writer, pytest.raises(ValueError, match="no element"):
        writer.add_histogram("h", np.ndarray(0))


@BOTH
def test_a_histogram_may_be_counted_already(tmp_path, make):
    counts = {"min": 0, "max": 9, "num": 3, "sum": 12, "sum_squares": 90}
    with make(tmp_path) as writer:
        writer.add_histogram_raw("h", **counts, bucket_limits=[1, 10], bucket_counts=[1, 2])
        with pytest.raises(ValueError, match="len"):
            writer.add_histogram_raw("h", **counts, bucket_limits=[1], bucket_counts=[1, 2])
    value = read(tmp_path).Histograms("h")[0].histogram_value
    assert (list(value.bucket_limit), list(value.bucket)) == ([1, 10], [1, 2])


IMAGES = {
    "CHW": ("add_image", (3, 8, 6), (8, 6)),
    "HWC": ("add_image", (8, 6, 3), (8, 6)),
    "HW": ("add_image", (8, 6), (8, 6)),
    "NCHW": ("add_images", (2, 3, 8, 6), (8, 12)),
}


@BOTH
@pytest.mark.parametrize("form", IMAGES)
def test_an_image_is_written_in_any_order_of_its_dimensions(tmp_path, make, form):
    from PIL import Image

    method, shape, size = IMAGES[form]
    with make(tmp_path) as writer:
        getattr(writer, method)("i", torch.full(shape, 0.5), 2, dataformats=form)
        getattr(writer, method)("u8", torch.full(shape, 7, dtype=torch.uint8), dataformats=form)
    for tag, pixel in (("i", 127), ("u8", 7)):
        (event,) = read(tmp_path).Images(tag)
        assert (event.height, event.width) == size
        picture = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
        assert set(picture.flatten()) == {pixel}


@BOTH
def test_an_image_has_boxes_drawn_on_it(tmp_path, make):
    from PIL import Image

    boxes = torch.tensor([[1.0, 1, 5, 5]])
    with make(tmp_path) as writer:
        writer.add_image_with_boxes("b", torch.zeros(3, 8, 8), boxes, 0)
    (event,) = read(tmp_path).Images("b")
    picture = np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
    assert picture[1, 1].any()
    assert not picture[7, 7].any()


@BOTH
def test_text_is_written_as_it_is(tmp_path, make):
    with make(tmp_path) as writer:
        writer.add_text("lstm", "This is an *lstm*", 4)
    (event,) = read(tmp_path).Tensors("lstm/text_summary")
    assert (event.step, event.tensor_proto.string_val) == (4, [b"This is an *lstm*"])
    assert content(tmp_path, "lstm/text_summary").plugin_name == "text"


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_a_tensor_is_written_with_its_type(tmp_path, make, dtype):
    data = torch.tensor([[1, 2], [3, 4]], dtype=dtype)
    with make(tmp_path) as writer:
        writer.add_tensor("t", data, 0)
    (event,) = read(tmp_path).Tensors("t")
    assert tensor_util.make_ndarray(event.tensor_proto).tolist() == [[1, 2], [3, 4]]


@BOTH
def test_a_mesh_has_a_tag_for_its_vertices_faces_and_colours(tmp_path, make):
    vertices = torch.rand(1, 4, 3)
    colours = torch.randint(0, 255, (1, 4, 3))
    faces = torch.tensor([[[0, 2, 3], [0, 3, 1]]])
    with make(tmp_path) as writer:
        writer.add_mesh("m", vertices=vertices, colors=colours, faces=faces, global_step=1)
    assert set(read(tmp_path).Tags()["tensors"]) == {"m_VERTEX", "m_FACE", "m_COLOR"}
    assert content(tmp_path, "m_VERTEX").plugin_name == "mesh"


@BOTH
def test_a_curve_of_precision_and_recall_has_its_thresholds(tmp_path, make):
    with make(tmp_path) as writer:
        writer.add_pr_curve("c", np.array([0, 1, 1]), np.array([0.1, 0.8, 0.9]), 0)
        counts = [np.array(numbers) for numbers in ([75, 21], [150, 18], [0, 132], [0, 54])]
        writer.add_pr_curve_raw("raw", *counts, np.array([0.3, 0.5]), np.array([1, 0.3]), 0, 2)
    found = PrCurvePluginData.FromString(content(tmp_path, "c").content)
    assert found.num_thresholds == 127
    (event,) = read(tmp_path).Tensors("raw")
    table = tensor_util.make_ndarray(event.tensor_proto)
    assert table[:2].tolist() == [[75, 21], [150, 18]]


LAYOUT = {"USA": {"dow": ["Margin", ["dow/a", "dow/b", "dow/c"]], "nas": ["Multiline", ["nas"]]}}


@BOTH
def test_custom_scalars_are_laid_out_in_charts(tmp_path, make):
    with make(tmp_path) as writer:
        writer.add_custom_scalars(LAYOUT)
    (event,) = read(tmp_path).Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(event.tensor_proto.string_val[0]).category
    assert category.title == "USA"
    assert {chart.title for chart in category.chart} == {"dow", "nas"}


@BOTH
@pytest.mark.parametrize("kind", ["multilinechart", "marginchart"])
def test_a_chart_of_custom_scalars_is_of_its_kind(tmp_path, make, kind):
    with make(tmp_path) as writer:
        getattr(writer, f"add_custom_scalars_{kind}")(["a", "b", "c"])
    (event,) = read(tmp_path).Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(event.tensor_proto.string_val[0]).category
    assert category.chart[0].HasField(kind.removesuffix("chart"))


@BOTH
def test_an_embedding_is_written_beside_the_events(tmp_path, make):
    with make(tmp_path) as writer:
        for tag in ("first", "second"):
            writer.add_embedding(
                torch.rand(3, 2),
                metadata=["a", "b", "c"],
                label_img=torch.rand(3, 3, 5, 5),
                global_step=2,
                tag=tag,
            )
    config = (tmp_path / "projector_config.pbtxt").read_text()
    assert config.count("embeddings {") == 2
    assert (tmp_path / "00002" / "first" / "metadata.tsv").read_text().split() == ["a", "b", "c"]
    assert len((tmp_path / "00002" / "second" / "tensors.tsv").read_text().splitlines()) == 3


# -- hyperparameters -----------------------------------------------------------------------------


@BOTH
def test_hyperparameters_are_a_run_with_its_metrics(tmp_path, make):
    given = {"lr": 0.1, "bsize": 1, "name": "sgd"}
    with make(tmp_path) as writer:
        writer.add_hparams(given, {"hparam/accuracy": 10}, run_name="trial", global_step=2)
    (event,) = read(tmp_path / "trial").Scalars("hparam/accuracy")
    assert (event.step, event.value) == (2, 10)
    found = content(tmp_path / "trial", "_hparams_/session_start_info")
    values = HParamsPluginData.FromString(found.content).session_start_info.hparams
    assert values["lr"].number_value == 0.1
    assert values["name"].string_value == "sgd"


@BOTH
def test_hyperparameters_without_a_name_are_a_run_named_by_the_time(tmp_path, make):
    with make(tmp_path) as writer:
        writer.add_hparams({"lr": 0.1}, {"accuracy": 1})
    (run,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert float(run.name) > 1.7e9


@BOTH
@pytest.mark.parametrize(
    ("given", "metrics", "error"),
    [([], {}, TypeError), ({"x": []}, {}, ValueError), ({"x": 1}, [], TypeError)],
)
def test_what_is_no_hyperparameter_is_an_error(tmp_path, make, given, metrics, error):
    with make(tmp_path) as writer, pytest.raises(error):
        writer.add_hparams(given, metrics, run_name="trial")


@BOTH
def test_hyperparameters_have_a_domain(tmp_path, make):
    domain = {"lr": [0.1, 0.2], "name": ["a", "b"]}
    with make(tmp_path) as writer:
        writer.add_hparams({"lr": 0.1, "name": "a"}, {"m": 1}, domain, run_name="trial")
    found = content(tmp_path / "trial", "_hparams_/experiment")
    infos = HParamsPluginData.FromString(found.content).experiment.hparam_infos
    assert {info.name: len(info.domain_discrete) for info in infos} == {"lr": 2, "name": 2}
