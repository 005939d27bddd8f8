"""`merge_ranks(graphs, alike=...)`: one rank stands for those beside it along some dimensions."""

import pytest
from test_merge_ranks import WORLD, Net, pipeline, plain, shows

import tbscope
from tbscope.ir.metadata import dimensions_at

SIZES = {"pp": 2, "dp": 2, "tp": 2}


def placed(graph, **sizes):
    """Give a graph its place in a mesh."""
    graph.mesh = dimensions_at(graph.rank, sizes or SIZES)
    return graph


def stages():
    """Give the first ranks of two stages, each of four ranks."""
    return [placed(graph) for graph in pipeline(2, lanes=4) if graph.rank % 4 == 0]


def test_one_rank_stands_for_all_where_all_did_the_same():
    graph = tbscope.merge_ranks([placed(plain(0))], alike=("pp", "dp", "tp"))
    graph.verify()
    assert shows(graph) == [("ranks 0-7", "")]
    assert {value.device for node in graph.nodes for value in node.outputs} == {"ranks 0-7 cpu"}
    assert [*graph.parts[0].ranks] == list(range(WORLD))


def test_one_rank_of_each_stage_stands_for_all_of_its_stage():
    graph = tbscope.merge_ranks(stages(), alike=("dp", "tp"))
    graph.verify()
    assert shows(graph) == [("stage 0 ranks 0-3", "stage 0"), ("stage 1 ranks 4-7", "stage 1")]
    (received,) = [node for node in graph.nodes if node.op == "recv"]
    assert [value.producer.op for value in received.inputs] == ["input", "send"]


def test_ranks_of_a_ring_are_one_picture_of_one_of_them():
    net = Net(0, layers=()).join("send", tuple(range(8)), peer=1, mesh="dp")
    ring = net.join("recv", tuple(range(8)), peer=7, mesh="dp").graph()
    graph = tbscope.merge_ranks([placed(ring, dp=8)], alike=["dp"])
    assert shows(graph) == [("ranks 0-7", "")]


def test_ranks_that_no_graph_stands_for_are_not_drawn():
    graph = tbscope.merge_ranks([placed(plain(5))], alike=["dp"])
    assert [part.ranks for part in graph.parts] == [(5, 7)]
    assert [part.ranks for part in tbscope.merge_ranks([placed(plain(5))]).parts] == [(5,)]


def test_the_graph_of_several_ranks_is_not_changed():
    given = placed(plain(5))
    nodes, mesh = list(given.nodes), given.mesh
    tbscope.merge_ranks([given], alike=["dp"])
    assert (given.rank, given.nodes, given.mesh) == (5, nodes, mesh)


@pytest.mark.parametrize(
    ("graphs", "alike", "text"),
    [
        (
            stages,
            ("dp", "ep"),
            "the graph of rank 0 has no dimension 'ep' of a mesh\n"
            "  why: its mesh has pp, dp, tp\n"
            "  fix: give those of its mesh, or trace it with mesh={'dp': 4, 'tp': 2}",
        ),
        (
            lambda: [plain(0)],
            ("dp",),
            "the graph of rank 0 has no dimension 'dp' of a mesh\n"
            "  why: its mesh has none\n"
            "  fix: give those of its mesh, or trace it with mesh={'dp': 4, 'tp': 2}",
        ),
        (
            lambda: [placed(plain(1), dp=2, tp=2)],
            ("dp",),
            "the graph of rank 1 may represent any ranks\n"
            "  why: its mesh (dp=2, tp=2) lacks some of the 8 ranks, or their order\n"
            "  fix: give the graph of each rank, and leave alike out",
        ),
        (
            stages,
            ("pp", "dp"),
            "merge_ranks was given two graphs of rank 0: of Net and of Net\n"
            "  why: each rank of a run has one graph\n"
            "  fix: leave out of alike the dimension along which they differ",
        ),
        (
            stages,
            "dp",
            "ranks cannot be alike along 'dp'\n"
            "  why: alike is a list of names of dimensions of the device mesh\n"
            '  fix: alike=("dp", "tp"), where each stage of a pipeline along "pp" is given',
        ),
    ],
)
def test_what_stands_for_no_ranks_or_for_those_of_another_is_refused(graphs, alike, text):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.merge_ranks(graphs(), alike=alike)
    assert str(caught.value) == text


def test_a_mesh_whose_ranks_lie_in_another_order_is_refused():
    graph = placed(plain(1))
    graph.mesh = dimensions_at(4, SIZES)
    with pytest.raises(tbscope.ArgumentError, match="lacks some of the 8 ranks, or their order"):
        tbscope.merge_ranks([graph], alike=["dp"])
