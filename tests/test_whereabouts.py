"""Where operations stand that code of torch's own calls: found once for each of its frames."""

import functools
import os
import sys
import types
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function_unary

import tbscope

X = torch.rand(2, 4)

# As torch's own, by the file in which it stands.
_TEXT = """
def twice(x, between=lambda: None):
    x = x.exp()
    between()
    return x.sin()

def hand_over(x):
    if has_torch_function_unary(x):
        return handle_torch_function(hand_over, (x,), x)
    return x * 2

def by_turns(x):
    yield x.exp()
    yield x.sin()
"""


@pytest.fixture
def own() -> dict[str, Callable[..., Any]]:
    """Functions that count as torch's own."""
    names: dict[str, Any] = {
        "handle_torch_function": handle_torch_function,
        "has_torch_function_unary": has_torch_function_unary,
    }
    file = os.path.join(os.path.dirname(torch.__file__), "made_for_a_test.py")
    exec(compile(_TEXT, file, "exec"), names)
    return names


def lines(graph: tbscope.Graph) -> dict[str, int]:
    """Return the line of each operation, counted from that of the first."""
    found = [(node.op, node.source.line) for node in graph.nodes if node.source is not None]
    return {op: line - found[0][1] for op, line in found if op != "add"}


def test_what_torch_calls_in_one_frame_stands_at_the_line_that_led_there(own):
    def model(x):
        x = x + 1
        return own["twice"](x)

    assert lines(tbscope.trace(model, X)) == {"exp": 1, "sin": 1}


def test_what_a_generator_of_torch_calls_stands_at_each_line_that_asks_it(own):
    def model(x):
        x = x + 1
        steps = own["by_turns"](x)
        one = next(steps)
        return one, next(steps)

    assert lines(tbscope.trace(model, X)) == {"exp": 2, "sin": 3}


def test_a_debugger_sees_each_line_of_a_function_of_torch(own):
    def model(x):
        return own["twice"](x + 1)

    def seen(run):
        events = []

        def tracer(frame, event, arg):
            if frame.f_code is own["twice"].__code__:
                events.append((event, frame.f_lineno))
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            run()
        finally:
            sys.settrace(before)
        return events

    assert seen(lambda: tbscope.trace(model, X)) == seen(lambda: model(X))


def test_each_call_of_a_function_of_torch_has_a_line_of_its_own(own):
    def model(x):
        one = own["twice"](x)
        return own["twice"](one)

    graph = tbscope.trace(model, X)
    first, second, third, fourth = [node.source.line for node in graph.nodes if node.kind == "op"]
    assert first == second == third - 1 == fourth - 1


def test_a_scope_that_opens_while_torch_runs_holds_what_it_calls_then(own):
    def model(x):
        x = own["twice"](x, lambda: tbscope.push_scope("late"))
        tbscope.pop_scope()
        return x

    graph = tbscope.trace(model, X)
    assert [str(node.scope) for node in graph.nodes if node.kind == "op"] == ["model", "model/late"]


def test_two_recordings_at_once_tell_of_a_step_what_one_alone_tells():
    model = nn.Linear(4, 4)
    model(X).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    graphs = []
    for _ in range(2):
        with tbscope.record(model) as outer, tbscope.record(model) as inner:
            optimizer.step()
        with tbscope.record(model) as alone:
            optimizer.step()
        graphs += [str(one.graph) for one in (outer, inner, alone)]
    assert "optimizer/SGD/Linear/bias" in graphs[0]
    assert len(set(graphs)) == 1


