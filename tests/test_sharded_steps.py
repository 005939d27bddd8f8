"""Whole training steps of sharded models: their kernels, their boxes, and what the page shows."""

import runpy
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel_models import WIDTH, Block, Net
from sweeps import sampled
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils._python_dispatch import TorchDispatchMode

import tbscope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

SIMULATED = Path(__file__).parents[1] / "examples" / "distributed" / "simulated"
FEW = 20
# What torch asks of a tensor, what Python reads, and the gradient of a loss, have no kernel.
QUERIES = {"_local_scalar_dense", "promote_types", "ones_like", "_wrap_tensor_autograd"}
# A log of kernels does not see what a DTensor runs inside of one.
INSIDE = {"pow", "all_reduce", "wait_tensor"}


class Kernels(TorchDispatchMode):
    """Counts kernels."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != "profiler":
            self.seen[func._schema.name.rpartition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


def by_layer(mesh, **options):
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def early(mesh):
    """Gather the parameters of a layer while the one before it runs, in both passes."""
    model = by_layer(mesh)
    first, second = model.blocks
    model.set_modules_to_forward_prefetch([first])
    first.set_modules_to_forward_prefetch([second])
    second.set_modules_to_backward_prefetch([first])
    return model


def wrapped(mesh, **options):
    policy = ModuleWrapPolicy({Block})
    device = torch.device("cpu")
    return FullyShardedDataParallel(Net(), auto_wrap_policy=policy, device_id=device, **options)


HALF = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
STEPS = {
    "plain": (2, lambda mesh: by_layer(mesh["dp"])),
    "halved": (2, lambda mesh: by_layer(mesh["dp"], mp_policy=HALF)),
    "kept": (2, lambda mesh: by_layer(mesh["dp"], reshard_after_forward=False)),
    "kept in part": (4, lambda mesh: by_layer(mesh["dp"], reshard_after_forward=2)),
    "early": (2, lambda mesh: early(mesh["dp"])),
    "hybrid": (4, by_layer),
    "wrapped": (2, wrapped),
    "wrapped parameters": (2, lambda mesh: wrapped(mesh, use_orig_params=True)),
}


def clip(model):
    if isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(1.0)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def trained(name, watch, *, foreach=False):
    """Train two steps, of which the second is watched."""
    ranks, make = STEPS[name]
    sizes = {"replicas": 2, "dp": 2} if name == "hybrid" else {"dp": ranks}
    with tbscope.fake_world(ranks, mesh=sizes) as mesh:
        torch.manual_seed(0)
        model = make(mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        x = torch.randn(2, 3, WIDTH)

        def step():
            model(x).square().mean().backward()
            clip(model)
            optimizer.step()
            optimizer.zero_grad()

        step()
        with watch(model) as seen:
            step()
    return seen


@pytest.fixture(scope="module")
def graphs():
    return {name: trained(name, tbscope.record).graph for name in STEPS}


def inside(hierarchy, name):
    """Give the names of what the page shows in an opened box."""
    return [item.name.rpartition("/")[2] for item in hierarchy.boxes[name].children.values()]


def seen_first(graph):
    """Check what holds for each drawing of a step, and give the page."""
    graph.verify()
    graph_def = tbscope.to_graph_def(graph)
    assert tbscope.lint(graph_def) == []
    hierarchy = Hierarchy.of(graph_def)
    first = [
        item
        for item in hierarchy.root.children.values()
        if not (isinstance(item, Box) and item.name.startswith("__function_library__"))
    ]
    assert len(first) <= FEW
    return hierarchy


@pytest.mark.parametrize("name", STEPS)
def test_a_sharded_step_has_each_kernel_once_and_no_cycle(graphs, name):
    graph = graphs[name]
    seen_first(graph)
    wanted = trained(name, lambda _: Kernels()).seen
    got = Counter(kernel.rpartition("::")[2] for node in graph.nodes for kernel in node.kernels)
    assert (wanted - got).keys() <= QUERIES
    assert (got - wanted).keys() <= INSIDE
    assert not [node for node in graph.nodes if node.op == "DTensor" and node.scope is None]
    assert graph.outputs == []


@pytest.mark.parametrize("name", STEPS)
def test_a_sharded_layer_is_drawn_as_it_was_written(graphs, name):
    hierarchy = seen_first(graphs[name])
    layer = "FSDPNet/blocks/1"
    if name.startswith("wrapped"):
        layer = "FullyShardedDataParallel/_fsdp_wrapped_module/blocks/1/_fsdp_wrapped_module"
    freed = set() if name == "kept" else {"free"}
    forward = set(inside(hierarchy, layer)) - {"FSDPBlock", "Block", "add_", "view_as"}
    assert forward == {"gather", "norm", "up", "relu", "down", "add"} | freed
    backward = set(inside(hierarchy, f"gradients/{layer}"))
    gathered = {"gather"} if name != "kept" else set()
    assert backward >= {"norm", "up", "down", "free", "reduce_scatter"} | gathered
    assert {"all_reduce"} <= set(inside(hierarchy, next(filter(is_clip, hierarchy.boxes))))


WAYS = list(product(STEPS, ["op", "module", "overview"], [False, True]))


@pytest.mark.parametrize(
    ("name", "level", "foreach"),
    sampled(WAYS, [("hybrid", "overview", True), ("wrapped", "module", False)]),
)
def test_a_sharded_step_has_no_cycle_at_any_level(name, level, foreach):
    graph = trained(name, tbscope.record, foreach=foreach).graph
    assert tbscope.lint(tbscope.to_graph_def(graph, level=level)) == []


def is_clip(name):
    return name.endswith("clip_grad_norm_")


def in_parts(rank):
    """Record a step of a rank that updates parameters of its own alone, and sends them."""
    with tbscope.fake_world(2, rank=rank):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4, bias=False))
        optimizer = torch.optim.SGD(model[2 * rank].parameters(), lr=0.1)
        with tbscope.record(model) as recording:
            model(torch.ones(2, 4)).sum().backward()
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
            optimizer.step()
    return recording.graph


def test_what_ranks_did_in_common_before_they_part_is_drawn_once():
    graphs = [in_parts(rank) for rank in range(2)]
    merged = tbscope.merge_ranks(graphs)
    seen_first(merged)
    assert [part.scope for part in merged.parts] == ["optimizer/rank 0", "optimizer/rank 1"]
    assert [call.qualified_name for call in merged.calls] == ["", "0", "1", "2"]
    for rank, graph in enumerate(graphs):
        places = [
            str(node.scope).replace(f"optimizer/rank {rank}/", "optimizer/")
            for node in merged.nodes
        ]
        own = Counter(
            (node.op, place)
            for node, place in zip(merged.nodes, places, strict=True)
            if f"rank {1 - rank}" not in place
        )
        assert own == Counter((node.op, str(node.scope)) for node in graph.nodes)
    devices = {value.device.split("/")[0] for node in merged.nodes for value in node.outputs}
    assert devices == {"ranks 0-1 cpu", "rank 0 cpu", "rank 1 cpu"}


def test_ranks_that_part_in_the_forward_pass_have_nothing_in_common():
    graphs = [in_parts(rank) for rank in range(2)]
    graphs[1].nodes[3].op = "gelu"
    assert [part.scope for part in tbscope.merge_ranks(graphs).parts] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("example", sorted(SIMULATED.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_of_many_ranks_runs_in_one_process(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    log, *_ = tbscope.read_log(tmp_path / "runs" / example.stem)
    seen_first(log.graph)
    assert log.graph.outputs == []
    assert f"examples/distributed/simulated/{example.name}" in DOC.read_text()


DOC = Path(__file__).parents[1] / "docs" / "distributed.md"
