"""Where in the user's code something was called, and how that place is told."""

import inspect
import os
import sys

import pytest
import torch
from card_facts import facts
from cli_runs import enter
from cli_runs import tbscope as command
from google.protobuf import text_format
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.nn.utils import clip_grad
from torch.utils.tensorboard import SummaryWriter

import tbscope
from tbscope.sources.torch import source_location
from tbscope.sources.torch.source_location import (
    CallSiteFinder,
    helper_name,
    is_foreign_file,
    raised_at,
    short_path,
)


def test_a_file_is_told_by_its_path_below_the_import_path(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "models")])
    assert short_path(str(tmp_path / "models" / "net.py")) == "net.py"
    assert short_path(str(tmp_path / "other" / "net.py")) == "other/net.py"


def test_a_file_from_elsewhere_is_told_by_its_name_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "models")])
    assert short_path(str(tmp_path / "other" / "net.py")) == "net.py"


def test_relative_entries_of_the_import_path_count_from_the_working_directory(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["models", ""])
    assert short_path(str(tmp_path / "models" / "net.py")) == "net.py"
    assert short_path(str(tmp_path / "train.py")) == "train.py"


def test_a_model_is_drawn_though_the_working_directory_is_gone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    os.rmdir(tmp_path)
    graph = tbscope.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert [node.op for node in graph.nodes] == ["input", "parameter", "parameter", "linear"]
    assert graph.calls[0].source.file.endswith("test_locate.py")


def test_the_line_that_raised_is_the_innermost_of_the_users():
    def fail():
        return tbscope.Scope.parse("Net/Linear[0")

    with pytest.raises(tbscope.ArgumentError) as caught:
        fail()
    source = raised_at(caught.value.__traceback__)
    assert (source.file, source.function) == ("test_locate.py", "fail")
    assert raised_at(None) is None


def places(graph):
    """Tell the places that nodes and calls of a graph name; its GraphDef names no others."""
    sources = {one.source for one in (*graph.nodes, *graph.calls)} - {None}
    drawn = {facts(node)["source"].s.decode() for node in tbscope.to_graph_def(graph).node}
    assert {str(source) for source in sources} >= drawn - {""} != set()
    return {(source.file.rpartition("/")[2], source.line, source.function) for source in sources}


def line_here():
    return sys._getframe(1).f_lineno


def own_writer(path):
    return tbscope.SummaryWriter(path).add_graph


def function_with_torch_writer(path):
    return lambda *given: tbscope.add_graph(SummaryWriter(path), *given)  # drawn here


def function_with_file_writer(path):
    return lambda *given: tbscope.add_graph(EventFileWriter(path), *given)  # drawn here


def trace_alone(path):
    return tbscope.trace


@pytest.mark.parametrize("way", [own_writer, trace_alone])
def test_a_layer_of_torch_has_the_line_of_the_script_as_its_source(way, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    draw = way(str(tmp_path))
    line = line_here() + 1
    graph = draw(net, torch.ones(1, 2))
    assert places(graph) == {("test_locate.py", line, inspect.currentframe().f_code.co_name)}


@pytest.mark.parametrize("way", [function_with_torch_writer, function_with_file_writer])
def test_a_function_around_add_graph_is_the_users(way, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    graph = way(str(tmp_path))(net, torch.ones(1, 2))
    assert places(graph) == {("test_locate.py", way.__code__.co_firstlineno + 1, "<lambda>")}


def test_where_the_command_asked_for_a_layer_of_torch_no_line_is_told(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    words = ("export", "torch.nn:Linear", "--arg", "in_features=2", "--arg", "out_features=2")
    result = command(*words, "-i", "1x2", "-o", "-")
    nodes = text_format.Parse(result.stdout, GraphDef()).node
    assert {node.op for node in nodes} >= {"Linear"}
    assert not any("source" in facts(node) for node in nodes)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def clip(): return sys._getframe()", "clip"),
        ("def clip(): return (lambda: sys._getframe())()", "clip"),
        ("def _clip(): return sys._getframe()", None),
        ("def _clip(): return (lambda: sys._getframe())()", None),
        # torch hands it on without the line.
        ("def _get_total_norm(): return sys._getframe()", "get_total_norm"),
    ],
)
def test_a_helper_is_called_as_its_users_call_it(code, name):
    names = {"sys": sys}
    exec(compile(code, clip_grad.__file__, "exec"), names)
    (function,) = (each for each in names.values() if callable(each))
    assert helper_name(function()) == name


def test_code_that_torch_generates_is_told_alike_however_often_it_is_made():
    def told():
        model = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
        return {str(call.source) for call in tbscope.trace(model, torch.ones(1, 2)).calls}

    first = told()
    assert any("eval_with_key" in source for source in first)
    assert told() == first


def test_packages_of_others_are_the_users_also_below_the_library_of_python(monkeypatch):
    monkeypatch.setattr(source_location, "_STDLIB", ("/lib/python/",))
    monkeypatch.setattr(source_location, "_SITE", ("/lib/python/site-packages/",))
    assert is_foreign_file("/lib/python/json.py")
    assert not is_foreign_file("/lib/python/site-packages/models/net.py")


def test_a_call_has_one_step_also_once_python_knows_what_is_called():
    locator, spots = CallSiteFinder(short_path.__code__), set()

    class Asked:
        def __len__(self):
            spots.add(locator.spot(sys._getframe(1)))
            return 0

    asked = Asked()
    for _ in range(100):
        len(asked)
    assert len(spots) == 1
