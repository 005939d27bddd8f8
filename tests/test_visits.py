"""Visits: what other methods of a module ran stands with their caller, where that is needed."""

import pytest
import torch
from test_guests import cycles, drawn, names
from torch import nn

import tbscope


def doubled(x):
    return x * 2


class Cell(nn.Module):
    """A cell that makes its first state itself, with a part of it or without."""

    def __init__(self):
        super().__init__()
        self.fc, self.memory = nn.Linear(4, 4), Memory()

    def start(self):
        return torch.zeros(2, 4) + 1

    def forward(self, x, state):
        return (self.fc(x) + state).tanh()


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))

    def reset(self):
        return self.bias * 2

    def forward(self, x):
        return x - self.bias


class Recurrent(nn.Module):
    def __init__(self, start, work=lambda x: x):
        super().__init__()
        self.cell, self.start, self.work = Cell(), start, work

    def forward(self, x):
        state = self.start(self.cell)
        for _ in range(3):
            state = self.cell(x, state)
        return self.work(state)


@pytest.mark.parametrize("work", [lambda x: x, doubled, torch.relu])
@pytest.mark.parametrize(
    "start",
    [
        Cell.start,
        lambda cell: cell.memory.reset(),
        lambda cell: cell.memory(cell.memory.reset()),
        lambda cell: 1.0,
    ],
)
def test_calls_stand_beside_each_other_whatever_method_of_their_module_ran_before(start, work):
    found = names(drawn(Recurrent(start, work)))
    assert {"cell/fc", "cell.2nd/fc", "cell.3rd/fc"} <= set(found)


def test_what_a_module_that_is_never_called_feeds_by_a_method_does_not_stand_in_it():
    class Tools(nn.Module):
        def make(self, x):
            return x.sin() + 1

    class Using(nn.Module):
        def __init__(self):
            super().__init__()
            self.tools, self.body = Tools(), Block()

        def forward(self, x):
            return self.tools.make(self.body(self.tools.make(x)))

    assert {"body/0", "body/1"} <= set(names(drawn(Using())))


class Detecting(nn.Module):
    """torchvision's form: one module prepares the images and, by another method, the results."""

    def __init__(self, after, between=lambda net, x: net.body(x)):
        super().__init__()
        self.transform, self.body, self.after, self.between = Transform(), Block(), after, between

    def forward(self, x):
        x = self.transform(x)
        return self.after(self, x, self.between(self, x))


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.ReLU())


class Transform(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.fc = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x) * self.scale

    def resize(self, x):
        return (x / self.scale).round()

    def straighten(self, x):
        return nn.functional.normalize(x)


READERS = {
    "what others made of its work": (lambda net, x, y: net.transform.resize(y), True),
    "its own work": (lambda net, x, y: (net.transform.resize(x), y), False),
}


@pytest.mark.parametrize("reads", READERS)
def test_a_method_that_reads_what_its_module_has_fed_stands_with_its_caller(reads):
    after, moves = READERS[reads]
    message = drawn(Detecting(after))
    found = set(names(message))
    assert ("round" in found) is moves
    assert ("transform/round" in found) is not moves
    assert {"transform/fc", "body/0"} <= found
    assert cycles(message) == []


def test_a_parameter_that_the_method_reads_keeps_its_key():
    after, _ = READERS["what others made of its work"]
    graph = tbscope.trace(Detecting(after), torch.rand(2, 4))
    found = [node.name for node in tbscope.to_graph_def(graph).node]
    assert "transform/scale" in found


def test_a_method_and_a_part_that_lead_back_to_their_module_both_stand_with_their_caller():
    def after(net, x, y):
        return net.transform.resize(net.transform.fc(y))

    graph = tbscope.trace(Detecting(after), torch.rand(2, 4))
    message = tbscope.to_graph_def(graph, cards=False)
    assert {"transform/fc", "transform.fc", "round"} <= set(names(message))
    assert "transform/round" not in names(message)
    assert cycles(message) == []


def test_of_two_modules_only_the_one_that_would_circle_is_left():
    class Two(Detecting):
        def __init__(self):
            super().__init__(READERS["what others made of its work"][0])
            self.other = Transform()

        def forward(self, x):
            other = self.other.resize(self.other(x))
            return super().forward(x) + other

    found = set(names(drawn(Two())))
    assert {"round", "other/round"} <= found


def test_a_long_method_is_a_box_beside_its_module():
    def many(net, x, y):
        return [net.transform.resize(y * number) for number in range(12)]

    found = names(drawn(Detecting(many)))
    assert {name.partition("/")[0] for name in found} == {"x", "transform", "body", "many", "out"}
    assert {"many/resize/round", "many/resize.12th/round"} <= set(found)


@pytest.mark.parametrize("leaves", ["node", "box"])
def test_the_kernels_of_a_method_stand_with_its_caller_too(leaves):
    model = Detecting(lambda net, x, y: net.transform.straighten(y))
    graph = tbscope.trace(model, torch.rand(2, 4), kernels=True)
    message = tbscope.to_graph_def(graph, level="aten", leaves=leaves, cards=False)
    found = names(message)
    assert [name for name in found if name.startswith("normalize/")]
    assert not [name for name in found if name.startswith("transform/normalize")]
    assert cycles(message) == []
