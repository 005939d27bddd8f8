"""Loads all that programs of tests load, for the process of which they are forks.

The garbage collector leaves out all that is there then: each fork would copy what it looks at.
"""

import functools
import gc
import tempfile
import zipfile

import tensorboard.default
import tensorboard.program
import tensorboardX  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.debug
import torch.distributed.tensor.parallel
import torch.utils.tensorboard
from tensorboard import assets
from tensorboard.plugins.core import core_plugin

import tbscope


def _pack_assets():
    """Pack the files of TensorBoard's page, which each server would pack as it starts."""
    if not hasattr(core_plugin, "_gzip"):
        return
    core_plugin._gzip = functools.cache(core_plugin._gzip)
    with assets.get_default_assets_zip_provider()() as packed, zipfile.ZipFile(packed) as files:
        for name in files.namelist():
            core_plugin._gzip(files.read(name))


with tempfile.TemporaryDirectory() as folder, tbscope.SummaryWriter(folder) as writer:
    writer.add_graph(torch.nn.Linear(1, 1), torch.ones(1, 1))
del writer
tensorboard.default.get_dynamic_plugins()
_pack_assets()
gc.collect()
gc.freeze()
