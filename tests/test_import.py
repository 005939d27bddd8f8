"""`import tbscope` brings names, and what is behind them when one is asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def loaded_by(code, *, after="import torch"):
    """Give the modules that a piece of code loads in a process that has loaded others."""
    code = f"import sys\n{after}\nbefore = set(sys.modules)\n{code}\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(*set(sys.modules) - before)"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


def test_the_import_alone_loads_next_to_nothing():
    assert loaded_by("import tbscope") == {"tbscope", "tbscope.utils", "tbscope.utils.gc_pause"}


@pytest.mark.parametrize("name", ["install", "to_graph_def", "lint", "read_log"])
def test_what_needs_no_torch_loads_none(name):
    assert "torch" not in loaded_by(f"import tbscope; tbscope.{name}", after="pass")


def test_drawing_loads_no_library_that_a_callback_is_for():
    code = "import tbscope; tbscope.trace(torch.nn.ReLU(), torch.ones(1)); tbscope.SummaryWriter"
    found = {name.partition(".")[0] for name in loaded_by(code)}
    assert "tensorboard" in found
    assert found.isdisjoint({"lightning", "transformers", "accelerate", "ignite", "tensorboardX"})
