"""Words: how anything is shown in an error, and nothing raises on the way."""

import json
import unicodedata

import pytest
from bad_values import MAKE, MuteError
from hypothesis import given
from hypothesis import strategies as st

from tbscope.messages import (
    cut,
    did_you_mean,
    error_text,
    near_names,
    printable,
    shown,
    visible,
)


@pytest.mark.parametrize(
    "value", ["word", 3, None, [1, "a"], {"a": 1}, 2.5, b"x", ("a",)], ids=repr
)
def test_a_short_value_is_shown_as_python_shows_it(value):
    assert shown(value) == repr(value)


@pytest.mark.parametrize("label", sorted(MAKE.keys() - {"open file"}))
def test_any_value_is_shown_on_one_short_line(label):
    text = shown(MAKE[label]())
    assert 0 < len(text) <= 150
    assert text.isprintable()


def test_a_long_value_is_cut():
    assert shown("w" * 1000, most=8) == "'wwwwwwww..."[:8] + "..."
    assert shown([1] * 1000, most=8) == "[1, 1, 1..."


def test_a_number_too_long_to_print_is_shown_by_its_bits():
    assert shown(10**5000) == "an int of 16610 bits"
    assert shown([10**5000, 1]) == "[an int of 16610 bits, 1]"


def test_what_cannot_be_printed_is_shown_by_its_class():
    assert shown(MuteError()) == ("an object of class MuteError (its repr raises RefusalError)")
    assert error_text(MuteError()) == (
        "MuteError: (its message cannot be read: str() of it raises RefusalError)"
    )


def test_an_error_is_told_on_one_line():
    assert error_text(ValueError("two\nlines")) == "ValueError: two lines"
    assert error_text(ValueError()) == "ValueError"
    assert error_text(ValueError("m" * 1000)) == f"ValueError: {'m' * 500}..."


def test_a_text_for_a_message_can_be_printed_anywhere():
    assert printable("a\ud800b", 10) == "a\\ud800b"
    assert printable("abcdef", 3) == "abc..."
    assert printable(None, 10) == "None"
    assert (cut("abc", 3), cut("abcd", 3)) == ("abc", "abc...")


def test_near_names_are_texts_near_a_text():
    assert near_names("wieght", ["weight", "bias", None, 3]) == ["weight"]
    assert near_names(None, ["None"]) == []
    assert near_names("m" * 2**20, ["m" * 2**20, "weight"]) == []


@given(st.text(st.characters(exclude_categories=())))
def test_what_a_terminal_obeys_is_escaped_and_json_stays_the_same_data(text):
    told = visible(text)

    assert not any(
        unicodedata.category(char) in ("Cc", "Cs") for char in told if char not in "\t\n"
    )
    assert not any(unicodedata.bidirectional(char) in TURNS for char in told)
    assert told == text or not text.isprintable()
    assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text


TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize("text", ["a\tb\n", "ü", "日本", "👩‍👧", "a b", "\\x1b"])
def test_what_a_terminal_shows_is_left_as_it_is(text):
    assert visible(text) == text


def test_a_name_that_nothing_has_is_told_near_ones_or_another_way():
    known = ["linear", "relu", "lineage"]
    assert did_you_mean("linaer", known, "see all") == "did you mean 'linear', 'lineage'?"
    assert did_you_mean("linaer", known, "see all", cutoff=0.8) == "did you mean 'linear'?"
    assert did_you_mean("zzz", known, "see all") == "see all"
