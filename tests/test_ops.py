"""Op types: what TensorBoard's page would misread gets another case."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbscope.page.op_types import REFERENCE, RESERVED, op_type


@pytest.mark.parametrize("text", ["relu", "Linear", "add_", "aten::addmm", "constant", "Summary"])
def test_an_op_type_without_another_meaning_stays(text):
    assert op_type(text) == text


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("ConstantPad2d", "constantPad2d"),
        ("prim::ListConstruct", "prim::Listconstruct"),
        ("ScalarSummary", "Scalarsummary"),
        ("NoOp", "noOp"),
        ("scatter_add", "Scatter_add"),
        ("constructor", "CONSTRUCTOR"),
        ("Constructor", "CONSTRUCTOR"),
        ("toString", "TOSTRING"),
        ("__proto__", "PROTO"),
        ("Grösse", "Gr\\xf6sse"),
        ("", "op"),
    ],
)
def test_an_op_type_with_another_meaning_gets_another_case(text, drawn):
    assert op_type(text) == drawn


@given(
    st.text()
    | st.sampled_from([*RESERVED, "Const", "NoOp", "ConstSummary", "assign_add"])
    | st.from_regex("[a-zA-Z]*(Const|Summary)")
)
def test_no_op_type_has_a_meaning_of_its_own_in_the_page(text):
    drawn = op_type(text)
    assert drawn
    assert drawn.isascii()
    assert "Const" not in drawn
    assert not re.match(r"^[a-zA-Z]+Summary$", drawn)
    assert drawn not in {*RESERVED, "NoOp", "assign_add"}
    assert op_type(drawn) == drawn


def test_no_op_type_that_is_given_means_something_to_the_page():
    for text in (*RESERVED, *REFERENCE, "NoOp", "Constructor", "ConstantPad2d", "TextSummary"):
        given = op_type(text)
        assert given not in RESERVED
        assert given not in REFERENCE
        assert "Const" not in given
        assert op_type(given) == given
