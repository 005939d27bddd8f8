"""Measures one model, in a process of its own: `python -m benchmarks.measure NAME`.

Seconds are CPU seconds of the process, all threads together, so the thread that writes
the event file counts too, and other programs on the machine count less.
"""

import argparse
import contextlib
import gc
import io
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils.tensorboard._pytorch_graph import graph as torch_graph

from benchmarks.models import find_case
from benchmarks.ways import WAYS_OF_TORCH
from tbscope import SummaryWriter, to_graph_def, trace
from tbscope.writing.event_sinks import open_sink, write_graph_event

__all__ = ["measure"]

LEAST_SECONDS = 1.0


class Run:
    """The parts of what is measured, each a method; later ones use what earlier ones left."""

    graph: Any = None
    graph_def: Any = None
    graph_bytes = 0
    way_of_torch = ""

    def __init__(self, model: Any, inputs: tuple[Any, ...], writer: SummaryWriter) -> None:
        self.model = model
        self.inputs = inputs
        self.writer = writer
        self.sink = open_sink(writer)

    def forward(self) -> None:
        with torch.no_grad():
            self.model(*self.inputs)

    def torch(self) -> None:
        way = WAYS_OF_TORCH[self.way_of_torch]
        with (
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
            torch.set_grad_enabled(way["grad"]),
        ):
            warnings.simplefilter("ignore")
            torch_graph(self.model, self.inputs, use_strict_trace=way["strict"])

    def torchview(self) -> None:
        from torchview import draw_graph

        # All levels, as the others draw them; what graphviz then takes for the layout is its own.
        draw_graph(self.model, input_data=self.inputs, device="cpu", depth=100, expand_nested=True)

    def tbscope(self) -> None:
        self.writer.add_graph(self.model, self.inputs)

    def trace(self) -> None:
        self.graph = trace(self.model, self.inputs)

    def convert(self) -> None:
        self.graph_def = to_graph_def(self.graph)

    def write(self) -> None:
        graph_bytes = self.graph_def.SerializeToString(deterministic=True)
        write_graph_event(self.sink, graph_bytes, step=0)
        self.graph_bytes = len(graph_bytes)

    def find_way_of_torch(self) -> dict[str, str]:
        """Give what torch's own raises, way by way, until one works and is kept."""
        failures = {}
        for way in WAYS_OF_TORCH:
            self.way_of_torch = way
            try:
                self.torch()
            except Exception as error:  # noqa: BLE001  Whatever it is, it is reported.
                failures[way] = f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"
            else:
                return failures
        self.way_of_torch = ""
        return failures


def measure(name: str, *, rounds: int, with_torch: bool) -> dict[str, Any]:
    """Give what one model costs: medians of CPU milliseconds over some rounds.

    Each round runs forward, tbscope's `add_graph`, its three parts by themselves, torch's
    graph function and torchview's, one after the other, so that a machine that gets slower or
    faster meanwhile does so for all.
    """
    model, inputs = find_case(name).make()
    model.eval()
    with tempfile.TemporaryDirectory() as directory:
        writer = SummaryWriter(directory)
        run = Run(model, inputs, writer)
        failures = run.find_way_of_torch() if with_torch else {}
        parts: dict[str, Callable[[], object]] = {
            "forward": run.forward,
            "tbscope": run.tbscope,
            "trace": run.trace,
            "convert": run.convert,
            "write": run.write,
        }
        if run.way_of_torch:
            parts["torch"] = run.torch
        if with_torch and find_spec("torchview") is not None:
            parts["torchview"] = run.torchview
        times = interleave(parts, rounds=rounds)
        writer.close()
        peaks = {"forward": peak_bytes(run.forward), "traced": peak_bytes(run.trace)}
    return {
        "name": name,
        "nodes": len(run.graph.nodes),
        "graph_bytes": run.graph_bytes,
        "rounds": len(times["forward"]),
        "ms": {part: statistics.median(taken) * 1e3 for part, taken in times.items()},
        "torch": {"measured": run.way_of_torch, "failures": failures},
        "peak_bytes": peaks,
    }


def interleave(parts: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    """Give the CPU seconds of each part in each round, after one round to warm up.

    Small models have more rounds, until they have taken a second. Garbage of one part is
    not left to the next; what the process held before is not walked in search of any.
    """
    times: dict[str, list[float]] = {part: [] for part in parts}
    for work in parts.values():
        work()
    gc.collect()
    gc.freeze()
    begun = time.process_time()
    while min(map(len, times.values())) < rounds or time.process_time() - begun < LEAST_SECONDS:
        for part, work in parts.items():
            gc.collect()
            # So each part finds the processor's caches as a forward leaves them.
            parts["forward"]()
            before = time.process_time()
            work()
            times[part].append(time.process_time() - before)
    return times


def peak_bytes(work: Callable[[], object]) -> int:
    """Give the most bytes of tensors that were alive at once, above what was before.

    torch's allocator reports to its profiler each block that it gives out or takes back;
    nothing stands between it and the model. Python's own objects do not count.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    # Without `acc_events` torch 2.12 warns that further cycles would begin anew.
    options = {"activities": activities, "profile_memory": True, "acc_events": True}
    with torch.profiler.profile(**options) as profile:
        work()
    events = profile.profiler.kineto_results.events()
    blocks = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    alive = peak = 0
    for _, size_bytes in sorted(blocks, key=lambda block: block[0]):
        alive += size_bytes
        peak = max(peak, alive)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-torch", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    result = measure(options.name, rounds=options.rounds, with_torch=not options.without_torch)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
