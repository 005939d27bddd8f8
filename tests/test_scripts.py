"""Scripts in the style of well-known tutorials (tests/scripts) under `tbscope run`, unchanged."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import torchrun
from sweeps import sampled
from warm import run_warm

import tbscope

SCRIPTS = Path(__file__).parent / "scripts"

# The library that a script imports beside torch.
LIBRARIES = {
    "accelerate_loop": "accelerate",
    "diffusion": "diffusers",
    "huggingface_trainer": "transformers",
    "ignite_engine": "ignite",
    "lightning_trainer": "lightning",
    "skorch_net": "skorch",
    "stable_baselines": "stable_baselines3",
}
# By script, the tags of its graphs beside that of the run: those of its other models.
TAGS = {"gan": ["Generator"], "wgan_gp": ["Sequential_"]}
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
# Each finds its step in a way of its own, and none imports a large library.
FEW = ["accelerate_loop", "gan", "nanogpt", "style_transfer", "wgan_gp"]


def run_script(name, folder, *before):
    """Run a script in a folder, and give what it printed; `before` are words before its file."""
    program = SCRIPTS / f"{name}.py"
    if name == "distributed":
        done = torchrun(2, *before, program, cwd=folder)
    else:
        done = run_warm(*before, program, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sampled(NAMES, FEW))
def test_a_training_step_of_a_script_is_drawn_and_its_results_stay(name, tmp_path):
    library = LIBRARIES.get(name)
    if library is not None and find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'tbscope[scripts]'")
    alone = run_script(name, tmp_path)
    assert run_script(name, tmp_path, "-m", "tbscope", "run", "--logdir", "log") == alone
    written = tbscope.read_log(tmp_path / "log")
    assert [entry.tag for entry in written] == [None, *TAGS.get(name, [])]
    for entry in written:
        check_step(entry.graph)


def check_step(graph):
    """Check that a graph has a forward with a loss, its gradients, and the optimizer after them."""
    operations = [node for node in graph.nodes if node.kind == "op"]
    forward, backward, update = (
        {node for node in operations if node.phase == phase}
        for phase in ("forward", "backward", "optimizer")
    )
    assert any(value.shape == () for node in forward for value in node.outputs), "a loss"
    assert any(value.producer in forward for node in backward for value in node.inputs)
    later = set(backward)
    for node in operations:
        if any(value.producer in later for value in node.inputs):
            later.add(node)
    assert later & update
