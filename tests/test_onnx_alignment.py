"""The operations of a record beside those of an exported program."""

import pytest

from tbscope.ir.builder import GraphBuilder
from tbscope.sources.onnx.export.call_order import ExportedOperation, align_operations


def nodes(*told):
    """Give operations of a record, by name and shape."""
    build = GraphBuilder("Net")
    x = build.add_input("x", (1,))
    return [build.add_op(name, [x], shape).producer for name, shape in told]


def program(*told):
    return [
        ExportedOperation(f"{name}_{place}", ("", 0), name, shape)
        for place, (name, shape) in enumerate(told)
    ]


def pairs(ours, theirs):
    found = align_operations(nodes(*ours), program(*theirs))
    return [(int(node.name) - 1, operation.name) for node, operation in found]


@pytest.mark.parametrize(("shape", "place"), [((3,), 1), ((2,), 0), (None, 0), ((None,), 0)])
def test_of_two_of_one_name_the_shape_decides(shape, place):
    assert pairs([("add", (2,)), ("add", (3,))], [("add", shape)])[0][0] == place


def test_what_was_left_out_is_left_out():
    ours = [("linear", (2,)), ("relu", (2,)), ("linear", (2,)), ("relu", (2,))]
    theirs = [("linear", (2,)), ("linear", (2,)), ("relu", (2,))]
    assert pairs(ours, theirs) == [(0, "linear_0"), (2, "linear_1"), (3, "relu_2")]


def test_what_was_taken_apart_is_what_came_out_of_it():
    ours = [("linear", (2,)), ("softplus", (5,)), ("relu", (2,))]
    theirs = [("linear", (2,)), ("exp", (4,)), ("log", (5,)), ("relu", (2,))]
    assert pairs(ours, theirs) == [(0, "linear_0"), (1, "log_2"), (2, "relu_3")]


def test_an_operation_in_place_has_the_name_without_the_dash():
    assert pairs([("add_", (2,))], [("add", (2,))]) == [(0, "add_0")]
    assert pairs([("add_", (2,))], [("mul", (3,))]) == []
