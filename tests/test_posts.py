"""What ranks put into the store of a run for each other, and take out of it."""

from dataclasses import replace

import pytest
import torch.distributed as dist
from same_graph import differences
from test_merge_ranks import plain

import tbscope
from tbscope.formats import compressed
from tbscope.ir.graph import MeshDimension
from tbscope.ranks import store_exchange
from tbscope.ranks.store_exchange import GraphExchange


def exchanged(graphs):
    """Give what one rank collects of what others send, by rank, and the store that is left."""
    store = dist.HashStore()
    for graph in graphs:
        assert GraphExchange(store, "call").send(graph.rank, graph)
    return dict(GraphExchange(store, "call").collect([graph.rank for graph in graphs], 5)), store


def test_what_is_sent_arrives_whole_and_nothing_stays_behind():
    graphs = [plain(0), plain(3, layers=(0,))]
    graphs[1].mesh = (MeshDimension("dp", 4, 3), MeshDimension("tp", 2, 1))
    came, store = exchanged(graphs)
    for graph in graphs:
        assert differences(came[graph.rank], graph) == []
    assert store.num_keys() == 0


@pytest.mark.parametrize("size", [1, 7, 2**20])
def test_what_is_larger_than_one_value_of_the_store_goes_in_several(size, monkeypatch):
    monkeypatch.setattr(store_exchange, "_CHUNK_BYTES", size)
    graph = plain(2)
    came, _ = exchanged([graph])
    assert differences(came[2], graph) == []


def test_ranks_that_recorded_the_same_are_read_once():
    graph = plain(0)
    alike = [replace(graph, rank=rank, mesh=(MeshDimension("dp", 3, rank),)) for rank in range(3)]
    came, _ = exchanged([*alike, plain(3, rows=4)])
    assert [came[rank].nodes is came[0].nodes for rank in range(4)] == [True, True, True, False]
    assert [came[rank].mesh[0].coordinate for rank in range(3)] == [0, 1, 2]
    merged = tbscope.merge_ranks(came.values())
    assert [part.ranks for part in merged.parts] == [(0, 1, 2, 3)]
    assert merged.inputs[0].attributes == {
        "shapes_by_rank": "(3, 2) on ranks 0-2; (4, 2) on rank 3"
    }


def test_a_damaged_record_is_a_reason_and_no_error():
    store = dist.HashStore()
    GraphExchange(store, "call").send(0, plain(0))
    store.set("call/0/0", b"nothing")
    assert dict(GraphExchange(store, "call").collect([0], 5)) == {
        0: "ArgumentError: the record of a graph is damaged why: zlib: Error -3 while "
        "decompressing data: incorrect header check fix: write or copy it again"
    }


def test_a_graph_that_is_too_large_is_told_as_such(monkeypatch):
    monkeypatch.setattr(compressed, "_MOST_BYTES", 100)
    store, graph = dist.HashStore(), plain(0)
    GraphExchange(store, "call").send(0, graph)
    (why,) = dict(GraphExchange(store, "call").collect([0], 5)).values()
    assert why == f"its graph of {len(graph.nodes)} nodes is too large to send"


def test_whoever_comes_after_the_end_is_told_and_whoever_comes_before_is_not():
    store = dist.HashStore()
    assert dict(GraphExchange(store, "call").collect([1], 0.01)) == {
        1: "it sent no graph within 0.01 s"
    }
    assert not GraphExchange(store, "call").send(1, plain(1))
    assert GraphExchange(store, "next").send(1, plain(1))


def test_what_failed_is_told_at_once():
    store = dist.HashStore()
    assert GraphExchange(store, "call").fail(1, "RuntimeError: no")
    assert dict(GraphExchange(store, "call").collect([1], 5)) == {1: "RuntimeError: no"}
