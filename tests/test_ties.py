"""Ties: every key of the state_dict whose tensor was read finds a node by the page's search."""

import re

import pytest
import torch
from build import GraphBuilder
from real_graphs import KINDS, real_graph, real_model
from torch import nn

import tbscope
from tbscope.ir.graph import Module, Parameter
from tbscope.passes.tied_parameters import copy_tied_parameters


class Net(nn.Module):
    """A head that is tied to the embedding."""

    def __init__(self, *, tied=True):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


# The embedding has its first name where the encoder reads it: nothing else does.
LOST = {"T5ForConditionalGeneration": ["encoder.embed_tokens.weight"]}
IDS = torch.zeros(1, 2, dtype=torch.long)


def drawn(model, **drawing):
    message = tbscope.to_graph_def(tbscope.trace(model, IDS), **drawing)
    return {node.name: node for node in message.node}


def test_a_tied_parameter_is_beside_each_of_its_modules_under_its_name_there():
    nodes = drawn(Net())
    assert "embed/weight" in nodes["embed"].input
    assert list(nodes["head"].input) == ["embed", "head/weight"]
    assert nodes["head/weight"].op == "ParameterConst"
    assert nodes["head/weight"].attr["tied_to"].s == b"embed.weight"


def test_a_parameter_of_one_module_is_tied_to_nothing():
    assert "tied_to" not in drawn(Net(tied=False))["head/weight"].attr


def test_as_boxes_one_node_is_read_by_all():
    nodes = drawn(Net(), leaves="box")
    assert nodes["head/linear"].input[-1] == "embed/weight"


def test_a_parameter_is_never_left_without_a_reader():
    class Half(Net):
        def forward(self, x):
            return self.head(torch.ones(1, 4))

    nodes = drawn(Half())
    assert nodes["head"].input[-1] == "embed/weight"
    assert tbscope.lint(tbscope.to_graph_def(tbscope.trace(Half(), IDS))) == []


def test_of_modules_that_share_a_parameter_of_one_never_called_only_the_first_reads_its_name():
    class Heads(Net):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(4, 8, bias=False)
            self.other.weight = self.embed.weight

        def forward(self, x):
            return self.head(torch.ones(1, 4)) + self.other(torch.ones(1, 4))

    nodes = drawn(Heads())
    assert nodes["head"].input[-1] == "embed/weight"
    assert nodes["other"].input[-1] == "other/weight"


def test_what_the_parent_reads_of_a_tied_parameter_has_the_first_name():
    class Reads(Net):
        def forward(self, x):
            return self.head(self.embed(x)) + self.head.weight.sum()

    assert drawn(Reads())["sum"].input[0] == "embed/weight"


def test_a_tied_module_that_is_called_again_reads_the_same_node():
    class Again(Net):
        def forward(self, x):
            y = self.embed(x)
            return self.head(y) + self.head(-y)

    graph = tbscope.trace(Again(), IDS).copy()
    copy_tied_parameters(graph)
    graph.verify()
    (held,) = [node for node in graph.nodes if node.name == "head.weight"]
    readers = [node for node in graph.nodes if held.outputs[0] in node.inputs]
    assert [node.op for node in readers] == ["linear", "linear"]
    assert all(held.outputs[0] in [nest for _, nest in node.arguments] for node in readers)


def test_each_call_of_a_module_reads_the_parameter_of_one_that_is_never_called():
    class Twice(Net):
        def forward(self, x):
            return self.head(torch.ones(1, 4)) + self.head(torch.zeros(1, 4))

    graph = tbscope.trace(Twice(), IDS).copy()
    copy_tied_parameters(graph)
    graph.verify()
    (weight,) = [node for node in graph.nodes if node.kind == "parameter"]
    readers = [node.op for node in graph.nodes if weight.outputs[0] in node.inputs]
    assert (weight.name, readers) == ("embed.weight", ["linear", "linear"])


@pytest.mark.parametrize("taken", [False, True])
def test_a_further_name_that_another_node_has_is_passed_over(taken):
    build = GraphBuilder("Net")
    embed, head = build.call("Net/Embedding[embed]"), build.call("Net/Linear[head]")
    weight = build.parameter("embed.weight", (2,), embed)
    if taken:
        build.parameter("head.weight", (2,), head)
    y = build.op("embedding", build.input("x", (2,)), weight, scope=embed)
    y = build.op("linear", y, weight, scope=head)
    held = (Parameter("weight", "parameter", (2,), "float32", 8, requires_grad=True, number=0),)
    build.graph.modules += [Module(name, "Part", held) for name in ("embed", "head")]
    copy_tied_parameters(build.graph)
    assert y.producer.inputs[1].name == ("embed.weight" if taken else "head.weight")


def test_it_is_as_trainable_as_the_parameter_itself():
    nodes = drawn(Net(), color_by="trainable")
    assert nodes["head"].attr["_XlaCluster"].s == b"trainable"


def test_the_graph_itself_and_its_numbers_stay():
    graph = tbscope.trace(Net(), IDS)
    text = str(graph)
    message = tbscope.to_graph_def(graph)
    assert str(graph) == text
    cards = {node.name: node.attr for node in message.node}
    assert cards["Net"][" parameter_count"].i == 32
    assert cards["head/weight"]["requires_grad"].b
    assert cards["head/weight"]["   bytes"].i == 128


@pytest.mark.parametrize("name", KINDS)
def test_every_key_of_a_real_model_that_was_read_is_found(name):
    example, graph = real_model(name), real_graph(name)
    names = "\n".join(node.name for node in tbscope.to_graph_def(graph, templates=False).node)
    state = example.model.state_dict()
    read = {state[node.name].data_ptr() for node in graph.nodes if node.name in state}
    wanted = [key for key, value in state.items() if value.data_ptr() in read]
    assert [key for key in wanted if not re.search(key, names)] == LOST.get(name, [])
    assert len(read) > len(state) / 4
