"""Cards: what is told of a module, drawn as a node or as a box."""

import pytest
import torch
from build import GraphBuilder
from card_facts import facts
from google.protobuf.json_format import MessageToDict
from torch import nn

import tbscope
from tbscope.drawing.info_cards import leaf_facts, uncounted_text
from tbscope.ir.graph import Parameter, Sharding, Source
from tbscope.ir.module_tree import ModuleTree
from tbscope.passes.collapse_leaves import collapse_leaves

# A node has shapes and edges for what a box was given, and a name for each call; of a whole box,
# the types of all parameters would be too much.
ON_NODE_ALONE = {"parameters", "buffers"}
ON_BOX_ALONE = {"call", "arguments", "results"}
ON_BOTH = ("class", "module", "training", "defined", "parameter_count", "bytes")
ON_BOTH += ("trainable_parameter_count", "flops", "flops_not_counted")
MODULES = {
    "linear": (nn.Linear(2, 3), torch.ones(1, 2)),
    "conv": (nn.Conv2d(1, 2, 3, padding="same"), torch.ones(1, 1, 4, 4)),
    "norm": (nn.BatchNorm1d(3), torch.ones(2, 3)),
    "table": (nn.Embedding(5, 2, padding_idx=0), torch.tensor([1])),
    "gelu": (nn.GELU("tanh"), torch.ones(2)),
    "uncounted": (nn.Softmax(dim=0), torch.ones(2)),
}


