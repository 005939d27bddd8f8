"""What lint rules look at: names, the outputs that are read, stacks, and quoted texts."""

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.rules.rule import LintContext, quote, shown_place


def reading(*nodes):
    graph_def = GraphDef()
    for node in nodes:
        name, *inputs = node.split(" ")
        graph_def.node.add(name=name, op="Op", input=inputs)
    return LintContext(graph_def)


def test_the_last_output_that_is_read_is_known_of_each_node():
    assert reading("x", "y x:2", "z x:1 x").outputs_read == {"x": 2}


def test_what_is_waited_for_is_not_read():
    assert reading("x", "y ^x").outputs_read == {}
    assert reading("x", "y x").outputs_read == {"x": 0}


def test_nodes_are_known_by_the_names_that_they_have_on_the_page():
    found = reading("a", "a/b", "c")
    assert list(found.by_name) == ["a/(a)", "a/b", "c"]
    assert found.by_name["a/(a)"] is found.nodes[0]


def test_names_are_listed_once_each_in_order():
    assert [*reading("b", "a", "b").names] == ["b", "a"]


@pytest.mark.parametrize(("length", "shown"), [(60, "a" * 60), (61, "a" * 28 + "..." + "a" * 28)])
def test_a_long_text_loses_its_middle(length, shown):
    assert quote("a" * length) == f"'{shown}'"


def test_a_quoted_text_is_one_line_of_ascii():
    assert quote("gr\xfc\n") == "'gr\\xfc\\n'"


def test_a_place_is_a_box_or_the_top_level():
    assert (shown_place(""), shown_place("a/b")) == ("the top level", "the box 'a/b'")
