"""Loads all that programs of tests load, for the process of which they are forks.

The garbage collector leaves out all that is there then: each fork would copy what it looks at.
"""

import gc
import tempfile

import tensorboardX  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.debug
import torch.distributed.tensor.parallel
import torch.utils.tensorboard

import tbscope

with tempfile.TemporaryDirectory() as folder, tbscope.SummaryWriter(folder) as writer:
    writer.add_graph(torch.nn.Linear(1, 1), torch.ones(1, 1))
del writer
gc.collect()
gc.freeze()
