"""Records with checksums from C: the same bytes as TensorBoard's own."""

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.writer import FileWriter

from tbscope.writing.records import has_lost_its_thread, speed_up


@pytest.fixture
def event_file_writer(tmp_path):
    writer = EventFileWriter(str(tmp_path))
    yield writer
    writer.close()


def record_writer_of(event_file_writer):
    return event_file_writer._async_writer._writer


def bytes_of(directory):
    (path,) = directory.iterdir()
    return path.read_bytes()


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_records_are_the_bytes_that_tensorboard_writes(datas):
    theirs = io.BytesIO()
    for data in datas:
        RecordWriter(theirs).write(data)
    writer = EventFileWriter.__new__(EventFileWriter)
    ours = io.BytesIO()
    writer._async_writer = type("Async", (), {"_writer": RecordWriter(ours)})()
    assert speed_up(writer)
    for data in datas:
        record_writer_of(writer).write(data)
    assert ours.getvalue() == theirs.getvalue()


def test_a_file_is_the_same_with_and_without_the_speed_up(tmp_path):
    written = []
    for name in ("theirs", "ours"):
        writer = EventFileWriter(str(tmp_path / name))
        header = len(bytes_of(tmp_path / name))
        assert name == "theirs" or speed_up(writer)
        for step in range(20):
            writer.add_event(Event(step=step, wall_time=1.5, graph_def=b"graph" * step * step))
        writer.close()
        written.append(bytes_of(tmp_path / name)[header:])
    assert written[0] == written[1]
    assert len(written[0]) > 10_000


def test_tensorboard_reads_what_was_written_faster(tmp_path):
    writer = FileWriter(tmp_path)
    assert speed_up(writer)
    writer.add_event(Event(graph_def=bytes(range(256)) * 1000))
    writer.close()
    (path,) = tmp_path.iterdir()
    *_, event = LegacyEventFileLoader(str(path)).Load()
    assert event.graph_def == bytes(range(256)) * 1000


def test_a_writer_made_faster_twice_is_the_same_writer(event_file_writer):
    assert speed_up(event_file_writer)
    write = record_writer_of(event_file_writer).write
    assert speed_up(event_file_writer)
    assert record_writer_of(event_file_writer).write is write


def test_other_objects_stay_as_they_are():
    for other in (None, object(), io.BytesIO(), "runs"):
        assert not speed_up(other)
        assert not has_lost_its_thread(other)


def test_a_record_writer_of_another_class_stays_as_it_is(event_file_writer):
    class LaterRecordWriter(RecordWriter):
        pass

    later = LaterRecordWriter(io.BytesIO())
    event_file_writer._async_writer._writer = later
    assert not speed_up(event_file_writer)
    assert "write" not in vars(later)


@pytest.mark.parametrize("gone", ["_async_writer", "_async_writer._writer", "_writer"])
def test_without_the_private_names_tensorboards_own_writer_is_kept(event_file_writer, gone):
    async_writer = event_file_writer._async_writer
    record_writer = async_writer._writer
    holder, name = {
        "_async_writer": (event_file_writer, "_async_writer"),
        "_async_writer._writer": (async_writer, "_writer"),
        "_writer": (record_writer, "_writer"),
    }[gone]
    kept = vars(holder).pop(name)
    assert not speed_up(event_file_writer)
    assert "write" not in vars(record_writer)
    setattr(holder, name, kept)


def test_a_writer_with_its_thread_has_not_lost_it(event_file_writer):
    assert not has_lost_its_thread(event_file_writer)
    event_file_writer.close()
    assert not has_lost_its_thread(event_file_writer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_writer_has_lost_its_thread_in_a_forked_process(event_file_writer):
    child = os.fork()
    if not child:
        os._exit(17 if has_lost_its_thread(event_file_writer) else 18)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
