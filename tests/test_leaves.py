"""Leaf modules as one node."""

import pytest
import torch
from build import GraphBuilder, chain
from torch import nn

import tbscope
from tbscope.ir.graph import Argument, Call, Note, Output, Source
from tbscope.passes.collapse_leaves import collapse_leaves


def relu_module(build, x, path="Net/ReLU[act]", **facts):
    """Add the call of a module that runs one relu."""
    scope = build.call(path, x, **facts)
    y = build.op("relu", x, scope=scope)
    build.returns(scope, y)
    return y


def net():
    """Give a builder with a called root that runs an operation of its own, and its input."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    return build, build.op("neg", build.input("x", (1, 2)), scope=net)


def collapsed(build):
    """Collapse the leaves of a copy; give its nodes of kind module."""
    copy = build.graph.copy()
    collapse_leaves(copy)
    copy.verify()
    return [node for node in copy.nodes if node.kind == "module"]


def test_a_leaf_becomes_a_node_of_its_class_that_tells_its_operation():
    build, x = net()
    build.linear("Net/Linear[fc]", x, 3)
    (node,) = collapsed(build)
    assert (node.kind, node.op, node.scope.path) == ("module", "Linear", "Net/Linear[fc]")
    # What the call tells is no attribute of the node: see tests/test_cards.py.
    assert node.attributes == {"operation": "linear"}


def test_the_edges_and_the_place_of_its_parameters_stay():
    graph = chain(2)
    copy = graph.copy()
    collapse_leaves(copy)
    pairs = list(zip(graph.nodes, copy.nodes, strict=True))
    assert [(a.name, a.scope) for a, _ in pairs] == [(b.name, b.scope) for _, b in pairs]
    assert [[v.name for v in a.inputs] for a, _ in pairs] == [
        [v.name for v in b.inputs] for _, b in pairs
    ]
    assert [b.kind for _, b in pairs if b.kind != "input"] == [
        "parameter",
        "parameter",
        "module",
    ] * 2


def test_every_call_of_a_leaf_is_a_node_of_its_own():
    build, x = net()
    y = relu_module(build, x)
    relu_module(build, y, "Net/ReLU[act].1", qualified_name="act")
    assert [node.scope.path for node in collapsed(build)] == ["Net/ReLU[act]", "Net/ReLU[act].1"]


def test_a_module_with_two_operations_stays_a_box():
    build, x = net()
    scope = build.call("Net/GELU[act]", x)
    y = build.op("tanh", build.op("mul", x, x, scope=scope), scope=scope)
    build.returns(scope, y)
    assert collapsed(build) == []


def test_a_constant_made_in_a_module_counts_as_an_operation():
    build, x = net()
    scope = build.call("Net/Scale[s]", x)
    two = build.node("constant", name="c", kind="constant", scope=scope, outputs=((),)).outputs[0]
    build.returns(scope, build.op("mul", x, two, scope=scope))
    assert collapsed(build) == []


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_parameters_and_buffers_of_its_own_do_not_count(kind):
    build, x = net()
    scope = build.call("Net/Scale[s]", x)
    scale = build.parameter("s.scale", (2,), scope, kind=kind)
    build.returns(scope, build.op("mul", x, scale, scope=scope))
    assert [node.op for node in collapsed(build)] == ["Scale"]


@pytest.mark.parametrize("below", ["Net/Head[h]/block", "Net/Head[h]/ModuleList[l]/inner"])
def test_a_module_below_which_a_node_stands_stays_a_box(below):
    build, x = net()
    scope = build.call("Net/Head[h]", x)
    y = build.op("relu", x, scope=scope)
    build.returns(scope, build.op("tanh", y, scope=build.hand(below)))
    assert collapsed(build) == []


def test_a_module_that_reads_the_weight_of_a_child_never_called_stays_a_box():
    build, x = net()
    scope = build.call("Net/Head[h]", x)
    weight = build.parameter("h.inner.w", (2,), build.scope("Net/Head[h]/Linear[inner]"))
    build.returns(scope, build.op("mul", x, weight, scope=scope))
    assert collapsed(build) == []


def test_a_block_by_hand_and_a_container_are_no_leaves():
    build, x = net()
    y = build.op("relu", x, scope=build.hand("Net/loss"))
    build.op("relu", y, scope=build.scope("Net/Encoder[enc]"))
    assert collapsed(build) == []


def test_an_operation_at_the_top_level_is_no_leaf():
    build = GraphBuilder()
    build.op("relu", build.input("x", (1,)))
    assert collapsed(build) == []


def test_a_root_that_runs_one_operation_is_a_leaf_too():
    build = GraphBuilder("ReLU")
    relu_module(build, build.input("x", (1,)), "ReLU")
    (node,) = collapsed(build)
    assert (node.op, node.scope.path) == ("ReLU", "ReLU")


@pytest.mark.parametrize("nest", [lambda y, x: (y, x), lambda y, x: {"y": [y], "x": x}])
def test_a_module_that_passes_a_tensor_by_its_operation_stays_a_box(nest):
    build, x = net()
    y = relu_module(build, x)
    build.returns(build.scope("Net/ReLU[act]"), nest(y, x))
    assert collapsed(build) == []
    build.returns(build.scope("Net/ReLU[act]"), nest(y, y))
    assert [node.op for node in collapsed(build)] == ["ReLU"]


def test_a_module_that_gives_its_argument_back_beside_a_write_stays_a_box():
    build, x = net()
    scope = build.call("Net/Observer[obs]", x)
    count = build.parameter("obs.count", (), scope, kind="buffer")
    build.op("add_", count, 1, scope=scope)
    build.returns(scope, x)
    assert collapsed(build) == []


@pytest.mark.parametrize("result", [None, 3, (None, "text"), {}])
def test_a_module_that_gives_no_tensor_is_a_leaf(result):
    build, x = net()
    relu_module(build, x)
    build.returns(build.scope("Net/ReLU[act]"), result)
    assert [node.op for node in collapsed(build)] == ["ReLU"]


def test_some_of_the_outputs_of_an_operation_may_be_the_results():
    build, x = net()
    scope = build.call("Net/LSTM[rnn]", x)
    outputs = build.node("lstm", x, scope=scope, outputs=((1,), (2,), (3,))).outputs
    build.returns(scope, (outputs[0], (outputs[1], None)))
    assert [node.op for node in collapsed(build)] == ["LSTM"]


def test_a_module_that_ran_no_operation_tells_of_none():
    build, x = net()
    scope = build.call("Net/Identity[skip]", x)
    build.returns(scope, build.op("Identity", x, scope=scope))
    (node,) = collapsed(build)
    assert node.op == "Identity"
    assert "operation" not in node.attributes


def test_facts_that_the_operation_had_already_stay():
    build, x = net()
    y = relu_module(build, x)
    y.producer.attributes["read_by_python"] = "item"
    assert collapsed(build)[0].attributes["read_by_python"] == "item"


def test_its_source_is_the_place_of_the_call():
    build, x = net()
    called = Source("net.py", 9, "forward")
    y = relu_module(build, x, source=called)
    y.producer.source = Source("act.py", 5, "forward")
    (node,) = collapsed(build)
    assert node.source == called


def test_a_call_of_unknown_place_leaves_the_place_of_the_operation():
    build, x = net()
    y = relu_module(build, x)
    y.producer.source = Source("act.py", 5, "forward")
    assert collapsed(build)[0].source == Source("act.py", 5, "forward")


def test_a_collapsed_graph_prints_the_class_in_place_of_the_operation():
    graph = chain(1)
    collapse_leaves(graph)
    assert str(graph).splitlines()[1] == (
        "  %1 : Float(1, 2) = Linear(%x, %0.weight, %0.bias), scope: Chain/Linear[0]"
    )


def test_collapsing_twice_is_collapsing_once():
    graph = chain(3)
    collapse_leaves(graph)
    once = [(node.kind, node.op, dict(node.attributes)) for node in graph.nodes]
    collapse_leaves(graph)
    assert [(node.kind, node.op, node.attributes) for node in graph.nodes] == once


def test_calls_and_scopes_stay_as_they_were():
    build, x = net()
    relu_module(build, x)
    copy = build.graph.copy()
    collapse_leaves(copy)
    assert [call.scope for call in copy.calls] == [call.scope for call in build.graph.calls]
    assert isinstance(copy.calls[1], Call)
    assert copy.calls[1].arguments == [Argument(None, copy.nodes[1].outputs[0])]


def test_a_counter_beside_the_operation_is_folded_into_the_leaf():
    net = nn.Sequential(nn.BatchNorm1d(3))
    graph = tbscope.trace(net, torch.randn(2, 3), training=True)
    names = {node.name: node for node in tbscope.to_graph_def(graph).node}
    leaf = names["0"]
    assert leaf.op == "BatchNorm1d"
    assert "0/num_batches_tracked" in [text.partition(":")[0] for text in leaf.input]
    assert len(leaf.attr["_output_shapes"].list.shape) == 4
    assert set(names) == {"input", "out", "0", "Sequential"} | {
        f"0/{name}" for name in ("weight", "bias", *dict(net[0].named_buffers()))
    }


def test_a_layer_with_a_counter_called_twice_counts_on():
    norm = nn.BatchNorm1d(3)
    graph = tbscope.trace(lambda x: norm(norm(x)), torch.randn(2, 3), training=True)
    nodes = {node.name: node for node in tbscope.to_graph_def(graph).node}
    leaves = [node for node in nodes.values() if node.op == "BatchNorm1d"]
    assert len(leaves) == 2
    assert any(text.startswith(leaves[0].name) for text in leaves[1].input)


def drawn(graph, **drawing):
    """Give for each node of the drawing the names that it reads or waits for."""
    return {
        node.name: [text.partition(":")[0] for text in node.input if text]
        for node in tbscope.to_graph_def(graph, **drawing).node
    }


class Counted(nn.Module):
    """Reads the counter of a layer that runs then."""

    def __init__(self, late):
        super().__init__()
        self.bn = nn.BatchNorm1d(3)
        self.late = late

    def forward(self, x):
        before = self.bn.num_batches_tracked.detach()
        y = self.bn(x)
        return (y, before) if self.late else y + before


@pytest.mark.parametrize(("late", "reader"), [(False, "add"), (True, "out.1")])
def test_what_waits_for_a_counter_waits_for_the_layer_that_counts(late, reader):
    graph = tbscope.trace(Counted(late), torch.rand(2, 3), training=True)
    found = drawn(graph)
    assert "^bn" in found[reader]
    assert "bn/num_batches_tracked" in found["bn"]


def counted(build, x):
    """Add the call of a layer with a counter; give the counter's node and the layer's result."""
    inner = build.call("Net/Norm[n]", x)
    count = build.parameter("n.count", (), inner, kind="buffer")
    counter = build.op("add_", count, 1, scope=inner).producer
    y = build.op("norm", x, scope=inner)
    build.returns(inner, y)
    return counter, y


def test_notes_and_outputs_follow_a_counter_into_its_layer():
    build, x = net()
    scope = build.scope("Net")
    counter, y = counted(build, x)
    build.graph.notes.append(Note("it counts", node=counter))
    build.graph.outputs.append(Output("out", build.op("neg", y, scope=scope), (counter,)))
    build.output("count", counter.outputs[0])
    collapse_leaves(build.graph)
    build.graph.verify()
    layer = build.graph.nodes[-2]
    assert (layer.op, len(layer.outputs)) == ("Norm", 2)
    out, count = build.graph.outputs
    assert (out.control_inputs, count.value) == ((layer,), layer.outputs[1])
    assert build.graph.notes[0].node is layer


def test_a_layer_does_not_wait_for_its_own_counter():
    build, x = net()
    scope = build.scope("Net")
    counter, y = counted(build, x)
    y.producer.control_inputs.append(counter)
    build.output("out", build.op("neg", y, scope=scope))
    collapse_leaves(build.graph)
    build.graph.verify()
    assert y.producer.control_inputs == []


@pytest.mark.parametrize("waits", [False, True])
def test_what_needs_a_counter_before_its_layer_has_run_keeps_the_layer_a_box(waits):
    build, x = net()
    scope = build.scope("Net")
    counter, y = counted(build, x)
    given, others = (x, [counter]) if waits else (counter.outputs[0], [])
    early = build.op("exp", given, scope=scope, control_inputs=others).producer
    build.graph.nodes.remove(early)
    build.graph.nodes.insert(build.graph.nodes.index(counter) + 1, early)
    build.output("out", build.op("add", y, early.outputs[0], scope=scope))
    build.graph.verify()
    assert collapsed(build) == []


def test_a_layer_reads_waits_and_runs_what_its_counters_did_and_not_its_own_counts():
    build, x = net()
    inner = build.call("Net/Norm[n]", x)
    fill = build.op("fill_", x, 1, scope=build.scope("Net")).producer
    count = build.parameter("n.count", (), inner, kind="buffer")
    once = build.op("add_", count, scope=inner, kernels=["aten::add_"], control_inputs=[fill])
    build.op("mul_", once, scope=inner, kernels=["aten::mul_"])
    y = build.op("norm", x, scope=inner, kernels=["aten::norm"])
    build.returns(inner, y)
    (layer,) = collapsed(build)
    assert [value.name for value in layer.inputs] == ["1", "n.count"]
    assert [other.op for other in layer.control_inputs] == ["fill_"]
    assert layer.kernels == ["aten::norm", "aten::add_", "aten::mul_"]
    assert len(layer.outputs) == 3


@pytest.mark.parametrize(("kernels", "leaves"), [([], ["Noise"]), (["aten::rand"], [])])
def test_what_waits_and_reads_nothing_counts_only_where_it_computes(kernels, leaves):
    build, x = net()
    scope = build.call("Net/Noise[n]", x)
    y = build.op("relu", x, scope=scope)
    waiting = [y.producer]
    build.op("rand", scope=scope, shape=(1, 2), kernels=kernels, control_inputs=waiting)
    build.returns(scope, y)
    assert [node.op for node in collapsed(build)] == leaves


def test_an_operation_that_reads_the_count_beside_it_stays_in_a_box():
    build, x = net()
    inner = build.call("Net/Norm[n]", x)
    count = build.parameter("n.count", (), inner, kind="buffer")
    counted = build.op("add_", count, 1, scope=inner)
    build.returns(inner, build.op("norm", x, counted, scope=inner))
    assert collapsed(build) == []
