"""A recorder whose own errors reach no training: each is told once, and the code goes on."""

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import tbscope
from tbscope.sources.eager.record.events import Events
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.module_calls import watched_call

WATCH = Path(tbscope.__file__).parent / "sources" / "eager" / "watch"


@pytest.fixture
def told():
    return []


@pytest.fixture
def recorder(told):
    return Recorder("step", boundary=watched_call, open_ended=True, failed=told.append)


def test_sources_report_to_a_recorder_by_its_events_alone():
    code = "".join(path.read_text(encoding="utf-8") for path in WATCH.glob("*.py"))
    assert not re.findall(r"recorder\.(\w+)\(", code)
    names = {event.name for event in fields(Events)}
    reported = {*re.findall(r"recorder\.events\.(\w+)", code)}
    assert {"operation_ended", "tensors_swapped", "about_to_write", "function_runs"} <= reported
    # User scopes are reported by `tbscope.scope`.
    assert reported == names - {"scope_opened", "scope_closed"}


def test_a_recorder_that_is_suspended_twice_records_again_after_the_outer_block(recorder):
    with recorder.suspend():
        with recorder.suspend():
            pass
        assert recorder.suspended
    assert not recorder.suspended


def test_each_event_has_its_guard(recorder):
    for event in fields(Events):
        assert hasattr(getattr(recorder.events, event.name), "__wrapped__"), event.name


def test_of_several_errors_the_first_is_told_and_the_recorder_looks_away(recorder, told):
    assert recorder.events.kernel_ended("wrong") is None
    assert recorder.events.content_read("wrong", "too", "and too") is None
    (error,) = told
    assert isinstance(error, TypeError)
    assert recorder.suspended


def test_of_a_call_that_cannot_be_left_the_result_goes_on(recorder, told):
    assert recorder.events.call_ended(None, (1,), {}, "result") == "result"
    assert len(told) == 1


def test_the_error_of_the_code_in_a_block_is_the_codes_own(recorder, told):
    with pytest.raises(KeyError), recorder.events.function_runs("body"):
        raise KeyError
    with pytest.raises(KeyError), recorder.events.closure_runs():
        raise KeyError
    assert told == []


def test_a_function_is_run_though_nothing_of_it_can_be_recorded(recorder, told):
    recorder.flow.operations = None
    with recorder.events.function_runs("body") as gave:
        gave(3)
    assert len(told) == 1


def test_a_function_is_run_though_what_it_gave_cannot_be_recorded(recorder, told):
    # An operation that runs, of which nothing else is known.
    recorder.operations.running = SimpleNamespace()
    with recorder.events.function_runs("body") as gave:
        gave(3)
    assert [type(error) for error in told] == [AttributeError]


def test_a_block_that_began_is_ended(recorder, told):
    with recorder.events.function_runs("body"):
        assert recorder.scopes.running.blocks
    assert not recorder.scopes.running.blocks
    assert told == []
