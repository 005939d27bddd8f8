"""Merged graphs in TensorBoard's own page: the legend lists the ranks, and every box opens."""

from dataclasses import replace

import pytest
import torch
from browser import Browser, TensorBoard
from llama import spread
from test_merge_ranks import Net, pipeline, plain

import tbscope


def joined():
    """Give graphs of ranks that differ, and do something together."""
    return [Net(r, layers=(0, 1)[: 1 + r]).join("all_reduce", (0, 1)).graph() for r in (0, 1)]


def alike():
    """Give one rank of many, whose layers are spread over all of them."""
    with tbscope.fake_world(1024, mesh={"dp": 128, "tp": 8}) as mesh:
        model = spread((64, 32, 8, 8, 48), 2, mesh)
        return tbscope.trace(model, torch.zeros(1, 8, dtype=torch.int64), fake=True)


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
    with tbscope.SummaryWriter(log / "alike") as writer:
        writer.add_graph(tbscope.merge_ranks([alike()], alike=("dp", "tp")))
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


def test_one_rank_that_stands_for_all_opens_to_its_last_box(page):
    page.show("alike")
    assert [one["device"] for one in page.color_by("device")] == ["/device:ranks_0-1023_CPU:0"]
    closed = len(page.nodes)
    page.expand_all()
    assert page.errors == []
    for layer in (0, 1):
        inside = [node for node in page.nodes if f"layers/{layer}/attention/" in node]
        assert any(node.endswith("/wo") or "/wo/" in node for node in inside), inside
        assert any(node.rpartition("/")[2].startswith("all_reduce") for node in inside), inside
    assert len(page.nodes) > closed
