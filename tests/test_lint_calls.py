"""The rule on calls of library functions: which forms the page draws in the flow, and which not."""

import pytest
from test_linter import message, with_library

from tbscope import lint

LIBRARY = "__function_library__"


def found(graph_def, rule="function-call"):
    return [one.message for one in lint(graph_def) if one.rule == rule]


@pytest.mark.parametrize(
    ("broken", "what", "fine"),
    [
        (["x In", "y f "], "is called without inputs, and the page fails", ["x In", "y f x"]),
        (["x In", "y f ^x"], "is called without inputs, and the page fails", ["x In", "y f x"]),
        (
            ["x In", "z In", "y f x z"],
            "is called with 2 inputs and takes 1: lines lead to wrong ones",
            ["x In", "z In", "y f z"],
        ),
        (
            ["x In", "z In", "y f x ^z"],
            "waits for another node, and the page fails",
            ["x In", "z In ^x", "y f x"],
        ),
        (
            ["x In", "y f x", "z Op ^y"],
            "is waited for by another node, and the page fails",
            ["x In", "y f x", "z Op y"],
        ),
        (
            ["x Const", "y f x"],
            "reads what is drawn as a circle or an icon, and the page fails",
            ["x const", "y f x"],
        ),
        (
            ["x In", "y f x", "z Op y:1"],
            "gives 1 outputs, output 1 is read, and the page fails",
            ["x In", "y f x", "z Op y:0"],
        ),
        (
            ["x In", "a/y f x", "a/z Op a/y"],
            "is called in a box of which no call is read at the top level, and is drawn beside the "
            "flow",
            ["x In", "a/y f x", "z Op a/y"],
        ),
        (
            ["x In", "a/y f x", "a/b/v f x", "a/z Op a/y", "z Op a/b/v"],
            "is called in a box of which no call is read at the top level, and is drawn beside the "
            "flow",
            ["x In", "a/y f x", "a/v f x", "a/z Op a/y", "z Op a/v"],
        ),
    ],
)
def test_a_call_in_a_form_that_the_page_cannot_draw_is_told(broken, what, fine):
    assert found(with_library(*broken)) == [f"the function 'f' {what}"]
    assert found(with_library(*fine)) == []


def test_a_function_without_a_node_for_an_output_is_told_at_its_calls():
    graph_def = with_library("x In", "y f x", outputs=2)
    assert found(graph_def) == []
    graph_def.library.function[0].node_def[1].name = "other"
    what = "the function 'f' has no node named like its output 'y1', and the page fails"
    assert found(graph_def) == [what]
    del graph_def.library.function[0].signature.output_arg[:]
    assert found(graph_def) == []
    del graph_def.library.function[0].node_def[:]
    assert found(graph_def) == ["the function 'f' has an empty body, and the page fails"]


def test_a_call_that_nobody_can_read_is_left_where_it_is():
    assert len(found(with_library("x In", "a/y f x", outputs=1))) == 1
    graph_def = with_library("x In", "a/y f x", outputs=0)
    graph_def.library.function[0].node_def.add(name="z", op="Op", input=["x"])
    assert found(graph_def) == []


def test_a_function_without_inputs_may_be_called_without_any():
    graph_def = with_library("y f ")
    assert len(found(graph_def)) == 1
    del graph_def.library.function[0].signature.input_arg[:]
    assert found(graph_def) == []


def test_a_call_of_a_function_is_told_once_and_not_as_one_of_a_box_too():
    # The panel shows the function's definition as a box of its name, too.
    graph_def = with_library(f"{LIBRARY}f/x In", "x In", "y f ")
    assert [one.rule for one in lint(graph_def) if "function" in one.rule] == ["function-call"]
    del graph_def.library.function[:]
    assert [one.rule for one in lint(graph_def) if "function" in one.rule] == ["function-op"]


@pytest.mark.parametrize(
    ("nodes", "through"),
    [
        (["a/y f x", "a/z Op a/y", "n NoOp a/y"], False),
        (["a/y g x", "a/z Op a/y", "n NoOp a/y"], True),
        (["a/y f x", "a/z Op a/y", "n NoOp a/y x"], True),
        (["a/y f x", "n NoOp a/y", "z Op n"], True),
    ],
)
def test_a_no_op_may_have_calls_drawn_in_time_and_no_more(nodes, through):
    graph_def = with_library("x In", *nodes)
    assert len(found(graph_def, "no-op")) == through
    assert found(graph_def, "function-call") == []
    plain = message("x In", *nodes)
    assert len(found(plain, "no-op")) == 1
