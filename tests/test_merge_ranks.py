"""Graphs of several ranks, merged: what is drawn once, side by side, and joined."""

from dataclasses import replace

import pytest
import torch
from build import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from same_graph import differences

import tbscope
from tbscope.formats.json import graph_from_json, graph_to_json
from tbscope.ir.graph import Argument, Module, Parameter, Profile
from tbscope.ir.metadata import Collective, MeshDimension, Sharding

WORLD = 8
PROFILE = Profile(3, 1, 9.0, 10.0, 8.0, "perf_counter", 64)


class Net:
    """A net as one rank records it: linear layers, and what it does with other ranks between."""

    def __init__(self, rank, rows=3, layers=(0, 1)):
        self.rank = rank
        self.build = GraphBuilder("Net")
        self.net = self.build.call("Net")
        self.start = self.value = self.build.input("x", (rows, 2))
        self.counts = {}
        for layer in layers:
            self.value = self.build.linear(f"Net/Linear[{layer}]", self.value, 2)

    def join(self, kind, ranks, peer=None, mesh="", **facts):
        """Do something with other ranks."""
        key = (kind, peer) if peer is not None else ranks
        sequence = self.counts[key] = self.counts.get(key, -1) + 1
        node = self.build.node(kind, self.value, outputs=((3, 2),), scope=self.net, **facts)
        node.collective = Collective(
            kind, None, ranks, mesh, 24, 24, peer, f"group {ranks}", sequence
        )
        self.value = node.outputs[0]
        return self

    def then(self, op):
        self.value = self.build.op(op, self.value, scope=self.net)
        return self

    def aside(self, op):
        """Do something that nothing else of the net needs, nor it anything else."""
        self.build.op(op, self.start, scope=self.net)
        return self

    def graph(self):
        graph = self.build.graph
        graph.rank, graph.world_size = self.rank, WORLD
        graph.outputs.clear()
        self.build.output("out", self.value)
        return graph


def plain(rank, **facts):
    return Net(rank, **facts).graph()


def ops(graph):
    return [node.op for node in graph.nodes if node.kind == "op"]


def named(graph, op):
    return [node for node in graph.nodes if node.op == op]


def shows(graph):
    return [(str(part), part.scope) for part in graph.parts]


# -- ranks that ran the same ----------------------------------------------------------------


def test_ranks_that_ran_the_same_are_one_picture():
    graph = tbscope.merge_ranks([plain(rank) for rank in (3, 1, 0, 2)])
    graph.verify()
    assert ops(graph) == ops(plain(0))
    assert shows(graph) == [("ranks 0-3", "")]
    assert {value.device for node in graph.nodes for value in node.outputs} == {"ranks 0-3 cpu"}
    assert {one.device for call in graph.calls for one in call.parameters} == {"ranks 0-3 cpu"}


def test_the_graphs_that_are_merged_stay_as_they_are():
    graphs = [plain(0), plain(1, rows=4), plain(2, layers=(0,))]
    texts = [graph_to_json(graph) for graph in graphs]
    tbscope.merge_ranks(graphs)
    assert [graph_to_json(graph) for graph in graphs] == texts


def test_constants_that_differ_between_ranks_that_ran_the_same_are_told():
    graphs = [plain(0), plain(1)]
    for dim, graph in enumerate(graphs):
        named(graph, "linear")[0].arguments.append(Argument("dim", dim))
    first, second = named(tbscope.merge_ranks(graphs), "linear")
    told = "None, None, None, dim=0 on rank 0; None, None, None, dim=1 on rank 1"
    assert first.attributes == {"arguments_by_rank": told}
    assert second.attributes == {}


def reducing(rank, **facts):
    """Give a net that ends in an all_reduce of all ranks, with facts of its own."""
    net = Net(rank).join("all_reduce", (0, 1))
    node = net.value.producer
    node.collective = replace(node.collective, **facts)
    return net.graph()


def writing(rank, *, writes=(), waits=False):
    net = Net(rank).then("relu")
    net.value.producer.writes = writes
    net.value.producer.control_inputs = [net.start.producer] if waits else []
    return net.graph()


