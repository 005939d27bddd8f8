"""Circles: which parameters have to be nodes, so that no operation is put aside."""

import pytest
import torch
from build import GraphBuilder
from torch import nn

import tbscope
from tbscope.drawing.const_nodes import parameters_to_draw
from tbscope.drawing.layout import lay_out
from tbscope.drawing.naming import name_graph
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.pipeline import to_graph_def
from tbscope.rules.linter import lint


def drawn(build):
    """Give the names of the parameters that must be nodes."""
    names = name_graph(build.graph, root=True)
    return {names.nodes[node] for node in parameters_to_draw(build.graph, names)}


def attention(build, x):
    """Add one kernel that reads parameters of its own module and of one below it."""
    attn = build.call("Net/Attention[attn]", x)
    below = build.scope("Net/Attention[attn]/Linear[out_proj]")
    weights = [
        build.parameter("attn.in_proj", (6, 2), attn),
        build.parameter("attn.out_proj.weight", (2, 2), below),
    ]
    return build.op("native_attention", x, *weights, scope=attn)


def net():
    build = GraphBuilder("Net")
    return build, build.call("Net"), build.input("x", (1, 2))


def test_the_parameters_of_an_operation_without_neighbour_are_nodes():
    build, _, x = net()
    attention(build, x)
    assert drawn(build) == {"Net/attn/in_proj", "Net/attn/out_proj/weight"}


def test_an_operation_before_it_in_the_same_box_is_a_neighbour():
    build, _, x = net()
    x = build.op("relu", x, scope=build.scope("Net/Attention[attn]"))
    attention(build, x)
    assert drawn(build) == set()


def test_an_operation_after_it_in_a_box_of_the_same_box_is_a_neighbour():
    build, _, x = net()
    y = attention(build, x)
    build.op("relu", y, scope=build.call("Net/Attention[attn]/ReLU[act]"))
    assert drawn(build) == set()


def test_an_operation_in_another_box_is_no_neighbour():
    build, root, x = net()
    x = build.op("relu", x, scope=root)
    build.op("relu", attention(build, x), scope=root)
    assert drawn(build) == {"Net/attn/in_proj", "Net/attn/out_proj/weight"}


def test_a_dashed_edge_makes_a_neighbour_too():
    build, _, x = net()
    attn = build.scope("Net/Attention[attn]")
    fill = build.node("fill_", x, scope=attn)
    attention(build, x).producer.control_inputs.append(fill)
    assert drawn(build) == set()


def test_at_the_top_level_inputs_are_neighbours():
    build = GraphBuilder()
    build.op("linear", build.input("x", (1, 2)), build.parameter("w", (1,)))
    assert drawn(build) == set()


def test_a_parameter_of_another_box_is_a_node_too():
    build, root, x = net()
    shared = build.parameter("table", (2, 2), root)
    build.op("linear", x, shared, scope=build.call("Net/Tied[head]"))
    assert drawn(build) == {"Net/table"}


def test_a_parameter_of_another_box_stays_a_circle_where_its_reader_has_a_neighbour():
    build, root, x = net()
    shared = build.parameter("table", (2, 2), root)
    head = build.call("Net/Tied[head]")
    build.op("relu", build.op("linear", x, shared, scope=head), scope=head)
    assert drawn(build) == set()


def test_the_parameters_of_a_leaf_module_alone_in_its_box_are_nodes():
    build, _, x = net()
    build.linear("Net/Sequential[seq]/Linear[0]", x, 2)
    collapse_leaves(build.graph)
    assert drawn(build) == {"Net/seq/0/weight", "Net/seq/0/bias"}


def test_a_leaf_module_with_a_neighbour_keeps_its_circles():
    build, _, x = net()
    x = build.linear("Net/Sequential[seq]/Linear[0]", x, 2)
    build.linear("Net/Sequential[seq]/Linear[1]", x, 2)
    collapse_leaves(build.graph)
    assert drawn(build) == set()


def test_such_parameters_stand_beside_their_module():
    build, _, x = net()
    build.linear("Net/Sequential[seq]/Linear[0]", x, 2)
    collapse_leaves(build.graph)
    entries = {entry.name: entry.op for entry in lay_out(build.graph, cards=False).nodes}
    assert entries == {
        "x": "Input",
        "seq/0.weight": "Parameter",
        "seq/0.bias": "Parameter",
        "seq/0": "Linear",
    }


def test_a_constant_beside_an_operation_without_neighbour_is_a_node_that_is_drawn():
    build, _, x = net()
    scope = build.call("Net/Scale[scale]", x)
    factor = build.node("constant", scope=scope, kind="constant", outputs=((),)).outputs[0]
    build.op("mul", x, factor, scope=scope)
    entries = {entry.name: entry.op for entry in lay_out(build.graph, cards=False).nodes}
    assert entries == {"x": "Input", "scale/constant": "Tensor", "scale/mul": "mul"}


def test_where_parameters_are_nodes_a_constant_alone_with_its_reader_is_one_too():
    build, root, x = net()
    ones = build.node("ones", scope=root, kind="constant", outputs=((),)).outputs[0]
    build.op("interpolate", ones, scope=build.call("Net/Backbone[backbone]", x))
    build.linear("Net/Linear[head]", x, 2)
    entries = {
        entry.name: entry.op for entry in lay_out(build.graph, circles=False, cards=False).nodes
    }
    assert entries["ones"] == "Tensor"
    assert entries["head/weight"] == "Parameter"


def filled(count):
    """Fill so many tensors of constants, then multiply them into a value one by one."""
    build = GraphBuilder("Net")
    x = build.input("x", (3,))
    tensors = []
    for _ in range(count):
        constant = build.node("constant", kind="constant", outputs=((3,),)).outputs[0]
        tensors.append(build.op("fill_", constant))
    for one in tensors:
        x = build.op("mul", x, one)
    build.output("out", x)
    return build.graph


@pytest.mark.parametrize(("count", "op"), [(45, "Const"), (60, "Tensor")])
def test_what_stands_in_another_chunk_is_no_neighbour(count, op):
    message = to_graph_def(filled(count))
    assert [node.op for node in message.node if node.op in ("Const", "Tensor")] == [op] * count
    assert any("/" in node.name for node in message.node) == (op == "Tensor")
    assert lint(message) == []


class Scaled(nn.Module):
    """Reads one buffer by Python, and one by an operation."""

    def __init__(self):
        super().__init__()
        self.register_buffer("by_python", torch.ones(1))
        self.register_buffer("by_operation", torch.ones(1))
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x * float(self.by_python) + self.by_operation)


@pytest.mark.parametrize("level", ["op", "aten", "module", "overview"])
def test_a_buffer_that_only_python_reads_is_a_node_and_one_that_an_operation_reads_a_circle(level):
    graph = tbscope.trace(nn.Sequential(Scaled(), Scaled()), torch.ones(1, 2), kernels=True)
    message = to_graph_def(graph, level=level, style="torch")
    assert lint(message) == []
    ops = {node.name.rpartition("/")[2]: node.op for node in message.node}
    assert (ops["by_python"], ops["by_operation"]) == ("Buffer", "BufferConst")


def test_a_parameter_that_is_given_back_as_it_is_stays_a_circle():
    class Gives(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x + 1, self.weight

    message = to_graph_def(tbscope.trace(Gives(), torch.ones(2)))
    assert {node.name: node.op for node in message.node}["weight"] == "ParameterConst"
