"""Scope paths: printing, parsing, and the tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from tbscope.errors import ArgumentError
from tbscope.graphdef.attr_bytes import scope_entries
from tbscope.ir.scopes import Scope, ScopePart

# Any text, and texts thick with what structures a path.
words = st.text() | st.text("%/[].0aéxu\\\n \x00\x7f\u2028\U0001f600", max_size=8)
parts = st.builds(ScopePart, words, st.none() | words, st.integers(0, 10**6))
paths = st.lists(parts, max_size=5).map(tuple)


def printed(path):
    scope = None
    for part in path:
        scope = Scope(part, parent=scope)
    return scope.path if scope else ""


def test_a_path_reads_as_classes_with_attributes_in_brackets():
    path = (ScopePart("Net"), ScopePart("Sequential", "layer1"), ScopePart("Linear", "0"))
    assert printed(path) == "Net/Sequential[layer1]/Linear[0]"


def test_a_later_call_ends_in_its_number():
    assert str(ScopePart("Linear", "fc", 1)) == "Linear[fc].1"
    assert str(ScopePart("loss", None, 12)) == "loss.12"


def test_an_attribute_keeps_its_dots():
    assert str(ScopePart("Linear", "lora_A.default")) == "Linear[lora_A.default]"


@pytest.mark.parametrize(
    ("label", "attribute", "printed"),
    [
        ("a/b", None, "a%2Fb"),
        ("v1.0", None, "v1%2E0"),
        ("100%", "a]b", "100%25[a%5Db]"),
        ("Linear", "", "Linear[]"),
        ("", None, "%"),
        ("", "0", "%[0]"),
        ("\n", "\t", "%0A[%09]"),
        ("Модель", "é", "Модель[é]"),
        ("a\\xe9", "b\\", "a%5Cxe9[b%5C]"),
    ],
)
def test_what_structures_a_path_is_escaped_in_its_words(label, attribute, printed):
    assert str(ScopePart(label, attribute)) == printed
    assert Scope.parse(printed) == (ScopePart(label, attribute),)


@given(paths)
def test_a_printed_path_is_read_back_as_it_was(path):
    assert Scope.parse(printed(path)) == path


@given(path=paths)
def test_what_a_graph_def_tells_in_ascii_is_read_back_as_it_was(path):
    (text,) = scope_entries([printed(path)])
    told = NodeDef.FromString(text).attr["    scope"].s.decode("ascii")
    assert told.isprintable()
    assert Scope.parse(told) == path


@pytest.mark.parametrize("text", [r"a\xe", r"a\u123", r"a\U00110000", "a\\"])
def test_what_is_no_escape_is_read_as_it_stands(text):
    assert Scope.parse(text) == (ScopePart(text),)


@given(st.lists(paths, min_size=2, max_size=2, unique=True))
def test_two_paths_never_print_alike(two):
    assert printed(two[0]) != printed(two[1])


@given(paths.filter(bool))
def test_a_printed_path_has_as_many_steps_as_parts_and_none_is_empty(path):
    steps = printed(path).split("/")
    assert len(steps) == len(path)
    assert all(steps)


def test_the_empty_path_is_the_top_level():
    assert printed(()) == ""
    assert Scope.parse("") == ()


@pytest.mark.parametrize("text", ["Net/Linear[0", "Net/Linear]0[", "Net/a.b.c", "a[b][c]", "a.-1"])
def test_a_path_of_another_form_is_refused_with_the_step_that_is_wrong(text):
    step = text.removeprefix("Net/")
    with pytest.raises(ArgumentError) as caught:
        Scope.parse(text)
    assert str(caught.value) == (
        f"cannot read the scope path {text!r}\n"
        f"  why: its step {step!r} has not the form Label[attribute].index\n"
        "  fix: give a path as node.scope prints it, e.g. 'Net/Sequential[layer1]/Linear[0]'"
    )


@pytest.mark.parametrize("text", ["Net/Linear[0]", "Net/a.1", "a[b].2", "Net/", "Net//Linear[0]"])
def test_the_near_misses_of_refused_paths_are_read(text):
    assert len(Scope.parse(text)) == text.count("/") + 1


@given(paths.filter(bool))
def test_a_scope_knows_its_path_its_parts_and_what_is_around_it(path):
    scopes = []
    for part in path:
        scopes.append(Scope(part, parent=scopes[-1] if scopes else None))
    innermost = scopes[-1]
    assert str(innermost) == innermost.path == printed(path)
    assert innermost.parts == path
    assert list(innermost.ancestors()) == scopes[-2::-1]
    assert [scope.path for scope in scopes] == [
        printed(path[:depth]) for depth in range(1, len(path) + 1)
    ]


def test_scopes_are_compared_by_identity():
    part = ScopePart("Linear", "fc")
    assert Scope(part) != Scope(part)
    assert repr(Scope(part)) == "Scope('Linear[fc]')"


def test_a_deep_path_is_printed_without_recursion():
    scope = None
    for _ in range(5000):
        scope = Scope(ScopePart("B", "b"), parent=scope)
    assert scope.path == "/".join(["B[b]"] * 5000)
