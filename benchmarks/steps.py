"""Prints what recording a whole training step costs: `python -m benchmarks.steps ResNet-50`.

A step that nobody watches and a recorded one take turns; seconds are CPU seconds of the process.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

import tbscope
from benchmarks.measure import peak_bytes
from benchmarks.models import find_case

__all__ = ["measure_step"]


def tensors(nest: Any) -> Iterator[torch.Tensor]:
    """Give the tensors with fractions in what a model gave."""
    if isinstance(nest, torch.Tensor):
        if nest.is_floating_point():
            yield nest
    elif isinstance(nest, dict | tuple | list):
        for inner in nest.values() if isinstance(nest, dict) else nest:
            yield from tensors(inner)


def measure_step(name: str, *, rounds: int) -> dict[str, float]:
    """Give the milliseconds of a step of this model, and how many times that is when recorded."""
    model, inputs = find_case(name).make()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, number in measure_step(options.name, rounds=options.rounds).items():
        print(f"{name:14} {number:.2f}")


if __name__ == "__main__":
    main()
