"""Benchmarks that start processes of their own: each prints its table and writes its report."""

import json
import subprocess
import sys

import pytest
from test_benchmarks import ROOT, run_benchmarks

from benchmarks.first import in_a_process
from benchmarks.models import find_case


def test_a_model_that_torchs_own_cannot_draw_as_called_is_marked(tmp_path):
    found = tmp_path / "found.json"
    done = run_benchmarks("--only", "TransformerEncoder", "--rounds", "1", "--json", found)
    (model,) = json.loads(found.read_text())["models"]
    assert list(model["torch"]["failures"]) == ["as users call it"]
    assert model["torch"]["measured"] == "with no_grad"
    assert "[1] torch's own fails as users call it: TracingCheckError: " in done.stdout


def test_the_first_graph_of_a_process_is_measured_with_its_imports(tmp_path):
    found = tmp_path / "found.json"
    done = run_benchmarks("--first", "--only", "tiny", "--rounds", "1", "--json", found)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(found.read_text())["first"]
    ms = model["ms"]
    assert list(ms) == ["forward", "torch", "torchview", "tbscope"]
    assert model["of_torch"] == ms["tbscope"] / ms["torch"]
    assert model["of_torchview"] == ms["tbscope"] / ms["torchview"]
    assert "first graph over torch's, import counted, most" in done.stdout


def test_a_way_of_torchs_own_that_fails_is_told_and_its_next_one_measured():
    case = find_case("TransformerEncoder, 6")
    seconds, failure = in_a_process(case, "torch", 0, threads=1)
    assert seconds is None
    assert failure.startswith("torch.jit._trace.TracingCheckError")
    seconds, failure = in_a_process(case, "torch", 1, threads=1)
    assert seconds > 0
    assert failure == ""


@pytest.mark.parametrize("option", ["--first", "--profile"])
def test_a_text_that_no_model_has_in_its_name_is_refused(option):
    done = run_benchmarks("--only", "VGG", option)
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


def test_reading_a_form_is_measured_beside_the_load_of_who_wrote_it():
    command = [sys.executable, "-m", "benchmarks.sources", "--rounds", "1", "--only", "^chain"]
    command += ["--form", "^(GraphDef|export)$"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("chain")]
    assert [row[3:-4] for row in rows] == [["export"], ["GraphDef"]]
    for nodes, load, ours, above in (map(float, row[-4:]) for row in rows):
        assert nodes == 100
        assert above == pytest.approx((ours - load) * 1e3 / nodes, abs=2)
    assert [float(row[-3]) > 0 for row in rows] == [False, True]


def test_recorded_steps_stand_in_a_table_by_the_sizes_of_batches():
    command = [sys.executable, "-m", "benchmarks.steps", "tiny MLP", "--batches", "1", "3"]
    done = subprocess.run(
        [*command, "--rounds", "1"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    head, _, *rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert head == ["model", "batch", "step, ms", "recorded", "memory"]
    assert [row[:2] for row in rows] == [["tiny MLP", "1"], ["tiny MLP", "3"]]
    assert all(float(ratio) > 0 for row in rows for ratio in row[2:])
