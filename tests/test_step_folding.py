"""Several steps of a training in one recording: equal ones are drawn once, and it is told."""

from contextlib import nullcontext

import pytest
import torch
from real_graphs import operations
from torch import nn
from training_steps import Net

import tbscope
from tbscope.ir.graph import Node
from tbscope.ir.training_steps import changed_operations

BATCHES = list(torch.linspace(-1, 1, 60).reshape(4, 5, 3))


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, foreach=False)


def train(model, optimizer, batches, losses=None):
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        if losses is not None:
            losses.append(loss)


def recorded(make, batches, **named):
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model.parameters())
    with tbscope.record(model, **named) as recording:
        train(model, optimizer, batches)
    graph = recording.graph
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    return graph


def tops(graph):
    return list(dict.fromkeys(str(node.scope).split("/")[0] for node in operations(graph)))


def lines(graph):
    return [(node.op, str(node.scope), len(node.inputs)) for node in operations(graph)]


def told(graph):
    return [note.text for note in graph.notes if note.text.startswith("step")]


def test_equal_steps_are_one():
    graph = recorded(sgd, BATCHES[:3], steps=3)
    assert lines(graph) == lines(recorded(sgd, BATCHES[:1]))
    assert told(graph) == ["steps 1 to 3 are equal and drawn as one"]
    assert len(graph.inputs) == 1
    assert [str(call.scope) for call in graph.calls if "/" not in str(call.scope)] == ["Net"]


def test_steps_in_blocks_are_known_by_these():
    model = Net()
    optimizer = sgd(model.parameters())
    with tbscope.record(model) as recording:
        for batch in BATCHES:
            with tbscope.scope("step"):
                train(model, optimizer, [batch])
    assert tops(recording.graph) == ["step"]
    assert told(recording.graph) == ["steps 1 to 4 are equal and drawn as one"]


def test_without_steps_and_without_blocks_each_is_drawn():
    graph = recorded(sgd, BATCHES[:2])
    assert set(tops(graph)) == {
        *("None", "Net", "gradients", "optimizer"),
        *("Net.1", "gradients.1", "optimizer.1"),
    }
    assert told(graph) == []


def test_a_step_that_differs_is_drawn_and_told():
    graph = recorded(adam, BATCHES, steps=4)
    assert {"optimizer", "optimizer.1"} <= set(tops(graph))
    assert "optimizer.2" not in tops(graph)
    equal, other = told(graph)
    # Each step divides by other powers of beta.
    assert equal.startswith(
        "steps 2 to 4 are equal and drawn as one; they differ in what was given to div in "
    )
    assert other.startswith("step 2 is not equal to the one before: no ")
    assert "zeros_like -> [4, 3] in optimizer/Adam/Net/Linear[inp]/weight" in other


def test_a_batch_of_another_size_makes_another_step():
    graph = recorded(sgd, [BATCHES[0], BATCHES[1], BATCHES[2][:2]], steps=3)
    equal, other = told(graph)
    assert equal == "steps 1 to 2 are equal and drawn as one"
    assert other.startswith("step 3 is not equal to the one before: no linear -> [5, 4] in Net/")
    assert "Net.2" in tops(graph)
    assert "Net.1" not in tops(graph)


def test_what_a_later_step_reads_of_one_that_is_left_out_it_reads_of_the_one_that_is_kept():
    graph = recorded(sgd, [BATCHES[0], BATCHES[1], BATCHES[2][:2]], steps=3)
    first = next(node for node in operations(graph) if str(node.scope) == "Net.2/Linear[inp]")
    weight = first.inputs[1].producer
    assert (weight.op, str(weight.scope).split("/")[0]) == ("add_", "optimizer")
    assert weight.attributes["updates"] == "inp.weight"


def test_what_is_kept_of_each_step_is_still_a_result():
    model, losses = Net(), []
    optimizer = sgd(model.parameters())
    with tbscope.record(model, steps=2) as recording:
        train(model, optimizer, BATCHES[:2], losses)
    recording.graph.verify()
    assert {output.value.producer.op for output in recording.graph.outputs} == {"mean"}


def blocks(*steps):
    """Give what is told of a recording in which each of these ran in a block of its own."""
    given = torch.ones(2)
    with tbscope.record() as recording:
        kept = given
        for step in steps:
            with tbscope.scope("step"):
                kept = step(given, kept)
    recording.graph.verify()
    return told(recording.graph)


EQUAL = ["steps 1 to 2 are equal and drawn as one"]


def own(x, _):
    return x.exp() * x.sin()


def swapped(x, _):
    one, other = x.exp(), x.sin()
    return other * one


def earlier(x, kept):
    one, other = x.exp(), x.sin()
    del one
    return kept * other


def in_two_boxes(x, _):
    for _ in range(2):
        with tbscope.scope("box"):
            x = x.exp()
    return x


