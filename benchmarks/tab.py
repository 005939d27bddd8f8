"""Prints what the tab in TensorBoard costs: `python -m benchmarks.tab`.

Three narrow Llamas, of about 500, 8,000 and 35,000 nodes, are shown one after the other in a
TensorBoard and a Chromium, as a reader does it: the run is chosen, the folded layers are opened,
one of them, all of them, and one among all. Times go from the click to the drawing, bytes are
those of the answers as they are sent. The start of TensorBoard, with the tab and without, goes
from the process to the first answer about plugins. All are medians of fresh processes.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
import transformers

import tbscope
from tests.browser import Browser, TensorBoard

LAYERS = {"500": 8, "8,000": 126, "35,000": 560}
"""How many layers have about so many nodes."""

_START = """
import sys
from absl import app
from tensorboard import default, main_lib, program
main_lib.global_init()
without_tab = sys.argv.pop(1) == "without"
if without_tab:
    entries = default._iter_entry_points
    default._iter_entry_points = lambda group: [e for e in entries(group) if e.name != "tbscope"]
plugins = default.get_plugins()
tensorboard = program.TensorBoard(plugins=plugins)
app.run(tensorboard.main, flags_parser=tensorboard.configure)
"""
# Resolves with the milliseconds until the drawing is another one.
_CLOCK = """
async ([action, argument]) => {
  const world = document.getElementById("world"), before = world.firstChild;
  const actions = {
    run: (name) => {
      const select = document.querySelector('[aria-label="Run"]');
      select.value = name;
      select.dispatchEvent(new Event("change"));
    },
    box: (label) => {
      const found = [...world.querySelectorAll(".thing.box:not(.open)")]
        .find((box) => box.querySelector(".label").textContent === label);
      found.querySelector(".sign").dispatchEvent(new MouseEvent("click", {bubbles: true}));
    },
    turn: () => {
      const all = world.querySelector('.turn[data-way="0"]');
      all.dispatchEvent(new MouseEvent("click", {bubbles: true}));
    },
  };
  const begun = performance.now();
  actions[action](argument);
  while (world.firstChild === before) await new Promise((done) => setTimeout(done));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begun;
}
"""


def write_llama(logdir: Path, layers: int) -> int:
    """Write the graph of a Llama, and return how many nodes it has."""
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
    with tbscope.SummaryWriter(logdir) as writer:
        writer.add_graph(graph)
    return len(graph.nodes)


def measure_views(logdir: Path, runs: list[str]) -> dict[str, dict[str, float]]:
    """Show each run in a fresh TensorBoard, and return its milliseconds and kilobytes."""
    found = {}
    with TensorBoard(logdir) as server, Browser() as browser:
        page = browser.new_page()
        received: list[Any] = []

        def receive(request: Any) -> None:
            received.append(request)

        page.on("requestfinished", receive)
        page.goto(f"{server.url}/#tbscope&p.tbscope.run=empty")
        frame = page.frame_locator("iframe").owner.element_handle().content_frame()
        frame.locator("#world .thing").first.wait_for()
        for run in runs:
            # The next graph would have the same node and boxes, as far as it has them.
            frame.locator("#canvas").press("c")
            frame.locator("#canvas").press("Escape")
            received.clear()
            times = {"first look, ms": frame.evaluate(_CLOCK, ["run", run])}
            times["first look, kB"] = sum(one.sizes()["responseBodySize"] for one in received) / 1e3
            frame.locator("#card h2").wait_for()
            page.wait_for_timeout(300)
            frame.evaluate(_CLOCK, ["box", "model"])
            times["list of layers, ms"] = frame.evaluate(_CLOCK, ["box", "layers"])
            folded = frame.locator(".thing.box:not(.open) > .label >> text=/^0-[0-9]+$/")
            if folded.count():
                label = folded.first.text_content()
                times["folded layers, ms"] = frame.evaluate(_CLOCK, ["box", label])
                times["a layer, ms"] = frame.evaluate(_CLOCK, ["box", "0"])
                times["all layers, ms"] = frame.evaluate(_CLOCK, ["turn", None])
            times["one of all layers, ms"] = frame.evaluate(_CLOCK, ["box", "7"])
            found[run] = times
    return found


def start_ms(logdir: Path, tab: str) -> float:
    """Return the milliseconds from the start of TensorBoard to its answer about plugins."""
    begun = time.perf_counter()
    command = [sys.executable, "-c", _START, tab, "--logdir", str(logdir), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        url = next(
            one[1] for line in process.stderr if (one := re.search(r"at (http://\S+?)/? ", line))
        )
        with urllib.request.urlopen(f"{url}/data/plugins_listing") as answer:
            listed = answer.read()
        assert (b"tbscope" in listed) is (tab == "with")
        return 1000 * (time.perf_counter() - begun)
    finally:
        process.terminate()
        process.communicate()


def main() -> None:
    """Print the sheet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tab", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each")
    parser.add_argument("--quick", action="store_true", help="leave the largest graph out")
    options = parser.parse_args()
    chosen = {name: layers for name, layers in LAYERS.items() if not options.quick or layers < 500}
    with tempfile.TemporaryDirectory() as folder:
        logdir = Path(folder)
        with tbscope.SummaryWriter(logdir / "empty") as writer:
            writer.add_graph(torch.nn.ReLU(), torch.ones(1))
        nodes = {name: write_llama(logdir / name, layers) for name, layers in chosen.items()}
        rounds = [measure_views(logdir, list(chosen)) for _ in range(options.rounds)]
        starts: dict[str, list[float]] = {"with": [], "without": []}
        for _ in range(options.rounds):
            for tab, found in starts.items():
                found.append(start_ms(logdir / "empty", tab))
    print(f"| nodes of the graph | {' | '.join(f'{count:,}' for count in nodes.values())} |")
    keys = dict.fromkeys(key for name in chosen for key in rounds[0][name])
    for key in keys:
        cells = []
        for name in chosen:
            several = [one[name][key] for one in rounds if key in one[name]]
            cells.append(f"{statistics.median(several):,.0f}" if several else "")
        print(f"| {key} | {' | '.join(cells)} |")
    for tab, several in starts.items():
        print(f"start of TensorBoard {tab} the tab: {statistics.median(several):,.0f} ms")


if __name__ == "__main__":
    main()