def placed(rank, placements):
    net = Net(rank)
    net.value.sharding = Sharding((3, 2), placements, ("tp",))
    return net.graph()


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (reducing, lambda rank: reducing(rank, reduction="max")),
        (reducing, lambda rank: reducing(rank, mesh="tp")),
        (writing, lambda rank: writing(rank, writes=(0,))),
        (writing, lambda rank: writing(rank, waits=True)),
        (lambda rank: placed(rank, ("Shard(0)",)), lambda rank: placed(rank, ("Replicate()",))),
    ],
)
def test_ranks_that_differ_in_what_they_do_are_no_longer_one_picture(same, other):
    assert shows(tbscope.merge_ranks([same(0), same(1)])) == [("ranks 0-1", "")]
    pictures = shows(tbscope.merge_ranks([same(0), other(1)]))
    assert pictures == [("rank 0", "rank 0"), ("rank 1", "rank 1")]


@pytest.mark.parametrize(("ranks", "more"), [(6, ""), (7, "; and 1 more")])
def test_of_many_sizes_and_of_many_groups_the_first_six_are_told(ranks, more):
    def graph(rank):
        return Net(rank, rows=1 + rank).join("all_reduce", (2 * rank, 2 * rank + 1)).graph()

    merged = tbscope.merge_ranks([graph(rank) for rank in range(ranks)])
    sizes = merged.inputs[0].attributes["shapes_by_rank"]
    assert sizes == "; ".join(f"({1 + rank}, 2) on rank {rank}" for rank in range(6)) + more
    groups = named(merged, "all_reduce")[0].attributes["groups"]
    assert groups == "; ".join(f"ranks {2 * at}-{2 * at + 1}" for at in range(6)) + more


def test_uneven_shards_are_one_picture_that_tells_their_shapes():
    graph = tbscope.merge_ranks([plain(rank, rows=3 if rank < 3 else 2) for rank in range(4)])
    assert graph.inputs[0].attributes == {"shapes_by_rank": "(3, 2) on ranks 0-2; (2, 2) on rank 3"}
    assert [part.ranks for part in graph.parts] == [(0, 1, 2, 3)]


def test_experts_are_one_picture_that_names_those_of_each_rank():
    graph = tbscope.merge_ranks([plain(rank, layers=(rank,)) for rank in range(3)])
    assert shows(graph) == [("ranks 0-2", "")]
    weight = graph.find("0.weight")
    assert weight.attributes["names_by_rank"] == (
        "0.weight on rank 0; 1.weight on rank 1; 2.weight on rank 2"
    )


def test_another_operation_or_another_reader_is_another_picture():
    same = [Net(0).then("relu").graph(), Net(1).then("relu").graph()]
    other = [Net(0).then("relu").graph(), Net(1).then("gelu").graph()]
    assert len({part.scope for part in tbscope.merge_ranks(same).parts}) == 1
    assert shows(tbscope.merge_ranks(other)) == [("rank 0", "rank 0"), ("rank 1", "rank 1")]
    read = [Net(0).aside("relu").graph(), Net(1).aside("relu").graph()]
    assert len({part.scope for part in tbscope.merge_ranks(read).parts}) == 1
    read[1].nodes[-1].inputs = [read[1].outputs[0].value]
    assert len({part.scope for part in tbscope.merge_ranks(read).parts}) == 2


def test_what_stands_in_a_module_is_another_picture_than_what_stands_beside_it():
    def acting(rank, path):
        build = GraphBuilder("Net")
        value = build.op("exp", build.input("x", (3, 2)), scope=build.call("Net"))
        build.output("out", build.op("relu", value, scope=build.call(path)))
        build.graph.rank = rank
        return build.graph

    same = tbscope.merge_ranks([acting(0, "Net/ReLU[act]"), acting(1, "Net/ReLU[act]")])
    assert shows(same) == [("ranks 0-1", "")]
    other = tbscope.merge_ranks([acting(0, "Net/ReLU[act]"), acting(1, "ReLU[act]")])
    assert shows(other) == [("rank 0", "rank 0"), ("rank 1", "rank 1")]


