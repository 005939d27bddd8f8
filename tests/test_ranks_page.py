"""Merged graphs in TensorBoard's own page: the legend lists the ranks, and every box opens."""

from dataclasses import replace

import pytest
from browser import Browser, TensorBoard
from test_merge_ranks import Net, pipeline, plain

import tbscope


def joined():
    """Give graphs of ranks that differ, and do something together."""
    return [Net(r, layers=(0, 1)[: 1 + r]).join("all_reduce", (0, 1)).graph() for r in (0, 1)]


GRAPHS = {
    "folded": lambda: [replace(plain(0), rank=rank, world_size=1024) for rank in range(1024)],
    "stages": lambda: pipeline(lanes=2),
    "joined": joined,
}
RANKS = {
    "folded": ["ranks_0-1023_CPU:0"],
    "stages": ["ranks_0-1_CPU:0", "ranks_2-3_CPU:0", "ranks_4-5_CPU:0"],
    "joined": ["ranks_0_CPU:0", "ranks_0-1_CPU:0", "ranks_1_CPU:0"],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Give the page with a run for each of the graphs."""
    log = tmp_path_factory.mktemp("log")
    for name, make in GRAPHS.items():
        with tbscope.SummaryWriter(log / name) as writer:
            writer.add_graph(tbscope.merge_ranks(make()))
    with TensorBoard(log) as server, Browser() as browser:
        yield browser.open(server.url)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_legend_lists_the_ranks_and_every_box_opens(page, name):
    page.show(name)
    legend = page.color_by("device")
    assert sorted(one["device"] for one in legend) == [
        f"/device:{one}" for one in sorted(RANKS[name])
    ]
    page.expand_all()
    assert page.errors == []
    assert [node for node in page.nodes if node.endswith("Net/0")] or "0" in page.nodes
