"""The quick part of the fuzzing: the same seeds each time, and that it notices what is wrong."""

import random
import time

import pytest

import tbscope
from tbscope.sources.files import kind_of_content
from tests import fuzz


@pytest.mark.parametrize("form", fuzz.FORMS)
def test_damaged_files_give_a_graph_or_one_error(form, tmp_path):
    told = [fuzz.fuzz_one(form, seed, tmp_path) for seed in fuzz.SEEDS]
    assert [fault for _, fault in told if fault] == []
    assert {word for word, _ in told} == {"a graph", "refused"}


@pytest.mark.parametrize(
    ("form", "seed"), [("record", 182404), ("json", 184615), ("graphdef", 684564)]
)
def test_what_once_was_no_graph_and_no_error_is_one(form, seed, tmp_path):
    assert fuzz.fuzz_one(form, seed, tmp_path) == ("refused", "")


def test_a_length_without_an_end_is_none_of_a_graph():
    assert kind_of_content(b"\x0a\xff\xff\x7f", 4) is None
    assert kind_of_content(b"\x0a\xff\x03\x0a", 4) == "graph_def"


@pytest.mark.parametrize("form", fuzz.FORMS)
def test_a_seed_makes_the_same_file_whatever_was_made_before(form):
    _, make = fuzz.FORMS[form]
    first, again = ([make(random.Random(f"{form} {seed}")) for seed in range(50)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 40


def test_no_file_changes_what_the_next_one_is_made_of():
    before = repr(fuzz.ODD)
    for seed in range(700):
        fuzz.FORMS["json"][1](random.Random(f"json {seed}"))
    assert repr(fuzz.ODD) == before


def raising(path):
    raise KeyError(path)


def speechless(path):
    raise tbscope.ArgumentError("no")


def slow(path):
    start = time.process_time()
    while time.process_time() - start < 5:
        pass
    return tbscope.Graph("Net")


@pytest.mark.parametrize(
    ("reader", "word", "fault"),
    [
        (raising, "raised", "KeyError"),
        (speechless, "refused", "not all three parts"),
        (slow, "raised", "it took more than"),
        (lambda path: tbscope.Graph("Net"), "a graph", ""),
    ],
)
def test_it_notices_what_a_reader_does_wrong(reader, word, fault, tmp_path, monkeypatch):
    monkeypatch.setitem(fuzz.READERS, "json", reader)
    monkeypatch.setattr(fuzz, "MOST_SECONDS", 0.005 if reader is slow else 20)
    told, found = fuzz.fuzz_one("json", 0, tmp_path)
    assert told == word
    assert (fault in found) if fault else found == ""
