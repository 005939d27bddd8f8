"""Measures how true measured times are, for one model: `python -m benchmarks.profiles NAME`.

The sum of the times of all operations stands beside what a forward takes that nobody
watches: once by tbscope's own account, and once by a plain loop before it. Wall time,
as that is what a profile tells.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch

from benchmarks.measure import peak_bytes
from benchmarks.models import find_case
from benchmarks.report import columns
from tbscope import trace

__all__ = ["add_profile_ratios", "measure_profile", "profiles_table"]

# What the sum of operations may be of the forward around them, where that is no short one:
# the rest is Python between operations. Where the machine is busy, the noise may be more.
LEAST_SUM, MOST_SUM = 0.9, 1.05
SHORT_FORWARD_MS = 5.0

HEAD = (
    *("model", "operations", "forward", "loop", "noise", "timed", "sum"),
    *("sum / forward", "timed / forward", "peak MB", "allocator's", "", "expected"),
)


def measure_profile(name: str, *, steps: int) -> dict[str, Any]:
    """Give what a profile of one model tells, and what a plain loop tells of its forward."""
    model, inputs = find_case(name).make()
    model.eval()

    def forward() -> None:
        with torch.no_grad():
            model(*inputs)

    loop = [seconds(forward) for _ in range(steps + 2)][2:]
    graph = trace(model, inputs, profile=steps)
    profile = graph.profile
    assert profile is not None
    ran = [node for node in graph.nodes if node.kind == "op" and node.kernels]
    return {
        "name": name,
        "operations": len(ran),
        "without_time": sum(node.duration_us is None for node in ran),
        "steps": steps,
        "loop_ms": statistics.median(loop) * 1e3,
        "forward_ms": profile.forward_us / 1e3,
        "spread_ms": profile.spread_us / 1e3,
        "watched_ms": profile.watched_us / 1e3,
        "operations_ms": profile.operations_us / 1e3,
        "peak_bytes": profile.peak_bytes,
        "allocator_peak_bytes": peak_bytes(forward),
    }


def seconds(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def add_profile_ratios(result: dict[str, Any]) -> dict[str, Any]:
    """Give a measurement with the ratios that follow from it, and whether they are as expected."""
    ratio = result["operations_ms"] / result["forward_ms"]
    long = result["forward_ms"] >= SHORT_FORWARD_MS
    noise = result["spread_ms"] / result["forward_ms"]
    least, most = min(LEAST_SUM, 1 - noise), max(MOST_SUM, 1 + noise)
    return {
        **result,
        "sum_ratio": ratio,
        "watched_ratio": result["watched_ms"] / result["forward_ms"],
        "met": least <= ratio <= most if long else None,
    }


def profiles_table(results: list[dict[str, Any]]) -> list[str]:
    """Give the lines of the table: milliseconds, and how the sum stands to the forward."""
    rows = [HEAD]
    for row in results:
        verdict = {True: "met", False: "NOT met", None: ""}[row["met"]]
        expected = "" if row["met"] is None else f"{LEAST_SUM:g}..{MOST_SUM:g} or noise"
        rows.append(
            (
                row["name"],
                f"{row['operations']:,}",
                f"{row['forward_ms']:.2f}",
                f"{row['loop_ms']:.2f}",
                f"{row['spread_ms']:.2f}",
                f"{row['watched_ms']:.2f}",
                f"{row['operations_ms']:.2f}",
                f"{row['sum_ratio']:.3f}",
                f"{row['watched_ratio']:.3f}",
                f"{row['peak_bytes'] / 1e6:.2f}",
                f"{row['allocator_peak_bytes'] / 1e6:.2f}",
                expected,
                verdict,
            )
        )
    return columns(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(json.dumps(measure_profile(options.name, steps=options.rounds)))


if __name__ == "__main__":
    main()
