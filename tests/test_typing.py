"""What a type checker tells of the public names, as their users see them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from versions import TORCH, needs_torch

import tbscope

ROOT = Path(__file__).parents[1]

# Each line holds by itself; a type that becomes Any, or another, is an error of its line.
GOOD = """
from typing import Any, assert_type
import torch, torch.utils.tensorboard
from torch import nn
import tbscope
from tbscope.analysis.costs import Costs
from tbscope.api.watch import Watched
from tbscope.comparison.api import Checked
from tbscope.comparison.changes import Change
from tbscope.comparison.difference import Difference
from tbscope.ir.graph import Call, Collective, MeshDimension, Node, Note, Output, Sharding
from tbscope.ir.scopes import ScopePart
from tbscope.rules.linter import Finding
from tbscope.sources.compiled.results import CompiledGraphs, GraphBreak
from tbscope.sources.logs.reading import LoggedGraph
from tbscope.sources.onnx.export.functions import Regrouped
model, x = nn.Linear(2, 3), torch.rand(1, 2)

with tbscope.SummaryWriter("runs/x") as w:
    assert_type(w, tbscope.SummaryWriter)
    assert_type(w.add_graph(model, x), tbscope.Graph)
    assert_type(w.add_graph(model, x, True, False, tag="a", level="op"), tbscope.Graph)
    assert_type(w.add_overlay("flops", w.add_graph(model)), None)
    assert_type(w.add_scalars("loss", {"a": 1.0, "b": torch.ones(1)}, 3), None)
    assert_type(w.flush(), None)
    assert_type(w.close(), None)
    w.add_scalar("loss", 1.0, 0)
    w.add_text("note", "x")

class Own(tbscope.SummaryWriter):
    def more(self) -> int:
        return 3

with Own(log_dir="runs/x", purge_step=3, filename_suffix=".x") as own:
    assert_type(own, Own)
    assert_type(own.more(), int)

torchs: torch.utils.tensorboard.SummaryWriter = own
assert_type(tbscope.add_graph(torchs, model, x, on_error="warn"), tbscope.Graph)
graph = tbscope.trace(model, x, kwargs={"y": 1}, training=None, fake=True, profile=3)
assert_type(graph, tbscope.Graph)
assert_type(tbscope.add_overlay(w, "mine", graph, {"fc": 1, graph.nodes[0]: 2.5}), None)
assert_type(tbscope.add_overlay(w, "mine", graph, lambda node: len(node.kernels)), None)
assert_type(graph.nodes, list[Node])
assert_type(graph.calls, list[Call])
assert_type(graph.notes, list[Note])
assert_type(graph.outputs, list[Output])
assert_type(graph.summary().rows, list[dict[str, Any]])
assert_type(graph.find_calls("fc"), list[Call])
with tbscope.fake_world(8, rank=3, mesh={"dp": 2, "tp": 4}):
    assert_type(graph.mesh, tuple[MeshDimension, ...])
assert_type(graph.nodes[0].collective, Collective | None)
assert_type(graph.nodes[0].outputs[0].sharding, Sharding | None)
assert_type(tbscope.costs(graph).total, Costs)
assert_type(tbscope.from_export("model.pt2", trusted=True), tbscope.Graph)
assert_type(tbscope.from_fx(torch.fx.symbolic_trace(torch.nn.ReLU())), tbscope.Graph)
assert_type(tbscope.load("model.pt2"), tbscope.Graph)
assert_type(tbscope.merge_ranks([graph, graph], unfolded=True), tbscope.Graph)
tbscope.trace(model, x, world_size=8, rank=1, mesh={"dp": 8}, parallelize=lambda m, mesh: None)
assert_type(tbscope.add_graph(None, model, x, ranks=[0, 8], ranks_timeout=5), tbscope.Graph)
assert_type(tbscope.costs(graph).nodes, dict[Node, Costs])
assert_type(tbscope.costs(graph).scopes, dict[tbscope.Scope, Costs])
assert_type(tbscope.Scope.parse("Net/Linear[fc]"), tuple[ScopePart, ...])
assert_type(tbscope.lint(tbscope.to_graph_def(graph)), list[Finding])
assert_type(graph.verify(), None)
assert_type(tbscope.from_export(torch.export.export(model, (x,))), tbscope.Graph)
assert_type(tbscope.from_fx(torch.fx.symbolic_trace(model), x), tbscope.Graph)
assert_type(tbscope.load("model.pt2"), tbscope.Graph)
compiled = tbscope.compile_graphs(model, x, kwargs={"y": 1})
assert_type(compiled, CompiledGraphs)
assert_type(compiled["0 Linear.forward"], tbscope.Graph)
assert_type(compiled.overview, tbscope.Graph)
assert_type(compiled.breaks, tuple[GraphBreak, ...])
backend = tbscope.compile_backend("eager")
assert_type(backend, tbscope.compile_backend)
assert_type(backend.graphs, CompiledGraphs)
torch.compile(model, backend=backend)
assert_type(w.add_graph(compiled), tbscope.Graph)
assert_type(tbscope.from_onnx("model.onnx"), tbscope.Graph)
assert_type(tbscope.from_torchscript("model.pt", x), tbscope.Graph)
assert_type(w.add_onnx_graph("model.onnx"), tbscope.Graph)
regrouped = tbscope.modules_to_functions("model.onnx", {nn.Linear, "layers.*"}, record=graph)
assert_type(regrouped, Regrouped)
assert_type(tbscope.export_onnx(model, x, {"y": 1}, "m.onnx", modules=nn.Linear), Regrouped)
assert_type(tbscope.modules_to_functions(w, ["*.fc"]).left, list[str])
assert_type(tbscope.from_graph_def("graph.pb"), tbscope.Graph)
assert_type(tbscope.from_graph_def(tbscope.to_graph_def(graph)), tbscope.Graph)
assert_type(tbscope.read_log("runs/x"), list[LoggedGraph])
assert_type(tbscope.read_log("runs/x")[0].graph, tbscope.Graph)
assert_type(tbscope.read_log("runs/x")[0].tag, str | None)
assert_type(graph.save("graph.json"), None)
assert_type(graph.save("graph.svg", depth=2, style="torch"), None)
difference = tbscope.diff("before.json", model, x, fake=True)
assert_type(difference, Difference)
assert_type(difference.added, list[Change])
assert_type(difference.graph, tbscope.Graph)
assert_type(w.add_graph(difference, tag="difference"), tbscope.Graph)
checked = tbscope.check(model, x, pin="net.json", max_parameters="25M", no_op=["view"])
assert_type(checked, Checked)
assert_type(checked.failures, tuple[str, ...])
assert_type(tbscope.push_scope("part"), None)
assert_type(tbscope.pop_scope(), None)
assert_type(tbscope.__version__, str)
assert_type(own.watch(model, every=3), Watched)
assert_type(tbscope.watch(torchs, model), Watched)
assert_type(tbscope.install(on_error="warn", style="torch"), None)
assert_type(tbscope.uninstall(), None)
with tbscope.installed(level="module"):
    pass
