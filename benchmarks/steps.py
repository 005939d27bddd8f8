"""Prints what recording a whole training step costs: `python -m benchmarks.steps ResNet-50`.

A step that nobody watches and a recorded one take turns; seconds are CPU seconds of the process.
With `--batches 1 4 16` each model stands in a row for each size of its batch, from which one reads
how large a step has to be for its recording to weigh little.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

import tbscope
from benchmarks.measure import peak_bytes
from benchmarks.models import find_case

__all__ = ["measure_step", "table_of"]


def tensors(nest: Any) -> Iterator[torch.Tensor]:
    """Give the tensors with fractions in what a model gave."""
    if isinstance(nest, torch.Tensor):
        if nest.is_floating_point():
            yield nest
    elif isinstance(nest, dict | tuple | list):
        for inner in nest.values() if isinstance(nest, dict) else nest:
            yield from tensors(inner)


def measure_step(name: str, *, rounds: int, batch: int = 1) -> dict[str, float]:
    """Give the milliseconds of a step of this model, and how many times that is when recorded.

    Args:
        name: The model.
        rounds: How often each of the two is measured.
        batch: How many times its inputs stand in a batch.
    """
    model, inputs = find_case(name).make()
    inputs = tuple(torch.cat([each] * batch) for each in inputs)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        next(tensors(model(*inputs))).pow(2).mean().backward()
        optimizer.step()

    def recorded() -> None:
        with tbscope.record(model):
            step()

    step()
    recorded()
    times: dict[Any, list[float]] = {step: [], recorded: []}
    for _ in range(rounds):
        for work, taken in times.items():
            begun = time.process_time()
            work()
            taken.append(time.process_time() - begun)
    # The first look of all also sees what was there before.
    peak_bytes(step)
    ratios = [ours / plain for plain, ours in zip(times[step], times[recorded], strict=True)]
    return {
        "ms": statistics.median(times[step]) * 1e3,
        "time ratio": statistics.median(ratios),
        "memory ratio": peak_bytes(recorded) / peak_bytes(step),
    }


def table_of(rows: Iterable[tuple[str, int, dict[str, float]]]) -> Iterator[str]:
    """Give the lines of a table of models, sizes of batches, and what was measured of each."""
    yield "| model | batch | step, ms | recorded | memory |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, batch, found in rows:
        ms, time_ratio, memory_ratio = found.values()
        yield f"| {name} | {batch} | {ms:.0f} | {time_ratio:.2f} | {memory_ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = (
        (name, batch, measure_step(name, rounds=options.rounds, batch=batch))
        for name in options.names
        for batch in options.batches
    )
    for line in table_of(rows):
        print(line, flush=True)


if __name__ == "__main__":
    main()
