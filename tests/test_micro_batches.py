"""Micro batches of a training step: the equal ones are drawn once, with their number."""

import torch
from torch import nn

import tbscope
from tbscope.overlays.overlay import make_overlay
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.pipeline import draw


class Net(nn.Module):
    """Two layers, with a norm whose buffers each micro batch changes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))


def accumulated(model, batches, last=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbscope.record(model) as recording:
        for number, x in enumerate(batches):
            out = model(x)
            if last is not None and number == len(batches) - 1:
                out = last(out)
            (out.square().mean() / len(batches)).backward()
        optimizer.step()
    return recording.graph


def drawn(graph, above=""):
    hierarchy = Hierarchy.of(tbscope.to_graph_def(graph))
    box = hierarchy.boxes[above] if above else hierarchy.root
    return [
        child.label if isinstance(child, Box) else child.name
        for child in box.children.values()
        if not child.name.startswith("__function")
    ]


def test_accumulated_gradients_are_those_of_one_micro_batch_with_their_number():
    graph = accumulated(Net(), torch.ones(12, 4).split(3))
    assert drawn(graph) == [
        "x",
        "Net_x_4",
        "square",
        "mean",
        "div",
        "gradients",
        "optimizer",
    ]
    assert "Net_x_4" in drawn(graph, "gradients")


def calls(labels):
    return [label.partition(".")[0] for label in labels if label.startswith("Net")]


def attributes(graph_def, name):
    (node,) = [node for node in graph_def.node if node.name == name]
    return {name.strip(): value for name, value in node.attr.items()}


def test_a_folded_node_has_the_number_and_the_costs_of_all():
    graph = accumulated(Net(), torch.ones(12, 4).split(3))
    one = accumulated(Net(), [torch.ones(3, 4)])
    attr = attributes(tbscope.to_graph_def(graph), "Net_x_4/head")
    alone = attributes(tbscope.to_graph_def(one), "Net/head")
    assert attr["micro_batches"].i == 4
    assert attr["flops"].i == 4 * alone["flops"].i > 0


def test_a_graph_has_all_micro_batches_whatever_is_drawn():
    graph = accumulated(Net(), torch.ones(12, 4).split(3))
    text = str(graph)
    drawn(graph)
    assert str(graph) == text
    assert len(graph.find_calls("head")) == 4


def test_micro_batches_of_other_sizes_are_apart():
    graph = accumulated(Net(), torch.ones(10, 4).split(4))
    assert calls(drawn(graph)) == ["Net_x_2", "Net"]


def test_what_one_micro_batch_alone_does_is_drawn_beside_it():
    graph = accumulated(Net(), torch.ones(12, 4).split(3), last=torch.tanh)
    assert calls(drawn(graph)) == ["Net_x_3", "Net"]
    assert "tanh" in drawn(graph)


def test_calls_on_data_of_other_sources_are_no_micro_batches():
    model, maker = Net(), nn.Linear(4, 4)
    with tbscope.record(model, maker) as recording:
        model(torch.ones(3, 4)).mean().backward()
        model(maker(torch.ones(3, 4)).detach()).mean().backward()
    assert calls(drawn(recording.graph)) == ["Net", "Net"]


def test_steps_are_no_micro_batches():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbscope.record(model) as recording:
        for x in torch.ones(6, 4).split(3):
            model(x).mean().backward()
            optimizer.step()
    assert calls(drawn(recording.graph)) == ["Net", "Net"]


def test_figures_of_folded_nodes_are_joined():
    graph = accumulated(Net(), torch.ones(12, 4).split(3))
    heads = [node for node in graph.nodes if node.scope and node.scope.path.endswith("[head]")]
    forward = [node for node in heads if node.phase == "forward"]
    figures = make_overlay(graph, "mine", dict.fromkeys(forward, 3))
    shown = draw(graph, figures).graph_def
    assert attributes(shown, "Net_x_4/head")["mine"].i == 12


def test_weights_that_a_module_around_uses_have_their_gradients_in_the_call_of_their_pass():
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0, batch_first=True)
    graph = accumulated(model, torch.ones(6, 2, 4).split(2))
    scopes = [node.scope for node in graph.nodes if "out_proj" in gradient_of(node)]
    assert len(set(scopes)) == 3
    assert "TransformerEncoderLayer_x_3" in drawn(graph)


def gradient_of(node):
    return str(node.attributes.get("gradient_of"))
