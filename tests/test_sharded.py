"""Models that are sharded or distributed train on after a draw as if there had been none."""

import functools
import itertools

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks
from sweeps import sampled
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from versions import TORCH, needs_torch
from ways_to_draw import WAYS

import tbscope

X = torch.linspace(-1, 1, 32).reshape(4, 8)
MOMENTS = ["at first", "before forward", "before backward", "after backward"]
# Whether each block is sharded by itself, in lower precision, and gathered anew for the backward
# pass: each pair of them is in one of the few.
SHARDINGS = sampled(
    itertools.product([False, True], [False, True], [None, True, False]),
    [
        *((False, False, None), (True, True, None), (False, True, True), (True, False, True)),
        *((False, True, False), (True, False, False)),
    ],
)
# Each sharding at two moments, each moment with three shardings.
SHARDED_AT = sampled(
    itertools.product(MOMENTS, SHARDINGS),
    [(MOMENTS[(at + more) % 4], one) for at, one in enumerate(SHARDINGS) for more in (0, 2)],
)


@pytest.fixture(autouse=True, scope="module")
def group():
    """Have a group of one process, as under `torchrun`."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Blocks with dropout, and a head; it raises where it is told to."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)]
        )
        self.head = nn.Linear(8, 2)
        self.drop = nn.Dropout(0.3)
        self.fails = False

    def forward(self, x):
        for block in self.blocks:
            x = x + block(self.drop(x))
            if self.fails:
                raise ValueError("in the middle")
        return self.head(x)


def base():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))


def sharded(*, by_block, mixed, reshard):
    model = Net()
    options = {"mesh": init_device_mesh("cpu", (1,)), "reshard_after_forward": reshard}
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks if by_block else ():
        fully_shard(block, **options)
    return fully_shard(model, **options)


def trained(make, moment=None, draw=None):
    """Train a model for some steps, with a draw at some moment of the second; return weights."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        doing = moment if step == 1 or (moment == "at first" and step == 0) else None
        if doing in ("at first", "before forward"):
            draw(model)
        loss = model(X).float().square().sum()
        if doing == "before backward":
            draw(model)
        loss.backward()
        if doing == "after backward":
            draw(model)
        optimizer.step()
        optimizer.zero_grad()
    return [local(weight.detach()) for weight in model.parameters()]


def local(weight):
    return weight.to_local() if hasattr(weight, "to_local") else weight


def drawn(options):
    def draw(model):
        try:
            tbscope.trace(model, X, **options)
        except tbscope.TraceError as error:
            # Up to 2.8 torch cannot tell without values what processes give each other.
            told = TORCH >= (2, 9) or "fake" not in options
            if told or "c10d._allgather_base_" not in error.why:
                raise

    return draw


def same(one, other):
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


@needs_torch(2, 7, reason="fully_shard runs on the CPU")
class TestFullyShard:
    @pytest.mark.parametrize(("moment", "sharding"), SHARDED_AT)
    def test_it_trains_to_the_same_weights(self, moment, sharding):
        by_block, mixed, reshard = sharding
        make = functools.partial(sharded, by_block=by_block, mixed=mixed, reshard=reshard)
        wanted = trained(make)
        for options in WAYS:
            assert same(trained(make, moment, drawn(options)), wanted), options

    @pytest.mark.parametrize("moment", MOMENTS)
    @pytest.mark.parametrize("partial", [False, True])
    def test_it_does_where_the_model_raised_in_the_middle(self, moment, partial):
        def failing(model):
            model.fails = True
            try:
                tbscope.trace(model, X, partial=partial)
            except tbscope.TraceError:
                assert not partial
            model.fails = False

        for reshard in (True, False):
            make = functools.partial(sharded, by_block=True, mixed=False, reshard=reshard)
            assert same(trained(make, moment, failing), trained(make))

    def test_it_is_drawn_again_and_again_and_runs_in_between(self):
        model = sharded(by_block=True, mixed=False, reshard=True).eval()
        wanted = model(X)
        wanted.sum().backward()
        texts = {str(tbscope.trace(model, X)) for _ in range(3) if torch.equal(model(X), wanted)}
        assert len(texts) == 1

    def test_a_part_that_was_drawn_by_itself_is_no_root_after(self):
        make = functools.partial(sharded, by_block=True, mixed=False, reshard=True)

        def draw_block(model):
            tbscope.trace(model.blocks[1], X)

        assert same(trained(make, "at first", draw_block), trained(make))

    def test_blocks_that_are_sharded_as_one_group_are_as_before(self):
        def make():
            model = Net()
            mesh = init_device_mesh("cpu", (1,))
            fully_shard([model.blocks[0], model.blocks[1]], mesh=mesh)
            return fully_shard(model, mesh=mesh)

        for moment in MOMENTS:
            assert same(trained(make, moment, drawn({})), trained(make))