def test_an_optimizer_that_failed_holds_nothing_of_what_comes_after(own):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            own["twice"](X, lambda: 1 // 0)

    optimizer = Fails([nn.Parameter(torch.rand(2))])
    with tbscope.record() as recording:
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        own["twice"](X, X.cos)
    inside, *after = [str(node.scope) for node in recording.graph.nodes if node.kind == "op"]
    assert inside == "optimizer/Fails"
    assert after == ["None", "None", "None"]


class Block(nn.Module):
    def __init__(self, inner: nn.Module | None = None, *, calls: bool = False) -> None:
        super().__init__()
        self.inner, self.calls = inner, calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner is None:
            return x.exp()
        return self.inner(x) if self.calls else self.inner.forward(x)


@pytest.mark.parametrize(("calls", "count"), [(False, 1), (True, 2)])
def test_a_forward_that_another_one_of_its_class_runs_stands_in_its_own_module(calls, count):
    graph = tbscope.trace(Block(Block(), calls=calls), X)
    (node,) = (node for node in graph.nodes if node.kind == "op")
    assert str(node.scope) == "Block/Block[inner]"
    assert len(graph.calls) == count


@pytest.mark.parametrize(
    ("whose", "function"), [("torch's", "forward"), ("the user's", "hand_over")]
)
def test_what_is_handed_over_stands_in_the_user_s_function_that_asks_for_it(own, whose, function):
    def hand_over(x):
        if has_torch_function_unary(x):
            return handle_torch_function(hand_over, (x,), x)
        return x * 2

    class Net(nn.Module):
        def forward(self, x):
            x = x + 1
            return (own["hand_over"] if whose == "torch's" else hand_over)(x)

    node = tbscope.trace(Net(), X).nodes[-1]
    assert (node.op, node.source.function, node.scope.path) == ("hand_over", function, "Net")
    assert (node.run.function.name, node.run.around is None) == (function, whose == "torch's")


class Encoder(nn.Module):
    """A module that is never called, whose methods call their module as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def encode(self, x):
        return torch.tanh(x) * 3


class Calling(nn.Module):
    def __init__(self, work, encoder=None) -> None:
        super().__init__()
        self.encoder, self.work = encoder or Encoder(), work

    def prepare(self, x):
        return x - 1

    def forward(self, x):
        return self.work(self, x)


def scopes_of(graph: tbscope.Graph) -> list[str]:
    return [str(node.scope) for node in graph.nodes if node.kind == "op"]


def test_a_method_stands_in_its_module_whatever_ran_in_a_frame_that_is_gone():
    def directly(net, x):
        return net.encoder.encode(x - 1)

    def by_a_method(net, x):
        return net.encoder.encode(net.prepare(x))

    expected = ["Calling", *["Calling/Encoder[encoder]"] * 2]
    for work in (directly, by_a_method) * 4:
        assert scopes_of(tbscope.trace(Calling(work), X)) == expected


def functions_of_all_sizes(text: str, **names: Any) -> list[Callable[..., Any]]:
    """Return functions of one text with ever more locals: the frame of one takes any gap."""
    made = []
    for count in range(40):
        more = "".join(f", a{number}=0" for number in range(count))
        exec(f"def function(x{more}):\n    {text}", names)
        made.append(names["function"])
    return made


def test_what_comes_after_a_step_that_failed_is_no_part_of_it_whatever_frame_it_takes(own):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            own["twice"](X, lambda: 1 // 0)

    for function in functions_of_all_sizes("return x.exp()"):
        optimizer = Fails([nn.Parameter(torch.rand(2))])
        with tbscope.record() as recording:
            with pytest.raises(ZeroDivisionError):
                optimizer.step()
            function(X)
        assert scopes_of(recording.graph)[-1] == "None"


def test_a_region_begins_in_the_frame_around_what_enters_it_for_the_user():
    def region(function):
        with ExitStack() as stack:
            recording = stack.enter_context(tbscope.record())
            function(X)
        return recording.graph, sys._getframe().f_trace

    for function in functions_of_all_sizes("return x.exp()"):
        graph, left = region(function)
        assert [run.function.name for run in graph.nodes[-1].run.chain()] == ["region", "function"]
        assert left is None


def passed_on(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def passed_on_silently(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def put_in(self, x):
    return torch.tanh(x) * 3


class Unlike(Encoder):
    """Methods that come to their module in many ways."""

    def __init__(self) -> None:
        super().__init__()
        self.bound = types.MethodType(lambda self, x: torch.tanh(x) * 3, self)

    def forward(self, x):
        return torch.tanh(x) * 3

    def named(self, x):
        return torch.tanh(x) * 3

    @passed_on
    def wrapped(self, x):
        return torch.tanh(x) * 3

    @passed_on_silently
    def hidden(self, x):
        return torch.tanh(x) * 3

    @torch.no_grad()
    def without(self, x):
        return torch.tanh(x) * 3

    def nested(self, x):
        def inner(y):
            return torch.tanh(y) * 3

        return inner(x)

    def given(self, x):
        return put_in(self, x)

    def by_turns(self, x):
        yield torch.tanh(x) * 3

    @property
    def asked(self):
        return torch.tanh(X) * 3

    @staticmethod
    def static(m, x):
        return torch.tanh(x) * 3

    short = lambda self, x: torch.tanh(x) * 3


Unlike.put_in = put_in
Unlike.put_in_wrapped = passed_on(put_in)


class Heir(Unlike):
    def named(self, x):
        return super().named(x)


@pytest.mark.parametrize("made", [Unlike, Heir])
@pytest.mark.parametrize(
    "work",
    [
        *("forward", "named", "wrapped", "hidden", "without", "nested", "given", "short"),
        *("put_in", "put_in_wrapped", "bound"),
        lambda encoder, x: next(encoder.by_turns(x)),
        lambda encoder, x: encoder.asked,
    ],
)
def test_a_method_stands_in_its_module_however_it_became_one(made, work):
    def run(net, x):
        return getattr(net.encoder, work)(x) if type(work) is str else work(net.encoder, x)

    graph = tbscope.trace(Calling(run, made()), X)
    assert scopes_of(graph) == [f"Calling/{made.__name__}[encoder]"] * 2


@pytest.mark.parametrize(
    "work",
    [
        lambda encoder, x: torch.tanh(x) * 3,
        passed_on(lambda module, x: torch.tanh(x) * 3),
        lambda encoder, x: encoder.static(encoder, x),
        lambda encoder, x: Calling.prepare(encoder, x) * 3,
    ],
)
def test_a_function_that_is_given_a_module_first_stands_with_its_caller(work):
    graph = tbscope.trace(Calling(lambda net, x: work(net.encoder, x), Unlike()), X)
    assert scopes_of(graph)[-1] == "Calling"


def test_what_a_function_lets_go_of_is_gone_though_it_is_given_a_module_first():
    gone = []

    def work(module, x):
        y = x.exp()
        gone.append(weakref.ref(y))
        y = inner(module.encoder, y)
        gone.append(gone[0]() is None)
        return y

    def inner(module, y):
        return y.sin().cos()

    tbscope.trace(Calling(work), X)
    assert gone[1:] == [True]
