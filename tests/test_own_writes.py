"""A write into what an operation reads is told as one that is looked for in all memory.

Where anything is inside of a wrapper (`vmap`), each write is looked for: so the same code is
recorded both ways.
"""

import pytest
import torch
from torch import nn
from training_steps import Net, closure_of

import tbscope

OF_ONE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop")
OPTIMIZERS = {
    **{f"{name}, {foreach}": (name, {"foreach": foreach}) for name in OF_ONE for foreach in (0, 1)},
    "Adam, amsgrad": ("Adam", {"amsgrad": True, "maximize": True}),
    "AdamW, fused": ("AdamW", {"fused": True}),
    "RMSprop, centered": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "SGD": ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "foreach": False}),
    "SGD, at once": ("SGD", {"momentum": 0.9, "foreach": True}),
    "SGD, fused": ("SGD", {"fused": True}),
    "Adafactor": ("Adafactor", {}),
    "Rprop": ("Rprop", {}),
    "LBFGS": ("LBFGS", {"max_iter": 2}),
}


def told(code, *models, looked_for):
    """Give all that is told of each node of a code; if asked to, each write is looked for."""
    with tbscope.record(*models) as recording:
        if looked_for:
            torch.func.vmap(torch.sin)(torch.ones(2))
        first = len(recording._recorder.graph.nodes)
        code()
    nodes = recording.graph.nodes[first:]
    numbers = {node: number for number, node in enumerate(nodes)}
    return [about(node, numbers) for node in nodes]


def about(node, numbers):
    facts = (node.op, node.kind, str(node.scope), node.phase, node.role, node.kernels, node.flops)
    gives = node.allocated_bytes, [value.shape for value in node.outputs]
    attributes = {name: str(kept) for name, kept in node.attributes.items()}
    reads = [(numbers[value.producer], value.index) for value in node.inputs]
    waits = [numbers[other] for other in node.control_inputs]
    return facts, gives, attributes, reads, node.writes, waits


def step_of(name, options):
    """Give a second step of an optimizer, hooks and all, and its model."""
    torch.manual_seed(0)
    model = nn.Sequential(Net(), nn.BatchNorm1d(2))
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)

    def halve(*_):
        model[0].inp.weight.grad.mul_(0.5)

    closure = closure_of(model, optimizer)
    optimizer.step(closure)
    optimizer.register_step_pre_hook(halve)
    return lambda: optimizer.step(closure), model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_told_as_if_each_write_were_looked_for(name):
    plain, looked_for = (
        told(*step_of(*OPTIMIZERS[name]), looked_for=looked_for) for looked_for in (False, True)
    )
    assert any(writes for *_, writes, _ in plain)
    assert plain == looked_for


def aliases():
    whole = torch.ones(4, 4)
    row, column = whole[0], whole[:, 1]
    row.add_(1)
    column.mul_(row.clone())
    whole[2:].mul_(2)
    return row + column


def the_same_twice():
    one, other = torch.ones(2), torch.ones(2)
    torch._foreach_add_([one, one], [other, other.clone()])
    torch._foreach_add_([one, one], 1.0)
    return one + other


def filled():
    one = torch.ones(2, 3)
    torch.add(one, 1, out=one)
    torch.add(one, one, out=torch.empty(2, 3))
    return one.t_().unsqueeze_(0)


def statistics():
    mean, variance = torch.zeros(3), torch.ones(3)
    first = mean[:1]
    given = nn.functional.batch_norm(torch.rand(5, 3), mean, variance, training=True)
    return given + mean + first, nn.functional.batch_norm(given, variance, mean, training=True)


def memory_again():
    kept = [torch.ones(2)]
    for _ in range(5):
        kept.append(torch.zeros(2).add_(kept[-1]).mul_(kept[-1]))
        kept.append(kept.pop().clone())
    return kept


def set_to_another():
    one, other = torch.ones(2), torch.ones(4)
    part = one.set_(other[:2])
    part.add_(1)
    return other + 1, one.resize_(1).zero_()


WHOLE = torch.zeros(2, 3)
ROW = WHOLE[0]


def filled_from_outside():
    before = ROW + 1
    torch.add(torch.ones(2, 3), 1, out=WHOLE)
    return ROW + before


def dropped():
    return nn.functional.dropout(torch.ones(2, 3), training=True)


def cell():
    # Its kernels write into what they have made.
    return torch.rnn_tanh_cell(*map(torch.rand, ((1, 2), (1, 3), (3, 2), (3, 3), (3,), (3,))))


def loss_by(distance):
    given = [torch.rand(2, 3) for _ in range(3)]
    return nn.functional.triplet_margin_with_distance_loss(*given, distance_function=distance)


def elsewhere():
    seen = torch.zeros(2)
    lost = loss_by(lambda one, other: seen.add_((one - other).sum(1)) * 1)
    return lost + seen


def through_a_view():
    return loss_by(lambda one, other: (one.view(-1).add_(1).view(2, 3) - other).sum(1))


# They write into nothing that they read.
UNREAD = {filled_from_outside, dropped, cell, elsewhere}


@pytest.mark.parametrize(
    "code",
    [
        *(aliases, the_same_twice, filled, statistics, memory_again, set_to_another),
        *(filled_from_outside, dropped, cell, elsewhere, through_a_view),
    ],
)
def test_code_is_told_as_if_each_write_were_looked_for(code):
    plain = told(code, looked_for=False)
    assert plain == told(code, looked_for=True)
    assert any(writes for *_, writes, _ in plain) == (code not in UNREAD)


def test_a_view_that_was_taken_before_a_write_waits_for_it():
    told_of = told(aliases, looked_for=False)
    last = {facts[0]: number for number, (facts, *_) in enumerate(told_of)}
    waits = {op: told_of[number][-1] for op, number in last.items()}
    # What is written below them both is in no other one of them.
    assert waits["mul_"] == []
    assert waits["clone"] == []
    assert waits["getitem"] == [last["add_"], last["mul_"] - 2]
    assert waits["add"] == [last["mul_"]]


class Counting(nn.Module):
    """Writes into a buffer, unseen, before anything has read it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self):
        return loss_by(lambda one, other: self.seen.add_(1) * (one - other).sum(1)) + self.seen


def test_a_buffer_that_is_written_into_unseen_has_the_value_that_was_written():
    model = Counting()
    plain = told(model, model, looked_for=False)
    assert plain == told(model, model, looked_for=True)
    ((reads, waits),) = [(each[3], each[-1]) for each in plain if each[0][0] == "add"]
    loss = next(number for number, each in enumerate(plain) if each[0][0].startswith("triplet"))
    assert (loss, 1) in reads
    assert waits == []
