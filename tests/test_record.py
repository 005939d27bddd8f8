"""`tbscope.record`: regions of the user's own code."""

import sys

import pytest
import torch
from torch import nn

import tbscope


def paths(graph):
    return [str(node.scope or "") for node in graph.nodes if node.kind == "op"]


def test_several_models_and_the_code_between_them_are_one_graph():
    generator = nn.Sequential(nn.Linear(2, 4), nn.ReLU())
    critic = nn.Linear(4, 1)
    noise = torch.randn(3, 2)
    with tbscope.record(generator=generator, critic=critic) as recording:
        loss = critic(generator(noise)).mean()
    graph = recording.graph
    graph.verify()
    assert paths(graph) == [
        "Sequential[generator]/Linear[0]",
        "Sequential[generator]/ReLU[1]",
        "Linear[critic]",
        "",
    ]
    assert [node.name for node in graph.inputs] == ["input"]
    assert [output.name for output in graph.outputs] == ["out"]
    assert graph.outputs[0].value.shape == loss.shape


def test_a_part_of_a_model_called_by_itself_stands_in_the_whole():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    with tbscope.record(net) as recording:
        net[0](torch.randn(1, 2))
    assert paths(recording.graph)[-1] == "Sequential/Sequential[0]/Linear[0]"
    recording.graph.verify()


class First(nn.Module):
    """Reads the first of its arguments."""

    def forward(self, first, second):
        return first + 1


def test_an_argument_that_no_operation_reads_is_an_input_and_a_result_is_none():
    given = torch.ones(2), torch.ones(3)
    with tbscope.record() as recording:
        made = First()(*given)
        First()(made, made)
    assert [node.name for node in recording.graph.inputs] == ["first", "second"]
    assert all("also" not in node.attributes for node in recording.graph.nodes)


def test_models_that_print_alike_are_told_apart():
    one, two = nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())
    with tbscope.record() as recording, tbscope.scope("Sequential"):
        two(one(torch.randn(2)))
    with tbscope.record() as again:
        two(one(torch.randn(2)))
        with tbscope.scope("Sequential"):
            torch.zeros(1)
    for graph in (recording.graph, again.graph):
        graph.verify()
        tbscope.to_graph_def(graph)
    within = ["Sequential", "Sequential/Sequential/ReLU[0]", "Sequential/Sequential.1/ReLU[0]"]
    assert paths(recording.graph) == within
    alone = ["", "Sequential/ReLU[0]", "Sequential.1/ReLU[0]", "Sequential.2"]
    assert paths(again.graph) == alone


def test_the_region_keeps_its_effects():
    net = nn.BatchNorm1d(2).train()
    net.weight.grad = None
    with tbscope.record(net):
        net(torch.randn(4, 2)).sum().backward()
    assert net.num_batches_tracked.item() == 1
    assert net.weight.grad is not None


def test_inputs_and_outputs_can_be_named():
    x, target = torch.randn(2), torch.randn(2)
    with tbscope.record() as recording:
        recording.input(x=x, target=target)
        error = x - target
        loss = error.square().sum()
        recording.output(loss=loss, parts={"error": error})
    assert [node.name for node in recording.graph.inputs] == ["x", "target"]
    assert [output.name for output in recording.graph.outputs] == ["loss", "parts.error"]


def test_a_region_that_raises_still_gives_what_ran():
    def fail(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), tbscope.record() as recording:
        fail(torch.ones(2) * 2)
    assert [node.op for node in recording.graph.nodes] == ["ones", "mul"]


def test_a_trace_inside_of_a_recording_is_not_part_of_it():
    net = nn.Linear(2, 2)
    with tbscope.record() as recording:
        inner = tbscope.trace(net, torch.zeros(1, 2))
        torch.zeros(2) + 1
    assert [node.op for node in recording.graph.nodes][-1] == "add"
    assert "linear" not in [node.op for node in recording.graph.nodes]
    assert "linear" in [node.op for node in inner.nodes]


def test_a_recording_inside_of_a_recording_is_part_of_both():
    with tbscope.record() as outer:
        x = torch.ones(2)
        with tbscope.record() as inner, tbscope.scope("deep"):
            x + 1
    for graph in (outer.graph, inner.graph):
        assert paths(graph)[-1] == "deep"


def test_threads_that_the_region_did_not_start_are_not_seen():
    import threading

    net, begin = nn.Linear(2, 2), threading.Event()
    thread = threading.Thread(target=lambda: begin.wait() and net(torch.zeros(1, 2)))
    thread.start()
    with tbscope.record() as recording:
        begin.set()
        thread.join()
        torch.zeros(1)
    assert [node.op for node in recording.graph.nodes] == ["zeros"]


def test_a_thread_that_the_region_starts_is_seen():
    import threading

    net = nn.Linear(2, 2)
    with tbscope.record() as recording:
        thread = threading.Thread(target=lambda: net(torch.zeros(1, 2)))
        thread.start()
        thread.join()
        torch.ones(1)
    ops = [node.op for node in recording.graph.nodes if node.kind == "op"]
    assert ops == ["zeros", "linear", "ones"]


def test_nothing_of_torch_stays_replaced():
    before = (nn.Module.__call__, nn.Module._call_impl, torch.compile)
    asked = torch.overrides.has_torch_function
    with tbscope.record():
        pass
    with pytest.raises(ZeroDivisionError), tbscope.record():
        raise ZeroDivisionError
    assert before == (nn.Module.__call__, nn.Module._call_impl, torch.compile)
    assert asked is torch.overrides.has_torch_function


def test_a_recording_is_read_after_its_region_and_used_once():
    recording = tbscope.record()
    with pytest.raises(tbscope.TbscopeError) as error:
        _ = recording.graph
    assert str(error.value) == (
        "the recording has no graph yet\n"
        "  why: its region has not ended\n"
        "  fix: read recording.graph after the block 'with tbscope.record() as recording:'"
    )
    with recording:
        pass
    with pytest.raises(tbscope.ArgumentError, match="used already"), recording:
        pass


def test_only_modules_are_models():
    with pytest.raises(tbscope.ArgumentError) as error:
        tbscope.record(torch.relu)
    assert str(error.value) == (
        f"record() was given {torch.relu!r} as a model\n"
        "  why: only a torch.nn.Module has named submodules\n"
        "  fix: leave it out: all calls in the region are recorded without it"
    )


def test_a_trace_inside_a_recording_leaves_nothing_there():
    with tbscope.record() as recording:
        hidden = torch.relu(torch.ones(2, 3))
        tbscope.trace(torch.nn.Linear(3, 4), torch.rand(2, 3))
        hidden + 1
    drawn = [node.op for node in recording.graph.nodes if node.kind == "op"]
    assert drawn[:2] == ["ones", "relu"]
    assert not {"linear", "detach"} & set(drawn)
    assert drawn[-1] == "add"


def test_the_callback_of_a_debugger_is_where_it_was_after_a_recording():
    frame, callback = sys._getframe(), lambda *_: None
    frame.f_trace = callback
    try:
        with tbscope.record():
            torch.ones(2).neg()
        assert frame.f_trace is callback
    finally:
        frame.f_trace = None
