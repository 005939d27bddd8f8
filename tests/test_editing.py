"""The editor of a graph: what becomes of all that names a value or a node."""

import pytest
from build import GraphBuilder

from tbscope.ir.editing import Editor


@pytest.mark.parametrize("leave_out", [False, True])
def test_a_value_that_is_read_instead_of_another_is_named_in_its_place_everywhere(leave_out):
    build = GraphBuilder()
    net = build.call("Net")
    x = build.input("x", (2,))
    y = build.op("view", x, scope=net)
    block = build.call("Net/Block[block]", y)
    z = build.op("relu", y, scope=block)
    build.output("y", y)
    editor = Editor(build.graph)
    editor.read_instead(y, x)
    if leave_out:
        editor.drop([y.producer])
    editor.apply()
    relu, (output,), call = z.producer, build.graph.outputs, build.graph.calls[1]
    assert relu.inputs == [relu.arguments[0].nest] == [output.value] == [x]
    assert [argument.nest for argument in call.arguments] == [x]
    assert (y.producer in build.graph.nodes) != leave_out
