"""Merged copies of one graph: one rank stands for those beside it that did the same."""

from dataclasses import replace

from test_merge_ranks import WORLD, Net, pipeline, plain, shows

import tbscope


def with_equals(graph, count=WORLD):
    """Give a graph for each of some ranks, of which the first was traced."""
    return [replace(graph, rank=graph.rank + number) for number in range(count)]


def test_one_rank_stands_for_all_where_all_did_the_same():
    graph = tbscope.merge_ranks(with_equals(plain(0)))
    graph.verify()
    assert shows(graph) == [("ranks 0-7", "")]
    assert {value.device for node in graph.nodes for value in node.outputs} == {"ranks 0-7 cpu"}
    assert [*graph.parts[0].ranks] == list(range(WORLD))


def test_one_rank_of_each_stage_stands_for_all_of_its_stage():
    firsts = [graph for graph in pipeline(2, lanes=4) if graph.rank % 4 == 0]
    graph = tbscope.merge_ranks([one for first in firsts for one in with_equals(first, 4)])
    graph.verify()
    assert shows(graph) == [("stage 0 ranks 0-3", "stage 0"), ("stage 1 ranks 4-7", "stage 1")]
    (received,) = [node for node in graph.nodes if node.op == "recv"]
    assert [value.producer.op for value in received.inputs] == ["input", "send"]


def test_ranks_of_a_ring_are_one_picture_of_one_of_them():
    net = Net(0, layers=()).join("send", tuple(range(8)), peer=1, mesh="dp")
    ring = net.join("recv", tuple(range(8)), peer=7, mesh="dp").graph()
    graph = tbscope.merge_ranks(with_equals(ring))
    assert shows(graph) == [("ranks 0-7", "")]
