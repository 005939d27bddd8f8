"""Saving: which form the end of a name tells, and that options hold in each."""

import shutil

import pytest
from cli_runs import graphs_in
from google.protobuf import text_format
from saved import nested
from tensorboard.compat.proto.graph_pb2 import GraphDef

import tbscope
from tbscope.saving.box_tree import picture_of
from tbscope.saving.html import page_of
from tbscope.saving.save import FORMS

DRAWN = [form.suffix for form in FORMS if form.draws]
RUNS_ALONE = [
    suffix for suffix in DRAWN if suffix not in (".svg", ".png") or shutil.which("dot") is not None
]


def saved(tmp_path, suffix, **how):
    path = tmp_path / f"graph{suffix}"
    nested().save(path, **how)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    return path.read_bytes()


def test_a_graph_def_is_saved_as_it_is_drawn(tmp_path):
    message = tbscope.to_graph_def(nested(), style="torch")
    nested().save(tmp_path / "graph.pb", style="torch")
    nested().save(tmp_path / "graph.pbtxt", style="torch")
    assert GraphDef.FromString((tmp_path / "graph.pb").read_bytes()) == message
    assert text_format.Parse((tmp_path / "graph.pbtxt").read_text(), GraphDef()) == message
    assert message != tbscope.to_graph_def(nested())


def test_a_page_is_saved_as_it_is_drawn(tmp_path):
    page = saved(tmp_path, ".html", style="torch").decode()
    assert page == page_of(picture_of(nested(), style="torch"))


def test_what_all_holds_is_read_back(tmp_path):
    saved(tmp_path, ".json")
    again = tbscope.load(tmp_path / "graph.json")
    assert str(again) == str(nested())


@pytest.mark.parametrize("suffix", RUNS_ALONE)
def test_options_of_a_drawing_change_each_form(tmp_path, suffix):
    plain = saved(tmp_path, suffix)
    assert saved(tmp_path, suffix) == saved(tmp_path, suffix, helpers="none") == plain
    for how in ({"style": "torch"}, {"root": True}, {"leaves": "box"}, {"hide": ["relu"]}):
        assert saved(tmp_path, suffix, **how) != plain


@pytest.mark.parametrize("suffix", [one for one in DRAWN if one not in (".pb", ".svg", ".png")])
def test_names_are_those_of_the_style_in_each_form(tmp_path, suffix):
    text = saved(tmp_path, suffix, style="torch").decode()
    name = '["Block[1]"]' if suffix == ".mmd" else "Block[1]/add"
    assert name in text
    assert name not in saved(tmp_path, suffix).decode()


def test_the_end_of_a_name_may_be_written_large(tmp_path):
    assert saved(tmp_path, ".HTML").startswith(b"<!DOCTYPE html>")


def refusal(path, **how):
    with pytest.raises(tbscope.ArgumentError) as raised:
        nested().save(path, **how)
    return str(raised.value)


def test_an_unknown_end_is_refused_with_all_that_are_known(tmp_path):
    told = refusal(f"{tmp_path}/graph.jpg")
    assert told.startswith(
        f"cannot save a graph as '{tmp_path}/graph.jpg'\n  why: the end of the name"
    )
    assert all(form.suffix in told for form in FORMS)
    assert "or a / for a folder" in told
    assert list(tmp_path.iterdir()) == []


def test_onnx_is_made_of_the_model_itself():
    assert refusal("graph.onnx") == (
        "cannot save a graph as 'graph.onnx'\n"
        "  why: an ONNX model has weights and computes, and a graph has only the operations "
        "that ran\n"
        "  fix: tbscope.export_onnx(model, args, path='model.onnx'), from the model itself"
    )


def test_a_depth_or_an_option_that_changes_nothing_is_refused(tmp_path):
    assert refusal(tmp_path / "graph.json", style="torch") == (
        "style='torch' changes nothing in a .json file\n"
        "  why: it contains the graph itself, and no drawing of it\n"
        "  fix: leave style out"
    )
    for suffix in (".html", ".json", ".pb", ".pbtxt"):
        told = refusal(tmp_path / f"graph{suffix}", depth=1)
        assert told == (
            f"depth=1 changes nothing in a {suffix} file\n"
            "  why: it is for .dot, .svg, .png, .mmd, in which boxes neither open nor close\n"
            "  fix: leave depth out"
        )
    for suffix in (".dot", ".mmd"):
        nested().save(tmp_path / f"graph{suffix}", depth=1)


def test_an_option_that_is_none_is_refused_before_anything_is_written(tmp_path):
    for path in (tmp_path / "graph.html", f"{tmp_path}/runs/"):
        assert "the options of a drawing are style" in refusal(path, colour="red")
        assert "level cannot be 'kernel'" in refusal(path, level="kernel")
    assert list(tmp_path.iterdir()) == []


# -- folders ----------------------------------------------------------------------------------


def test_a_path_that_ends_in_a_slash_is_a_folder_for_an_event_file(tmp_path):
    nested().save(f"{tmp_path}/runs/", style="torch")
    (logged,) = tbscope.read_log(tmp_path / "runs")
    assert str(logged.graph) == str(nested())
    assert graphs_in(tmp_path / "runs") == [tbscope.to_graph_def(nested(), style="torch")]


def test_a_folder_without_a_slash_is_refused(tmp_path):
    assert refusal(tmp_path).endswith(
        "why: it is a folder\n  fix: give a file: graph.save('graph.html'), or "
        f"'{tmp_path}/' for an event file in it"
    )
    assert "it is a folder" in refusal(str(tmp_path))
    assert refusal("/").endswith("it is a folder\n  fix: give a file: graph.save('graph.html')")
    assert list(tmp_path.iterdir()) == []


def test_boxes_of_an_event_file_open_by_themselves(tmp_path):
    assert "depth=1 changes nothing in an event file" in refusal(f"{tmp_path}/runs/", depth=1)
    assert list(tmp_path.iterdir()) == []


# -- the whole file, or none ------------------------------------------------------------------


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "there.html").mkdir()
    for path in (tmp_path / "no" / "graph.html", tmp_path / "there.html"):
        assert refusal(str(path)).startswith(f"cannot save a graph as {str(path)!r}")
    assert [path.name for path in tmp_path.iterdir()] == ["there.html"]


def test_what_fails_to_be_drawn_leaves_the_old_file(tmp_path):
    path = tmp_path / "graph.html"
    path.write_text("old")
    assert "leaves cannot be 3" in refusal(path, leaves=3)
    assert path.read_text() == "old"


def test_a_graph_is_not_changed_by_being_saved(tmp_path):
    graph = nested()
    before = str(graph)
    for suffix in (".html", ".dot", ".mmd", ".pb"):
        graph.save(tmp_path / f"graph{suffix}")
    assert str(graph) == before
    graph.verify()
