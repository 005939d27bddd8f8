"""Hands graphs from process to process, over the store that a distributed run has anyway.

A store keeps what one process has put there until another one takes it. So nobody waits for
anybody but who merges, and who waits can give up: in a collective one process that is gone would
hold all others.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.formats.compressed import graph_of_record, record_of
from tbscope.ir.graph import Graph, MeshDimension
from tbscope.messages import error_text

__all__ = ["Posts"]

# What a store takes as one value: torch's takes 8 MiB.
_CHUNK_BYTES = 4 * 2**20
_SHORTEST_S, _LONGEST_S = 0.001, 0.1
_CLOSED = "closed"


class Posts:
    """What the ranks of a run have for each other when one of their calls is drawn.

    Args:
        store: A `torch.distributed.Store`, of whose keys nobody else has those that begin with
            `name`.
        name: What this call is known by on all ranks.
    """

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name
        self._known: dict[str, Graph] = {}

    def send(self, rank: int, graph: Graph) -> bool:
        """Put the graph of a rank there.

        Returns:
            Whether it is still waited for.
        """
        # Without what tells ranks apart: those that recorded the same send the same.
        record = record_of(replace(graph, rank=0, mesh=()))
        if not record:
            return self.fail(rank, f"its graph of {len(graph.nodes):,} nodes is too large to send")
        starts = range(0, len(record), _CHUNK_BYTES)
        chunks = [record[start : start + _CHUNK_BYTES] for start in starts]
        for number, chunk in enumerate(chunks):
            self._store.set(self._key(rank, number), chunk)
        mesh = [(one.name, one.size, one.coordinate) for one in graph.mesh]
        digest = hashlib.sha256(record).hexdigest()
        return self._put(rank, {"chunks": len(chunks), "mesh": mesh, "digest": digest})

    def fail(self, rank: int, why: str) -> bool:
        """Tell that a rank has no graph; return as `send` does."""
        return self._put(rank, {"failed": why})

    def collect(self, ranks: Iterable[int], timeout_s: float) -> Iterator[tuple[int, Graph | str]]:
        """Yield what each rank has sent as soon as it is there: its graph, or why it has none.

        Args:
            ranks: Those that are waited for.
            timeout_s: How long they are waited for, in seconds.
        """
        waiting = dict.fromkeys(ranks)
        end = time.monotonic() + timeout_s
        pause = _SHORTEST_S
        while waiting:
            over = time.monotonic() >= end
            if over:
                # Whoever comes from now on is told so; who came just before is still taken.
                self.close()
            came = [rank for rank in waiting if self._store.check([self._key(rank)])]
            for rank in came:
                del waiting[rank]
                yield rank, self._take(rank)
            if over:
                break
            pause = _SHORTEST_S if came else min(2 * pause, _LONGEST_S)
            if waiting:
                time.sleep(max(0.0, min(pause, end - time.monotonic())))
        for rank in waiting:
            yield rank, f"it sent no graph within {timeout_s:g} s"

    def close(self) -> None:
        """Tell whoever comes from now on that nobody waits any more."""
        self._store.set(self._key(_CLOSED), b"1")

    def _put(self, rank: int, told: dict[str, Any]) -> bool:
        self._store.set(self._key(rank), json.dumps(told).encode())
        return not self._store.check([self._key(_CLOSED)])

    def _take(self, rank: int) -> Graph | str:
        told = json.loads(self._store.get(self._key(rank)))
        if "failed" in told:
            self._store.delete_key(self._key(rank))
            return str(told["failed"])
        keys = [self._key(rank, number) for number in range(told["chunks"])]
        graph = self._known.get(told["digest"])
        try:
            if graph is None:
                graph = graph_of_record(b"".join([self._store.get(key) for key in keys]))
        except ArgumentError as error:
            return error_text(error)
        finally:
            for key in (*keys, self._key(rank)):
                self._store.delete_key(key)
        self._known[told["digest"]] = graph
        mesh = tuple([MeshDimension(*each) for each in told["mesh"]])
        # Nobody changes what graphs of several ranks have in common.
        return replace(graph, rank=rank, mesh=mesh)

    def _key(self, *parts: object) -> str:
        return "/".join([self._name, *map(str, parts)])
