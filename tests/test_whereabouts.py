"""Where operations stand that code of torch's own calls: found once for each of its frames."""

import os
from collections.abc import Callable
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