def distributed():
    return DistributedDataParallel(base())


def distributed_inside():
    return nn.Sequential(DistributedDataParallel(base()), nn.Linear(8, 2))


def distributed_with_a_static_graph():
    return nn.Sequential(DistributedDataParallel(base(), static_graph=True), nn.Linear(8, 2))


def distributed_with_unused_parameters():
    spread = DistributedDataParallel(base(), find_unused_parameters=True)
    return nn.Sequential(spread, nn.Linear(8, 2))


def distributed_and_compiled():
    return torch.compile(DistributedDataParallel(base()), backend="eager")


def compiled_and_distributed():
    return DistributedDataParallel(torch.compile(base(), backend="eager"))


def sharded_the_first_way():
    return FullyShardedDataParallel(base(), device_id=torch.device("cpu"))


DISTRIBUTED = [
    *(distributed, distributed_inside, distributed_with_a_static_graph),
    *(distributed_with_unused_parameters, distributed_and_compiled, compiled_and_distributed),
    sharded_the_first_way,
]
# Each at two moments, each moment with three or four of them.
DISTRIBUTED_AT = sampled(
    itertools.product(DISTRIBUTED, MOMENTS),
    [(make, MOMENTS[(at + more) % 4]) for at, make in enumerate(DISTRIBUTED) for more in (0, 2)],
)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use")
@pytest.mark.parametrize(("make", "moment"), DISTRIBUTED_AT)
def test_a_distributed_model_trains_to_the_same_weights(make, moment):
    wanted = trained(make)
    for options in WAYS:
        assert same(trained(make, moment, drawn(options)), wanted), options


@pytest.mark.parametrize("make", [compiled_and_distributed, distributed_and_compiled])
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_all_of_a_compiled_and_distributed_model_has_its_flag_again(make, options):
    model = make()
    inner = getattr(model, "_orig_mod", model).module
    switched = [model, *inner.modules(), *getattr(inner, "_orig_mod", inner).modules()]
    for training in (True, False):
        model.train(training)
        tbscope.trace(model, X, **options)
        assert {module.training for module in switched} == {training}


def with_one_that_draws(rank, _ranks):
    """Train a model that rank 0 draws, and give the gradients of its distributed part."""
    torch.manual_seed(0)
    spread = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model, x = nn.Sequential(spread, nn.Linear(4, 1)), torch.randn(3, 4) + rank
    for _ in range(2):
        if rank == 0:
            for options in ({}, {"training": True}, {"grad": True}, {"loss": torch.sum}):
                tbscope.trace(model, x, backward="loss" in options, **options)
        model(x).sum().backward()
        # Wrong from here on, if the draw had taken part in what the processes tell each other.
        dist.barrier()
    return [parameter.grad.tolist() for parameter in spread.parameters()]


def test_a_distributed_part_of_a_model_is_drawn_by_one_process_without_the_others(tmp_path):
    one, other = on_ranks(with_one_that_draws, 2, tmp_path)
    # All processes have the same gradients, as training them together gives.
    assert one == other != []
