"""Models that run on several ranks, each with one step of its training: what the tests watch."""

import warnings
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import tbscope
from tbscope.formats.json import graph_to_json

WIDTH = 8


class Block(nn.Module):
    """A feed-forward block with a norm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    """Two blocks and a head."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Experts(nn.Module):
    """A layer whose tokens go to the expert of each rank, and come back."""

    def __init__(self, group):
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.expert = nn.Linear(WIDTH, WIDTH)
        self.group = group

    def forward(self, x):
        x = self.gate(x)
        there = functional.all_to_all_single_autograd(x, None, None, self.group)
        return functional.all_to_all_single_autograd(self.expert(there), None, None, self.group)


def replicated(ranks, **options):
    return DistributedDataParallel(Net(), **options)


def sharded(ranks, **options):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def halved(ranks):
    return sharded(ranks, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


TENSOR_PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE_PLAN = {
    "": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
}


def by_tensor(ranks, plan=TENSOR_PLAN):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model = Net()
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def by_sequence(ranks):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("sp",))
    return parallelize_module(Block(), mesh, SEQUENCE_PLAN)


def by_both(ranks):
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    model = Net()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], TENSOR_PLAN)
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def of_experts(ranks):
    mesh = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("dp", "ep"))
    return nn.Sequential(Experts(mesh.get_group("ep")), nn.ReLU())


def train(model, x):
    model(x).square().sum().backward()


class Stage(nn.Module):
    """One of the stages of a pipeline, with the schedule that runs it."""

    def __init__(self, ranks, schedule):
        super().__init__()
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
        self.part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.rank = dist.get_rank()
        stage = pipelining.PipelineStage(
            self.part, self.rank, ranks, torch.device("cpu"), group=mesh.get_group("pp")
        )
        self.last = stage.is_last
        schedules = {"1F1B": pipelining.Schedule1F1B, "GPipe": pipelining.ScheduleGPipe}
        self.schedule = schedules[schedule](stage, 2, loss_fn=nn.MSELoss())


def run_stage(model, x):
    if model.rank == 0:
        model.schedule.step(x)
    else:
        model.schedule.step(target=x)


def stage_1f1b(ranks):
    return Stage(ranks, "1F1B")


def stage_gpipe(ranks):
    return Stage(ranks, "GPipe")


ON_TWO = {
    "replicated": replicated,
    "sharded": sharded,
    "halved": halved,
    "by tensor": by_tensor,
    "by sequence": by_sequence,
    "of experts": of_experts,
    "1F1B": stage_1f1b,
    "GPipe": stage_gpipe,
}
ON_FOUR = {"by both": by_both}


class Sizes(TorchDispatchMode):
    """Notes the kernels that communicate, with the bytes of all tensors that each one sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = str(func).removesuffix(".default")
        if name in _KINDS:
            tensors = {id(each): each for each in _tensors((args, kwargs, result))}
            self.seen.append((_KINDS[name], sum(each.nbytes for each in tensors.values())))
        return result


@contextmanager
def oracles(model):
    """Give what torch's own counter, and a mode that looks at sizes, tell of a block."""
    # Of modules without one around them, as a stage runs its part, torch's counter knows nothing.
    with (
        nullcontext() if isinstance(model, Stage) else CommDebugMode() as counter,
        Sizes() as sizes,
    ):
        yield counter, sizes


_KINDS = {
    "c10d.allreduce_": "all_reduce",
    "c10d._allgather_base_": "all_gather",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.broadcast_": "broadcast",
    "c10d.send": "send",
    "c10d.recv_": "recv",
    "_c10d_functional.all_reduce": "all_reduce",
    "_c10d_functional.all_gather_into_tensor": "all_gather",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional.all_to_all_single": "all_to_all",
}


def _tensors(nest):
    if isinstance(nest, torch.Tensor):
        yield nest
    elif isinstance(nest, list | tuple):
        for each in nest:
            yield from _tensors(each)


def state_of(model, optimizer):
    """Give all that training leaves behind, as bytes."""
    tensors = [
        *model.parameters(),
        *[parameter.grad for parameter in model.parameters() if parameter.grad is not None],
        *[each for held in optimizer.state.values() for each in held.values()],
    ]
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    plain = [each.detach().float().numpy().tobytes() for each in local if each.numel()]
    return [*plain, torch.get_rng_state().numpy().tobytes()]


def trained(make, ranks, watch):
    """Train a model for two steps, of which the second is watched; give its state and the watch."""
    torch.manual_seed(0)
    model = make(ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    x = torch.linspace(-1, 1, 4 * WIDTH).reshape(2, 2, WIDTH) + dist.get_rank()
    step = run_stage if isinstance(model, Stage) else train
    step(model, x)
    optimizer.step()
    optimizer.zero_grad()
    with watch(model) as seen:
        step(model, x)
    optimizer.step()
    return state_of(model, optimizer), seen


def told(make, ranks):
    """Give what one rank records of a step, and what torch tells of the same step."""
    wanted, (counter, sizes) = trained(make, ranks, oracles)
    got, recording = trained(make, ranks, tbscope.record)
    return {
        "graph": graph_to_json(recording.graph),
        "counts": None if counter is None else sum(counter.get_comm_counts().values()),
        "seen": sizes.seen,
        "same": wanted == got,
    }


def all_told(rank, ranks, names):
    """Give what one rank tells of each of some models."""
    warnings.simplefilter("ignore")
    return {name: told((ON_TWO | ON_FOUR)[name], ranks) for name in names}
