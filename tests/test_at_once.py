"""The graph is on disk at once, whichever writer takes it, and however it writes."""

import contextlib
import io
import os
import shutil

import pytest
from log_writers import ELSEWHERE, FILES, MAKERS, MODEL, X, read, run_script
from tensorboard.summary.writer.event_file_writer import EventFileWriter

import tbscope


@pytest.mark.parametrize("name", [name for name in FILES if name not in MAKERS])
def test_a_file_writer_that_is_closed_is_told_of(tmp_path, name):
    writer = FILES[name](str(tmp_path))
    writer.close()
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(writer, MODEL, X)
    assert raised.value.fix == "make a new writer: writer = tbscope.SummaryWriter(log_dir)"
    assert "closed" in raised.value.why


@pytest.mark.parametrize("name", FILES)
def test_the_graph_is_on_disk_when_add_graph_returns(tmp_path, name):
    writer = FILES[name](str(tmp_path))
    for tag in range(20):
        tbscope.add_graph(writer, MODEL, X, tag=str(tag))
        assert f"{tag} " in read(tmp_path).Tags()["tensors"]
    writer.close()


@pytest.mark.parametrize("name", MAKERS)
def test_a_writer_that_was_closed_and_is_used_again_loses_nothing(tmp_path, name):
    writer = MAKERS[name](str(tmp_path))
    for step in range(3):
        writer.add_scalar("loss", step, step)
        writer.close()
        tbscope.add_graph(writer, MODEL, X, tag=f"at {step}")
        assert f"at {step} " in read(tmp_path).Tags()["tensors"]
    writer.close()
    # Files of one second are read in the order of their numbers as texts: 10 before 9.
    assert sorted(event.step for event in read(tmp_path).Scalars("loss")) == [0, 1, 2]
    assert sorted(read(tmp_path).Tags()["tensors"]) == ["at 0 ", "at 1 ", "at 2 "]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_graph_that_fails_at_the_flush_alone_is_told_of(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    file = io.BufferedWriter(io.FileIO("/dev/full", "w"))
    try:
        # Such a file as TensorFlow's, which takes all and writes it at the flush.
        writer._async_writer._writer._writer = file
        with pytest.raises(tbscope.WriterError, match="No space left on device"):
            tbscope.add_graph(writer, MODEL, X)
    finally:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(ValueError):
            writer.close()


class Refusing:
    """Takes no events, in a way of its own."""

    def add_event(self, _event):
        raise KeyError("no room")


def test_the_error_of_a_writer_of_ones_own_is_told():
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(Refusing(), MODEL, X)
    assert str(raised.value) == (
        f"cannot write to the writer's log\n  why: KeyError: 'no room'\n  fix: {ELSEWHERE}"
    )
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("name", ["ours", "torch", "tensorboardX"])
def test_a_log_that_was_removed_takes_other_kinds_under_its_tags(tmp_path, name):
    graph = tbscope.trace(MODEL, X)
    with MAKERS[name](str(tmp_path / "log")) as writer:
        tbscope.add_graph(writer, graph, tag="net", step=7)
        with pytest.raises(tbscope.ArgumentError, match="cannot have"):
            tbscope.add_overlay(writer, "net", graph, "calls")
    shutil.rmtree(tmp_path / "log")
    with MAKERS[name](str(tmp_path / "log"), filename_suffix=".2") as writer:
        tbscope.add_overlay(writer, "net", graph, "calls", step=0)
    assert read(tmp_path / "log").Tags()["tensors"] == ["net "]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_writer_of_tensorboardx_is_refused_in_a_forked_process(tmp_path):
    code = """
    writer = tensorboardX.SummaryWriter(sys.argv[1])
    for step in range(2):
        writer.add_scalar("loss", step, step)
    if not os.fork():
        try:
            tbscope.add_graph(writer, small, x)
        except tbscope.WriterError as error:
            print(error.what, flush=True)
        os._exit(0)
    os.wait()
    tbscope.add_graph(writer, small, x, tag="parent")
    writer.close()
    """
    done = run_script(code, tmp_path)
    said = "cannot write a graph to the FileWriter of another process"
    assert (done.stdout, done.stderr) == (f"{said}\n", "")
    assert [event.step for event in read(tmp_path).Scalars("loss")] == [0, 1]
    assert set(read(tmp_path).Tags()["tensors"]) == {"parent "}


def test_a_writer_whose_file_cannot_be_closed_begins_another(tmp_path):
    writer = tbscope.SummaryWriter(tmp_path)
    records = writer.file_writer.event_writer._async_writer._writer

    def flush():
        raise OSError(5, "Input/output error")

    records.flush = flush
    with pytest.raises(OSError, match="Input/output error"):
        writer.close()
    # Its thread is there still, and flushes every two minutes.
    del records.flush
    writer.add_scalar("loss", 1, 0)
    writer.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert read(tmp_path).Scalars("loss")
