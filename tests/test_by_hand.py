"""Scopes by hand: `scope`, `push_scope`, `pop_scope`."""

import pytest
import torch
from torch import nn

import tbscope


def paths(run):
    graph = tbscope.trace(run, torch.ones(2))
    graph.verify()
    return [str(node.scope or "") for node in graph.nodes if node.kind == "op"]


class Net(nn.Module):
    """A model whose forward is given."""

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.act = nn.ReLU()

    def forward(self, x):
        return self.run(self, x)


def test_scopes_nest_and_number_themselves():
    def run(self, x):
        with tbscope.scope("loss"):
            x = x + 1
            with tbscope.scope("inner"):
                x = x + 1
        with tbscope.scope("loss"):
            return x + 1

    assert paths(Net(run)) == ["Net/loss", "Net/loss/inner", "Net/loss.1"]


def test_modules_called_in_a_scope_by_hand_stand_in_it():
    def run(self, x):
        with tbscope.scope("head"):
            return self.act(x)

    assert paths(Net(run)) == ["Net/head/ReLU[act]"]


def test_a_decorated_function_gets_a_scope_for_each_call():
    @tbscope.scope("decode")
    def decode(x):
        """Decode."""
        return x * 2

    assert decode.__doc__ == "Decode."
    assert paths(Net(lambda self, x: decode(decode(x)))) == ["Net/decode", "Net/decode.1"]


def test_pushed_scopes_are_as_those_of_a_block():
    def run(self, x):
        tbscope.push_scope("a")
        x = x + 1
        tbscope.push_scope("b")
        x = x + 1
        tbscope.pop_scope("b")
        tbscope.pop_scope()
        return x + 1

    assert paths(Net(run)) == ["Net/a", "Net/a/b", "Net"]


def test_scopes_close_when_their_block_raises():
    def run(self, x):
        try:
            with tbscope.scope("tried"):
                tbscope.push_scope("left open")
                raise KeyError
        except KeyError:
            return x + 1

    assert paths(Net(run)) == ["Net"]


def test_a_module_that_raises_and_is_caught_leaves_no_scope_open():
    def fail(self, x):
        tbscope.push_scope("left open")
        raise KeyError

    def run(self, x):
        try:
            self.part(x)
        except KeyError:
            return x + 1

    net = Net(run)
    net.part = Net(fail)
    assert paths(net) == ["Net"]


def test_a_function_of_an_operator_that_raises_and_is_caught_leaves_no_scope_open():
    def fail(x):
        tbscope.push_scope("left open")
        raise KeyError

    def run(self, x):
        try:
            torch.cond(x.sum() > 0, fail, fail, (x,))
        except KeyError:
            return x + 1

    assert {*paths(Net(run))} == {"Net"}


def test_a_call_that_leaves_a_scope_open_is_over_after_the_error_for_it():
    def leave(self, x):
        tbscope.push_scope("left open")
        return x + 1

    def run(self, x):
        try:
            self.part(x)
        except tbscope.ScopeError:
            return x * 2

    net = Net(run)
    net.part = Net(leave)
    assert paths(net) == ["Net/Net[part]/left open", "Net"]


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda x: (tbscope.pop_scope("loss"), x + 1)[1],
            "pop_scope('loss') without a scope to close\n"
            "  why: no scope opened by hand is open in the module call that runs\n"
            "  fix: call push_scope(name) first, once for each pop_scope()",
        ),
        (
            lambda x: (tbscope.push_scope("a"), tbscope.push_scope("b"), tbscope.pop_scope("a")),
            "pop_scope('a') while the scope 'b' is the innermost\n"
            "  why: scopes close in the reverse order in which they were opened\n"
            "  fix: close it first: pop_scope('b')",
        ),
        (
            lambda x: (tbscope.push_scope("a"), x + 1)[1],
            "the scope 'a' was opened in Net and never closed\n"
            "  why: each push_scope() needs a pop_scope() in the same module call\n"
            "  fix: call pop_scope('a') before it ends, or write 'with tbscope.scope('a'):'",
        ),
    ],
    ids=["nothing open", "wrong order", "never closed"],
)
def test_unbalanced_scopes_are_a_clear_error(run, text):
    with pytest.raises(tbscope.ScopeError) as error:
        tbscope.trace(Net(lambda self, x: run(x)), torch.ones(2))
    assert str(error.value) == text


def test_a_scope_left_open_in_a_recording_is_an_error():
    with pytest.raises(tbscope.ScopeError, match="opened in the recording"), tbscope.record():
        tbscope.push_scope("open")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_text(name):
    for open_scope in (tbscope.scope, tbscope.push_scope):
        with pytest.raises(tbscope.ArgumentError) as error:
            open_scope(name)
        assert str(error.value) == (
            f"a scope cannot be named {name!r}\n"
            "  why: the name of a scope is a text that is not empty\n"
            '  fix: name it, as in tbscope.scope("loss")'
        )


def test_a_name_that_is_none_is_told_inside_of_a_model_too():
    for open_scope in (tbscope.scope, tbscope.push_scope):
        with pytest.raises(tbscope.ArgumentError, match=r"^a scope cannot be named ''\n"):
            tbscope.trace(Net(lambda self, x, open_scope=open_scope: open_scope("")), torch.ones(2))


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "a\nb", "\x1b[31m", " ", "..", "\\ud800"])
def test_a_name_that_nothing_prints_is_drawn_and_stands_as_its_escape(name, tmp_path):
    def run(self, x):
        with tbscope.scope(name):
            return x.relu() * 2

    graph = tbscope.trace(Net(run), torch.ones(2))

    scope = next(node.scope for node in graph.nodes if node.op == "relu")
    assert scope.path.encode() == str(scope).encode()
    assert tbscope.Scope.parse(scope.path)[-1].label == name
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    graph.save(tmp_path / "graph.json")
    assert str(tbscope.load(tmp_path / "graph.json")).encode() == str(graph).encode()


def test_outside_of_a_trace_nothing_happens():
    with tbscope.scope("alone"):
        tbscope.push_scope("a")
        tbscope.pop_scope("b")
    assert tbscope.scope("named")(lambda: 3)() == 3


def test_names_with_any_characters_are_drawn():
    def run(self, x):
        for name in ["a/b", "1.5", "[x]", "ü", "relu"]:
            with tbscope.scope(name):
                x = x.relu()
        return x

    net = Net(run)
    graph = tbscope.trace(net, torch.ones(2))
    tbscope.to_graph_def(graph)
    assert [tbscope.Scope.parse(path)[-1].label for path in paths(net)] == [
        "a/b",
        "1.5",
        "[x]",
        "ü",
        "relu",
    ]
