"""`trace(model, x, world_size=...)`: a model as one rank of a run that does not exist."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import tbscope
from tbscope.sources.torch.distributed import clear_sharding_cache

X = torch.ones(3, 8)
MESH = {"dp": 2, "tp": 4}


class Net(nn.Module):
    """Two layers, and a head whose weight is the embedding's."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(8, 8, bias=False)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x):
        return self.head(self.down(self.up(self.embedding(x)).relu())) * self.scale


def spread(model, mesh):
    """Spread a net over a mesh, and draw numbers at random for it."""
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    torch.rand(1)


def sums(x):
    dist.all_reduce(x)
    return x


def joined(graph):
    return [(one.kind, one.mesh, one.ranks) for node in graph.nodes if (one := node.collective)]


def test_one_call_does_what_a_world_around_it_does():
    with tbscope.fake_world(64, rank=9, mesh={"dp": 8, "tp": 8}):
        inside = tbscope.trace(sums, X)
    graph = tbscope.trace(sums, X, world_size=64, rank=9, mesh={"dp": 8, "tp": 8})
    assert str(graph) == str(inside)
    assert (graph.rank, graph.world_size, joined(graph)) == (9, 64, joined(inside))
    assert [(one.name, one.size, one.coordinate) for one in graph.mesh] == [
        ("dp", 8, 1),
        ("tp", 8, 1),
    ]
    assert not dist.is_initialized()


def test_a_mesh_tells_how_many_ranks_there_are():
    assert tbscope.trace(sums, X, mesh={"dp": 3, "tp": 5}).world_size == 15
    assert tbscope.trace(torch.relu, X).world_size == 1
    # Also where nothing lies on it.
    graph = tbscope.trace(torch.relu, X, mesh={"dp": 3, "tp": 5}, rank=7)
    assert [(one.name, one.coordinate) for one in graph.mesh] == [("dp", 1), ("tp", 2)]


@pytest.mark.parametrize("fake", [True, False])
def test_a_copy_of_the_model_is_spread_and_the_model_stays_as_it_is(fake):
    model, state = Net(), torch.get_rng_state()
    before = {name: (one, one.clone()) for name, one in model.state_dict(keep_vars=True).items()}
    graph = tbscope.trace(model, X, mesh=MESH, rank=5, parallelize=spread, fake=fake)
    graph.verify()
    assert joined(graph) == [("all_gather", "dp", (1, 5)), ("all_reduce", "tp", (4, 5, 6, 7))]
    assert type(model) is Net
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict(keep_vars=True)
    assert all(after[name] is one for name, (one, _) in before.items())
    assert all(torch.equal(one, copy) for one, copy in before.values())
    assert [len(one._forward_pre_hooks) for one in model.modules()] == [0] * 5


@pytest.mark.parametrize(
    ("parallelize", "sharding"),
    [(spread, "(4, 8) by dp: Shard(0)"), (lambda model, mesh: None, "None")],
)
@pytest.mark.parametrize("fake", [True, False])
def test_parameters_under_two_names_stay_one(parallelize, sharding, fake):
    graph = tbscope.trace(Net(), X, mesh=MESH, parallelize=parallelize, fake=fake)
    held = {f"{m.name}.{one.name}": one for m in graph.modules for one in m.parameters}
    first, second = held["embedding.weight"], held["head.weight"]
    assert (first.number, first.sharding) == (second.number, second.sharding)
    assert str(first.sharding) == sharding
    assert held["up.weight"].number != first.number


@pytest.mark.parametrize("fake", [True, False])
def test_a_copy_has_contents_only_where_something_is_computed(fake):
    seen = []

    def looks(model, mesh):
        seen.extend([model.up.weight.is_meta, model.scale.is_meta])

    tbscope.trace(Net(), X, mesh=MESH, parallelize=looks, fake=fake)
    assert seen == [fake, fake]


def test_a_model_without_contents_is_spread_as_one_with_them():
    with torch.device("meta"):
        large = Net()
    options = {"mesh": MESH, "parallelize": spread, "fake": True}
    graph = tbscope.trace(large, X, **options)
    assert str(graph) == str(tbscope.trace(Net(), X, **options))
    assert all(one.is_meta for one in large.parameters())


def test_what_the_function_returns_is_run():
    def halves(model, mesh):
        half = nn.Sequential(model.up, nn.ReLU())
        return half if mesh["dp"].get_local_rank() else None

    graphs = [
        tbscope.trace(Net(), X, mesh=MESH, rank=rank, parallelize=halves, fake=True)
        for rank in (0, 4)
    ]
    assert [graph.name for graph in graphs] == ["Net", "Sequential"]
    wrapped = tbscope.trace(
        Net(), X, world_size=2, parallelize=lambda model, mesh: DistributedDataParallel(model)
    )
    assert (wrapped.name, wrapped.world_size) == ("Net", 2)


