"""The door through which sources make graphs."""

import re
from pathlib import Path

import pytest

import tbscope
from tbscope.errors import GraphError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Constant, Node, Value
from tbscope.ir.scopes import ScopePart

DOC = Path(__file__).parents[1] / "docs" / "how-to-add.md"


def net():
    """Give a builder, and its input."""
    build = GraphBuilder("Net")
    return build, build.add_input("x", (1, 2))


def test_the_source_in_the_documentation_makes_what_it_says(capsys):
    section = DOC.read_text().partition("## A source\n")[2]
    example, printed = re.findall(r"```(?:python|text)\n(.*?)```", section, re.S)[:2]
    names = {}
    exec(compile(example, "example", "exec"), names)
    assert capsys.readouterr().out == printed
    drawn = tbscope.to_graph_def(names["graph"])
    assert {"x", "0", "1", "out"} <= {node.name.rpartition("/")[2] for node in drawn.node}
    assert sum(node.op == "view" for node in drawn.node) == 0
    assert tbscope.costs(names["graph"]).total.flops == 2 * 4 * 3 + 2 * 3 * 2


def test_scopes_that_print_alike_are_numbered():
    build = GraphBuilder("Net")
    net = build.new_scope("Net", parent=None)
    labels = ("block", "block", "other")
    paths = [build.new_scope(label, parent=net).path for label in labels]
    assert paths == ["Net/block", "Net/block.1", "Net/other"]


def test_a_number_that_a_source_chose_is_left_out():
    build = GraphBuilder("Net")
    chosen = [build.new_scope("A", parent=None, index=index).path for index in (1, 3)]
    free = [build.new_scope("A", parent=None).path for _ in range(3)]
    assert (chosen, free) == (["A.1", "A.3"], ["A", "A.2", "A.4"])


@pytest.mark.parametrize(("index", "first"), [(0, None), (2, 2)])
def test_a_number_that_is_taken_is_refused(index, first):
    build = GraphBuilder("Net")
    build.new_scope("A", "a", parent=None, index=first)
    build.new_scope("A", "b", parent=None, index=index)
    assert not build.is_free(ScopePart("A", "a", index), None)
    for number in (0, 1):
        scope = build.new_scope("A", "a", parent=None, index=index)
        build.add_call(scope, class_name="A", number=number)
    shown = f"A[a].{index}" if index else "A[a]"
    with pytest.raises(GraphError, match=re.escape(f"paths: 2 scopes have the path {shown}")):
        build.finish()


def test_a_call_has_the_name_of_its_scope_unless_it_is_given_one():
    build = GraphBuilder("Net")
    scope = build.new_scope("Linear", "fc", parent=None, qualified_name="layer.fc")
    first = build.add_call(scope, class_name="nets.Linear")
    again = build.add_call(scope, class_name="nets.Linear", qualified_name="fc", number=1)
    assert [first.qualified_name, again.qualified_name] == ["layer.fc", "fc"]
    assert build.graph.calls == [first, again]


def test_a_node_stands_in_the_scope_that_it_is_given():
    build, x = net()
    scope = build.new_scope("a", parent=None, kind="hand")
    assert build.add_node("relu", [x], scope=scope).scope is scope
    assert build.append_source("parameter", "w", scope).scope is scope
    assert build.add_node("relu", [x]).scope is None


def test_a_node_reads_the_values_in_its_arguments_in_order():
    build, x = net()
    y = build.add_op("exp", [x], (1, 2))
    node = build.add_node("cat", [[x, {"k": (y, 1)}], Argument("dim", Constant("d")), x])
    assert node.inputs == [x, y, x]
    assert [argument.name for argument in node.arguments] == [None, "dim", None]


def test_nodes_have_names_of_their_own():
    build, x = net()
    weights = [
        build.add_value(build.append_source("parameter", name), (2,)) for name in ("w", "w", "2")
    ]
    ops = [build.add_op("relu", [x], (1, 2)) for _ in range(3)]
    assert [value.name for value in weights] == ["w", "w~2", "2"]
    assert [value.name for value in ops] == ["1", "3", "4"]
    outputs = [build.add_output("out", value) for value in ops[:2]]
    assert [output.name for output in outputs] == ["out", "out~2"]
    assert build.operations == 3
    assert build.finish() is build.graph


def test_sources_of_values_are_what_they_say():
    build, x = net()
    buffer = build.add_value(build.append_source("buffer", "b"), (2,), "int64", "cuda:0")
    assert [value.producer.kind for value in (x, buffer)] == ["input", "buffer"]
    assert build.graph.inputs == [x.producer]
    assert (buffer.dtype, buffer.device) == ("int64", "cuda:0")


def test_an_operation_that_was_made_before_is_counted_and_gets_the_next_number():
    build, x = net()
    build.add_op("relu", [x], (1,))
    late = Node("", "relu", "op")
    build.append(late)
    assert (late.name, build.operations) == ("2", 2)
    build.append_source("constant")
    assert build.operations == 2


def strange():
    return Value(Node("9", "relu"), 0, (1,), "float32", "cpu")


@pytest.mark.parametrize(
    ("slip", "says"),
    [
        (
            lambda b, x: b.add_node("relu", [[strange()]]),
            "edges: %1 (relu) reads %9, which no node of the graph gives",
        ),
        (
            lambda b, x: b.add_node("relu", [x], control_inputs=[strange().producer]),
            "edges: %1 (relu) waits for %9 (relu), which is not in the graph",
        ),
        (lambda b, x: b.add_op("relu", [x], (-1,)), "has the shape (-1,), where -1 is no size"),
        (lambda b, x: b.add_op("relu", [x], (1.5,)), "has the shape (1.5,), where 1.5 is no size"),
        (lambda b, x: b.add_op("relu", [x], (1,), dtype=""), "types: %1 has no dtype"),
        (
            lambda b, x: b.add_call(b.new_scope("a", parent=None, kind="hand"), class_name="A"),
            "calls: the scope a is of the kind 'hand', and a call has it",
        ),
    ],
)
def test_what_breaks_an_invariant_is_refused_at_the_end(slip, says):
    build, x = net()
    slip(build, x)
    with pytest.raises(GraphError, match=re.escape(says)):
        build.finish()


def test_what_is_just_right_is_taken():
    build, x = net()
    first = build.add_node("add_", [x, x], [(), (None, 0)], writes=(0, 1), role=None)
    build.add_node("relu", [[x]], control_inputs=[first], role="view")
    assert len(build.finish().nodes) == 3


def test_a_scope_has_one_call():
    build = GraphBuilder("Net")
    call = build.add_call(build.new_scope("A", parent=None), class_name="A")
    assert build.add_call(call.scope, class_name="A", number=1).number == 1
    assert len(build.finish().calls) == 2
    build.add_call(call.scope, class_name="A")
    with pytest.raises(GraphError, match="calls: 2 calls have the scope A and the number 0"):
        build.finish()


def test_a_graph_is_verified_when_it_is_finished():
    build, _ = net()
    build.add_output("out", strange())
    with pytest.raises(GraphError, match="breaks the invariants"):
        build.finish()


def test_a_name_that_is_a_number_which_was_given_is_another_one():
    build, x = net()
    build.add_op("relu", [x], (1, 2))
    names = [build.append_source("parameter", name).name for name in ("1", "1", "3", "3")]
    assert names == ["1~", "1~~2", "3", "3~2"]
    assert [build.add_node("relu", [x]).name for _ in range(2)] == ["2", "4"]
