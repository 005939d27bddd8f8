"""`install`: code that calls `add_graph` of torch's or tensorboardX's writer draws our graphs."""

import functools
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorboardX
import torch
from cli_runs import graphs_in
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import tbscope

MODEL, X = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.ones(2, 3)
WRITERS = [SummaryWriter, tensorboardX.SummaryWriter]
THEIRS = {writer: writer.add_graph for writer in WRITERS}
FINDERS = list(sys.meta_path)

every_writer = pytest.mark.parametrize("writer", WRITERS, ids=lambda each: each.__module__)


@pytest.fixture(autouse=True)
def leave_theirs():
    yield
    tbscope.uninstall()
    assert {writer: writer.add_graph for writer in WRITERS} == THEIRS
    assert sys.meta_path == FINDERS


def drawn(writer, folder, *arguments, **options):
    """Draw by a writer's own method, and give the names in the graph that is in its log."""
    with writer(str(folder)) as opened:
        opened.add_graph(MODEL, X, *arguments, **options)
    (graph,) = graphs_in(folder)
    return {node.name for node in graph.node}


def run_script(code, *arguments):
    """Run code in a process of its own, which has imported nothing yet."""
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", code, *map(str, arguments)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, check=True)


@every_writer
def test_a_writer_draws_ours_until_it_is_uninstalled(writer, tmp_path):
    tbscope.install()
    assert drawn(writer, tmp_path / "ours") >= {"0", "0/weight", "1"}
    tbscope.uninstall()
    assert writer.add_graph is THEIRS[writer]
    assert "0/weight" not in drawn(writer, tmp_path / "theirs")


def test_another_time_is_as_one_and_one_uninstall_ends_both():
    tbscope.install()
    ours = SummaryWriter.add_graph
    tbscope.install()
    assert SummaryWriter.add_graph is ours is not THEIRS[SummaryWriter]
    assert len(sys.meta_path) == len(FINDERS) + 1
    tbscope.uninstall()
    tbscope.uninstall()
    assert SummaryWriter.add_graph is THEIRS[SummaryWriter]


def test_a_block_ends_what_it_began_and_leaves_what_stood():
    with tbscope.installed():
        assert SummaryWriter.add_graph is not THEIRS[SummaryWriter]
    assert SummaryWriter.add_graph is THEIRS[SummaryWriter]
    tbscope.install()
    with pytest.raises(KeyError), tbscope.installed():
        raise KeyError
    assert SummaryWriter.add_graph is not THEIRS[SummaryWriter]


def test_blocks_of_two_threads_end_when_the_last_one_does():
    began, may_end = threading.Event(), threading.Event()

    def hold():
        with tbscope.installed():
            began.set()
            may_end.wait(60)

    other = threading.Thread(target=hold, daemon=True)
    with tbscope.installed():
        other.start()
        began.wait(60)
    still = SummaryWriter.add_graph
    may_end.set()
    other.join()
    assert still is not THEIRS[SummaryWriter]
    assert SummaryWriter.add_graph is THEIRS[SummaryWriter]


