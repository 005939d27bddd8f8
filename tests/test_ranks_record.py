"""What each rank records of a step that real processes make together."""

import parallel_models
import pytest
from once import made_once
from parallel_models import RECORDED
from processes import on_ranks

from tbscope.formats.json import graph_from_json

IN_PLACE = frozenset({"c10d::allreduce_", "c10d::broadcast_"})


def told_by_two(tmp_path_factory):
    """Give what each of two ranks tells of each model, also for `test_ranks_merged.py`."""
    return made_once(
        tmp_path_factory,
        "two",
        lambda folder: on_ranks(parallel_models.all_told, 2, folder, RECORDED),
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return told_by_two(tmp_path_factory)


def graphs_of(ranks, name):
    return [graph_from_json(rank[name]["graph"]) for rank in ranks]


def module_of(path):
    """Give the path of the module around the box of a step of a sharded module."""
    return path.removesuffix("/gather").removesuffix("/reduce_scatter")


def joined(graph):
    return [node for node in graph.nodes if node.collective is not None]


@pytest.mark.parametrize("name", RECORDED)
def test_a_watched_step_trains_to_the_same_bits(two, name):
    assert [rank[name]["same"] for rank in two] == [True, True]


def moved(node):
    """Give the kind of a collective, and the bytes of all tensors that its kernel is told of."""
    told = node.collective
    in_place = not IN_PLACE.isdisjoint(node.kernels)
    return told.kind, told.output_bytes if in_place else told.input_bytes + told.output_bytes


@pytest.mark.parametrize("name", RECORDED)
def test_collectives_are_those_that_torch_counts_with_the_bytes_that_it_sees(two, name):
    for rank, graph in zip(two, graphs_of(two, name), strict=True):
        seen = rank[name]["seen"]
        assert sorted(map(moved, joined(graph))) == sorted(seen) != []
        # Messages are none of the kinds that it counts.
        counted = [kind for kind, _ in seen if kind not in ("send", "recv")]
        assert rank[name]["counts"] in (None, len(counted))


@pytest.mark.parametrize("name", RECORDED)
def test_each_collective_stands_in_a_module(two, name):
    for graph in graphs_of(two, name):
        graph.verify()
        calls = {call.scope.path for call in graph.calls}
        for node in joined(graph):
            assert node.scope is not None
            path = node.scope.path.partition("gradients")[2].partition("/")[2] or node.scope.path
            if path.endswith("clip_grad_norm_"):
                # It has a box of its own.
                path = min(calls)
            elif node.phase == "optimizer":
                # The box of a parameter stands in that of its module.
                path = path.split("/", 2)[2].rpartition("/")[0]
            assert module_of(path) in calls, node


@pytest.mark.parametrize("name", RECORDED)
def test_ranks_number_what_they_do_together_alike(two, name):
    one, other = ([node.collective for node in joined(graph)] for graph in graphs_of(two, name))
    alike = [
        [(each.kind, each.ranks, each.mesh, each.group, each.sequence) for each in rank]
        for rank in (one, other)
        if all(each.peer is None for each in rank)
    ]
    assert len(alike) == 0 or alike[0] == alike[1]
    sent = sorted((each.group, each.sequence) for each in one if each.kind == "send")
    assert sent == sorted((each.group, each.sequence) for each in other if each.kind == "recv")


@pytest.mark.parametrize("name", ["replicated", "hooked", "checked"])
def test_a_bucket_is_made_of_the_gradients_in_it_and_reduced_around_all_of_them(two, name):
    for graph in graphs_of(two, name):
        # With it goes, where it is asked for, which parameters got no gradient.
        reduced = max(joined(graph), key=lambda node: node.collective.input_bytes)
        owners = {
            node.attributes["gradient_of"]: node.scope.path
            for node in above(reduced)
            if "gradient_of" in node.attributes
        }
        owned = {f"{one.name}.{each.name}" for one in graph.modules for each in one.parameters}
        assert owners.keys() == owned
        assert reduced.scope.path == "gradients/DistributedDataParallel/Net[module]"
        below = f"{reduced.scope.path}/"
        assert all(path.startswith(below) for path in owners.values())


@pytest.mark.parametrize("name", ["replicated", "normed", "hooked", "checked"])
def test_an_optimizer_reads_the_gradients_that_all_ranks_have_together(two, name):
    for graph in graphs_of(two, name):
        backward = [node for node in joined(graph) if node.phase == "backward"]
        reduced = max(backward, key=lambda node: node.collective.input_bytes)
        assert reduced.collective.kind == "all_reduce"
        means = [node for node in graph.nodes if (node.phase, node.op) == ("optimizer", "lerp_")]
        assert len(means) == len(
            {node.attributes.get("gradient_of") for node in graph.nodes} - {None}
        )
        assert all(reduced in above(node) for node in means)


def test_sharded_parameters_are_gathered_and_their_gradients_scattered_below_their_module(two):
    for graph in graphs_of(two, "sharded"):
        places = [(node.collective.kind, node.scope.path) for node in joined(graph)]
        blocks = [f"FSDPNet/ModuleList[blocks]/FSDPBlock[{number}]" for number in (0, 1)]
        forward = [("all_gather", f"{path}/gather") for path in ("FSDPNet", *blocks)]
        backward = [
            *[("all_gather", f"gradients/{path}/gather") for path in reversed(blocks)],
            *[("reduce_scatter", f"gradients/{path}/reduce_scatter") for path in reversed(blocks)],
            ("reduce_scatter", "gradients/FSDPNet/reduce_scatter"),
        ]
        assert places[:3] == forward
        assert sorted(places[3:]) == sorted(backward)


def test_what_a_sharded_module_computes_with_was_gathered(two):
    for graph in graphs_of(two, "sharded"):
        gathers = {node for node in joined(graph) if node.collective.kind == "all_gather"}
        for node in graph.nodes:
            if node.op == "linear":
                assert gathers & above(node.inputs[1].producer)


def above(node):
    """Give all nodes that a node reads, or waits for, or that these do."""
    found, pending = set(), [node]
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += [*(value.producer for value in one.inputs), *one.control_inputs]
    return found


@pytest.mark.parametrize("name", ["1F1B", "GPipe"])
def test_stages_send_what_they_made_and_wait_for_what_they_receive(two, name):
    for rank, graph in enumerate(graphs_of(two, name)):
        kinds = [(node.collective.kind, node.phase) for node in joined(graph)]
        there, back = ("send", "recv") if rank == 0 else ("recv", "send")
        assert sorted(kinds) == sorted([(there, "forward")] * 2 + [(back, "backward")] * 2)
        for node in joined(graph):
            if node.collective.kind == "recv":
                (wait,) = [other for other in graph.nodes if node in map(producer, other.inputs)]
                assert (wait.op, wait.scope) == ("wait", node.scope)


def test_what_a_backward_pass_waits_for_stands_where_it_was_received(two):
    for graph in graphs_of(two, "in a ring"):
        waits = [node for node in graph.nodes if node.op == "wait"]
        assert [(node.phase, node.scope) for node in waits] == [
            (node.phase, node.scope) for node in joined(graph) if node.collective.kind == "recv"
        ]
        assert [node.phase for node in waits] == ["forward", "backward"]


def producer(value):
    return value.producer


def test_groups_have_the_names_of_the_mesh(two):
    names = {"sharded": "dp", "by tensor": "tp", "by sequence": "sp"}
    for name, dimension in names.items():
        for graph in graphs_of(two, name):
            assert {node.collective.mesh for node in joined(graph)} == {dimension}


def test_tensors_that_are_spread_tell_what_is_here(two):
    graph = graphs_of(two, "by tensor")[1]
    owned = {f"{one.name}.{each.name}": each for one in graph.modules for each in one.parameters}
    assert str(owned["blocks.0.up.weight"].sharding) == "(8, 8) by tp: Shard(0)"
    assert owned["blocks.0.up.weight"].shape == (16, 8)
    assert owned["blocks.0.norm.weight"].sharding is None
    sums = [node.outputs[0].sharding for node in graph.nodes if node.op == "linear"]
    assert [str(one).partition(" by ")[2] for one in sums[:2]] == [
        "tp: Shard(2)",
        "tp: Partial(sum)",
    ]
