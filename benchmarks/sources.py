"""Prints what reading a saved graph costs: `python -m benchmarks.sources --only BERT --form onnx`.

For each form of each model the load of the library that wrote it and tbscope's reading take turns;
milliseconds are CPU time of the process, the least of some rounds. What is held in memory needs no
load. The yardstick is a fixed loop of Python: by it figures of two machines can be compared.
"""

import argparse
import gc
import json
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import tbscope
from benchmarks.models import Case, bert, chain, find_case

__all__ = ["FORMS", "MODELS", "measure_form", "yardstick_ms"]


class Reading(NamedTuple):
    """How one form of one model is read.

    Attributes:
        load: How the library that wrote it loads it; None for what is in memory.
        read: How tbscope reads it.
    """

    load: Callable[[], object] | None
    read: Callable[[], tbscope.Graph]


def swin() -> Any:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=64,
        patch_size=2,
        embed_dim=24,
        num_heads=[2, 2, 4, 4],
        window_size=4,
        attn_implementation="eager",
    )
    return SwinModel(config), (torch.randn(1, 3, 64, 64),)


MODELS = (
    Case("BERT, 12 layers", bert),
    find_case("ResNet-50"),
    Case("Swin, 12 blocks", swin),
    # With its parameters, a program of about a hundred nodes.
    Case("chain of 33", chain(33), quick=True),
)


def script(model: Any, inputs: Any, _: Path) -> Reading:
    traced = torch.jit.trace(model, inputs, strict=False, check_trace=False)
    return Reading(None, lambda: tbscope.from_torchscript(traced))


def script_file(model: Any, inputs: Any, folder: Path) -> Reading:
    path = str(folder / "script.pt")
    torch.jit.save(torch.jit.trace(model, inputs, strict=False, check_trace=False), path)
    return Reading(lambda: torch.jit.load(path), lambda: tbscope.from_torchscript(path))


def program(model: Any, inputs: Any, _: Path) -> Reading:
    exported = torch.export.export(model, inputs, strict=False)
    return Reading(None, lambda: tbscope.from_export(exported))


def program_file(model: Any, inputs: Any, folder: Path) -> Reading:
    path = folder / "program.pt2"
    torch.export.save(torch.export.export(model, inputs, strict=False), path)
    return Reading(lambda: torch.export.load(path), lambda: tbscope.from_export(path))


def onnx_file(model: Any, inputs: Any, folder: Path) -> Reading:
    import onnx

    path = folder / "model.onnx"
    # Without weights in it: to copy these is no part of reading a graph.
    torch.onnx.export(model, inputs, path, dynamo=True, verbose=False, external_data=True)
    return Reading(
        lambda: onnx.load(path, load_external_data=False), lambda: tbscope.from_onnx(path)
    )


def graph_def(model: Any, inputs: Any, folder: Path) -> Reading:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    path = folder / "graph.pb"
    drawn = tbscope.to_graph_def(tbscope.trace(model, *inputs))
    path.write_bytes(drawn.SerializeToString())
    return Reading(
        lambda: GraphDef.FromString(path.read_bytes()), lambda: tbscope.from_graph_def(path)
    )


def json_file(model: Any, inputs: Any, folder: Path) -> Reading:
    path = folder / "graph.json"
    tbscope.trace(model, *inputs).save(path)
    return Reading(lambda: json.loads(path.read_bytes()), lambda: tbscope.load(path))


def log(model: Any, inputs: Any, folder: Path) -> Reading:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    with tbscope.SummaryWriter(folder / "log") as writer:
        writer.add_graph(model, inputs)
    (path,) = (folder / "log").iterdir()

    def load() -> None:
        for event in EventFileLoader(str(path)).Load():
            GraphDef.FromString(event.graph_def)

    def read() -> tbscope.Graph:
        (logged,) = tbscope.read_log(path)
        return logged.graph

    return Reading(load, read)


FORMS: dict[str, Callable[[Any, Any, Path], Reading]] = {
    "TorchScript": script,
    "TorchScript, file": script_file,
    "export": program,
    "export, .pt2": program_file,
    "ONNX": onnx_file,
    "GraphDef": graph_def,
    "JSON": json_file,
    "log": log,
}


def measure_form(case: Case, form: str, *, rounds: int) -> dict[str, float]:
    """Give nodes, milliseconds of the library's load and of ours, and what is above it a node."""
    model, inputs = case.make()
    with tempfile.TemporaryDirectory() as folder:
        reading = FORMS[form](model.eval(), inputs, Path(folder))
        nodes = len(reading.read().nodes)
        loads, reads = [], []
        gc.collect()
        gc.freeze()
        for _ in range(rounds):
            loads.append(cpu_ms(reading.load) if reading.load else 0.0)
            reads.append(cpu_ms(reading.read))
    above_us = (min(reads) - min(loads)) * 1e3 / nodes
    return {"nodes": nodes, "load": min(loads), "ours": min(reads), "us a node": above_us}


def cpu_ms(work: Callable[[], object]) -> float:
    """Give the CPU milliseconds of the process that some work takes; its garbage is not left."""
    gc.collect()
    begun = time.process_time()
    work()
    return (time.process_time() - begun) * 1e3


def yardstick_ms() -> float:
    """Give the CPU milliseconds of a fixed loop of Python, the least of some."""

    def loop() -> None:
        held: dict[int, str] = {}
        for number in range(100_000):
            held[number & 1023] = str(number)

    return min(cpu_ms(loop) for _ in range(7))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sources", description=__doc__)
    found = {"type": re.compile, "default": re.compile(""), "metavar": "REGEX"}
    parser.add_argument("--only", help="models whose name has this", **found)
    parser.add_argument("--form", help="forms whose name has this", **found)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}; yardstick {yardstick_ms():.1f} ms")
    print(f"{'':36} {'nodes':>6} {'load ms':>9} {'ours ms':>9} {'us a node above':>16}")
    for case in MODELS:
        for form in FORMS:
            if options.only.search(case.name) and options.form.search(form):
                told = measure_form(case, form, rounds=options.rounds)
                print(
                    f"{case.name:17} {form:18} {told['nodes']:6.0f} {told['load']:9.1f} "
                    f"{told['ours']:9.1f} {told['us a node']:16.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
