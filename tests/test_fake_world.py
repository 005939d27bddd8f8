"""`tbscope.fake_world`: one process as a rank of a run that does not exist."""

import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from llama import LARGE, SMALL, Llama, spread
from torch import nn
from versions import needs_torch

import tbscope
from tbscope.ir.scopes import self_and_ancestors
from tbscope.page.hierarchy import Hierarchy
from tbscope.ranks.rank_classes import is_message
from tbscope.utils.components import find_cycles

DOC = (Path(__file__).parents[1] / "docs" / "distributed.md").read_text(encoding="utf-8")
ONES = torch.ones(4, 4)
TOKENS = torch.zeros(1, 8, dtype=torch.int64)


class Sums(nn.Module):
    """Sums over all ranks."""

    def forward(self, x):
        x = x * 2
        dist.all_reduce(x)
        return x


def joined(graph):
    return [node.collective for node in graph.nodes if node.collective is not None]


def test_a_model_is_traced_as_one_rank_of_many():
    with tbscope.fake_world(1024, rank=7):
        graph = tbscope.trace(Sums(), torch.ones(3))
    graph.verify()
    assert (graph.rank, graph.world_size, graph.mesh) == (7, 1024, ())
    (told,) = joined(graph)
    assert (told.kind, told.reduction, told.ranks) == ("all_reduce", "sum", tuple(range(1024)))
    assert (told.input_bytes, told.output_bytes) == (12, 12)


def test_groups_are_named_by_the_dimensions_of_the_mesh():
    with tbscope.fake_world(16, rank=5, mesh={"pp": 2, "dp": 2, "tp": 4}) as mesh:
        graph = tbscope.trace(spread(SMALL, 2, mesh), TOKENS, fake=True)
    graph.verify()
    assert [(one.name, one.size, one.coordinate) for one in graph.mesh] == [
        ("pp", 2, 0),
        ("dp", 2, 1),
        ("tp", 4, 1),
    ]
    assert {(one.mesh, one.ranks) for one in joined(graph)} == {
        ("dp", (1, 5)),
        ("tp", (4, 5, 6, 7)),
    }


def test_parameters_tell_what_a_rank_holds_beside_the_whole():
    with tbscope.fake_world(8, mesh={"dp": 2, "tp": 4}) as mesh:
        graph = tbscope.trace(spread(SMALL, 1, mesh), TOKENS, fake=True)
    by_name = {module.name: module.parameters for module in graph.modules}
    (wide,) = by_name["layers.0.feed_forward.w1"]
    (plain,) = by_name["output"]
    assert (wide.shape, str(wide.sharding)) == (
        (48, 32),
        "(6, 32) by dp: StridedShard(0), tp: Shard(0)",
    )
    assert (plain.shape, str(plain.sharding)) == ((64, 32), "(32, 32) by dp: Shard(0)")


def test_a_mesh_of_an_earlier_run_names_no_group_of_a_later_one():
    with tbscope.fake_world(4, mesh={"dp": 2, "tp": 2}) as earlier:
        (named,) = joined(tbscope.trace(Sums(), torch.ones(3)))
    with tbscope.fake_world(6):
        graph = tbscope.trace(Sums(), torch.ones(3))
    assert earlier.ndim == 2
    assert (graph.mesh, joined(graph)[0].mesh) == ((), named.mesh)


