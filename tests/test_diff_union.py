"""The union of two graphs: what stands in it, with what fate, and how the page colours it."""

import pytest
import torch
from build import chain
from cli_runs import graphs_in
from torch import nn

import tbscope

X = torch.rand(1, 4)


def union(before, after, *inputs):
    graph = tbscope.diff(before, after, inputs or X).graph
    graph.verify()
    return graph


def fates(graph, *kinds):
    """Give the fate of each node by its scope and its operation, or its name."""
    return {
        f"{node.scope.qualified_name}.{node.op}" if node.kind == "op" else node.name: (
            node.attributes["difference"]
        )
        for node in graph.nodes
        if not kinds or node.kind in kinds
    }


def net(*layers):
    return nn.Sequential(*layers)


def test_each_node_tells_what_became_of_it():
    before = net(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    after = net(nn.Linear(4, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 2, bias=False))
    graph = union(before, after)
    assert fates(graph) == {
        "input": "same",
        "0.weight": "same",
        "0.bias": "same",
        "0.linear": "same",
        "1.relu": "same",
        "2.tanh": "added",
        "3.weight": "same",
        "3.linear": "changed",
    }
    (linear,) = (node for node in graph.nodes if node.attributes["difference"] == "changed")
    assert linear.attributes["differs"] == "name 2 -> 3; bias True -> False"


def test_what_was_removed_stands_where_it_was_and_leads_to_what_read_it():
    before = net(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.ReLU())
    after = nn.Sequential()
    after.add_module("0", nn.Linear(4, 4))
    after.add_module("2", nn.ReLU())
    graph = union(before, after)
    removed = [node for node in graph.nodes if node.attributes["difference"] == "removed"]
    assert [node.op for node in removed] == ["parameter", "parameter", "linear", "tanh"]
    linear, tanh = removed[2:]
    assert str(tanh.scope) == "Sequential/Sequential[1]/Tanh[1]"
    assert [value.producer.scope.qualified_name for value in linear.inputs] == ["0", "1.0", "1.0"]
    (relu,) = (node for node in graph.nodes if node.op == "relu")
    assert relu.control_inputs == [tanh]
    assert graph.nodes.index(tanh) < graph.nodes.index(relu)
    assert [call.qualified_name for call in graph.calls if "1" in call.qualified_name] == [
        "1",
        "1.0",
        "1.1",
    ]


def test_an_input_and_an_output_that_went_stay_in_the_union():
    class Two(nn.Module):
        def forward(self, x, y):
            return {"sum": x + y, "product": x * y}

    class One(nn.Module):
        def forward(self, x):
            return {"sum": x + 1.0}

    before, after = tbscope.trace(Two(), (X, X + 1)), tbscope.trace(One(), X)
    graph = tbscope.diff(before, after).graph
    graph.verify()
    assert [node.name for node in graph.inputs] == ["x", "y"]
    assert [output.name for output in graph.outputs] == ["sum", "product"]
    assert graph.name == "Two -> One"
    assert fates(graph, "input") == {"x": "same", "y": "removed"}


def test_a_removed_module_beside_a_new_one_of_its_name_has_a_scope_of_its_own():
    before = net(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    graph = union(before, net(nn.Linear(4, 4)))
    assert {
        str(node.scope): node.attributes["difference"] for node in graph.nodes if node.kind == "op"
    } == {"Sequential/Linear[0].1": "removed", "Sequential/Linear[0]": "changed"}


def test_a_module_of_another_class_is_one_node_that_changed():
    graph = union(net(nn.Linear(4, 4), nn.ReLU()), net(nn.Linear(4, 4), nn.GELU()))
    assert fates(graph, "op") == {"0.linear": "same", "1.gelu": "changed"}


def test_a_setting_of_a_module_marks_what_runs_right_in_it():
    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x).relu()

        def extra_repr(self):
            return f"factor={self.factor}"

    graph = union(Scaled(1), Scaled(2))
    assert fates(graph, "op") == {"fc.linear": "same", ".relu": "changed"}


def test_a_type_that_follows_is_the_same_and_a_weight_of_another_shape_changed():
    graph = union(net(nn.Linear(4, 4), nn.ReLU()), net(nn.Linear(4, 6), nn.ReLU()))
    told = fates(graph)
    assert told["1.relu"] == "same"
    assert told["0.weight"] == told["0.linear"] == "changed"
    difference = tbscope.diff(net(nn.Linear(4, 4), nn.ReLU()), net(nn.Linear(4, 6), nn.ReLU()), X)
    assert difference.follows == 2
    assert "  2 more operations give another type, as they read one" in str(difference)


def test_the_drawing_is_coloured_by_the_fates(tmp_path):
    difference = tbscope.diff(chain(2), chain(3))
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        graph = writer.add_graph(difference, tag="difference")
    assert graph is difference.graph
    (logged,) = tbscope.read_log(tmp_path)
    assert logged.tag == "difference"
    assert tbscope.to_graph_def(graph, color_by="difference") == tbscope.to_graph_def(
        logged.graph, color_by="difference"
    )


@pytest.mark.parametrize(
    ("options", "colours"), [({}, {"same", "added"}), ({"color_by": "none"}, set())]
)
def test_the_page_is_told_the_fate_of_each_node(tmp_path, options, colours):
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(tbscope.diff(chain(2), chain(3)), **options)
    (drawn,) = graphs_in(tmp_path)
    told = {
        node.attr["_XlaCluster"].s.decode() for node in drawn.node if "_XlaCluster" in node.attr
    }
    assert told == colours


def node_of(graph, op, fate):
    """Give the one operation of a name that has a fate."""
    (found,) = [
        node for node in graph.nodes if (node.op, node.attributes["difference"]) == (op, fate)
    ]
    return found


def test_a_weight_tells_its_shape_before_and_after():
    graph = union(net(nn.Linear(4, 4)), net(nn.Linear(4, 2)))
    (weight,) = [node for node in graph.nodes if node.name == "0.weight"]
    assert weight.attributes["differs"] == "Float(4, 4) -> Float(2, 4)"


def test_what_was_removed_keeps_its_role_and_its_phase():
    before = tbscope.trace(lambda x: x.view(2, 2).exp(), X)
    graph = tbscope.diff(before, tbscope.trace(torch.neg, X)).graph
    assert node_of(graph, "view", "removed").role == "view"
    before = tbscope.trace(nn.Linear(4, 4), X, loss=torch.sum, backward=True)
    graph = tbscope.diff(before, tbscope.trace(nn.Linear(4, 4), X)).graph
    phases = [node.phase for node in graph.nodes if node.op == "sum"]
    assert phases == ["forward", "backward"]
    assert node_of(graph, "weight_grad", "removed").phase == "backward"


def test_what_was_removed_still_waits_for_the_write_that_it_read_after():
    def before(x):
        y = x * 2
        y[0].add_(1)
        return y.exp()

    graph = tbscope.diff(tbscope.trace(before, X), tbscope.trace(torch.neg, X)).graph
    waiting = node_of(graph, "exp", "removed").control_inputs
    assert waiting == [node_of(graph, "add_", "removed")]


def test_one_dotted_line_leads_to_what_read_a_removed_value_twice():
    def before(x):
        y = x.tanh()
        return torch.add(y, y)

    def after(x):
        return torch.add(x, x)

    graph = tbscope.diff(tbscope.trace(before, X), tbscope.trace(after, X)).graph
    (add,) = [node for node in graph.nodes if node.op == "add"]
    assert add.control_inputs == [node_of(graph, "tanh", "removed")]


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x) + x