class Net(nn.Module):
    """Calls one module, and something beside it, so that it is no leaf itself."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x), x + 1


def told(message, ops):
    """Give the attributes of the node of one of these op types, by name."""
    (node,) = (node for node in message.node if node.op in ops and "part" in node.name)
    return {name.strip(): MessageToDict(value) for name, value in node.attr.items()}


def on_node_and_box(graph, label):
    node = told(tbscope.to_graph_def(graph), {label})
    return node, told(tbscope.to_graph_def(graph, leaves="box"), {"NoOp"})


@pytest.mark.parametrize("kernels", [[], ["aten::equal"]])
def test_a_module_that_gave_no_tensor_tells_its_result_where_nothing_ran_in_it(kernels):
    build = GraphBuilder("Net")
    x = build.input("x", (2,))
    scope = build.call("Net/Check[part]", x)
    node = build.node("Check", x, scope=scope, kind="module", kernels=kernels)
    build.returns(scope, 7)
    found = leaf_facts(build.graph, {}, ModuleTree(build.graph).part_of)[node]
    assert found.get("results") == (None if kernels else "7")


def test_a_module_drawn_as_a_node_tells_the_parameters_of_its_parts_too():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)

        def forward(self, x):
            return (x @ self.inner.weight).relu()

    graph = tbscope.trace(Net(Tied()), torch.ones(1, 2))
    message = tbscope.to_graph_def(graph, level="module")
    (part,) = (node for node in message.node if node.op == "Tied")
    assert facts(part)["parameters"].s == b"inner.weight Float(2, 2)"


def module(flops=0, **facts):
    """Give a graph with the call of one module that runs one relu; `facts` are fields of Call."""
    build = GraphBuilder("Net")
    root = build.call("Net")
    x = build.op("neg", build.input("x", (1, 2)), scope=root)
    scope = build.call("Net/ReLU[part]", x, **facts)
    y = build.op("relu", x, scope=scope, kernels=["aten::relu"], flops=flops)
    build.returns(scope, y)
    build.output("out", y)
    return build.graph


def facts_of(graph):
    """Give what the card of the one node tells that stands for a module."""
    copy = graph.copy()
    collapse_leaves(copy)
    ((node, facts),) = leaf_facts(copy, {}, ModuleTree(copy).part_of).items()
    assert (node.kind, node.scope.path) == ("module", "Net/ReLU[part]")
    assert node.attributes == {"operation": "relu"}
    return facts


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("training", [False, True])
def test_a_module_tells_the_same_as_a_node_and_as_a_box(name, training):
    part, data = MODULES[name]
    graph = tbscope.trace(Net(part), data, training=training)
    node, box = on_node_and_box(graph, type(part).__name__)
    both = node.keys() & box.keys() - {"scope"}
    assert {key: node[key] for key in both} == {key: box[key] for key in both}
    assert {"class", "module", "training", "defined", *graph.calls[1].hyperparameters} <= both
    assert box.keys() - node.keys() == ON_BOX_ALONE - {"call"}
    for key in ON_BOTH:
        assert (key in node) == (key in box), key
    # What else a node tells, its operation tells too, where the module is a box.
    drawn = tbscope.to_graph_def(graph, leaves="box").node
    inside = {key for one in drawn if one.name.startswith("part/") for key in facts(one)}
    assert node.keys() - box.keys() <= ON_NODE_ALONE | inside | {"operation"}


def test_a_node_tells_types_of_what_it_owns_and_a_box_what_it_was_given():
    graph = tbscope.trace(Net(nn.Linear(2, 3)), torch.ones(1, 2))
    node, box = on_node_and_box(graph, "Linear")
    assert node["parameters"] == {"s": encoded("weight Float(3, 2), bias Float(3)")}
    assert node["operation"] == {"s": encoded("linear")}
    assert box["arguments"] == {"s": encoded("input: Float(1, 2)")}
    assert box["results"] == {"s": encoded("Float(1, 3)")}
    assert box["parameter_count"] == node["parameter_count"] == {"i": "9"}
    assert box["flops"] == node["flops"] == {"i": "12"}


def test_leaves_that_own_alike_tell_each_its_own_share():
    build = GraphBuilder()
    x = build.input("x", (1, 4))
    plain = Parameter("weight", "parameter", (4,), "float32", 16, True)
    for attribute, sharding in (("a", None), ("b", Sharding((2,), ("Shard(0)",), ("tp",)))):
        scope = build.call(
            f"Net/Scale[{attribute}]", parameters=(plain._replace(sharding=sharding),)
        )
        x = build.op("scale", x, scope=scope)
    collapse_leaves(build.graph)
    facts = leaf_facts(build.graph, {}, ModuleTree(build.graph).part_of)
    assert [told["parameters"] for told in facts.values()] == [
        "weight Float(4)",
        "weight Float(4, here=(2) by tp: Shard(0))",
    ]


def encoded(text):
    from base64 import b64encode

    return b64encode(text.encode()).decode()


def test_the_card_of_a_leaf_tells_its_call():
    assert facts_of(
        module(
            parameters=(Parameter("weight", "parameter", (2, 3), "float32", 24, True),),
            hyperparameters={"slope": 0.5},
            defined=Source("act.py", 2, "ReLU"),
            training=True,
        )
    ) == {
        "operation": "relu",
        "class": "models.ReLU",
        "module": "part",
        "training": True,
        "defined": "act.py:2 in ReLU",
        "parameters": "weight Float(2, 3)",
        "parameter_count": 6,
        "bytes": 24,
        "slope": 0.5,
    }


@pytest.mark.parametrize("leaves", ["node", "box"])
def test_a_hyper_parameter_named_like_a_fact_is_set_apart(leaves):
    hyperparameters = {"class_": 4, "training": "often", "class": 3, "flops": "many"}
    graph = module(hyperparameters=hyperparameters, flops=8)
    ops = {"ReLU"} if leaves == "node" else {"NoOp"}
    found = told(tbscope.to_graph_def(graph, leaves=leaves), ops)
    assert found["training_"] == {"s": encoded("often")}
    assert found["class"] == {"s": encoded("models.ReLU")}
    assert (found["class_"], found["class__"]) == ({"i": "4"}, {"i": "3"})
    assert (found["flops"], found["flops_"]) == ({"i": "8"}, {"s": encoded("many")})


def test_frozen_parameters_buffers_and_those_not_initialised_are_told_apart():
    owned = (
        Parameter("weight", "parameter", (2, 3), "float32", 24, False),
        Parameter("bias", "parameter", (2,), "float16", 4, True),
        Parameter("late", "parameter", None, "float32", 0, True),
        Parameter("mean", "buffer", (5,), "float64", 40, False),
    )
    facts = facts_of(module(parameters=owned))
    assert facts["parameters"] == "weight Float(2, 3), bias Half(2), late Float(*)"
    assert facts["buffers"] == "mean Double(5)"
    assert (facts["parameter_count"], facts["trainable_parameter_count"]) == (8, 2)
    assert facts["bytes"] == 68


def test_layers_that_own_alike_but_for_one_that_is_frozen_are_told_apart():
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers[1].weight.requires_grad_(False)
    nodes = {n.name: n for n in tbscope.to_graph_def(tbscope.trace(layers, torch.ones(2))).node}
    counts = [facts(nodes[name])["trainable_parameter_count"].i for name in ("0", "1")]
    assert counts == [6, 2]


def test_a_module_of_buffers_alone_counts_no_parameters_as_a_node():
    part = nn.BatchNorm1d(3, affine=False)
    node, box = on_node_and_box(tbscope.trace(Net(part), torch.ones(2, 3)), "BatchNorm1d")
    assert "parameter_count" not in node
    assert box["parameter_count"] == {"i": "0"}
    assert node["bytes"] == box["bytes"]


def test_a_box_tells_which_call_of_its_module_it_is_from_the_second_on():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return self.fc(self.fc(x))

    message = tbscope.to_graph_def(tbscope.trace(Twice(), torch.ones(1, 2)), leaves="box")
    calls = {node.name: facts(node)["call"].i for node in message.node if "call" in facts(node)}
    assert list(calls.values()) == [2]


def test_a_number_of_the_users_that_is_called_like_a_fact_is_set_apart():
    from tbscope.overlays.overlay import make_overlay
    from tbscope.pipeline import draw

    graph = tbscope.trace(Net(nn.ReLU()), torch.ones(2))
    figures = make_overlay(graph, "training", {"part": 7})
    found = told(draw(graph, figures).graph_def, {"ReLU"})
    assert found["training"] == {"b": False}
    assert found["training_"] == {"i": "7"}


def test_the_nodes_of_the_graph_itself_tell_nothing_of_their_modules():
    graph = tbscope.trace(Net(nn.Linear(2, 3)), torch.ones(1, 2), profile=1)
    before = [dict(node.attributes) for node in graph.nodes]
    tbscope.to_graph_def(graph)
    assert [node.attributes for node in graph.nodes] == before
    assert all("class" not in facts for facts in before)


def test_what_flops_leave_out_is_told_with_the_most_frequent_first():
    counts = {"aten::b": 1, "aten::c": 3, "aten::a": 1}
    assert uncounted_text(counts) == "aten::c x3, aten::a, aten::b"


@pytest.mark.parametrize(
    ("given", "text"), [(None, "None"), (7, "7"), ([1, "a"], "[1, 'a']"), ({"n": ()}, "{n: ()}")]
)
def test_a_module_that_gives_no_tensor_tells_what_it_gives(given, text):
    class Says(nn.Module):
        def forward(self, x):
            return given

    graph = tbscope.trace(Net(Says()), torch.ones(1))
    message = tbscope.to_graph_def(graph)
    (node,) = (node for node in message.node if node.op == "Says")
    assert facts(node)["results"].s.decode() == text
    assert not {"_output_shapes", "dtype"} & node.attr.keys()
    assert not tbscope.lint(message)


def test_a_module_that_gives_a_tensor_tells_it_by_its_edge():
    (node,) = (
        node
        for node in tbscope.to_graph_def(tbscope.trace(Net(nn.Identity()), torch.ones(1))).node
        if node.op == "Identity"
    )
    assert "results" not in facts(node)
    assert node.attr["_output_shapes"].list.shape
