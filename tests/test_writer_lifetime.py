"""How long a writer lives: dropped, at the exit of the interpreter, and across a fork."""

import gc
import os
import textwrap
import threading
import types

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tbscope.writer import SummaryWriter
from tests.warm import run_warm


def reader_of(path):
    return EventAccumulator(str(path)).Reload()


def run_script(code, *arguments, **environment):
    """Run code in a process of its own, with `model` and `x` at hand."""
    head = "import os, sys, torch, tbscope\nfrom torch import nn\n"
    head += "model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), torch.zeros(2, 3)\n"
    done = run_warm("-c", head + textwrap.dedent(code), *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def test_a_writer_that_is_dropped_closes_its_file(tmp_path):
    threads = threading.active_count()
    writer = SummaryWriter(tmp_path, max_queue=100, flush_secs=1000)
    for step in range(50):
        writer.add_scalar("loss", 1.0, step)
    del writer
    assert threading.active_count() == threads
    assert len(reader_of(tmp_path).Scalars("loss")) == 50


def test_a_writer_in_a_circle_is_closed_by_any_thread(tmp_path):
    # A browser of earlier tests has threads that run on.
    before = threading.enumerate()
    holder = types.SimpleNamespace(writer=SummaryWriter(tmp_path))
    holder.writer.owner = holder
    holder.writer.add_scalar("loss", 1.0)
    del holder
    collecting = threading.Thread(target=gc.collect)
    collecting.start()
    collecting.join()
    for thread in threading.enumerate():
        if thread not in before and not thread.daemon:
            thread.join()
    assert reader_of(tmp_path).Scalars("loss")


@pytest.mark.parametrize(
    "module", ["tbscope", "torch.utils.tensorboard", "tensorboardX"], ids=lambda name: name
)
def test_without_close_the_graph_is_on_disk_at_exit(tmp_path, module):
    code = f"""
    import {module}
    writer = {module}.SummaryWriter(sys.argv[1], flush_secs=1000)
    tbscope.add_graph(writer, model, x)
    """
    run_script(code, tmp_path)
    names = {node.name for node in reader_of(tmp_path).Graph().node}
    assert names > {"0", "0/weight", "1"}


def test_without_close_all_scalars_are_on_disk_at_exit(tmp_path):
    code = """
    writer = tbscope.SummaryWriter(sys.argv[1], max_queue=1000, flush_secs=1000)
    for step in range(200):
        writer.add_scalar("loss", 1.0, step)
    """
    run_script(code, tmp_path)
    assert len(reader_of(tmp_path).Scalars("loss")) == 200


@pytest.mark.parametrize("ending", ["", "del writer", "writer.close()"])
def test_without_close_all_scalars_of_a_group_are_on_disk(tmp_path, ending):
    code = f"""
    writer = tbscope.SummaryWriter(sys.argv[1], max_queue=1000, flush_secs=1000)
    for step in range(200):
        writer.add_scalars("loss", dict(a=step, b=-step), step)
    {ending}
    """
    run_script(code, tmp_path)
    for name, sign in (("a", 1), ("b", -1)):
        found = reader_of(tmp_path / f"loss_{name}").Scalars("loss")
        assert [event.value for event in found] == [sign * step for step in range(200)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_writes_a_file_of_its_own(tmp_path):
    code = """
    writer = tbscope.SummaryWriter(sys.argv[1], max_queue=100, flush_secs=1000)
    def draw():
        writer.add_graph(model, x)
    draw()
    child = os.fork()
    writer.add_scalar("who", child > 0)
    if child:
        assert os.waitpid(child, 0)[1] == 0
    else:
        draw()
    """
    run_script(code, tmp_path)
    parents, childs = sorted(
        (reader_of(path) for path in tmp_path.iterdir()),
        key=lambda reader: -reader.Scalars("who")[0].value,
    )
    assert [event.value for event in parents.Scalars("who")] == [1.0]
    assert [event.value for event in childs.Scalars("who")] == [0.0]
    assert parents.Graph() == childs.Graph()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("ending", ["sys.exit()", "writer.close()", "writer.flush()", "del writer"])
def test_a_forked_process_leaves_the_file_of_its_parent_alone(tmp_path, ending):
    code = f"""
    writer = tbscope.SummaryWriter(sys.argv[1], max_queue=100, flush_secs=1000)
    for step in range(50):
        writer.add_scalar("loss", 1.0, step)
    if not os.fork():
        {ending}
        sys.exit()
    assert os.wait()[1] == 0
    writer.add_graph(model, x)
    """
    run_script(code, tmp_path)
    (path,) = tmp_path.iterdir()
    reader = reader_of(path)
    assert [event.step for event in reader.Scalars("loss")] == list(range(50))
    assert reader.Graph().node


def test_two_processes_write_the_same_bytes(tmp_path):
    code = "tbscope.SummaryWriter(sys.argv[1]).add_graph(model, x)"
    for seed in ("1", "2"):
        run_script(code, tmp_path / seed, PYTHONHASHSEED=seed)
    first, second = (reader_of(tmp_path / seed).Graph() for seed in ("1", "2"))
    assert first.SerializeToString() == second.SerializeToString()
