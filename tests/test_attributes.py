"""Attributes: constants of Python as the info card shows them."""

import json
import struct

import pytest
from build import GraphBuilder
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from tbscope.graphdef.attr_bytes import MOST_BYTES, ascii_line, nest_to_text, to_attr_value
from tbscope.ir.graph import Constant


def printed(constant):
    return text_format.MessageToString(to_attr_value(constant), as_one_line=True).strip()


@pytest.mark.parametrize(
    ("constant", "text"),
    [
        (True, "b: true"),
        (False, "b: false"),
        (3, "i: 3"),
        (-1, "i: -1"),
        (2**53 + 1, 's: "9007199254740993"'),
        (0.1, "f: 0.1"),
        (1e-05, "f: 1e-05"),
        (0.0, "f: 0.0"),
        (1 / 3, 's: "0.3333333333333333"'),
        (1e300, 's: "1e+300"'),
        (float("-inf"), 's: "-inf"'),
        (float("nan"), 's: "nan"'),
        ("zeros", 's: "zeros"'),
        (None, 's: "None"'),
        (1 + 2j, 's: "(1+2j)"'),
        (Constant("torch.float32"), 's: "torch.float32"'),
        ((3, 3), "list { i: 3 i: 3 }"),
        ([0.5, 0.25], "list { f: 0.5 f: 0.25 }"),
        ([True, False], "list { b: true b: false }"),
        (["a", "b"], 'list { s: "a" s: "b" }'),
        ((), 's: "()"'),
        ((1, None), 's: "(1, None)"'),
        ((1, True), 's: "(1, True)"'),
        ((1, 2.0), 's: "(1, 2.0)"'),
        ((1 / 3,), 's: "(0.3333333333333333,)"'),
        ({"dim": 1, "keep": [Constant("1:2")]}, "s: \"{\\'dim\\': 1, \\'keep\\': [1:2]}\""),
    ],
)
def test_a_constant_has_the_form_that_the_page_shows_best(constant, text):
    assert printed(constant) == text


def test_a_text_is_ascii_on_one_line():
    assert ascii_line("Größe\n\tin  m\x00") == "Gr\\xf6\\xdfe in m\\x00"
    assert ascii_line("two  words") == "two  words"


def test_a_tensor_in_a_nest_is_told_by_its_printed_name():
    index = GraphBuilder().input("index", (2,))
    assert nest_to_text((Constant("..."), index, [None])) == "(..., %index, [None])"


def test_what_is_too_large_has_no_attribute():
    overhead = to_attr_value("a" * 900).ByteSize() - 900
    assert to_attr_value("a" * (MOST_BYTES - overhead)) is not None
    assert to_attr_value("a" * (MOST_BYTES - overhead + 1)) is None
    assert to_attr_value(list(range(2000))) is None


@given(st.floats(allow_nan=False))
def test_a_number_is_shown_as_python_prints_it(number):
    message = to_attr_value(number)
    if message.WhichOneof("value") == "f":
        # The page reads the shortest text of the 32 bits.
        shown = json.loads(text_format.MessageToString(message).removeprefix("f: "))
        assert shown == number
        assert struct.pack("f", shown) == struct.pack("f", number)
    else:
        assert float(message.s) == number


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
nests = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(nests)
def test_every_attribute_is_short_ascii_and_one_line(nest):
    message = to_attr_value(nest)
    if message is not None:
        assert message.ByteSize() <= MOST_BYTES
        for text in (message.s, *message.list.s):
            assert text.isascii()
            assert text.decode().isprintable()


def test_a_number_too_small_for_32_bits_is_a_text():
    assert to_attr_value(1e-37).WhichOneof("value") == "f"
    assert to_attr_value(1e-40).s == b"1e-40"