@needs_torch(2, 13, reason="its meshes do not keep the groups that they were made with")
def test_meshes_of_earlier_runs_do_not_part_the_ranks_of_a_later_one():
    earlier, graphs = [], []
    for mesh in ({"dp": 2, "tp": 2}, {"dp": 4}):
        with tbscope.fake_world(4, mesh=mesh) as made:
            earlier.append(made)
    for rank in range(4):
        with tbscope.fake_world(4, rank=rank):
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]

            def sums(x, group=pairs[rank // 2]):
                dist.all_reduce(x, group=group)
                return x

            graphs.append(tbscope.trace(sums, torch.ones(3)))
    assert {joined(graph)[0].mesh for graph in graphs} == {""}
    assert [part.ranks for part in tbscope.merge_ranks(graphs).parts] == [(0, 1, 2, 3)]


CUTS = {
    "chunk": lambda x: x.chunk(4, -1),
    "split": lambda x: x.split(1, -1),
    "unbind": lambda x: x.unbind(0),
    "tensor_split": lambda x: x.tensor_split(4),
}


@pytest.mark.parametrize("cut", CUTS)
def test_ranks_that_take_their_own_part_of_a_tensor_are_one_picture(cut):
    graphs = []
    for rank in range(4):
        with tbscope.fake_world(4, rank=rank):
            graphs.append(tbscope.trace(lambda x: CUTS[cut](x)[dist.get_rank()].relu(), ONES))
    merged = tbscope.merge_ranks(graphs)
    assert [part.ranks for part in merged.parts] == [(0, 1, 2, 3)]
    (relu,) = [node for node in merged.nodes if node.op == "relu"]
    assert relu.attributes["parts_by_rank"] == "; ".join(
        f"{cut}:{rank} on rank {rank}" for rank in range(4)
    )


@pytest.mark.parametrize("rank", [5, 9])
def test_a_part_of_a_mesh_of_an_earlier_run_names_no_group_of_a_later_one(rank):
    with tbscope.fake_world(8, rank=5, mesh={"dp": 2, "tp": 4}) as earlier:
        parts = earlier["dp"], earlier["tp"]
    # Of the earlier mesh, torch knows no place of rank 9; rank 5 is in both.
    with tbscope.fake_world(12, rank=rank):
        groups = [dist.new_group([rank, other]) for other in (0, 2, 3, 4, 7, 8, 10, 11)]

        def sums(x):
            for group in groups:
                dist.all_reduce(x, group=group)
            return x

        told = joined(tbscope.trace(sums, torch.ones(3)))
    assert [one.ndim for one in parts] == [1, 1]
    assert [(one.mesh, len(one.ranks)) for one in told] == [("", 2)] * len(groups)


@pytest.mark.parametrize("fails", [False, True])
def test_groups_are_gone_after_whatever_happens(fails):
    try:
        with tbscope.fake_world(4):
            assert dist.get_world_size() == 4
            assert 1 / (not fails)
    except ZeroDivisionError:
        assert fails
    assert not dist.is_initialized()


def test_a_mesh_that_torch_refuses_leaves_no_group_behind(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no mesh")

    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", fail)
    with pytest.raises(RuntimeError, match="no mesh"), tbscope.fake_world(4, mesh={"dp": 4}):
        raise AssertionError("the block must not run")
    assert not dist.is_initialized()


def test_groups_that_are_there_are_told_and_stay():
    with tbscope.fake_world(4, rank=2):
        with pytest.raises(tbscope.ArgumentError) as caught, tbscope.fake_world(8):
            pass
        assert dist.get_world_size() == 4
    assert str(caught.value) == (
        "world_size=8 cannot be used beside existing process groups\n"
        "  why: this process is rank 2 of 4 already, and a process is one rank\n"
        "  fix: call torch.distributed.destroy_process_group() before, or trace without it"
    )


@pytest.mark.parametrize(
    ("size", "rank", "mesh", "told"),
    [
        (0, 0, None, "a run of 0 ranks has no rank 0"),
        (True, 0, None, "a run of True ranks has no rank 0"),
        (4, 4, None, "a run of 4 ranks has no rank 4"),
        (4, -1, None, "a run of 4 ranks has no rank -1"),
        (4, 0, {"dp": 3}, "mesh={'dp': 3} has 3 ranks, and the run has 4"),
        (4, 0, {}, "mesh={} has no dimensions"),
        (4, 0, {"dp": 0}, "mesh={'dp': 0} has no dimensions"),
        (4, 0, {"": 4}, "mesh={'': 4} has no dimensions"),
        (4, 0, (4,), "mesh=(4,) has no dimensions"),
    ],
)
def test_a_world_that_cannot_be_is_refused(size, rank, mesh, told):
    with (
        pytest.raises(tbscope.ArgumentError) as caught,
        tbscope.fake_world(size, rank=rank, mesh=mesh),
    ):
        pass
    assert caught.value.what == told
    assert not dist.is_initialized()


def test_a_stage_of_a_llama_of_405_billion_parameters_takes_next_to_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tbscope.fake_world(1024, rank=64, mesh={"pp": 16, "dp": 8, "tp": 8}) as mesh:
        model = spread(LARGE, 8, mesh, first=False, last=False)
        x = torch.empty(1, 4096, LARGE[1], dtype=torch.bfloat16)
        graph = tbscope.trace(model, x, fake=True)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken < 1_000_000, f"{taken} KB"
    assert len([one for one in joined(graph) if one.mesh == "tp"]) == 16
    whole = sum(owned.size_bytes for module in graph.modules for owned in module.parameters)
    width, inner = LARGE[1], LARGE[4]
    # Two bytes each: two square weights, two narrow ones, three of the gated layer, two norms.
    assert whole == 8 * 2 * (2 * width**2 + 2 * width * 1024 + 3 * width * inner + 2 * width)


def examples():
    """Give the code of the docs on runs without machines."""
    section = DOC.partition("## Without the machines")[2].partition("\n## ")[0]
    return [part.partition("```")[0] for part in section.split("```python\n")[1:]]


def test_the_example_in_the_docs_runs():
    names = {}
    exec(examples()[0], names)
    kinds = [(one.kind, one.mesh) for one in joined(names["graph"])]
    assert kinds == [("all_gather", "dp"), ("all_reduce", "tp")]
    assert not dist.is_initialized()


def test_the_pipeline_in_the_docs_is_drawn_as_its_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("llama.LARGE", (64, 32, 8, 8, 48))
    code = examples()[1].replace("Llama(LARGE, 126)", "Llama(LARGE, 3)")
    names = {}
    exec(code.replace('"pp": 16', '"pp": 3').replace("range(0, 1024", "range(0, 192"), names)
    graph = names["graph"]
    graph.verify()
    assert [str(part) for part in graph.parts] == [
        "stage 0 ranks 0-63",
        "stage 1 ranks 64-127",
        "stage 2 ranks 128-191",
    ]
    told = [(node.scope.path.split("/")[0], node.op) for node in graph.nodes if is_message(node)]
    assert told == [
        ("stage 0", "send"),
        ("stage 1", "recv"),
        ("stage 1", "send"),
        ("stage 2", "recv"),
    ]
    assert {one.mesh for one in joined(graph)} == {"pp", "dp", "tp"}
    whole = Llama((64, 32, 8, 8, 48), 3)
    held = sum(one.numel() for one in whole.parameters())
    assert graph.parts[0].figures["model_parameters"] == held


def test_the_training_step_in_the_docs_is_drawn_as_its_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("llama.LARGE", (64, 64, 8, 8, 64))
    code = examples()[2].replace("8 if at < last else 6", "1").replace("1, 4096", "1, 8")
    names = {}
    exec(code.replace('"pp": 16', '"pp": 3').replace("1024", "192"), names)
    graph = names["graph"]
    graph.verify()
    assert [part.scope for part in graph.parts] == ["stage 0", "stage 1", "stage 2"]
    steps = {"forward": [], "backward": []}
    for node in graph.nodes:
        if is_message(node) and node.collective.kind == "recv":
            (sender,) = (value.producer for value in node.inputs if is_message(value.producer))
            steps[node.phase].append((stage_of(sender), stage_of(node)))
    assert steps == {"forward": [(0, 1), (1, 2)], "backward": [(2, 1), (1, 0)]}
    drawn = Hierarchy.of(tbscope.to_graph_def(graph, templates=False))
    tops = {"x", "input", "stage_0", "stage_1", "stage_2", "gradients", "optimizer"}
    assert {child.label for child in drawn.root.children.values()} - {"cross_entropy"} == tops
    assert not any(find_cycles(drawn.links(box)) for box in (drawn.root, *drawn.boxes.values()))


def stage_of(node):
    (box,) = [scope for scope in self_and_ancestors(node.scope) if scope.kind == "rank"]
    return int(box.part.label.removeprefix("stage "))


class Halves(torch.autograd.Function):
    """Sums over all ranks, which the gradient is handed to as it is."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_what_a_loss_sums_over_ranks_stays_beside_the_model():
    model = nn.Linear(4, 4)

    def loss_of(out):
        shifted = out - Halves.apply(out.amax(-1, keepdim=True))
        return Halves.apply(shifted.exp().sum(-1)).log().mean()

    with tbscope.fake_world(2), tbscope.record(model) as recording:
        loss_of(model(torch.ones(3, 4))).backward()
    last = [node for node in recording.graph.nodes if node.collective][-1]
    assert (last.op, last.scope, last.phase) == ("all_reduce", None, "forward")
