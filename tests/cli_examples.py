"""A folder in which every example of the command can be run, in its help and in its docs."""

import os
import shlex
import signal
import subprocess
import sys

import onnx
import torch.utils.tensorboard
from build import chain
from cli_runs import ROOT, tbscope
from onnx_build import FLOAT, info, model_of, node, weight

import tbscope as library
from tbscope.cli.command_line import COMMANDS

NETS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Linear(4, 4)

    def forward(self, x):
        return self.conv1(x).relu()

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.stem = nn.Linear(3, 4)
        self.layer1 = nn.Sequential(Block(), Block())
        self.encoder = Encoder()
        self.words = nn.Embedding(9, 3)
        self.head = nn.Linear(4, width)

    def forward(self, x=None, ids=None):
        if ids is not None:
            x = self.words(ids)
        return self.head(self.encoder(self.layer1(self.stem(x))))

    def encode(self, x):
        return self.encoder(self.stem(x))

class Small(Net):
    pass

class Large(Net):
    def __init__(self):
        super().__init__(width=8)

def make_model(**arguments):
    torch.manual_seed(0)
    return Net(**arguments)

def make_inputs():
    return torch.ones(2, 3)
"""
TRAIN = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
assert parser.parse_args().epochs == 3
"""
FOUND = ("lint runs/old", "diff ")
"""Examples that find something, and end with 1."""


def furnish(folder):
    """Fill the working directory with all that examples name."""
    (folder / "nets.py").write_text(NETS)
    (folder / "train.py").write_text(TRAIN)
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(TRAIN)
    names = {}
    exec(compile(NETS, str(folder / "nets.py"), "exec"), names)
    graph = library.trace(names["make_model"](), torch.ones(2, 3))
    graph.save(folder / "graph.json")
    library.trace(names["Small"](), torch.ones(2, 3)).save(folder / "before.json")
    for run, logged in {"net": graph, "monday": chain(2), "friday": chain(2)}.items():
        with library.SummaryWriter(folder / "runs" / run) as writer:
            writer.add_graph(logged)
    with torch.utils.tensorboard.SummaryWriter(folder / "runs/old") as writer:
        writer.add_graph(torch.nn.Sequential(torch.nn.Linear(3, 4)), torch.ones(2, 3))
    layer = node("MatMul", ["x", "w"], ["y"])
    made = model_of(
        [layer], [info("x", FLOAT, [1, 3])], [info("y", FLOAT, [1, 768])], [weight("w", 3, 768)]
    )
    onnx.save(made, folder / "model.onnx")


def run_example(line):
    """Run one line, which begins with `tbscope`; give its exit code and what it printed."""
    words = shlex.split(line)[1:]
    if words[0] in ("open", "view", "run") or words[0] not in COMMANDS:
        return _in_process(words)
    result = tbscope(*words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def _in_process(words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BROWSER": "true"}
    with subprocess.Popen(
        [sys.executable, "-m", "tbscope", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        first = process.stdout.readline()
        if words[0] != "run":
            process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    # `open` ends as an interrupt does.
    ended = 130 if words[0] not in ("view", "run") else 0
    return process.returncode - ended, first + rest, errors