@pytest.mark.parametrize(("wrapped_before", "fate"), [(True, "removed"), (False, "added")])
def test_what_a_wrapper_ran_stands_in_its_own_box(wrapped_before, fate):
    layer = nn.Linear(4, 4)
    pair = net(Adapted(layer)), net(layer)
    graph = union(*(pair if wrapped_before else pair[::-1]))
    assert str(node_of(graph, "add", fate).scope) == "Sequential/Adapted[0]"
    assert node_of(graph, "linear", "same").scope.part.label == "Linear"


def test_each_removed_scope_beside_others_of_its_name_has_a_number_of_its_own():
    class Twice(nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = layer(layer(x))
            return x

    before = Twice(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    graph = union(before, Twice(nn.Linear(4, 4)))
    gone = [node for node in graph.nodes if node.attributes["difference"] == "removed"]
    assert [str(node.scope.part) for node in gone if node.kind == "op"] == [
        "Linear[0].2",
        "Linear[0].3",
    ]


def test_a_constant_is_the_same_beside_another_one():
    scale, shift = torch.rand(1, 4), torch.rand(1, 4)
    one = tbscope.trace(lambda x: x + shift, X)
    other = tbscope.trace(lambda x: x * scale + shift, X)
    assert [node.kind for node in one.nodes] == ["input", "constant", "op"]
    graph = tbscope.diff(one, one).graph
    assert {node.attributes["difference"] for node in graph.nodes} == {"same"}
    graph = tbscope.diff(one, other).graph
    (add,), (mul,) = ([node for node in graph.nodes if node.op == op] for op in ("add", "mul"))
    fates = [node.inputs[1].producer.attributes["difference"] for node in (add, mul)]
    assert fates == ["same", "added"]
