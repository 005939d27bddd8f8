"""The examples of docs/distributed.md, in processes that torchrun started."""

from pathlib import Path

import pytest
from processes import torchrun

import tbscope

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples" / "distributed").glob("*.py"))
# Stages have boxes, and so have ranks that update parameters of their own.
STAGES = ["stage 0", "stage 1"]
BOXES = {
    "pipeline": STAGES,
    "interleaved_pipeline": STAGES,
    "zero_optimizer": ["optimizer/rank 0", "optimizer/rank 1"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give the folder in which all examples ran, one after the other, on two ranks."""
    where = tmp_path_factory.mktemp("examples")
    done = torchrun(2, ROOT / "tests" / "run_distributed.py", *EXAMPLES, cwd=where)
    assert done.returncode == 0, done.stderr
    return where


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_draws_all_ranks_as_one_graph_in_one_file(folder, example):
    run = folder / "runs" / example.stem
    assert len(list(run.iterdir())) == 1
    graph = tbscope.read_log(run)[0].graph
    assert sorted(rank for part in graph.parts for rank in part.ranks) == [0, 1]
    assert [part.scope for part in graph.parts] == BOXES.get(example.stem, [""])
    assert any(node.collective for node in graph.nodes)
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_named_in_the_documentation(example):
    assert len(example.read_text().splitlines()) <= 45
    page = (ROOT / "docs" / "distributed.md").read_text()
    assert f"examples/distributed/{example.name}" in page
    assert f"--nproc-per-node 2 examples/distributed/{example.name}" in example.read_text()
