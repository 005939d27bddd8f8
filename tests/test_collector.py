"""The garbage collector: held while a graph is drawn, and nothing is left to it."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tbscope


@pytest.fixture
def collected() -> Iterator[Callable[[Callable[[], object]], list[str]]]:
    """Run a function and return the classes of ours of which only the collector finds objects."""
    before = gc.get_debug()

    def run(function: Callable[[], object]) -> list[str]:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            function()
            gc.collect()
            kinds = [type(one) for one in gc.garbage]
        finally:
            gc.set_debug(before)
            gc.garbage.clear()
        return sorted({kind.__name__ for kind in kinds if kind.__module__.startswith("tbscope")})

    yield run
    gc.set_debug(before)


@pytest.fixture
def graph() -> tbscope.Graph:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return tbscope.trace(model, torch.rand(3, 2, 8), training=True, kernels=True)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"level": "aten"},
    {"leaves": "box"},
    {"dead": "drop", "hide": ("relu",)},
    {"color_by": "class", "style": "torch"},
]


def test_a_drawing_leaves_nothing_to_the_collector(
    graph: tbscope.Graph, collected: Callable[[Callable[[], object]], list[str]]
) -> None:
    assert collected(lambda: [tbscope.to_graph_def(graph, **how) for how in OPTIONS]) == []


def test_a_drawing_of_chunks_leaves_nothing_to_the_collector(
    collected: Callable[[Callable[[], object]], list[str]],
) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) if at % 2 else nn.ReLU() for at in range(1100)])
    graph = tbscope.trace(model, torch.rand(1, 4))
    names = [node.name for node in tbscope.to_graph_def(graph).node]
    assert "0-99/0-9_ReLU/0" in names
    assert collected(lambda: tbscope.to_graph_def(graph)) == []


def test_a_drawing_of_figures_leaves_nothing_to_the_collector(
    collected: Callable[[Callable[[], object]], list[str]], tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    graph = tbscope.trace(model, torch.rand(1, 4), profile=1)
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        assert collected(lambda: writer.add_overlay("flops", graph)) == []
        assert collected(lambda: writer.add_graph(graph, color_by="class")) == []


def test_a_circle_of_ours_would_be_found(
    graph: tbscope.Graph, collected: Callable[[Callable[[], object]], list[str]]
) -> None:
    assert "Node" in collected(graph.copy)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_after_a_drawing(graph: tbscope.Graph, enabled: bool) -> None:
    seen = []

    def label(node: object) -> str:
        seen.append(gc.isenabled())
        return "x"

    before = gc.get_threshold()
    if not enabled:
        gc.disable()
    try:
        with pytest.raises((tbscope.TbscopeError, ZeroDivisionError)):
            tbscope.to_graph_def(graph, color_by=lambda node: str(1 // 0))
        assert gc.isenabled() is enabled
        tbscope.to_graph_def(graph, color_by=label)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen
    assert not any(seen)
    assert gc.get_threshold() == before


def test_the_collector_comes_by_rarely_while_code_is_recorded() -> None:
    before = gc.get_threshold()
    with tbscope.record():
        assert gc.get_threshold()[0] == 20_000
    assert gc.get_threshold() == before


def test_what_the_recorded_code_sets_the_collector_to_stays() -> None:
    before = gc.get_threshold()
    try:
        with tbscope.record():
            gc.set_threshold(900, 9, 9)
        assert gc.get_threshold() == (900, 9, 9)
    finally:
        gc.set_threshold(*before)


def test_a_public_name_is_loaded_without_a_walk_over_the_objects_of_torch() -> None:
    code = (
        "import gc, torch, tbscope\n"
        "walks = []\n"
        "gc.callbacks.append(lambda phase, info: walks.append(info['generation']))\n"
        "tbscope.SummaryWriter\n"
        "assert max(walks, default=0) < 2 and gc.isenabled(), walks\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_collector_looks_once_at_what_was_recorded_before_the_graph_is_whole() -> None:
    looks = []

    def look(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and recording._graph is None:
            looks.append(about["generation"])

    one = torch.ones(())
    recording = tbscope.record()
    with recording:
        gc.collect()
        for _ in range(500):
            one = one + 1
        gc.callbacks.append(look)
    gc.callbacks.remove(look)
    assert looks == [1]


@pytest.mark.parametrize(("enabled", "ops"), [(True, ["add"]), (False, ["mul", "add"])])
def test_what_nothing_but_garbage_holds_is_no_output(enabled: bool, ops: list[str]) -> None:
    one = torch.ones(())
    try:
        with tbscope.record() as recording:
            if not enabled:
                gc.disable()
            cycle = [one * 2]
            cycle.append(cycle)  # type: ignore[arg-type]
            del cycle
            two = one + 1
    finally:
        gc.enable()
    assert [output.value.producer.op for output in recording.graph.outputs] == ops
    assert two == 2
