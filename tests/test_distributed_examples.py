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


def faults(run, boxes):
    """Give what is wrong with the log of an example."""
    if len(list(run.iterdir())) != 1:
        return "it has several files"
    graph = tbscope.read_log(run)[0].graph
    if sorted(rank for part in graph.parts for rank in part.ranks) != [0, 1]:
        return f"it has the ranks {[part.ranks for part in graph.parts]}"
    if [part.scope for part in graph.parts] != boxes:
        return f"it has the boxes {[part.scope for part in graph.parts]}"
    if not any(node.collective for node in graph.nodes):
        return "it has no collective"
    return tbscope.lint(tbscope.to_graph_def(graph))


def test_each_example_draws_all_ranks_as_one_graph_in_one_file(tmp_path):
    # One after the other, on two ranks.
    done = torchrun(2, ROOT / "tests" / "run_distributed.py", *EXAMPLES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {
        example.stem: faults(tmp_path / "runs" / example.stem, BOXES.get(example.stem, [""]))
        for example in EXAMPLES
    }
    assert len(found) > 10
    assert {name: fault for name, fault in found.items() if fault} == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_named_in_the_documentation(example):
    assert len(example.read_text().splitlines()) <= 45
    page = (ROOT / "docs" / "distributed.md").read_text()
    assert f"examples/distributed/{example.name}" in page
    assert f"--nproc-per-node 2 examples/distributed/{example.name}" in example.read_text()
