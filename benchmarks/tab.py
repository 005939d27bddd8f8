"""Prints what the tab in TensorBoard costs its server: `python -m benchmarks.tab`.

A Llama of 8, 126 and 560 narrow layers is drawn. Measured are the first answer (from the bytes in
the log on), and the level of the list of layers, with the bytes that go over the wire. The import
of the tab, which TensorBoard waits for at its start, is measured in processes of their own.
"""

import gzip
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

import tbscope
from tbscope.plugin.graphs import picture_of_bytes
from tbscope.saving.levels import Levels, Words

LAYERS = (8, 126, 560)
ROUNDS = 3


def drawn(layers: int) -> bytes:
    """Give the bytes that a log has of a Llama."""
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.zeros(1, 8, dtype=torch.long)
    graph = tbscope.trace(model, {"input_ids": ids}, kwargs={"use_cache": False})
    return bytes(tbscope.to_graph_def(graph).SerializeToString())


def measure(layers: int) -> dict[str, Any]:
    """Measure the answers about one model."""
    data = drawn(layers)
    found: dict[str, Any] = {"layers": layers}
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        levels = Levels(picture_of_bytes("run", data))
        head = answer(levels.head)
        add(found, "first answer, ms", begun)
        begun = time.perf_counter()
        largest = max(levels.picture.boxes, key=lambda box: len(levels.picture.children(box)))
        number = levels.glyphs.index(largest)
        level = answer(partial(levels.level, number))
        add(found, "list of layers, ms", begun)
    found["nodes"] = len(levels.picture.items)
    found["first answer, kB"] = len(gzip.compress(head, 3)) / 1000
    found["list of layers, kB"] = len(gzip.compress(level, 3)) / 1000
    return {
        key: statistics.median(one) if isinstance(one, list) else one for key, one in found.items()
    }


def add(found: dict[str, Any], key: str, begun: float) -> None:
    found.setdefault(key, []).append(1000 * (time.perf_counter() - begun))


def answer(give: Callable[[Words], Any]) -> bytes:
    words = Words()
    told = give(words)
    return json.dumps([list(words.number), told]).encode()


def import_ms() -> float:
    """Give the milliseconds that TensorBoard waits for the tab, beside what it loads itself."""
    code = (
        "import time, tensorboard.plugins.base_plugin; t = time.perf_counter();"
        "import tbscope.plugin.tab; print(1000 * (time.perf_counter() - t))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        for _ in range(5)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    """Print the sheet."""
    rows = [measure(layers) for layers in LAYERS]
    for key in ("nodes", *(key for key in rows[0] if key not in ("nodes", "layers"))):
        cells = [f"{row[key]:,.0f}" if row[key] >= 10 else f"{row[key]:.1f}" for row in rows]
        print(f"| {key} | {' | '.join(cells)} |")
    print(f"import: {import_ms():.1f} ms")


if __name__ == "__main__":
    main()
