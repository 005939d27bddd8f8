"""Models that run on several ranks, each with one step of its training: what the tests watch."""

import warnings
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
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
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import TorchDispatchMode

import tbscope
from tbscope.formats.json import graph_to_json

WIDTH = 8
HEADS = 2


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


def normed(ranks):
    """Hand the buffers of the first rank to all, before each step."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(2), nn.Dropout(0.5))
    return DistributedDataParallel(model)


def hooked(ranks):
    """Reduce buckets by a function of Python."""
    model = replicated(ranks)
    model.register_comm_hook(None, allreduce_hook)
    return model


def checked(ranks):
    """Look for parameters that got no gradient."""
    return replicated(ranks, find_unused_parameters=True)


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


class Rotate(torch.autograd.Function):
    """Hands a tensor to the next rank of a ring, and takes that of the one before."""

    @staticmethod
    def forward(ctx, x, group, step=1):
        ctx.group, ctx.step = group, step
        ranks = dist.get_process_group_ranks(group)
        place = ranks.index(dist.get_rank())
        to, of = (ranks[(place + way) % len(ranks)] for way in (step, -step))
        taken = torch.empty_like(x)
        messages = [
            dist.P2POp(dist.isend, x.contiguous(), to, group),
            dist.P2POp(dist.irecv, taken, of, group),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        return taken

    @staticmethod
    def backward(ctx, gradient):
        return Rotate.apply(gradient, ctx.group, -ctx.step), None, None


class Attention(nn.Module):
    """Attention over a sequence of which each rank of a group holds a part."""

    def __init__(self, group):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.group = group

    def forward(self, x):
        return x + self.out(self.attend(*self.qkv(x).chunk(3, -1)))


class RingAttention(Attention):
    """Keys and values go round, while each rank keeps its queries."""

    def attend(self, query, key, value):
        weights, total = 0, 0
        for step in range(dist.get_world_size(self.group)):
            if step:
                key, value = Rotate.apply(torch.stack([key, value]), self.group).unbind()
            here = (query @ key.transpose(-1, -2) / WIDTH**0.5).exp()
            weights, total = weights + here.sum(-1, keepdim=True), total + here @ value
        return total / weights


class HeadAttention(Attention):
    """Each rank has the whole sequence of some heads while it attends (Ulysses)."""

    def attend(self, *parts):
        parts = [self.exchanged(part.unflatten(-1, (HEADS, -1)), 2, 1) for part in parts]
        query, key, value = (part.transpose(1, 2) for part in parts)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.exchanged(attended.transpose(1, 2), 1, 2).flatten(2)

    def exchanged(self, x, cut, joined):
        there = torch.stack(x.chunk(dist.get_world_size(self.group), cut))
        return torch.cat(
            functional.all_to_all_single_autograd(there, None, None, self.group).unbind(), joined
        )


def in_a_ring(ranks):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    return nn.Sequential(RingAttention(mesh.get_group()), nn.Linear(WIDTH, WIDTH))


def by_heads(ranks):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",))
    return nn.Sequential(HeadAttention(mesh.get_group()), nn.Linear(WIDTH, WIDTH))


def train(model, x):
    model(x).square().sum().backward()


class Stage(nn.Module):
    """One of the stages of a pipeline, with the schedule that runs it."""

    def __init__(self, mesh, schedule, part):
        super().__init__()
        self.part = part
        stage = pipelining.PipelineStage(
            part, mesh.get_local_rank(), mesh.size(), torch.device("cpu"), group=mesh.get_group()
        )
        self.first, self.last = stage.is_first, stage.is_last
        schedules = {"1F1B": pipelining.Schedule1F1B, "GPipe": pipelining.ScheduleGPipe}
        self.schedule = schedules[schedule](stage, 2, loss_fn=nn.MSELoss())


class VirtualStages(Stage):
    """Two of the stages of a pipeline, with a schedule that interleaves them."""

    def __init__(self, mesh, schedule, indices, sharded=None):
        nn.Module.__init__(self)
        parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in indices]
        for part in parts if sharded else ():
            fully_shard(part, mesh=sharded)
        self.parts = nn.ModuleList(parts)
        stages = [
            pipelining.PipelineStage(
                part, index, 2 * mesh.size(), torch.device("cpu"), group=mesh.get_group()
            )
            for part, index in zip(parts, indices, strict=True)
        ]
        self.first = any(stage.is_first for stage in stages)
        self.last = any(stage.is_last for stage in stages)
        self.schedule = schedule(stages, 4, loss_fn=nn.MSELoss())


def run_stage(model, x):
    model.schedule.step(*([x] if model.first else []), target=x if model.last else None)


def stage_1f1b(ranks, schedule="1F1B"):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
    return Stage(mesh, schedule, nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()))


def stage_gpipe(ranks):
    return stage_1f1b(ranks, "GPipe")


def interleaved(ranks, schedule=pipelining.ScheduleInterleaved1F1B):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
    return VirtualStages(mesh, schedule, [mesh.get_local_rank(), mesh.get_local_rank() + ranks])


def interleaved_and_sharded(ranks):
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("pp", "dp"))
    at = mesh["pp"].get_local_rank()
    schedule = pipelining.ScheduleInterleaved1F1B
    return VirtualStages(mesh["pp"], schedule, [at, at + 2], sharded=mesh["dp"])


def zero_bubble(ranks):
    return interleaved(ranks, pipelining.ScheduleInterleavedZeroBubble)


def in_a_v(ranks):
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
    rank = mesh.get_local_rank()
    return VirtualStages(mesh, pipelining.ScheduleZBVZeroBubble, [rank, 2 * ranks - 1 - rank])


def by_zero(ranks):
    """Keep the state of the optimizer for a part of the parameters alone."""
    model = replicated(ranks)
    model.optimizer = partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)
    return model


ON_TWO = {
    "replicated": replicated,
    "normed": normed,
    "hooked": hooked,
    "checked": checked,
    "sharded": sharded,
    "halved": halved,
    "by tensor": by_tensor,
    "by sequence": by_sequence,
    "of experts": of_experts,
    "in a ring": in_a_ring,
    "by heads": by_heads,
    "1F1B": stage_1f1b,
    "GPipe": stage_gpipe,
}


def wrapped(ranks):
    """Shard by the older wrapper, and clip the gradients."""
    policy, device = ModuleWrapPolicy({Block}), torch.device("cpu")
    model = FullyShardedDataParallel(Net(), auto_wrap_policy=policy, device_id=device)
    model.clipped = True
    return model


# Also ranks that part in the optimizer, and a group that is no dimension of a mesh.
RECORDED = {**ON_TWO, "by zero": by_zero, "wrapped": wrapped}


VIRTUAL = {"interleaved": interleaved, "zero bubble": zero_bubble, "in a V": in_a_v}


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
    "c10d.allgather_": "all_gather",
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
        *model.buffers(),
        *[each for held in optimizer.state.values() for each in held.values()],
    ]
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    plain = [each.detach().float().numpy().tobytes() for each in local if each.numel()]
    return [*plain, torch.get_rng_state().numpy().tobytes()]


def trained(make, ranks, watch):
    """Train a model for two steps, of which the second is watched; give its state and the watch."""
    torch.manual_seed(0)
    model = make(ranks)
    make_optimizer = getattr(model, "optimizer", torch.optim.AdamW)
    optimizer = make_optimizer(model.parameters(), lr=0.01, foreach=False)
    count = 4 if isinstance(model, VirtualStages) else 2
    x = torch.linspace(-1, 1, 2 * count * WIDTH).reshape(count, 2, WIDTH) + dist.get_rank()
    step = run_stage if isinstance(model, Stage) else train
    step(model, x)
    optimizer.step()
    optimizer.zero_grad()
    with watch(model) as seen:
        step(model, x)
        if getattr(model, "clipped", False):
            getattr(model, "clip_grad_norm_", partial(clip_grad_norm_, model.parameters()))(0.1)
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


def all_told(rank, ranks, models):
    """Give what one rank tells of each of some models."""
    warnings.simplefilter("ignore")
    return {name: told(make, ranks) for name, make in models.items()}
