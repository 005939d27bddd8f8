"""Lent parameters: no line leads from one call to another that only reads the same parameter."""

import re

import pytest
import torch
from build import GraphBuilder
from card_facts import facts
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch import nn

import tbscope
from tbscope.overlays.overlay import make_overlay
from tbscope.passes.tied_parameters import copy_shared_parameters
from tbscope.pipeline import draw


class Repeated(nn.Module):
    """Calls one module again and again, with a norm in between."""

    def __init__(self, part, call):
        super().__init__()
        self.part, self.norm, self.call = part, nn.LayerNorm(8), call

    def forward(self, x):
        for _ in range(6):
            x = self.norm(x + self.call(self.part, x))
        return x


class Parallel(nn.Module):
    """Layers of a list side by side: in the box of the list, none has a neighbour."""

    def __init__(self, count=3):
        super().__init__()
        self.convs = nn.ModuleList([nn.Linear(8, 8) for _ in range(count)])

    def forward(self, x):
        return torch.stack([conv(x) for conv in self.convs]).sum(0)


def attend(part, x):
    return part(x, x, x, need_weights=False)[0]


PARTS = {
    "attention": lambda: Repeated(nn.MultiheadAttention(8, 2, batch_first=True), attend),
    "list": lambda: Repeated(Parallel(), lambda part, x: part(x)),
}


def drawn(model, **options):
    return tbscope.to_graph_def(tbscope.trace(model.eval(), torch.rand(1, 4, 8)), **options)


def state_read_from_other_calls(message):
    """Give what an operation reads of the parameters that stand in the box of another call."""
    ops = {node.name: node.op for node in message.node}
    return [
        (node.name, name)
        for node in message.node
        for name in node.input
        if ops.get(name) == "Parameter" and node.name.partition("/")[0] != name.partition("/")[0]
    ]


@pytest.mark.parametrize("options", [{}, {"style": "torch", "root": False}])
@pytest.mark.parametrize("kind", PARTS)
def test_no_line_leads_from_one_call_to_the_next_for_a_parameter_of_both(kind, options):
    message = drawn(PARTS[kind](), **options)
    assert state_read_from_other_calls(message) == []
    assert tbscope.lint(message) == []


@pytest.mark.parametrize("kind", PARTS)
def test_each_call_reads_as_many_parameters_as_the_first(kind):
    message = drawn(PARTS[kind](), templates=False)
    counts = [
        sum(
            node.op.startswith("Parameter") and node.name.startswith(f"{call}/")
            for node in message.node
        )
        for call in ("part", "part.2nd", "part.3rd", "part.4th", "part.5th", "part.6th")
    ]
    assert len(set(counts)) == 1


@pytest.mark.parametrize("kind", PARTS)
def test_the_others_tell_the_name_of_the_parameter_and_its_key_is_found(kind):
    model = PARTS[kind]()
    message = drawn(model)
    names = [node.name for node in message.node]
    for key in model.state_dict():
        assert any(re.search(f"{key}$", name) for name in names)
    told = {
        node.attr["tied_to"].s.decode()
        for node in message.node
        if node.name.startswith("part.6th/")
    }
    assert {key for key in model.state_dict() if key.startswith("part.")} <= told


@pytest.mark.parametrize("kind", PARTS)
def test_the_card_of_the_whole_counts_each_parameter_once(kind):
    model = PARTS[kind]()
    (card,) = [node for node in drawn(model).node if node.name == "Repeated"]
    assert facts(card)["parameter_count"].i == sum(one.numel() for one in model.parameters())


def test_a_module_with_a_neighbour_in_each_call_keeps_one_circle_for_each_parameter():
    message = drawn(Repeated(nn.Linear(8, 8), lambda part, x: part(x)))
    assert [node.name for node in message.node if node.name.endswith("weight")] == [
        "part/weight",
        "norm/weight",
    ]


def test_what_is_called_once_has_its_parameters_once_though_it_is_alone():
    names = [node.name for node in drawn(nn.Sequential(Parallel(), nn.ReLU())).node]
    assert (
        len([name for name in names if name.endswith("0.weight") or "convs/0/weight" in name]) == 1
    )


@pytest.mark.parametrize("kind", PARTS)
def test_an_overlay_has_a_number_for_each_and_counts_the_parameter_once(kind):
    model = PARTS[kind]()
    graph = tbscope.trace(model, torch.rand(1, 4, 8))
    drawing = draw(graph, figures=make_overlay(graph, "parameters"))
    (device,) = drawing.stats.step_stats.dev_stats
    counts = {
        one.node_name: sum(part.total_bytes for part in one.memory) for one in device.node_stats
    }
    nodes = GraphDef.FromString(drawing.data).node
    names = {node.name for node in nodes if "Const" not in node.op}
    assert names <= counts.keys()
    own = [count for name, count in counts.items() if "__function_library__" not in name]
    assert sum(own) == sum(one.numel() for one in model.parameters())


# -- graphs made by hand --------------------------------------------------------------------


class Calls:
    """A parameter that two calls read, each alone in its box; what else reads it is added."""

    def __init__(self):
        self.build = build = GraphBuilder("Net")
        build.call("Net")
        self.scopes = [build.call(f"Net/Part[part]{number}") for number in ("", ".1")]
        self.x = build.input("x", (2,))
        self.weight = build.parameter("part.weight", (2,), self.scopes[0])
        self.made = [build.op("mul", self.x, self.weight, scope=one) for one in self.scopes]

    def part(self):
        """Part the parameter; give what each call reads of it."""
        copy_shared_parameters(self.build.graph)
        return [value.producer.inputs[1].producer for value in self.made]


def test_a_further_call_reads_a_parameter_of_its_own_that_tells_whose_it_is():
    calls = Calls()
    first, second = calls.part()
    assert first is calls.weight.producer
    assert (second.name, second.scope) == ("part.weight~2", calls.scopes[1])
    assert second.attributes["tied_to"] == "part.weight"


def test_a_parameter_that_is_tied_itself_leads_to_the_one_that_it_is_tied_to():
    calls = Calls()
    calls.weight.producer.attributes["tied_to"] = "embedding.weight"
    assert calls.part()[1].attributes["tied_to"] == "embedding.weight"


def test_a_name_that_is_taken_is_passed_over():
    calls = Calls()
    calls.build.parameter("part.weight~2", (2,), calls.scopes[0])
    assert calls.part()[1].name == "part.weight~3"


def test_a_gradient_reads_the_parameter_itself():
    calls = Calls()
    gradient = calls.build.op("mul", calls.x, calls.weight, phase="backward")
    calls.part()
    assert gradient.producer.inputs[1] is calls.weight


@pytest.mark.parametrize("linked", [True, False])
def test_what_waits_for_another_one_in_its_box_is_not_alone(linked):
    calls = Calls()
    for scope, made in zip(calls.scopes, calls.made, strict=True):
        other = calls.build.node("print", scope=scope)
        other.control_inputs[:] = [made.producer] if linked else []
    first, second = calls.part()
    assert (first is second) is linked
