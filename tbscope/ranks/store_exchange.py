"""Exchange of graphs between processes through the store of the process group.

A store keeps a value until another process reads it. So only the merging rank waits, and it can
stop waiting after a timeout. In a collective, by contrast, one dead process would block all ranks.
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

# Largest size of one value in the store; torch's limit is 8 MiB.
_CHUNK_BYTES = 4 * 2**20
_SHORTEST_S, _LONGEST_S = 0.001, 0.1
_CLOSED = "closed"


class GraphExchange:
    """Exchange of graphs between the ranks of a run, for one gathering call.

    Args:
        store: A `torch.distributed.Store`, whose keys with the prefix `name` belong to this call.
        name: Name of this call, equal on all ranks.
    """

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name
        self._known: dict[str, Graph] = {}

    def send(self, rank: int, graph: Graph) -> bool:
        """Put the graph of a rank into the store.

        Returns:
            Whether the merging rank is still waiting.
        """
        # Rank and mesh are sent separately, so ranks with equal graphs have equal records and
        # digests.
        record = record_of(replace(graph, rank=0, mesh=()))
        if not record:
            return self.fail(rank, f"its graph of {len(graph.nodes):,} nodes is too large to send")
        starts = range(0, len(record), _CHUNK_BYTES)
        for number, start in enumerate(starts):
            self._store.set(self._key(rank, number), record[start : start + _CHUNK_BYTES])
        mesh = [(dimension.name, dimension.size, dimension.coordinate) for dimension in graph.mesh]
        digest = hashlib.sha256(record).hexdigest()
        # The entry comes last: once it exists, all chunks do.
        return self._put(rank, {"chunks": len(starts), "mesh": mesh, "digest": digest})

    def fail(self, rank: int, why: str) -> bool:
        """Report that a rank has no graph; return as `send` does."""
        return self._put(rank, {"failed": why})

    def collect(self, ranks: Iterable[int], timeout_s: float) -> Iterator[tuple[int, Graph | str]]:
        """Yield the graph of each rank as soon as it arrives, or the reason why there is none.

        Args:
            ranks: The ranks to wait for.
            timeout_s: Longest wait in seconds, for all ranks together.
        """
        missing = dict.fromkeys(ranks)
        end = time.monotonic() + timeout_s
        pause = _SHORTEST_S
        while missing:
            expired = time.monotonic() >= end
            if expired:
                # Later ranks see the closed mark; graphs that arrived just before it are still read
                # below.
                self.close()
            arrived = [rank for rank in missing if self._store.check([self._key(rank)])]
            for rank in arrived:
                del missing[rank]
                yield rank, self._take(rank)
            if expired:
                break
            pause = _SHORTEST_S if arrived else min(2 * pause, _LONGEST_S)
            if missing:
                time.sleep(max(0.0, min(pause, end - time.monotonic())))
        for rank in missing:
            yield rank, f"it sent no graph within {timeout_s:g} s"

    def close(self) -> None:
        """Mark the exchange as closed: ranks that send from now on are too late."""
        self._store.set(self._key(_CLOSED), b"1")

    def _put(self, rank: int, entry: dict[str, Any]) -> bool:
        self._store.set(self._key(rank), json.dumps(entry).encode())
        return not self._store.check([self._key(_CLOSED)])

    def _take(self, rank: int) -> Graph | str:
        entry = json.loads(self._store.get(self._key(rank)))
        if "failed" in entry:
            self._store.delete_key(self._key(rank))
            return str(entry["failed"])
        keys = [self._key(rank, number) for number in range(entry["chunks"])]
        graph = self._known.get(entry["digest"])
        try:
            if graph is None:
                graph = graph_of_record(b"".join([self._store.get(key) for key in keys]))
        except ArgumentError as error:
            return error_text(error)
        finally:
            for key in (*keys, self._key(rank)):
                self._store.delete_key(key)
        self._known[entry["digest"]] = graph
        mesh = tuple([MeshDimension(*row) for row in entry["mesh"]])
        # Ranks with equal graphs share one graph's contents, which are never changed.
        return replace(graph, rank=rank, mesh=mesh)

    def _key(self, *parts: object) -> str:
        return "/".join([self._name, *map(str, parts)])
