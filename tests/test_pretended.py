"""`add_graph(model, x, world_size=..., ranks=...)`: a model as several ranks, one by one."""

import pytest
import torch
import torch.distributed as dist
from cli_runs import graphs_in

import tbscope

X = torch.ones(3)


def step(x):
    """Do something with others, of which the last rank does more."""
    x = x * 2
    if dist.get_rank() == 3:
        x = x.relu()
    dist.all_reduce(x)
    return x


def added(tmp_path, **options):
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(step, X, world_size=4, **options)
    graph.verify()
    return [(str(part), part.scope) for part in graph.parts]


@pytest.mark.parametrize(
    ("ranks", "shown"),
    [
        ("mine", []),
        ("all", [("ranks 0-2", "ranks 0-2"), ("rank 3", "rank 3")]),
        ([2, 1], [("ranks 1-2", "")]),
        ([3, 2], [("rank 2", "rank 2"), ("rank 3", "rank 3")]),
        ("unfolded", [(f"rank {rank}", f"rank {rank}") for rank in range(4)]),
    ],
)
def test_the_model_is_traced_as_each_rank_that_is_asked_for(ranks, shown, tmp_path):
    assert added(tmp_path, ranks=ranks) == shown
    assert len(graphs_in(tmp_path)) == 1
    assert not dist.is_initialized()


def test_what_they_do_together_is_one_node(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(step, X, world_size=4, ranks="all")
    (joined,) = [node for node in graph.nodes if node.collective]
    assert (joined.scope, len(joined.inputs), len(joined.outputs)) == (None, 2, 2)


def test_a_rank_that_does_nothing_but_with_others_has_no_box():
    def sums(x):
        if dist.get_rank() == 1:
            x = x.relu()
        dist.all_reduce(x)
        return x

    graph = tbscope.merge_ranks(tbscope.trace(sums, X, world_size=2, rank=rank) for rank in (0, 1))
    graph.verify()
    assert [part.scope for part in graph.parts] == ["", "rank 1"]
    drawn = tbscope.to_graph_def(graph, color_by="rank")
    assert "rank 1/sums/relu" in [node.name.replace("_", " ") for node in drawn.node]


def test_a_rank_beside_ranks_and_a_rank_that_the_run_has_not_are_refused(tmp_path):
    with pytest.raises(tbscope.ArgumentError) as caught:
        added(tmp_path, rank=1, ranks="all")
    assert str(caught.value) == (
        "rank=1 is given with ranks='all'\n"
        "  why: the model is traced as each of these ranks\n"
        "  fix: leave rank out, or ranks=[1]"
    )
    with pytest.raises(tbscope.ArgumentError, match=r"ranks=\[0, 4\] asks for rank 4"):
        added(tmp_path, ranks=[0, 4])
    assert added(tmp_path, rank=1) == []
    assert graphs_in(tmp_path)


def test_no_more_are_unfolded_than_the_page_shows_well(tmp_path):
    def never(x):
        raise AssertionError("it ran")

    writer = tbscope.SummaryWriter(tmp_path)
    with pytest.raises(tbscope.ArgumentError, match="65 ranks cannot be drawn unfolded"):
        writer.add_graph(never, X, world_size=65, ranks="unfolded")
    graph = writer.add_graph(torch.relu, X, world_size=64, ranks="unfolded")
    assert len(graph.parts) == 64


def test_a_graph_that_is_made_is_of_no_other_run(tmp_path):
    graph = tbscope.trace(step, X, world_size=2)
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.add_graph(tbscope.SummaryWriter(tmp_path), graph, world_size=4)
    assert str(caught.value) == (
        "world_size=4 is given with the graph of step\n"
        "  why: a graph has run already, and takes no inputs and no options of a run\n"
        "  fix: leave it out, or pass the model in place of its graph"
    )