def test_threads_that_install_at_once_leave_one_of_ours_and_no_trace_of_it():
    def turn():
        for _ in range(50):
            tbscope.install()
            with tbscope.installed():
                tbscope.uninstall()

    threads = [threading.Thread(target=turn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {writer: writer.add_graph for writer in WRITERS} == THEIRS
    assert sys.meta_path == FINDERS


@every_writer
def test_the_signature_and_the_documentation_are_theirs(writer):
    tbscope.install()
    assert writer.add_graph is not THEIRS[writer]
    assert inspect.signature(writer.add_graph) == inspect.signature(THEIRS[writer])
    assert writer.add_graph.__doc__ == THEIRS[writer].__doc__


@every_writer
def test_what_their_calls_give_is_taken(writer, tmp_path, capsys):
    tbscope.install()
    assert drawn(writer, tmp_path, True, use_strict_trace=False) >= {"0", "1"}
    assert capsys.readouterr().out.startswith("graph(%input : Float(2, 3)):")


def test_how_graphs_are_drawn_may_be_told_at_once_and_by_each_call(tmp_path):
    tbscope.install(style="torch")
    assert drawn(SummaryWriter, tmp_path / "a") >= {"Sequential/Linear[0]"}
    assert drawn(SummaryWriter, tmp_path / "b", style="tf") >= {"0"}
    with tbscope.installed(root=True):
        assert drawn(SummaryWriter, tmp_path / "c") >= {"Sequential/0"}
    tbscope.install()
    assert drawn(SummaryWriter, tmp_path / "d") >= {"0"}


def test_of_blocks_inside_each_other_the_inner_one_tells_how_graphs_are_drawn(tmp_path):
    with tbscope.installed(style="torch"), tbscope.installed(style="tf"):
        tbscope.install(style="torch")
        assert drawn(SummaryWriter, tmp_path) >= {"0"}


def test_an_error_is_raised_as_theirs_is_or_warned_of(tmp_path):
    wrong = torch.ones(2, 7)
    with SummaryWriter(str(tmp_path)) as writer:
        with tbscope.installed(), pytest.raises(tbscope.TraceError):
            writer.add_graph(MODEL, wrong)
        with tbscope.installed(on_error="warn"), pytest.warns(UserWarning, match="no graph"):
            writer.add_graph(MODEL, wrong)


def test_a_class_with_an_add_graph_of_its_own_keeps_it(tmp_path):
    class Silent(SummaryWriter):
        def add_graph(self, model):
            return "its own"

    class Around(SummaryWriter):
        def add_graph(self, *arguments):
            return super().add_graph(*arguments)

    tbscope.install()
    with Silent(str(tmp_path / "silent")) as writer:
        assert writer.add_graph(MODEL) == "its own"
    assert drawn(Around, tmp_path / "around") >= {"0", "1"}
    assert drawn(tbscope.SummaryWriter, tmp_path / "tbscope") >= {"0", "1"}


def test_what_somebody_puts_around_ours_stays_and_reaches_theirs(tmp_path, monkeypatch):
    tbscope.install()
    ours = SummaryWriter.add_graph

    @functools.wraps(ours)
    def around(*arguments):
        return ours(*arguments)

    SummaryWriter.add_graph = around
    tbscope.uninstall()
    assert SummaryWriter.add_graph is around
    assert "0/weight" not in drawn(SummaryWriter, tmp_path / "theirs")
    tbscope.install()
    assert SummaryWriter.add_graph is around
    assert "0/weight" in drawn(SummaryWriter, tmp_path / "ours")
    SummaryWriter.add_graph = ours


def test_theirs_that_somebody_has_put_back_is_replaced_again():
    tbscope.install()
    SummaryWriter.add_graph = THEIRS[SummaryWriter]
    tbscope.install()
    assert SummaryWriter.add_graph is not THEIRS[SummaryWriter]


LATER = """
import sys, torch, tbscope
tbscope.install()
assert not {names} & set(sys.modules), names
import {module} as library
writer = library.SummaryWriter(sys.argv[1])
writer.add_graph(torch.nn.ReLU(), torch.ones(1))
writer.close()
home = sys.modules[library.SummaryWriter.__module__]
assert type(home.__loader__).__name__ == type(home.__spec__.loader).__name__ == "SourceFileLoader"
tbscope.uninstall()
assert library.SummaryWriter.add_graph.__module__ == home.__name__
assert not hasattr(library.SummaryWriter.add_graph, "__wrapped__")
"""


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_writer_that_is_imported_later_draws_ours_too(module, tmp_path):
    names = {"tensorboardX", "torch.utils.tensorboard.writer"}
    run_script(LATER.format(module=module, names=names), tmp_path)
    (graph,) = graphs_in(tmp_path)
    assert "ReLU" in {node.op for node in graph.node}


def test_nothing_heavy_is_imported_to_install():
    run_script("import sys, tbscope; tbscope.install(); assert 'torch' not in sys.modules")


def test_a_writer_that_is_imported_after_all_is_over_is_theirs():
    run_script(
        "import tbscope; tbscope.install(); tbscope.uninstall(); import tensorboardX\n"
        "assert not hasattr(tensorboardX.SummaryWriter.add_graph, '__wrapped__')"
    )


ENDS = """
import sys, tbscope
class Ends:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "tensorboardX.summary":
            assert "tensorboardX.writer" in sys.modules
            tbscope.uninstall()
sys.meta_path.insert(0, Ends)
tbscope.install()
import tensorboardX
assert not hasattr(tensorboardX.SummaryWriter.add_graph, "__wrapped__")
"""


def test_a_writer_whose_import_ends_after_all_is_over_is_theirs():
    run_script(ENDS)
