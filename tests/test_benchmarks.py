"""The benchmark runs, and its report holds what it must; nothing here is about speed."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.models import CASES, PROFILED, SCALING
from benchmarks.report import add_ratios, summary, verdict

ROOT = Path(__file__).parents[1]


def run_benchmarks(*arguments):
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_a_model_is_measured_beside_its_forward_and_beside_torchs_own(tmp_path):
    found = tmp_path / "found.json"
    done = run_benchmarks("--only", "tiny", "--rounds", "1", "--json", found)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(found.read_text())["models"]
    parts = ["forward", "tbscope", "trace", "convert", "write", "torch", "torchview"]
    assert list(model["ms"]) == parts
    assert model["nodes"] >= 12
    assert "tiny MLP" in done.stdout
    assert "times cheaper than torch's, median" in done.stdout
    assert "<= 1.1" in done.stdout


def test_a_cost_on_top_leaves_one_forward_out_on_both_sides():
    ms = {"forward": 10.0, "tbscope": 12.0, "torch": 40.0, "torchview": 16.0}
    found = add_ratios({"ms": ms, "nodes": 4, "peak_bytes": {"forward": 8, "traced": 10}})
    assert found["times_cheaper"] == 40 / 12
    assert found["times_cheaper_on_top"] == 30 / 2
    assert found["of_torchview"] == 12 / 16
    assert (found["forwards"], found["us_per_node"], found["peak_ratio"]) == (1.2, 500, 1.25)


def test_the_cost_of_a_node_is_that_of_long_models_too():
    model = {"times_cheaper": None, "of_torchview": None, "us_per_node": 30, "nodes": 100}
    model |= {"ms": {"forward": 1.0}, "peak_bytes": {"forward": 1}}
    figures = summary([model], [model | {"us_per_node": 71}, model | {"nodes": 99}])
    (found,) = [figure for figure in figures if figure["what"].startswith("us per node")]
    assert (found["value"], found["models"], verdict(found)) == (71, 2, "")
    assert verdict(found | {"most": 70}) == "NOT met"
    assert verdict(found | {"most": 71}) == "met"


def test_no_tool_is_imported_before_its_first_graph_is_measured():
    tools = "{'tbscope', 'tensorboard', 'torchview'}"
    code = f"import sys, benchmarks.first; print({tools} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "set()\n"


def test_cases_of_one_name_are_one_case():
    cases = {id(case): case.name for case in (*CASES, *SCALING, *PROFILED)}
    assert sorted(cases.values()) == sorted(set(cases.values()))
