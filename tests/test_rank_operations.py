"""Collectives by themselves: what each call of torch's is told as. No other rank is needed."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import tbscope

RANKS = 4
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def mesh():
    with tbscope.fake_world(RANKS, rank=1, mesh={"dp": 2, "tp": 2}) as mesh:
        yield mesh


class Calls(nn.Module):
    """Does with its input whatever it is told to."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, x):
        return self.does(x)


def traced(does, x=None, **options):
    graph = tbscope.trace(Calls(does), torch.ones(4) if x is None else x, **options)
    graph.verify()
    return graph


def joined(graph):
    return [node for node in graph.nodes if node.collective is not None]


def ops_of(graph):
    return [node.op for node in graph.nodes if node.kind == "op"]


def lists(x, count=RANKS):
    return [torch.empty_like(x) for _ in range(count)]


def each(x):
    return list(torch.ones(RANKS, 4).unbind())


def filled(call):
    """Give a function that returns what a call has filled."""

    def does(x):
        out = torch.empty(4 * RANKS)
        call(out, x)
        return out

    return does


# What is called, and what is told: kind, reduction, bytes handed in, bytes got, peer.
CALLS = {
    "all_reduce": (dist.all_reduce, ("all_reduce", "sum", 16, 16, None)),
    "max": (
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.MAX),
        ("all_reduce", "max", 16, 16, None),
    ),
    "all_gather": (lambda x: dist.all_gather(lists(x), x), ("all_gather", None, 16, 64, None)),
    "all_gather_into_tensor": (
        filled(dist.all_gather_into_tensor),
        ("all_gather", None, 16, 64, None),
    ),
    "reduce_scatter": (
        lambda x: dist.reduce_scatter(x, each(x)),
        ("reduce_scatter", "sum", 64, 16, None),
    ),
    "reduce_scatter_tensor": (
        lambda x: dist.reduce_scatter_tensor(torch.empty(1), x),
        ("reduce_scatter", "sum", 16, 4, None),
    ),
    "all_to_all": (
        lambda x: dist.all_to_all(lists(x), each(x)),
        ("all_to_all", None, 64, 64, None),
    ),
    "all_to_all_single": (
        lambda x: dist.all_to_all_single(torch.empty(4), x),
        ("all_to_all", None, 16, 16, None),
    ),
    "broadcast to it": (lambda x: dist.broadcast(x, 2), ("broadcast", None, 0, 16, 2)),
    "broadcast of its own": (lambda x: dist.broadcast(x, 1), ("broadcast", None, 16, 16, 1)),
    "reduce from it": (lambda x: dist.reduce(x, 2), ("reduce", "sum", 16, 0, 2)),
    "reduce to it": (lambda x: dist.reduce(x, 1), ("reduce", "sum", 16, 16, 1)),
    "gather from it": (lambda x: dist.gather(x, None, 2), ("gather", None, 16, 0, 2)),
    "gather to it": (lambda x: dist.gather(x, lists(x), 1), ("gather", None, 16, 64, 1)),
    "scatter to it": (lambda x: dist.scatter(x, None, 2), ("scatter", None, 0, 16, 2)),
    "scatter of its own": (lambda x: dist.scatter(x, each(x), 1), ("scatter", None, 64, 16, 1)),
    "send": (lambda x: dist.send(x, 3), ("send", None, 16, 0, 3)),
    "recv": (lambda x: dist.recv(x, 3), ("recv", None, 0, 16, 3)),
    "recv from any": (dist.irecv, ("recv", None, 0, 16, None)),
    "barrier": (lambda x: dist.barrier(), ("barrier", None, 0, 0, None)),
    "functional all_reduce": (
        lambda x: functional.all_reduce(x, "avg", dist.group.WORLD) + 1,
        ("all_reduce", "avg", 16, 16, None),
    ),
    "functional all_gather": (
        lambda x: functional.all_gather_tensor(x, 0, dist.group.WORLD) + 1,
        ("all_gather", None, 16, 64, None),
    ),
    "functional reduce_scatter": (
        lambda x: functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) + 1,
        ("reduce_scatter", "sum", 16, 4, None),
    ),
    "functional all_to_all": (
        lambda x: functional.all_to_all_single(x, None, None, dist.group.WORLD) + 1,
        ("all_to_all", None, 16, 16, None),
    ),
    "functional broadcast": (
        lambda x: functional.broadcast(x, 2, dist.group.WORLD) + 1,
        ("broadcast", None, 0, 16, 2),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_collective_tells_its_kind_its_reduction_its_bytes_and_its_peer(name):
    does, wanted = CALLS[name]
    (node,) = joined(traced(lambda x: (does(x * 2), x)[1]))
    told = node.collective
    assert (told.kind, told.reduction, told.input_bytes, told.output_bytes, told.peer) == wanted
    assert told.ranks == (0, 1, 2, 3)
    assert node.scope.path == "Calls"


@pytest.mark.parametrize("fills", [False, True])
def test_what_a_collective_fills_is_read_from_then_on(fills):
    def does(x):
        out = torch.empty(16)
        if fills:
            dist.all_gather_into_tensor(out, x)
        return out.sum()

    graph = traced(does)
    (read,) = [node for node in graph.nodes if node.op == "sum"]
    assert (read.inputs[0].producer.collective is not None) is fills


def test_a_tensor_from_outside_is_read_where_it_is_sent():
    sent, out = torch.ones(4), torch.empty(4 * RANKS)
    (node,) = joined(traced(lambda x: (dist.all_gather_into_tensor(out, sent), x + 1)[1]))
    assert [value.producer.kind for value in node.inputs] == ["constant"]


def test_an_input_stays_outside_of_the_module_whose_result_a_script_reduces():
    net, x, factor = nn.Linear(4, 4), torch.ones(2, 4), torch.ones(4)
    with tbscope.record(net) as recording:
        dist.all_reduce(net(x) * factor)
    scopes = {node.op: node.scope and node.scope.path for node in recording.graph.nodes}
    assert scopes["mul"] == scopes["all_reduce"] == "Linear"
    assert [node.scope for node in recording.graph.inputs] == [None, None]


def test_groups_of_a_mesh_are_told_by_name_and_those_of_none_by_their_ranks(mesh):
    def does(x):
        for group in (mesh.get_group("dp"), mesh.get_group("tp"), own, None):
            dist.all_reduce(x, group=group)
        return x

    own = dist.new_group([1, 2])
    told = [node.collective for node in joined(traced(does))]
    assert [(one.mesh, one.ranks) for one in told] == [
        ("dp", (1, 3)),
        ("tp", (0, 1)),
        ("", (1, 2)),
        ("", (0, 1, 2, 3)),
    ]
    assert len({one.group for one in told}) == 4


def test_collectives_are_counted_by_group_and_those_of_two_ranks_by_their_peer(mesh):
    def does(x):
        dist.all_reduce(x)
        dist.all_reduce(x, group=mesh.get_group("tp"))
        dist.broadcast(x, 0)
        dist.send(x, 2)
        dist.send(x, 3)
        dist.recv(x, 2)
        dist.send(x, 2)
        dist.all_reduce(x)
        return x

    told = [node.collective.sequence for node in joined(traced(does))]
    assert told == [0, 0, 1, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("waits", [False, True])
def test_a_wait_stands_where_python_waits_and_is_read_from_then_on(waits):
    def does(x):
        x = x * 2
        work = dist.all_reduce(x, async_op=True)
        y = torch.ones(4) + 1
        if waits:
            work.wait()
        return x + y

    graph = traced(does)
    (node,) = joined(graph)
    assert node.collective.asynchronous
    last = graph.outputs[0].value.producer.inputs[0].producer
    assert (last.op == "wait") is waits
    assert (last.inputs if waits else last.outputs) == node.outputs
    assert [each.op for each in graph.nodes if each.op == "wait"] == ["wait"] * waits


@pytest.mark.parametrize("waits", [False, True])
def test_of_several_works_at_once_the_wait_is_told_where_python_waits(waits):
    def does(x):
        one, other = x * 2, x * 3
        with dist._coalescing_manager(async_ops=waits) as works:
            dist.all_reduce(one)
            dist.all_reduce(other)
        if waits:
            works.wait()
        return one + other

    graph = traced(does)
    (node,) = joined(graph)
    assert (node.collective.tensors, node.collective.asynchronous) == (2, waits)
    assert ops_of(graph)[2:] == ["all_reduce", *["wait"] * waits, "add"]
    assert graph.nodes[-1].inputs[0].producer is graph.nodes[-2]


def test_a_blocking_call_has_no_wait():
    def does(x):
        x = x * 2
        dist.recv(x, 2)
        dist.all_reduce(x)
        dist.barrier()
        return x

    graph = traced(does)
    assert ops_of(graph) == ["mul", "recv", "all_reduce", "barrier"]
    assert [node.collective.asynchronous for node in joined(graph)] == [False, False, False]


def test_several_sends_and_receives_at_once_are_each_an_operation():
    def does(x):
        got = torch.empty(4)
        pair = [dist.P2POp(dist.isend, x * 2, 2), dist.P2POp(dist.irecv, got, 0)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        return got + 1

    graph = traced(does)
    told = [node.collective for node in joined(graph)]
    assert [(one.kind, one.peer, one.asynchronous) for one in told] == [
        ("send", 2, True),
        ("recv", 0, True),
    ]
    assert graph.outputs[0].value.producer.inputs[0].producer.op == "wait"


def test_of_objects_the_collectives_are_told_and_not_how_they_are_packed():
    def does(x):
        dist.broadcast_object_list([{"a": 1}], 1)
        return x + 1

    graph = traced(does)
    assert [node.op for node in graph.nodes if node.kind == "op"] == [
        "broadcast",
        "broadcast",
        "add",
    ]
    assert [str(note) for note in graph.notes if note.topic == "python"] == []


def test_functional_collectives_are_waited_for_where_they_are_read():
    def does(x):
        y = functional.all_reduce(x, "sum", dist.group.WORLD)
        return y.view(2, 2) + 1

    graph = traced(does)
    assert ops_of(graph) == ["all_reduce", "view", "wait_tensor", "add"]
    assert graph.nodes[-1].inputs[0].producer.op == "wait_tensor"


def test_a_collective_inside_of_an_operation_stands_before_it_and_is_read_by_it(mesh):
    tp = mesh["tp"]

    def does(x):
        spread = DTensor.from_local(x, tp, [Partial()])
        return spread.relu().to_local()

    graph = traced(does)
    (node,) = joined(graph)
    relu = next(each for each in graph.nodes if each.op == "relu")
    (wait,) = [each for each in graph.nodes if each.op == "wait_tensor"]
    assert wait.outputs[0] in relu.inputs
    assert wait.inputs == node.outputs
    assert (node.collective.kind, node.collective.mesh) == ("all_reduce", "tp")


def test_what_leads_to_a_collective_inside_of_an_operation_is_told(mesh):
    def does(x):
        parts = DTensor.from_local(x, mesh["tp"], [Partial()])
        return (parts * DTensor.from_local(x[:, :2] + 1, mesh["tp"], [Shard(1)])).to_local()

    graph = traced(does, torch.ones(4, 4))
    ops = [op for op in ops_of(graph) if op != "view_as"]
    assert ops[2:7] == ["chunk", "cat", "reduce_scatter", "wait_tensor", "DTensor"]
    (chunk,) = [node for node in graph.nodes if node.op == "chunk"]
    assert chunk.inputs[0].producer.inputs[0] is graph.inputs[0].outputs[0]
    assert len(chunk.outputs) == 2


def test_how_torch_finds_the_places_of_a_mesh_is_not_told(mesh):
    def does(x):
        return DTensor.from_local(x, mesh["tp"], [Shard(0)]).to_local()

    assert set(ops_of(traced(does))) <= {"view_as"}


def test_a_spread_tensor_tells_what_is_here_and_how_it_lies(mesh):
    def does(x):
        return (distribute_tensor(x, mesh, [Shard(0), Replicate()]) * 2).to_local()

    graph = traced(does, torch.ones(4, 6))
    (node,) = [each for each in graph.nodes if each.op == "mul"]
    value = node.outputs[0]
    assert (value.shape, value.sharding.shape) == ((4, 6), (2, 6))
    assert value.sharding.placements == ("Shard(0)", "Replicate()")
    assert value.sharding.mesh == ("dp", "tp")


def test_a_drawing_leaves_no_collective_out():
    def does(x):
        functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        dist.barrier()
        return x + 1

    graph = traced(does)
    assert joined(graph)[0].outputs
    for options in ({}, {"dead": "drop"}, {"level": "module"}, {"level": "overview"}):
        drawn = [node.op for node in tbscope.to_graph_def(graph, **options).node]
        assert {"all_reduce", "barrier"} <= set(drawn), options


def test_flops_leave_out_no_collective():
    graph = traced(lambda x: functional.all_reduce(x.exp(), "sum", dist.group.WORLD) + 1)
    assert not any("c10d" in note.text for note in graph.notes)


def test_the_mesh_of_an_earlier_run_is_not_that_of_a_later_one(mesh):
    dist.destroy_process_group()
    with tbscope.fake_world(2, rank=1, mesh={"pp": 2}) as later:
        # Groups have the names that those of the earlier run had.
        others = [dist.new_group([0, 1]) for _ in range(4)]
        graph = traced(lambda x: (dist.all_reduce(x, group=others[-1]), x)[1])
    assert (graph.mesh, joined(graph)[0].collective.mesh) == ((), "")
    assert (mesh.size(), later.size()) == (RANKS, 2)


def test_a_run_of_one_process_knows_of_no_others(mesh):
    dist.destroy_process_group()
    graph = traced(lambda x: x + 1)
    assert (graph.rank, graph.world_size, graph.mesh, joined(graph)) == (0, 1, (), [])