def in_one_box(x, _):
    with tbscope.scope("box"):
        return x.exp().exp()


@pytest.mark.parametrize("step", [own, swapped, in_two_boxes, in_one_box])
def test_the_same_step_is_equal(step):
    assert blocks(step, step) == EQUAL


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((own, swapped), (own, earlier), (swapped, earlier)),
        *((in_one_box, in_two_boxes), (in_two_boxes, in_one_box)),
    ],
)
def test_operations_that_read_other_tensors_or_stand_elsewhere_make_another_step(one, other):
    (text,) = blocks(one, other)
    assert text.startswith("step 2 is not equal to the one before: ")


def test_modules_that_are_called_step_are_no_steps():
    class step(nn.Module):  # noqa: N801
        def forward(self, x):
            return x.exp()

    model = step()
    with tbscope.record(model) as recording:
        for batch in BATCHES[:2]:
            model(batch)
    assert tops(recording.graph) == ["step", "step.1"]


def test_a_step_may_have_two_optimizers_and_two_passes():
    one, other = nn.Linear(3, 3), nn.Linear(3, 2)
    with tbscope.record(one, other, steps=2) as recording:
        optimizers = sgd(one.parameters()), sgd(other.parameters())
        for batch in BATCHES[:2]:
            for optimizer in optimizers:
                nn.ModuleList([one, other]).zero_grad()
                other(one(batch)).sum().backward()
                optimizer.step()
    assert told(recording.graph) == ["steps 1 to 2 are equal and drawn as one"]
    assert tops(recording.graph).count("optimizer.1") == 1
    assert "optimizer.2" not in tops(recording.graph)


def test_gradients_that_add_up_over_steps_make_another_step():
    model = nn.Linear(3, 2)
    optimizer = sgd(model.parameters())
    with tbscope.record(model, steps=3) as recording:
        for batch in BATCHES[:3]:
            model(batch).sum().backward()
            optimizer.step()
    equal, other = told(recording.graph)
    assert equal == "steps 2 to 3 are equal and drawn as one"
    assert "weight_grad (accumulates) -> [2, 3] in gradients/Linear" in other


def accumulated(model, optimizer, batches, block):
    with tbscope.record(model) as recording:
        optimizer.zero_grad()
        for batch in batches:
            with block():
                model(batch).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return recording.graph


@pytest.mark.parametrize("block", [lambda: tbscope.scope("step"), nullcontext])
def test_micro_batches_in_blocks_are_the_first_and_one_that_adds_to_it(block):
    model = Net()
    graph = accumulated(model, sgd(model.parameters()), BATCHES * 2, block)
    graph.verify()
    passes = [node for node in graph.nodes if node.attributes.get("gradient_of") == "head.weight"]
    folded = block is not nullcontext
    assert len(passes) == (2 if folded else 8)
    assert [bool(node.attributes.get("accumulates")) for node in passes[:2]] == [False, True]
    (read,) = [node for node in graph.nodes if node.attributes.get("updates") == "head.weight"]
    assert through(read.inputs[1], passes) is passes[-1]
    assert folded is (told(graph)[:1] == ["steps 2 to 8 are equal and drawn as one"])
    assert not folded or tbscope.lint(tbscope.to_graph_def(graph)) == []


def through(value, ends):
    """Give the first of some nodes from which a value came, by what was written into."""
    node = value.producer
    return node if node in ends else through(node.inputs[value.index], ends)


def test_where_no_optimizer_runs_backward_passes_end_steps():
    model = nn.Linear(3, 2)
    with tbscope.record(model, steps=3) as recording:
        for batch in BATCHES[:3]:
            model.zero_grad()
            model(batch).sum().backward()
    assert told(recording.graph) == ["steps 1 to 3 are equal and drawn as one"]
    assert tops(recording.graph) == ["Linear", "None", "gradients"]


def test_what_cannot_be_divided_is_left_and_told():
    graph = recorded(sgd, BATCHES[:3], steps=2)
    assert told(graph)[0].startswith("steps=2 does not divide the recording")
    assert "optimizer.2" in tops(graph)


@pytest.mark.parametrize("steps", [0, -1, True, 1.0, "3"])
def test_what_is_no_number_of_steps_is_told(steps):
    with pytest.raises(tbscope.ArgumentError, match="is no number of steps"):
        tbscope.record(steps=steps)
    assert tbscope.record(steps=1) is not None


def test_operations_alone_tell_one_run_from_another():
    x = torch.rand(2, 3)
    one, other, now = (tbscope.trace(act, x) for act in (nn.ReLU(), nn.ReLU(), nn.Tanh()))
    other.nodes.insert(0, Node("w", "parameter", "parameter"))
    assert changed_operations(one.nodes, other.nodes) == ""
    changes = changed_operations(one.nodes, now.nodes)
    assert changes == "no relu -> [2, 3] in ReLU, tanh -> [2, 3] in Tanh"
