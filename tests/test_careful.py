"""A recorder whose own errors reach no training: each is told once, and the code goes on."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import tbscope
from tbscope.sources.eager.record.nonfatal import NonfatalRecorder
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.module_calls import watched_call

WATCH = Path(tbscope.__file__).parent / "sources" / "eager" / "watch"


@pytest.fixture
def told():
    return []


@pytest.fixture
def recorder(told):
    return NonfatalRecorder("step", boundary=watched_call, open_ended=True, failed=told.append)


def test_whatever_tells_a_recorder_while_code_runs_tells_it_with_care():
    code = "".join(path.read_text(encoding="utf-8") for path in WATCH.glob("*.py"))
    names = {
        name
        for name in re.findall(r"recorder\.(\w+)\(", code)
        if inspect.isfunction(getattr(Recorder, name, None))
    }
    assert {"add_operation", "swapping", "about_to_write", "function"} <= names
    # This one is asked where others stand in for tensors, which is so in no training.
    careless = {
        each for each in names if getattr(NonfatalRecorder, each) is getattr(Recorder, each)
    }
    assert careless == {"is_known"}


def test_of_several_errors_the_first_is_told_and_the_recorder_looks_away(recorder, told):
    assert recorder.add_kernel("wrong") is None
    assert recorder.add_read("wrong", "too", "and too") is None
    (error,) = told
    assert isinstance(error, TypeError)
    assert recorder.paused


def test_of_a_call_that_cannot_be_left_the_result_goes_on(recorder, told):
    assert recorder.leave_call(None, (1,), {}, "result") == "result"
    assert len(told) == 1


def test_the_error_of_the_code_in_a_block_is_the_codes_own(recorder, told):
    with pytest.raises(KeyError), recorder.function("body"):
        raise KeyError
    with pytest.raises(KeyError), recorder.outside_step():
        raise KeyError
    assert told == []


def test_a_function_is_run_though_nothing_of_it_can_be_recorded(recorder, told):
    recorder.operations = None
    with recorder.function("body") as gave:
        gave(3)
    assert len(told) == 1


def test_a_function_is_run_though_what_it_gave_cannot_be_recorded(recorder, told):
    # An operation that runs, of which nothing else is known.
    recorder.operations.running = SimpleNamespace()
    with recorder.function("body") as gave:
        gave(3)
    assert [type(error) for error in told] == [AttributeError]


def test_a_block_that_began_is_ended(recorder, told):
    with recorder.function("body"):
        assert recorder.scopes.running.blocks
    assert not recorder.scopes.running.blocks
    assert told == []
