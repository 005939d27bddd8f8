"""The benchmark runs, and its report holds what it must; nothing here is about speed."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.models import CASES, PROFILED, SCALING

ROOT = Path(__file__).parents[1]


def run_benchmarks(*arguments):
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def test_a_model_is_measured_beside_its_forward_and_beside_torchs_own(tmp_path):
    found = tmp_path / "found.json"
    done = run_benchmarks("--only", "tiny", "--rounds", "1", "--json", found)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(found.read_text())["models"]
    assert list(model["ms"]) == ["forward", "tbscope", "trace", "convert", "write", "torch"]
    assert model["nodes"] >= 12
    assert "tiny MLP" in done.stdout
    assert "times cheaper than torch's, median" in done.stdout
    assert ">= 20" in done.stdout


def test_a_model_that_torchs_own_cannot_draw_as_called_is_marked(tmp_path):
    found = tmp_path / "found.json"
    done = run_benchmarks("--only", "TransformerEncoder", "--rounds", "1", "--json", found)
    (model,) = json.loads(found.read_text())["models"]
    assert list(model["torch"]["failures"]) == ["as users call it"]
    assert model["torch"]["measured"] == "with no_grad"
    assert "[1] torch's own fails as users call it: TracingCheckError: " in done.stdout


def test_a_text_that_no_model_has_in_its_name_is_refused():
    done = run_benchmarks("--only", "VGG")
    assert done.returncode == 2
    assert done.stderr.endswith("error: no model has 'VGG' in its name\n")


def test_measured_times_stand_beside_the_forward_that_nobody_watches(tmp_path):
    found = tmp_path / "found.json"
    done = run_benchmarks("--profile", "--only", "tiny", "--rounds", "2", "--json", found)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(found.read_text())["profiles"]
    assert (model["operations"], model["without_time"], model["steps"]) == (5, 0, 2)
    assert model["sum_ratio"] == model["operations_ms"] / model["forward_ms"] > 0
    assert model["watched_ms"] > 0
    assert model["loop_ms"] > 0
    assert model["peak_bytes"] == model["allocator_peak_bytes"] == 512
    assert "sum / forward" in done.stdout


def test_cases_of_one_name_are_one_case():
    cases = {id(case): case.name for case in (*CASES, *SCALING, *PROFILED)}
    assert sorted(cases.values()) == sorted(set(cases.values()))
