"""`tbscope export -o`: graphs in all forms from the command line."""

import json
from pathlib import Path

import pytest
from build import chain
from cli_runs import enter, graphs_in, misused, refused, tbscope
from google.protobuf import text_format
from saved import nested
from tensorboard.compat.proto.graph_pb2 import GraphDef

import tbscope as library
from tbscope.cli.commands.export import FORMS_HELP
from tbscope.saving.save import FORMS

NET = ("nets.py:Net", "-i", "2x3")
ENDS = [form.suffix for form in FORMS if form.suffix not in (".svg", ".png")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    nested().save(tmp_path / "in.json")
    return enter(tmp_path, monkeypatch)


def done(*words):
    result = tbscope(*words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


@pytest.mark.parametrize("end", ENDS)
def test_export_writes_what_the_library_saves(end):
    assert done("export", "in.json", "-o", f"out{end}") == ""
    nested().save(f"own{end}")
    assert Path(f"out{end}").read_bytes() == Path(f"own{end}").read_bytes()


def test_options_of_a_drawing_and_the_depth_reach_the_file():
    done("export", "in.json", "-o", "out.dot", "--style", "torch", "--depth", "1", "--hide", "relu")
    nested().save("own.dot", style="torch", depth=1, hide=["relu"])
    assert Path("out.dot").read_bytes() == Path("own.dot").read_bytes()
    nested().save("own.dot")
    assert Path("out.dot").read_bytes() != Path("own.dot").read_bytes()


def test_a_log_directory_is_written_and_read():
    assert done("export", "in.json", "--logdir", "runs/new/") == "tensorboard --logdir runs/new/\n"
    assert graphs_in("runs/new") == [library.to_graph_def(nested())]
    done("export", "in.json", "--logdir", "runs/styled/", "--style", "torch")
    assert graphs_in("runs/styled") == [library.to_graph_def(nested(), style="torch")]
    assert done("export", "runs/new", "-o", "out.json") == ""
    assert Path("out.json").read_bytes() == Path("in.json").read_bytes()


@pytest.mark.parametrize("end", [".pb", ".pbtxt"])
def test_what_is_drawn_goes_from_form_to_form(end):
    done("export", "in.json", "-o", f"middle{end}")
    done("export", f"middle{end}", "-o", "out.html")
    assert "blocks/0/fc" in Path("out.html").read_text()


def test_standard_output_shows_a_graph_def_or_the_text_that_is_asked_for():
    assert text_format.Parse(
        done("export", "in.json", "-o", "-"), GraphDef()
    ) == library.to_graph_def(nested())
    assert done("export", "in.json", "-o", ".mmd").startswith("flowchart TB\n")
    assert json.loads(done("export", "in.json", "-o", ".json"))["format"] == "tbscope.Graph"
    assert "is no text, which standard output shows" in misused("export", "in.json", "-o", ".pb")
    assert sorted(path.name for path in Path().iterdir()) == ["in.json", "nets.py"]


def test_export_writes_several_forms_at_once():
    words = ["-o", "a.html", "-o", "a.mmd", "-o", "a.json", "--style", "torch", "--depth", "0"]
    assert done("export", "in.json", *words) == ""
    assert "Block[1]/add" in Path("a.html").read_text()
    assert "subgraph" not in Path("a.mmd").read_text()
    # What holds the graph itself is no drawing.
    assert Path("a.json").read_bytes() == Path("in.json").read_bytes()


def test_where_one_form_cannot_be_drawn_none_is_written(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    told = refused("export", "in.json", "-o", "a.html", "-o", "a.svg")
    assert told.startswith("Error: cannot draw a picture in the form .svg\n")
    assert not Path("a.html").exists()
    assert refused("export", "in.json", "-o", "a.png").startswith("Error: cannot draw a picture")


def test_where_the_log_cannot_be_drawn_no_file_is_written():
    words = ["-o", "out.json", "--logdir", "runs", "--hide", "no_such"]
    assert "no_such" in refused("export", "in.json", *words)
    assert sorted(path.name for path in Path().iterdir()) == ["in.json", "nets.py"]


def test_a_depth_without_a_form_that_has_one_is_a_misuse():
    told = "Error: --depth is for .dot, .svg, .png, .mmd: give such a file to -o."
    assert misused("export", "in.json", "-o", "a.html", "--depth", "1") == told
    assert misused("export", "in.json", "--logdir", "runs", "--depth", "1") == told
    done("export", "in.json", "-o", "a.html", "-o", "a.dot", "--depth", "1")


def test_an_unknown_end_is_a_misuse_that_lists_all():
    told = misused("export", "in.json", "-o", "out.jpg")
    assert all(form.suffix in told for form in FORMS)


def test_export_makes_no_onnx_model():
    assert "an ONNX model has weights" in misused("export", "in.json", "-o", "out.onnx")


def test_export_takes_a_graph_of_a_log_by_its_tag_and_its_step():
    with library.SummaryWriter("runs/net") as writer:
        writer.add_graph(chain(1))
        for step in (3, 4):
            writer.add_graph(chain(step), tag="large", step=step)
    for target, length in (("runs/net:large", 4), ("runs/net:large@3", 3)):
        done("export", target, "-o", "out.json")
        assert str(library.load("out.json")) == str(chain(length))
    assert "no graph is tagged 'largo'" in refused("export", "runs/net:largo", "-o", "out.json")
    told = tbscope("export", "runs/net", "-o", "out.json")
    assert told.stderr.startswith("note: 'runs/net': this is the graph of the run; 1 beside it")
    assert str(library.load("out.json")) == str(chain(1))


def test_a_model_is_run_and_what_is_read_is_not():
    tbscope("export", *NET, "-o", "out.pbtxt", "--level", "aten")
    assert "aten::addmm" in Path("out.pbtxt").read_text()
    assert "--input is for a model that runs" in misused(
        "export", "in.json", "-o", "a.mmd", "-i", "1"
    )


def test_what_is_not_there_or_holds_no_graph_is_told():
    assert refused("export", "in.json", "-o", "no/out.html") == (
        "Error: cannot write 'no/out.html'\n  why: there is no folder 'no'\n"
        "  fix: make it first: mkdir -p no\n"
    )
    assert "there is no such file" in refused("export", "gone.json", "-o", "out.html")
    Path("notes.txt").write_text("no graph")
    assert "contains no graph" in refused("export", "notes.txt", "-o", "out.html")
    assert sorted(path.name for path in Path().glob("out*")) == []


def test_help_names_every_form():
    assert all(f"{form.suffix} " in FORMS_HELP or form.suffix in FORMS_HELP for form in FORMS)
    told = " ".join(tbscope("export", "--help").stdout.split())
    assert all(form.suffix in told for form in FORMS)
    assert "tbscope export model.onnx -o net.svg" in told
