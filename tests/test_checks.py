"""Checks that options share, and what the user's own functions and mappings may do."""

import pytest
import torch
from bad_values import GRAPH, Lookup, MuteError

import tbscope
from tbscope.utils.validation import (
    ask,
    check_truth,
    entries_of,
    is_text,
    is_word,
    names_of,
    plain_text,
)


def test_a_truth_is_a_truth():
    check_truth("grad", True)
    check_truth("grad", False)
    check_truth("training", None, none="as it is")
    for wrong in (None, 0, 1, "no"):
        with pytest.raises(tbscope.ArgumentError) as caught:
            check_truth("grad", wrong)
        assert caught.value.what == f"grad={wrong!r} is no answer to yes or no"
    with pytest.raises(tbscope.ArgumentError, match="None for as it is"):
        check_truth("training", "eval", none="as it is")


def test_texts_are_words_or_what_a_file_can_hold():
    assert is_word("tf", ("tf", "torch"))
    assert not is_word("ft", ("tf", "torch"))
    assert not is_word(0, (0, "tf"))
    assert is_text("a\0b")
    assert not is_text("a\ud800b")
    assert not is_text(b"a")
    assert plain_text("a") == "a"
    assert plain_text(None) is None


@pytest.mark.parametrize("error", [KeyError("x"), MuteError()], ids=["KeyError", "MuteError"])
@pytest.mark.parametrize("option", ["style", "color_by", "values"])
def test_a_function_of_the_users_that_raises_is_named_by_its_option(option, error):
    def fail(_):
        raise error

    def draw():
        if option == "values":
            tbscope.add_overlay(Sink(), "tag", GRAPH, fail)
        else:
            tbscope.to_graph_def(GRAPH, **{option: fail})

    with pytest.raises(tbscope.ArgumentError) as caught:
        draw()
    assert caught.value.what.startswith(f"the function given as {option} raised for ")
    assert caught.value.why.startswith(type(error).__name__)
    assert caught.value.__cause__ is error


class Sink:
    def add_event(self, event):
        """Take an event."""


def test_a_function_that_raises_nothing_is_asked_once():
    asked = []
    assert ask(asked.append, 3, option="style", place="3", fix="none") is None
    assert asked == [3]


@pytest.mark.parametrize("read", [entries_of, names_of])
def test_a_mapping_that_cannot_be_read_is_named_by_its_option(read):
    assert list(read({"a": 1}, option="kwargs")) == ["a"]
    with pytest.raises(tbscope.ArgumentError) as caught:
        read(Lookup(), option="kwargs")
    assert str(caught.value) == (
        "the mapping given as kwargs raised when it was read, a Lookup\n"
        "  why: RefusalError: not to be asked\n"
        "  fix: give kwargs as a plain dict"
    )


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"step": 2**63 - 2}, {"step": 2**63 - 1}),
        ({"run_name": "n" * 255}, {"run_name": "n" * 256}),
        ({"run_name": "\u00fc" * 127}, {"run_name": "\u00fc" * 128}),
        ({"run_name": "a b"}, {"run_name": "a\ud800b"}),
        ({"tag": "t" * 1000}, {"tag": "t" * 1001}),
        ({"tag": "\u00fc"}, {"tag": "\ud800"}),
        ({"training": None}, {"training": "eval"}),
        ({"grad": False}, {"grad": "no"}),
        ({"keep": ()}, {"keep": None}),
        ({"hide": []}, {"hide": 1}),
        ({"keep": ["linear"]}, {"keep": iter(["linear"])}),
    ],
    ids=lambda options: str(options)[:30].encode("ascii", "replace").decode(),
)
def test_each_bad_value_stands_beside_one_that_is_taken(right, wrong, tmp_path):
    model = torch.nn.Linear(2, 2)
    with tbscope.SummaryWriter(tmp_path) as writer:
        with pytest.raises(tbscope.ArgumentError):
            tbscope.add_graph(writer, model, input_size=(1, 2), **wrong)
        assert len(list(tmp_path.iterdir())) == 1
        tbscope.add_graph(writer, model, input_size=(1, 2), **right)


def test_no_step_comes_after_the_last(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(GRAPH, step=2**63 - 3)
        writer.add_graph(GRAPH)
        with pytest.raises(tbscope.ArgumentError, match="no step comes after"):
            writer.add_graph(GRAPH)


def test_a_recording_names_tensors_alone():
    with tbscope.record() as recording:
        for method in (recording.input, recording.output):
            with pytest.raises(tbscope.ArgumentError, match=r"\(y=None\) names no tensor"):
                method(y=None)
            with pytest.raises(tbscope.ArgumentError, match=r"\(\) names no tensor"):
                method()
        y = torch.ones(2) + 1
    assert [output.name for output in recording.graph.outputs] == ["out"]
    with pytest.raises(tbscope.ArgumentError, match="names no tensor of its region"):
        recording.output(y=y)
