"""Counts the calls of tbscope's own functions, for one model: `python -m benchmarks.calls NAME`.

Times differ from run to run and from machine to machine; the number of calls for each node of a
graph is the same everywhere, so that a test can compare it (tests/test_calls.py).
"""

import argparse
import cProfile
import json
import pstats
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tbscope
from benchmarks.models import find_case
from benchmarks.report import columns

__all__ = ["calls_per_node", "calls_table"]

_PACKAGE = str(Path(tbscope.__file__).parent)


def calls_per_node(name: str) -> dict[str, Any]:
    """Return the calls for each node of a model's graph: of trace, drawing and writing.

    Writing is the rest of `writer.add_graph(graph)`: the event and the record of the whole graph.
    """
    model, inputs = find_case(name).make()
    model.eval()
    with tempfile.TemporaryDirectory() as directory, tbscope.SummaryWriter(directory) as writer:
        # The first rounds also fill the caches of the process.
        for _ in range(2):
            writer.add_graph(model, inputs)
        graph, traced = _count(lambda: tbscope.trace(model, inputs))
        _, drawn = _count(lambda: tbscope.to_graph_def(graph))
        _, added = _count(lambda: writer.add_graph(graph))
    nodes = len(graph.nodes)
    counts = {"trace": traced, "draw": drawn, "write": added - drawn}
    return {"name": name, "nodes": nodes} | {key: count / nodes for key, count in counts.items()}


def _count(work: Callable[[], Any]) -> tuple[Any, int]:
    """Run some work, and return its result and the number of calls of tbscope's functions."""
    profile = cProfile.Profile(builtins=False)
    result = profile.runcall(work)
    entries = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    return result, sum(entry[1] for (file, _, _), entry in entries if file.startswith(_PACKAGE))


def calls_table(results: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    rows = [("model", "nodes", "trace", "draw", "write")]
    for row in results:
        counts = [f"{row[key]:.1f}" for key in ("trace", "draw", "write")]
        rows.append((row["name"], str(row["nodes"]), *counts))
    return columns(rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("name")
    print(json.dumps(calls_per_node(parser.parse_args().name)))


if __name__ == "__main__":
    main()
