"""Measures the first graph of a process: `python -m benchmarks.first NAME TOOL`.

Whoever draws a model does so once: there is a script that has imported torch and made the
model, and what is added to it is the import of the tool, a writer, the graph, and closing the
writer. torchview has no writer: it draws into a graph of graphviz, and the time for graphviz to
lay that out is not in here. CPU seconds of the process, all threads together.
"""

import argparse
import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.models import Case, find_case
from benchmarks.report import columns, figure, shorten
from benchmarks.ways import WAYS_OF_TORCH

__all__ = ["first_summary", "first_table", "in_a_process", "measure_first"]

HEAD = ("model", "forward", "torch's", "torchview", "tbscope", "of torch's", "of torchview's")

# The line of a traceback that names the error.
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")


def with_tbscope(model: Any, inputs: tuple[Any, ...], directory: str) -> None:
    from tbscope import SummaryWriter

    with SummaryWriter(directory) as writer:
        writer.add_graph(model, inputs)


def with_torch(
    model: Any, inputs: tuple[Any, ...], directory: str, *, grad: bool, strict: bool
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(directory) as writer, torch.set_grad_enabled(grad):
        writer.add_graph(model, inputs, use_strict_trace=strict)


def with_torchview(model: Any, inputs: tuple[Any, ...], directory: str) -> None:
    from torchview import draw_graph

    draw_graph(model, input_data=inputs, device="cpu", expand_nested=True, depth=100)


def with_nothing(model: Any, inputs: tuple[Any, ...], directory: str) -> None:
    with torch.no_grad():
        model(*inputs)


# By tool the ways to call it, from what a user types to what helps it most.
TOOLS: dict[str, tuple[Callable[[Any, tuple[Any, ...], str], None], ...]] = {
    "forward": (with_nothing,),
    "torch": tuple(partial(with_torch, **way) for way in WAYS_OF_TORCH.values()),
    "torchview": (with_torchview,),
    "tbscope": (with_tbscope,),
}


def once(name: str, tool: str, way: int) -> float:
    """Give the CPU seconds of the first graph in this process."""
    model, inputs = find_case(name).make()
    model.eval()
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        begun = time.process_time()
        TOOLS[tool][way](model, inputs, directory)
        return time.process_time() - begun


def measure_first(case: Case, *, rounds: int, threads: int) -> dict[str, Any]:
    """Give what the first graph of one model costs: medians of CPU milliseconds.

    Each round starts one process for each tool, one after the other. A round before them finds
    the way of each tool that works, and leaves the byte code that an installed package has.
    """
    ways: dict[str, int] = {}
    failures: dict[str, str] = {}
    for tool, known in TOOLS.items():
        for way in range(len(known)):
            seconds, failure = in_a_process(case, tool, way, threads)
            if seconds is not None:
                ways[tool] = way
                break
            failures.setdefault(tool, failure)
    for tool in ("forward", "tbscope"):
        if tool not in ways:
            sys.exit(f"measuring the first graph of {case.name} failed\n{failures[tool]}")
    times: dict[str, list[float]] = {tool: [] for tool in ways}
    for _ in range(rounds):
        for tool, way in ways.items():
            seconds, failure = in_a_process(case, tool, way, threads)
            if seconds is None:
                sys.exit(f"measuring the first graph of {case.name} failed\n{failure}")
            times[tool].append(seconds)
    ms = {tool: statistics.median(taken) * 1e3 for tool, taken in times.items()}
    ratios = {
        f"of_{other}": ms["tbscope"] / ms[other] if other in ms else None
        for other in ("torch", "torchview")
    }
    return {"name": case.name, "rounds": rounds, "ms": ms, "failures": failures, **ratios}


def in_a_process(case: Case, tool: str, way: int, threads: int) -> tuple[float | None, str]:
    """Give the CPU seconds of a first graph; where it fails none, and why."""
    command = [sys.executable, "-m", "benchmarks.first", case.name, tool, str(way)]
    command += ["--threads", str(threads)]
    # Without byte code each import would compile, which no user of an installed package pays.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
        return None, lines[-1] if lines else f"the process ended with {done.returncode}"
    return float(done.stdout.splitlines()[-1]), ""


def first_table(results: list[dict[str, Any]]) -> list[str]:
    """Give the lines of the table, and below it why a tool has no figure."""
    rows = [HEAD]
    notes = []
    for row in results:
        ms = row["ms"]
        rows.append(
            (
                row["name"],
                *(f"{ms[tool]:.1f}" if tool in ms else "fails" for tool in TOOLS),
                *(
                    "-" if row[key] is None else f"{row[key]:.2f}"
                    for key in ("of_torch", "of_torchview")
                ),
            )
        )
        notes += [
            f"{row['name']}: {tool} fails as users call it: {shorten(why)}"
            for tool, why in row["failures"].items()
        ]
    return [*columns(rows), *notes]


def first_summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the figures that stand against what is expected (see `report.summary`)."""
    beside_torch = [row for row in results if row["of_torch"] is not None]
    beside_torchview = [row for row in results if row["of_torchview"] is not None]
    return [
        figure(
            "first graph over torch's, import counted, most",
            max,
            beside_torch,
            "of_torch",
            most=0.25,
        ),
        figure(
            "first graph over torchview's, median",
            statistics.median,
            beside_torchview,
            "of_torchview",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("way", type=int, help="which of the ways to call it, from 0")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(json.dumps(once(options.name, options.tool, options.way)))


if __name__ == "__main__":
    main()
