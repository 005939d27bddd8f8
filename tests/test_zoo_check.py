"""The judge of the zoo: it passes a right graph and finds each fault of a wrong one."""

import pytest
import torch

import tbscope
from tbscope.ir.scopes import ScopePart
from tests.zoo.check import check, judge
from tests.zoo.fingerprints import fingerprint


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.act = torch.nn.ReLU()

    def forward(self, x, mask):
        return self.act(self.fc(x)).masked_fill(mask, 0.0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, mask)
        return {"hidden": x, "out": self.norm(x)}


INPUTS = {"x": torch.randn(3, 4), "mask": torch.tensor([[True, False, False, False]] * 3)}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def wrong_after(model, change):
    """Give the aspects that are wrong after a change of a right graph."""
    graph = tbscope.trace(model, kwargs=INPUTS)
    change(graph)
    return judge(graph, model, (), INPUTS, training=False).wrong


@pytest.mark.parametrize("training", [False, True])
def test_a_right_graph_has_nothing_wrong(model, training):
    assert check(model, (), INPUTS, training=training).wrong == {}


def test_a_lost_edge_is_found(model):
    def lose(graph):
        node = next(node for node in graph.nodes if node.op == "linear")
        node.inputs = node.inputs[:1]
        node.arguments = []

    wrong = wrong_after(model, lose)

    assert "parameter blocks.0.fc.weight does not reach output hidden" in wrong["edges"]


def test_flops_that_torch_does_not_count_are_found(model):
    def add(graph):
        node = next(node for node in graph.nodes if node.op == "linear")
        node.flops += 1

    (reason,) = wrong_after(model, add)["flops"]
    assert reason.endswith(str(int(reason.split()[0]) - 1))


def test_a_parameter_that_is_not_counted_is_found(model):
    def lose(graph):
        module = graph.modules.pop()
        graph.modules.append(module._replace(parameters=module.parameters[1:]))

    wrong = wrong_after(model, lose)
    assert wrong.keys() == {"counted"}
    assert any("the card of ''" in reason for reason in wrong["counted"])


def test_a_lost_edge_from_an_integer_input_is_found(model):
    def lose(graph):
        for node in graph.nodes:
            node.inputs = [value for value in node.inputs if value.producer.name != "mask"]

    assert wrong_after(model, lose)["edges"] == [
        "input mask moves output hidden and does not reach it",
        "input mask moves output out and does not reach it",
    ]


def test_an_edge_from_nowhere_is_found(model):
    def invent(graph):
        other = tbscope.trace(torch.nn.ReLU(), torch.randn(2))
        graph.nodes[-1].inputs.append(other.outputs[0].value)

    wrong = wrong_after(model, invent)

    assert any("which is not before it" in reason for reason in wrong["edges"])


def test_a_missing_call_is_found(model):
    wrong = wrong_after(model, lambda graph: graph.calls.pop())

    assert wrong["calls"] == ["7 calls instead of 8"]


def test_a_call_of_another_name_is_found(model):
    def rename(graph):
        graph.find("blocks.1.fc").qualified_name = "blocks.1.fd"

    assert wrong_after(model, rename)["calls"] == [
        "call 5 is of 'blocks.1.fd' instead of 'blocks.1.fc'"
    ]


def test_operations_in_the_scope_of_another_call_are_found(model):
    def move(graph):
        first, second = (call.scope for call in graph.calls if call.class_name.endswith("Linear"))
        for node in graph.nodes:
            if node.scope is first:
                node.scope = second

    wrong = wrong_after(model, move)

    assert wrong["scopes"] == [
        "no node stands in Net/ModuleList[blocks]/Block[0]/Linear[fc], which ran aten.t.default, "
        "aten.addmm.default"
    ]
    assert "operations" in wrong


def test_a_scope_of_no_call_is_found(model):
    def invent(graph):
        part = ScopePart("ReLU", "extra", 0)
        parent = graph.calls[0].scope
        graph.nodes[-1].scope = tbscope.Scope(part, parent=parent, qualified_name="extra")

    assert "Net/ReLU[extra] is the scope of no call" in wrong_after(model, invent)["scopes"]


def test_a_wrong_shape_is_found(model):
    def reshape(graph):
        graph.outputs[0].value.shape = (3, 5)

    assert "shapes" in wrong_after(model, reshape)


def test_a_model_that_sets_its_own_attributes_is_left_as_it_was():
    class Counting(torch.nn.Module):
        def forward(self, x):
            self.runs = getattr(self, "runs", 0) + 1
            return x * 2

    model = Counting()

    assert check(model, (torch.randn(2),), training=False).wrong == {}
    assert not hasattr(model, "runs")


CHANGES = {
    "training of norm": lambda model: model.norm.eval(),
    "attributes of ": lambda model: setattr(model, "extra", 1),
    "version of norm.weight": lambda model: model.norm.weight.detach().add_(0),
    "value of norm.bias": lambda model: model.norm.bias.data.fill_(3),
    "flags of norm.bias": lambda model: model.norm.bias.requires_grad_(False),
    "identity of norm.bias": lambda model: setattr(
        model.norm, "bias", torch.nn.Parameter(model.norm.bias.detach().clone())
    ),
    "_forward_hooks of norm": lambda model: model.norm.register_forward_hook(print),
    "rng torch": lambda _: torch.randn(1),
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_fingerprint_tells_what_changed(model, told):
    before = fingerprint(model, INPUTS)
    CHANGES[told](model)

    assert any(text.startswith(told) for text in before.differences(fingerprint(model, INPUTS)))


def test_the_fingerprint_of_what_stays_has_no_differences(model):
    assert fingerprint(model, INPUTS).differences(fingerprint(model, INPUTS)) == []