def never(model, mesh):
    raise ZeroDivisionError("no such plan")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rank": 1}, "rank=1 is given without a run"),
        ({"rank": None}, "rank=None is given without a run"),
        ({"parallelize": sums}, f"parallelize={sums} is given without a run"),
        ({"parallelize": 3, "world_size": 2}, "parallelize=3 cannot be called"),
        ({"world_size": 2, "rank": 2}, "a run of 2 ranks has no rank 2"),
        ({"world_size": 0}, "a run of 0 ranks has no rank 0"),
        ({"mesh": {"dp": 0}}, "mesh={'dp': 0} has no dimensions"),
        ({"mesh": (4,)}, "mesh=(4,) has no dimensions"),
        (
            {"mesh": MESH, "world_size": 9},
            "mesh={'dp': 2, 'tp': 4} has 8 ranks, and the run has 9",
        ),
        ({"mesh": MESH, "parallelize": never}, "a copy of Net cannot be spread over the ranks"),
        (
            {"mesh": MESH, "parallelize": lambda model, mesh: 3},
            "the function passed as parallelize returned 3",
        ),
    ],
    ids=itertools.count(),
)
def test_a_run_that_cannot_be_is_refused_and_none_is_left(options, told):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.trace(Net(), X, **options)
    assert caught.value.what == told
    assert not dist.is_initialized()


def test_a_run_beside_process_groups_that_are_there_is_refused():
    with tbscope.fake_world(4):
        tbscope.trace(sums, X)
        with pytest.raises(tbscope.ArgumentError, match="world_size=8 cannot be used beside"):
            tbscope.trace(sums, X, world_size=8)
        assert dist.get_world_size() == 4


def test_what_is_spread_is_a_module_that_can_be_copied():
    class Uncopied(Net):
        def __deepcopy__(self, memo):
            raise TypeError("it holds a socket")

    with pytest.raises(tbscope.ArgumentError, match="a copy of function cannot be spread"):
        tbscope.trace(sums, X, mesh=MESH, parallelize=spread)
    with pytest.raises(
        tbscope.ArgumentError, match="a copy of Uncopied cannot be spread"
    ) as caught:
        tbscope.trace(Uncopied(), X, mesh=MESH, parallelize=spread)
    assert "it holds a socket" in caught.value.why
    # Where nothing is spread, nothing is copied.
    assert joined(tbscope.trace(Uncopied(), X, mesh=MESH)) == []


def in_one_call(rank):
    return tbscope.trace(Net(), X, mesh=MESH, rank=rank, parallelize=spread)


def by_hand(rank):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    model = Net()
    spread(model, mesh)
    graph = tbscope.trace(model, X)
    dist.destroy_process_group()
    return graph


@pytest.mark.parametrize(("first", "then"), [(in_one_call, by_hand), (by_hand, in_one_call)])
def test_each_run_of_a_process_has_groups_of_its_own(first, then):
    """torch keeps how it ran an operation, with the mesh of an earlier run in it."""
    clear_sharding_cache()
    assert [joined(make(rank)) for make, rank in ((first, 0), (then, 6))] == [
        [("all_gather", "dp", (0, 4)), ("all_reduce", "tp", (0, 1, 2, 3))],
        [("all_gather", "dp", (2, 6)), ("all_reduce", "tp", (4, 5, 6, 7))],
    ]


class Block(nn.Module):
    """A layer with a residual connection."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def by_two(model, mesh):
    for layer in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        fully_shard(parallelize_module(layer, mesh["tp"], plan), mesh=mesh["dp"])


def test_what_gathers_the_parameters_of_a_layer_is_a_box_beside_its_modules():
    model = nn.Sequential(Block(), Block())
    graph = tbscope.trace(model, X, mesh=MESH, parallelize=by_two, fake=True)
    names = {node.name for node in tbscope.to_graph_def(graph, templates=False).node}
    for layer in ("Sequential/0", "Sequential/1"):
        inside = {name.removeprefix(f"{layer}/") for name in names if name.startswith(layer)}
        assert {"gather/all_gather_single", "norm", "up", "add"} <= inside
        # Nothing is freed: each layer is the outermost that is sharded.
        assert {name.partition("/")[0] for name in inside} == {
            *("gather", "norm", "up", "relu", "down", "add", "FSDPBlock"),
        }
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