def test_groups_that_do_the_same_side_by_side_are_counted():
    graphs = [Net(r).join("all_reduce", (r // 2 * 2, r // 2 * 2 + 1)).graph() for r in range(4)]
    (node,) = named(tbscope.merge_ranks(graphs), "all_reduce")
    assert node.attributes["groups"] == "ranks 0-1; ranks 2-3"
    assert node.collective.ranks == (0, 1)


# -- side by side ---------------------------------------------------------------------------


def test_ranks_that_differ_stand_in_boxes_of_their_own():
    graph = tbscope.merge_ranks([plain(0), plain(1), plain(2, layers=(0,))])
    graph.verify()
    assert shows(graph) == [("ranks 0-1", "ranks 0-1"), ("rank 2", "rank 2")]
    assert [node.name for node in graph.inputs] == ["x", "rank 2.x"]
    assert [output.name for output in graph.outputs] == ["out", "rank 2.out"]
    assert {call.scope.path for call in graph.find_calls("0")} == {
        "ranks 0-1/Net/Linear[0]",
        "rank 2/Net/Linear[0]",
    }


def test_what_users_know_keeps_its_name_and_has_the_ranks_before_it_where_it_is_taken():
    graph = tbscope.merge_ranks([plain(0), plain(1, layers=(0, 1, 2))])
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    later = [f"rank 1.{name}" for name in names]
    told = [node.name for node in graph.nodes if node.kind == "parameter"]
    assert sorted(told) == sorted([*names, *later, "2.weight", "2.bias"])
    assert all(node.name.isdecimal() for node in graph.nodes if node.kind == "op")


def test_a_name_that_says_it_is_of_a_rank_is_given_once_all_the_same():
    first, second = Net(0), plain(1, layers=(0,))
    first.build.input("rank 1.x", (1,))
    graph = tbscope.merge_ranks([first.graph(), second])
    graph.verify()
    assert [node.name for node in graph.inputs] == ["x", "rank 1.x", "rank 1.x~2"]


def test_a_merged_graph_tells_the_whole_run_as_its_lowest_rank_does():
    graphs = [plain(5), plain(2), plain(3, layers=(0,))]
    for graph, world in zip(graphs, (1, 4, 2), strict=True):
        graph.world_size = world
        graph.mesh = (MeshDimension("dp", 4, graph.rank),)
    merged = tbscope.merge_ranks(graphs)
    assert (merged.rank, merged.world_size) == (2, 6)
    assert merged.mesh == (MeshDimension("dp", 4, 2),)
    graphs[0].world_size = 8
    assert tbscope.merge_ranks(graphs).world_size == 8


def test_parameters_of_parts_are_others_and_tied_ones_stay_one():
    def tied(rank, numbers):
        graph = plain(rank, layers=(0, 1)[: 1 + rank])
        held = [
            Parameter("w", "parameter", (2,), "float32", 8, True, number=number)
            for number in numbers
        ]
        graph.modules = [Module(str(at), "Linear", (one,)) for at, one in enumerate(held)]
        return graph

    merged = tbscope.merge_ranks([tied(0, (0, 1, 0, -1)), tied(1, (0, 1, -1))])
    numbers = [one.number for module in merged.modules for one in module.parameters]
    assert numbers == [0, 1, 0, -1, 2, 3, -1]


def test_names_of_arguments_and_uncounted_kernels_of_all_parts_are_kept():
    first, second = plain(0), plain(1, layers=(0,))
    first.signatures, first.uncounted = {"linear": ("input",)}, {"aten::a": "no formula"}
    second.signatures, second.uncounted = {"relu": ("input",)}, {"aten::b": "no formula"}
    merged = tbscope.merge_ranks([first, second])
    assert set(merged.signatures) == {"linear", "relu"}
    assert set(merged.uncounted) == {"aten::a", "aten::b"}


def test_times_are_told_of_one_picture_and_not_of_several():
    def measured(rank, layers):
        graph = plain(rank, layers=layers)
        graph.profile = PROFILE
        return graph

    same = tbscope.merge_ranks([measured(0, (0,)), measured(1, (0,))])
    other = tbscope.merge_ranks([measured(0, (0,)), measured(1, (0, 1))])
    assert (same.profile, other.profile) == (PROFILE, None)


def test_two_pictures_of_one_stage_are_called_by_their_ranks_too():
    graphs = pipeline(lanes=2)
    alone = [part.scope for part in tbscope.merge_ranks(graphs).parts]
    assert alone == ["stage 0", "stage 1", "stage 2"]
    apart = [str(part.scope) for part in tbscope.merge_ranks(graphs, unfolded=True).parts]
    assert apart == [f"stage {rank // 2} rank {rank}" for rank in range(6)]


def test_each_rank_has_a_box_where_they_are_unfolded():
    graph = tbscope.merge_ranks([plain(rank) for rank in range(3)], unfolded=True)
    graph.verify()
    assert [part.scope for part in graph.parts] == ["rank 0", "rank 1", "rank 2"]


def test_no_more_ranks_are_unfolded_than_the_page_shows_well():
    tbscope.merge_ranks([plain(rank) for rank in range(64)], unfolded=True)
    with pytest.raises(tbscope.ArgumentError, match="65 ranks cannot be drawn unfolded"):
        tbscope.merge_ranks([plain(rank) for rank in range(65)], unfolded=True)


def test_a_collective_of_ranks_that_differ_is_one_node():
    graphs = [Net(r, layers=(0, 1)[: 1 + r]).join("all_reduce", (0, 1)).graph() for r in (0, 1)]
    graph = tbscope.merge_ranks(graphs)
    graph.verify()
    (node,) = named(graph, "all_reduce")
    assert node.scope is None
    assert [value.device for value in node.outputs] == ["ranks 0-1 cpu", "ranks 0-1 cpu"]
    assert [value.producer.scope.path for value in node.inputs] == [
        "rank 0/Net/Linear[0]",
        "rank 1/Net/Linear[1]",
    ]
    assert [output.value for output in graph.outputs] == node.outputs


def test_collectives_of_other_kinds_are_not_joined():
    kinds = ("all_reduce", "all_gather")
    graphs = [Net(r, layers=(0, 1)[: 1 + r]).join(kinds[r], (0, 1)).graph() for r in (0, 1)]
    graph = tbscope.merge_ranks(graphs)
    graph.verify()
    assert [node.scope.path for node in graph.nodes if node.collective] == [
        "rank 0/Net",
        "rank 1/Net",
    ]


@pytest.mark.parametrize("larger", [0, 1])
def test_a_joined_collective_has_the_costs_of_all_and_the_bytes_of_the_largest(larger):
    def joined(rank):
        net = Net(rank, layers=(0, 1)[: 1 + rank]).join("all_reduce", (0, 1), flops=3 + rank)
        node = net.value.producer
        node.allocated_bytes = 10 * (1 + rank)
        times = 2 if rank == larger else 1
        sizes = {"input_bytes": 4 * times, "output_bytes": 3 * times}
        node.collective = replace(node.collective, **sizes, asynchronous=rank == larger)
        return net.graph()

    graphs = [joined(0), joined(1)]
    (node,) = named(tbscope.merge_ranks(graphs), "all_reduce")
    assert (node.flops, node.allocated_bytes) == (7, 30)
    assert (node.collective.input_bytes, node.collective.output_bytes) == (8, 6)
    assert node.collective.asynchronous


def test_what_would_wait_for_itself_is_drawn_apart():
    first = Net(0).join("all_reduce", (0, 1), mesh="a").join("all_gather", (0, 1, 2), mesh="b")
    other = Net(1).then("relu").join("all_gather", (0, 1, 2), mesh="b")
    other.join("all_reduce", (0, 1), mesh="a")
    graph = tbscope.merge_ranks([first.graph(), other.graph()])
    graph.verify()
    assert len(named(graph, "all_reduce")) == len(named(graph, "all_gather")) == 2


# -- pipelines ------------------------------------------------------------------------------


def pipeline(stages=3, lanes=1):
    """Give the graphs of a pipeline: each stage has a layer, and sends on what it makes."""
    graphs = []
    for rank in range(stages * lanes):
        stage, lane = divmod(rank, lanes)
        net = Net(rank, layers=())
        if stage:
            net.join("recv", (0, 1), peer=rank - lanes)
        net.value = net.build.linear(f"Net/Linear[{stage}]", net.value, 2)
        if stage < stages - 1:
            net.join("send", (0, 1), peer=rank + lanes)
        assert lane < lanes
        graphs.append(net.graph())
    return graphs


def test_stages_of_a_pipeline_stand_side_by_side_joined_by_what_they_send():
    graph = tbscope.merge_ranks(pipeline(lanes=2))
    graph.verify()
    assert shows(graph) == [
        ("stage 0 ranks 0-1", "stage 0"),
        ("stage 1 ranks 2-3", "stage 1"),
        ("stage 2 ranks 4-5", "stage 2"),
    ]
    assert [
        (
            node.scope.path,
            [value.producer.scope.path for value in node.inputs if value.producer.op == "send"],
        )
        for node in named(graph, "recv")
    ] == [
        ("stage 1/Net", ["stage 0/Net"]),
        ("stage 2/Net", ["stage 1/Net"]),
    ]


def test_stages_of_equal_layers_are_not_taken_for_one():
    graphs = pipeline(stages=7)
    for graph in graphs:
        for call in graph.calls:
            call.scope.part = replace(call.scope.part, attribute=None)
        for node in graph.nodes:
            if node.kind == "parameter":
                node.name = node.name.replace(str(graph.rank), "0", 1)
    assert len({part.scope for part in tbscope.merge_ranks(graphs).parts}) == 7


def test_the_first_message_between_two_ranks_tells_which_stage_comes_first():
    first = Net(0).join("send", (0, 1), peer=1).join("recv", (0, 1), peer=1).graph()
    last = Net(1).join("recv", (0, 1), peer=0).join("send", (0, 1), peer=0).graph()
    parts = tbscope.merge_ranks([first, last]).parts
    assert [(part.ranks, part.stage) for part in parts] == [((0,), 0), ((1,), 1)]


def test_parameters_without_numbers_are_not_tied_and_calls_know_their_rank():
    graph = tbscope.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
    merged = tbscope.merge_ranks([graph])
    assert merged.calls[0].results.device == "rank 0 cpu"
    graph.modules = [
        one._replace(parameters=tuple(each._replace(number=-1) for each in one.parameters))
        for one in graph.modules
    ]
    assert tbscope.merge_ranks([graph]).parts[0].figures == merged.parts[0].figures


def test_messages_in_several_groups_tell_of_none():
    graphs = []
    for rank in range(4):
        pair, peer = ((0, 1), (2, 3))[rank // 2], rank ^ 1
        net = Net(rank, layers=()).join("send", pair, peer=peer)
        graphs.append(net.join("recv", pair, peer=peer).graph())
    (node,) = named(tbscope.merge_ranks(graphs), "send")
    assert "groups" not in node.attributes


def test_a_ring_is_one_picture_and_no_pipeline():
    graphs = []
    for rank in range(4):
        net = Net(rank, layers=()).join("send", (0, 1, 2, 3), peer=(rank + 1) % 4)
        graphs.append(net.join("recv", (0, 1, 2, 3), peer=(rank - 1) % 4).graph())
    graph = tbscope.merge_ranks(graphs)
    graph.verify()
    assert shows(graph) == [("ranks 0-3", "")]
    (node,) = named(graph, "recv")
    assert "send" in [value.producer.op for value in node.inputs]


def test_along_a_dimension_of_the_mesh_a_ring_goes_round_its_end():
    ranks, graphs = tuple(range(8)), []
    for rank in ranks:
        net = Net(rank, layers=()).join("send", ranks, peer=(rank + 1) % 8, mesh="cp")
        graph = net.join("recv", ranks, peer=(rank - 1) % 8, mesh="cp").graph()
        graph.mesh = (MeshDimension("cp", 8, rank),)
        graphs.append(graph)
    assert {part.scope for part in tbscope.merge_ranks(graphs).parts} == {""}


def test_ranks_of_a_ring_that_call_other_modules_of_a_list_are_one_picture():
    graphs = []
    for rank in range(2):
        net = Net(rank, layers=(rank,)).join("send", (0, 1), peer=1 - rank)
        graphs.append(net.join("recv", (0, 1), peer=1 - rank).graph())
    merged = tbscope.merge_ranks(graphs)
    assert [part.ranks for part in merged.parts] == [(0, 1)]
    told = {node.attributes["names_by_rank"] for node in merged.nodes if node.kind == "parameter"}
    assert told == {f"0.{name} on rank 0; 1.{name} on rank 1" for name in ("weight", "bias")}


def test_who_asks_for_a_message_before_it_sends_one_keeps_its_order():
    graphs = []
    for rank in range(2):
        net = Net(rank, layers=(0, 1)[: 1 + rank]).join("all_reduce", (0, 1)).aside("sin")
        net = net.join("recv", (0, 1), peer=1 - rank)
        net.value = net.start
        graphs.append(net.join("send", (0, 1), peer=1 - rank).graph())
    merged = tbscope.merge_ranks(graphs)
    merged.verify()
    aside = next(node for node in named(merged, "sin") if node.scope.path == "rank 0/Net")
    assert merged.nodes.index(aside) > merged.nodes.index(*named(merged, "all_reduce"))
    assert (
        len([v for node in named(merged, "recv") for v in node.inputs if v.producer.op == "send"])
        == 2
    )


# -- laws -----------------------------------------------------------------------------------

RUN = st.lists(
    st.sampled_from(
        ["relu", "gelu", "all_reduce", "all_gather", "pair", "aside", "sin on odd ranks"]
    ),
    max_size=6,
)


def record(steps, world, rows):
    """Give the graphs of the ranks of one run; the last one has so many rows."""
    everyone = tuple(range(world))
    graphs = []
    for rank in everyone:
        net = Net(rank, rows=rows if rank == world - 1 else 3)
        for step in steps:
            if step == "pair":
                net.join("broadcast", tuple(one for one in everyone if one // 2 == rank // 2))
            elif step.startswith("all"):
                net.join(step, everyone)
            elif step == "aside":
                net.aside("cos")
            elif rank % 2 or step != "sin on odd ranks":
                net.then(step)
        graphs.append(net.graph())
    return graphs


def part_of(merged, rank):
    """Give the nodes that a rank has in a merged graph, each with what it reads of this rank."""
    (part,) = (part for part in merged.parts if rank in part.ranks)
    if not part.scope:
        return [(node, node.inputs) for node in merged.nodes]
    mine, found = set(), []
    for node in merged.nodes:
        around = node.scope is not None and str(node.scope.parts[0]) == part.scope
        given = node.kind == "input" and node.outputs[0].device.startswith(part.scope)
        reads = [value for value in node.inputs if value in mine]
        if around or given:
            found.append((node, reads))
            mine.update(node.outputs)
        elif reads:
            # Each rank hands one tensor in, and has the result at the same place.
            found.append((node, reads))
            mine.add(node.outputs[node.inputs.index(reads[0])])
    return found


def lines(nodes):
    """Give what each node is, and which others it reads, by their numbers."""
    numbers = {node: number for number, (node, _) in enumerate(nodes)}
    return [
        (node.op, node.collective and node.collective.kind, [numbers[v.producer] for v in reads])
        for node, reads in nodes
    ]


@given(RUN, st.integers(1, 4), st.sampled_from([2, 3]), st.booleans())
@settings(deadline=None, max_examples=80)
def test_each_rank_has_in_the_merged_graph_what_it_recorded_alone(steps, world, rows, unfolded):
    graphs = record(steps, world, rows)
    merged = tbscope.merge_ranks(graphs, unfolded=unfolded)
    merged.verify()
    tbscope.to_graph_def(merged)
    assert differences(merged, graph_from_json(graph_to_json(merged))) == []
    assert sorted(rank for part in merged.parts for rank in part.ranks) == list(range(world))
    for graph in graphs:
        assert lines(part_of(merged, graph.rank)) == lines(
            [(node, node.inputs) for node in graph.nodes]
        )


# -- what cannot be merged ------------------------------------------------------------------


def test_two_graphs_of_one_rank_are_not_merged():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.merge_ranks([plain(3), plain(3)])
    assert str(caught.value) == (
        "merge_ranks was given two graphs of rank 3: of Net and of Net\n"
        "  why: each rank of a run has one graph\n"
        "  fix: give each another rank: graph.rank = 1"
    )


def test_a_merged_graph_is_not_merged_again():
    merged = tbscope.merge_ranks([plain(0), plain(1)])
    with pytest.raises(tbscope.ArgumentError, match="merged already, of ranks 0-1"):
        tbscope.merge_ranks([merged, plain(2)])
