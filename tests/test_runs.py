"""Which runs of functions are told of operations and of module calls."""

import gc
import sys
import threading
import weakref

import helper_models as models
import pytest
import torch
from torch import nn

import tbscope


class Net(nn.Module):
    """Runs a function of the test in its forward."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self, x)


def traced(function):
    return tbscope.trace(Net(function), torch.rand(2, 4))


def names(node):
    """Give the functions around a node, from the one that the model's forward called."""
    return [run.function.name for run in node.run.chain()][1:]


def operations(graph):
    return [node for node in graph.nodes if node.kind == "op"]


def twice(x):
    return torch.relu(x) * 2


def test_operations_of_one_run_share_it_and_those_of_the_next_have_another():
    graph = traced(lambda net, x: twice(x) + twice(x))
    one, two, three, four, last = (node.run for node in operations(graph))
    assert one is two
    assert three is four
    assert one is not three
    assert one.around is last


def repeated(x):
    for _ in range(4):
        x = x + 1
    return x


def plus(x):
    return x + 1


def test_four_calls_from_one_line_are_four_runs_and_a_loop_in_one_call_is_one():
    def calls(net, x):
        for _ in range(4):
            x = plus(x)
        return x

    assert len({node.run for node in operations(traced(calls))}) == 4
    assert len({node.run for node in operations(traced(lambda net, x: repeated(x)))}) == 1


def test_a_run_is_called_at_a_step_and_steps_grow_along_the_code():
    graph = traced(lambda net, x: twice(x) + twice(x))
    first, _, second, _, last = operations(graph)
    assert 0 < first.run.step < second.run.step < last.step


def test_a_module_call_is_told_of_too():
    def helper(net, x):
        return net.fc(x)

    call = traced(helper).find("fc")
    assert [run.function.name for run in call.run.chain()][-1] == "helper"
    assert call.step > 0


def test_what_a_leaf_module_of_torch_runs_has_no_run():
    graph = traced(lambda net, x: net.fc(x))
    assert [node.run for node in operations(graph)] == [None]


plus_one = lambda x: x + 1

NAMED = {
    "function": (lambda net, x: twice(x), ["twice"]),
    "closure": (lambda net, x: plus_one(x), ["lambda"]),
    "decorated": (lambda net, x: models.noted(twice)(x), ["wrapper", "twice"]),
    "object": (lambda net, x: models.Scale()(x), ["Scale"]),
    "generator": (lambda net, x: list(models.pieces(x)), []),
    "of torch": (lambda net, x: torch.cdist(x, x), []),
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_run_has_the_name_of_its_function(kind):
    function, expected = NAMED[kind]
    last = operations(traced(function))[-1]
    assert names(last)[-len(expected) :] == expected if expected else names(last)[1:] == []


def test_a_context_manager_runs_where_it_is_entered():
    def entered(net, x):
        with models.around() as ones:
            return x.sum() * ones

    graph = traced(entered)
    assert {tuple(names(node)) for node in operations(graph)} == {("entered",)}


def test_a_generator_that_two_modules_ask_belongs_to_who_asks():
    class Asking(nn.Module):
        def forward(self, rows):
            return next(rows) + 1

    net = nn.Module()
    net.one, net.two = Asking(), Asking()
    net.forward = lambda x: [ask(rows) for rows in [models.pieces(x)] for ask in (net.one, net.two)]
    graph = tbscope.trace(net, torch.rand(2, 4))
    scopes = [(node.scope, node.run.chain()[0]) for node in operations(graph)]
    assert len(set(scopes)) == 2


def test_no_frame_is_held_and_no_tensor_in_one():
    kept = []

    def large(x):
        y = x * 2
        kept.append(weakref.ref(y))
        return y.sum()

    def forward(net, x):
        total = large(x) + 1
        assert kept[-1]() is None
        return total

    gc.disable()
    try:
        traced(forward)
    finally:
        gc.enable()


def test_frames_that_live_on_bear_no_mark():
    def outer():
        graph = traced(lambda net, x: twice(x))
        with tbscope.record() as recording:
            twice(torch.ones(2))
        return graph, recording.graph, sys._getframe().f_trace

    _, recorded, left = outer()
    assert left is None
    assert [run.function.name for run in operations(recorded)[-1].run.chain()] == ["outer", "twice"]


def test_a_debugger_still_sees_each_line_and_runs_are_told_apart():
    seen = []

    def tracer(frame, event, arg):
        if frame.f_code is twice.__code__ or frame.f_code is repeated.__code__:
            seen.append((frame.f_code.co_name, event))
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        graph = traced(lambda net, x: twice(repeated(x)) + twice(x))
    finally:
        sys.settrace(before)
    assert len({node.run for node in operations(graph)}) == 4
    assert seen.count(("repeated", "return")) == 1
    assert seen.count(("repeated", "line")) > 8


def test_two_recordings_of_one_run_tell_of_it_alike():
    def both(net, x):
        with tbscope.record() as recording:
            y = repeated(x) + repeated(x)
        return y, recording

    net = Net(lambda net, x: both(net, x)[0])
    assert len({node.run for node in operations(tbscope.trace(net, torch.rand(2, 4)))}) == 3


def test_another_thread_has_runs_of_its_own():
    def forward(net, x):
        found = []
        thread = threading.Thread(target=lambda: found.append(twice(x)))
        thread.start()
        thread.join()
        return found[0] + twice(x)

    graph = traced(forward)
    runs = {node.run for node in operations(graph) if names(node)[-1:] == ["twice"]}
    assert len(runs) == 2


def test_loops_are_told_by_their_first_and_last_step():
    graph = traced(lambda net, x: repeated(x))
    (node, *_) = operations(graph)
    ((first, last),) = node.run.function.loops
    assert first <= node.step <= last
    assert traced(lambda net, x: twice(x)).nodes[-1].run.function.loops == ()


def test_a_loop_of_many_lines_is_told_in_whole():
    lines = "\n".join(f"    y{at} = x + {at} if x is not None else x" for at in range(400))
    code = f"def long(net, x):\n  for _ in range(2):\n{lines}\n  return x.neg()"
    place = {}
    exec(code, place)
    first, *_, last = operations(traced(place["long"]))
    ((begin, end),) = first.run.function.loops
    assert begin <= first.step <= end < last.step


def test_the_kernels_of_an_operation_and_copies_belong_to_its_run():
    graph = tbscope.trace(Net(lambda net, x: torch.std(x) + 1), torch.rand(2, 4), kernels=True)
    twin = graph.copy()
    assert [node.run for node in twin.nodes] == [node.run for node in graph.nodes]
    assert [node.step for node in twin.nodes] == [node.step for node in graph.nodes]
    assert [(call.run, call.step) for call in twin.calls] == [
        (call.run, call.step) for call in graph.calls
    ]


def test_a_step_is_the_same_however_often_the_code_has_run():
    def forward(net, x):
        return sum([x, x.exp()], x) + 1

    steps = [[node.step for node in operations(traced(forward))] for _ in range(20)]
    assert all(each == steps[0] for each in steps)