with tbscope.record() as recording:
    assert_type(recording, tbscope.record)
    with tbscope.scope("part"):
        pass
assert_type(recording.graph, tbscope.Graph)
drawing: tbscope.Drawing = {"style": "torch", "root": True, "keep": ["view"]}
w.add_graph(graph, **drawing)
try:
    pass
except tbscope.WriterError as error:
    assert_type((error.what, error.why, error.fix), tuple[str, str, str])
"""

# Each line is one error, of the kind beside it.
BAD = """
import tbscope, torch
graph = tbscope.trace(torch.nn.ReLU(), torch.ones(1))
w = tbscope.SummaryWriter()
w.add_graph(graph, step="3")                     # arg-type
w.add_graph(graph, levels="op")                  # call-arg
w.add_graph(graph, level="kernel")               # arg-type
w.add_graph(graph, on_error="ignore")            # arg-type
w.add_overlay("flops")                           # call-arg
tbscope.trace(torch.nn.ReLU(), training="eval")  # arg-type
tbscope.costs(torch.nn.ReLU())                   # arg-type
tbscope.check(graph, max_flops=4.5)              # arg-type
tbscope.install(on_error="ignore")               # arg-type
tbscope.installed(levels="op")                   # call-arg
tbscope.compile_backend(3)                       # arg-type
tbscope.Scope.parse(3)                           # arg-type
graph.sumary()                                   # attr-defined
tbscope.add_grahp                                # attr-defined
drawing: tbscope.Drawing = {"style": "keras"}    # typeddict-item
"""


def check(tmp_path, code):
    """Give what mypy, at its strictest, tells of a file: the number and the kind of each line."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(code)
    # As strict as for tbscope itself, whose check has read torch already.
    flags = [f"--config-file={ROOT / 'setup.cfg'}", f"--cache-dir={ROOT / '.mypy_cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *flags, "user.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    if TORCH < (2, 13):
        # Files of ours, that an older torch gives fewer types, are not the user's to check.
        errors = [line for line in errors if line.startswith("user.py:")]
    lines = re.findall(r"^user\.py:(\d+): error: .*\[([a-z-]+)\]$", "\n".join(errors), re.MULTILINE)
    assert len(lines) == len(errors), done.stdout
    return [(int(number), kind) for number, kind in lines]


@needs_torch(2, 10, reason="its writer has types of its own")
def test_every_public_name_has_the_type_that_its_user_expects(tmp_path):
    assert check(tmp_path, GOOD) == []


def test_what_is_wrong_is_an_error_of_the_type_checker(tmp_path):
    lines = list(enumerate(BAD.splitlines(), 1))
    assert check(tmp_path, BAD) == [(n, line.split("# ")[1]) for n, line in lines if "# " in line]


def test_a_type_checker_is_told_that_the_package_has_types():
    assert (Path(tbscope.__file__).parent / "py.typed").exists()
    assert "tbscope = py.typed" in (ROOT / "setup.cfg").read_text().splitlines()


@pytest.mark.parametrize("name", [name for name in tbscope.__all__ if name[0].islower()])
def test_every_public_function_is_checked_here(name):
    assert f"tbscope.{name}(" in GOOD
