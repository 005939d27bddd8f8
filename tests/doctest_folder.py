"""Has the examples in docstrings run in a folder of their own, in which they may write."""

import doctest

import pytest


@pytest.fixture(autouse=True)
def _run_examples_in_a_folder(request: pytest.FixtureRequest) -> None:
    if isinstance(getattr(request.node, "dtest", None), doctest.DocTest):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
