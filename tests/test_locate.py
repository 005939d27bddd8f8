"""Where in the user's code something was called, and how that place is told."""

import os
import sys

import pytest
import torch

import tbscope
from tbscope.sources.torch.locate import raised_at, short_path


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
        return tbscope.parse_scope_path("Net/Linear[0")

    with pytest.raises(tbscope.ArgumentError) as caught:
        fail()
    source = raised_at(caught.value.__traceback__)
    assert (source.file, source.function) == ("test_locate.py", "fail")
    assert raised_at(None) is None
