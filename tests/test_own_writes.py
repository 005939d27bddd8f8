"""Writes into what is read: by which operations, what they become, and what waits for them."""

import pytest
import torch
from torch import nn

import tbscope


def told(code, *models):
    """Give of each node of a code its op, what it reads, what of that it writes into, its waits."""
    with tbscope.record(*models) as recording:
        code()
    nodes = recording.graph.nodes
    numbers = {node: number for number, node in enumerate(nodes)}
    return [
        (
            node.op,
            [(numbers[value.producer], value.index) for value in node.inputs],
            node.writes,
            [numbers[other] for other in node.control_inputs],
        )
        for node in nodes
    ]


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
    for _ in range(2):
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
    return torch.rnn_tanh_cell(*map(torch.ones, ((1, 2), (1, 3), (3, 2), (3, 3), (3,), (3,))))


def loss_by(distance):
    given = [torch.rand(2, 3) for _ in range(3)]
    return nn.functional.triplet_margin_with_distance_loss(*given, distance_function=distance)


LOSS = "triplet_margin_with_distance_loss"


def elsewhere():
    seen = torch.zeros(2)
    lost = loss_by(lambda one, other: seen.add_((one - other).sum(1)) * 1)
    return lost + seen


def through_a_view():
    return loss_by(lambda one, other: (one.view(-1).add_(1).view(2, 3) - other).sum(1))


ONE, TWO = (0,), (0, 1)
# Of each node: its op, what it reads by node and output, what of that it writes into, its waits.
CODES = {
    aliases: [
        ("ones", [], (), []),
        ("getitem", [(0, 0)], (), []),
        ("getitem", [(0, 0)], (), []),
        ("add_", [(1, 0)], ONE, []),
        ("clone", [(3, 0)], (), []),
        ("mul_", [(2, 0), (4, 0)], ONE, [3]),
        ("getitem", [(0, 0)], (), [3, 5]),
        # Neither of the others is in what is written into now.
        ("mul_", [(6, 0)], ONE, []),
        ("add", [(3, 0), (5, 0)], (), [7]),
    ],
    the_same_twice: [
        ("ones", [], (), []),
        ("ones", [], (), []),
        ("clone", [(1, 0)], (), []),
        ("foreach_add_", [(0, 0), (0, 0), (1, 0), (2, 0)], TWO, []),
        ("foreach_add_", [(3, 1), (3, 1)], TWO, []),
        ("add", [(4, 1), (1, 0)], (), []),
    ],
    filled: [
        ("ones", [], (), []),
        ("add", [(0, 0)], ONE, []),
        ("empty", [], (), []),
        ("add", [(1, 0), (1, 0)], (), []),
        ("t_", [(1, 0)], ONE, []),
        ("unsqueeze_", [(4, 0)], ONE, []),
    ],
    statistics: [
        ("zeros", [], (), []),
        ("ones", [], (), []),
        ("getitem", [(0, 0)], (), []),
        ("rand", [], (), []),
        ("batch_norm", [(3, 0), (0, 0), (1, 0)], (1, 2), []),
        ("add", [(4, 0), (4, 1)], (), []),
        ("add", [(5, 0), (2, 0)], (), [4]),
        ("batch_norm", [(4, 0), (4, 2), (4, 1)], (1, 2), []),
    ],
    memory_again: [
        ("ones", [], (), []),
        ("zeros", [], (), []),
        ("add_", [(1, 0), (0, 0)], ONE, []),
        ("mul_", [(2, 0), (0, 0)], ONE, []),
        ("clone", [(3, 0)], (), []),
        ("zeros", [], (), []),
        ("add_", [(5, 0), (4, 0)], ONE, []),
        ("mul_", [(6, 0), (4, 0)], ONE, []),
        ("clone", [(7, 0)], (), []),
    ],
    set_to_another: [
        ("ones", [], (), []),
        ("ones", [], (), []),
        ("getitem", [(1, 0)], (), []),
        ("set_", [(0, 0), (2, 0)], TWO, []),
        ("add_", [(3, 0)], ONE, []),
        ("add", [(1, 0)], (), [4]),
        ("resize_", [(4, 0)], ONE, []),
        ("zero_", [(6, 0)], ONE, []),
    ],
    filled_from_outside: [
        ("input", [], (), []),
        ("add", [(0, 0)], (), []),
        ("ones", [], (), []),
        ("add", [(2, 0)], (), []),
        ("add", [(0, 0), (1, 0)], (), [3]),
    ],
    dropped: [("ones", [], (), []), ("dropout", [(0, 0)], (), [])],
    cell: [
        *[("ones", [], (), [])] * 6,
        ("rnn_tanh_cell", [(number, 0) for number in range(6)], (), []),
    ],
    elsewhere: [
        ("zeros", [], (), []),
        *[("rand", [], (), [])] * 3,
        # No mode sees what the function reads beside its arguments; what it writes, one does.
        (LOSS, [(1, 0), (2, 0), (3, 0)], (), []),
        ("add", [(4, 0), (4, 1)], (), []),
    ],
    through_a_view: [*[("rand", [], (), [])] * 3, (LOSS, [(0, 0), (1, 0), (2, 0)], ONE, [])],
}


@pytest.mark.parametrize("code", CODES)
def test_each_write_is_that_of_its_operation_and_what_shows_its_memory_waits(code):
    assert told(code) == CODES[code]


@pytest.mark.parametrize("code", CODES)
def test_writes_are_the_same_where_tensors_are_inside_of_others(code):
    def after_a_transform():
        torch.func.vmap(torch.sin)(torch.ones(2))
        code()

    first = len(told(after_a_transform)) - len(CODES[code])
    found = [
        (op, [(at - first, index) for at, index in reads], writes, [at - first for at in waits])
        for op, reads, writes, waits in told(after_a_transform)[first:]
    ]
    assert found == CODES[code]


class Counting(nn.Module):
    """Writes into a buffer, unseen, before anything has read it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))

    def forward(self):
        return loss_by(lambda one, other: self.seen.add_(1) * (one - other).sum(1)) + self.seen


def test_a_buffer_that_is_written_into_unseen_has_the_value_that_was_written():
    model = Counting()
    found = told(model, model)
    ((reads, waits),) = [(reads, waits) for op, reads, _, waits in found if op == "add"]
    loss = [op for op, *_ in found].index(LOSS)
    assert (loss, 1) in reads
    assert waits == []
