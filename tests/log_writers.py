"""The writers that take graphs, and scripts that write in a process of their own."""

import textwrap

import tensorboardX
import torch
import torch.utils.tensorboard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch import nn
from torch.utils.tensorboard.writer import FileWriter

import tbscope
from tests.warm import run_warm

X = torch.ones(1, 2)
MODEL = nn.Linear(2, 2)
MAKERS = {
    "ours": tbscope.SummaryWriter,
    "torch": torch.utils.tensorboard.SummaryWriter,
    "tensorboardX": tensorboardX.SummaryWriter,
}
FILES = {
    **MAKERS,
    "torch's file writer": FileWriter,
    "tensorboard's file writer": EventFileWriter,
    "tensorboardX's file writer": tensorboardX.writer.FileWriter,
}
ELSEWHERE = "log to another directory: writer = tbscope.SummaryWriter(log_dir)"


def run_script(code, *arguments):
    """Run code in a process of its own, in which files cannot grow beyond what `limit` allows."""
    head = """\
    import os, resource, sys, tensorboardX, torch, tbscope, torch.utils.tensorboard, warnings
    # Python 3.12 and later warn of each fork beside threads of a library.
    warnings.filterwarnings("ignore", ".*use of fork")
    from torch import nn
    model, x = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40))), torch.ones(1, 2)
    small = nn.ReLU()
    def limit(size):
        most = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))
    """
    return run_warm("-c", textwrap.dedent(head) + textwrap.dedent(code), *arguments)


def read(directory):
    return EventAccumulator(str(directory)).Reload()
