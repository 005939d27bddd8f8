"""Runs the command in a folder with a file of models, as the command's tests need it."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.cli import main

ROOT = Path(__file__).parents[1]

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, end="relu", fails=False):
        super().__init__()
        self.fc = nn.Linear(3, width)
        self.drop = nn.Dropout(0.5)
        self.end = getattr(nn.functional, end)
        self.fails = fails

    def forward(self, x, *, scale=None):
        if self.fails:
            raise RuntimeError("this net fails")
        print("a word of the model's own")
        y = self.drop(self.fc(x))
        y = self.end(y)
        return y if scale is None else y * scale

def make_model(**arguments):
    return Net(**arguments)

def give_nothing():
    pass

def give_up():
    raise SystemExit(3)

class Holder:
    make = Net

    class Tired(nn.ReLU):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError("tired")

class Decider(nn.Module):
    def forward(self, x):
        return sum(part for part in x if part > 0)

model = Net()
number = 3
"""


def enter(folder, monkeypatch):
    """Make a folder the working directory and put the file of models in it."""
    (folder / "nets.py").write_text(NETS)
    monkeypatch.chdir(folder)
    # The command leaves in place what it imported; the next test has another nets.py.
    sys.modules.pop("nets", None)
    return folder


def tbscope(*words):
    return CliRunner().invoke(main, words, prog_name="tbscope")


def refused(*words):
    """Run a command that ends with 1, and give its message."""
    result = tbscope(*words)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr


def misused(*words):
    """Run a command that ends with 2, and give its last line."""
    result = tbscope(*words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return result.stderr.splitlines()[-1]


def run_process(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tbscope", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, **options
    )


def run_and_look_for_torch(*words):
    """Run the command in a process whose last line says whether torch was imported."""
    code = (
        "import sys; from tbscope.cli import main; "
        f"main({words!r}, standalone_mode=False); print('torch' in sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def graphs_in(logdir):
    """Give the graphs that TensorBoard's own loader finds in a folder."""
    events = events_in(logdir)
    return [GraphDef.FromString(event.graph_def) for event in events if event.graph_def]


def tags_in(logdir):
    """Give the tags that the page shows; that of the run's own graph is `__run_graph__`."""
    return {value.tag.rstrip(" ") for event in events_in(logdir) for value in event.summary.value}


def events_in(logdir):
    files = [file for file in sorted(Path(logdir).iterdir(), key=_number) if file.is_file()]
    return [event for file in files for event in EventFileLoader(str(file)).Load()]


def _number(file):
    """Order the files of one process as they were opened: the tenth comes after the ninth."""
    ending = file.suffix.removeprefix(".")
    return int(ending) if ending.isdigit() else -1, file.name
