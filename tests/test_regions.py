"""Regions: what enters the scopes of calls, and what leaves them."""

import pytest

from tbscope.ir.scope_io import first_calls, scope_inputs_outputs
from tests.build import GraphBuilder


@pytest.fixture
def build():
    """Two layers in a net, a relu between them, and a loss around neither."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    x = build.input("x", (1, 2))
    build.call("Net/Sequential[body]")
    first = build.linear("Net/Sequential[body]/Linear[0]", x, 3)
    hidden = build.op("relu", first, scope=build.scope("Net/Sequential[body]"))
    second = build.linear("Net/Linear[head]", hidden, 3)
    loss = build.op("add", second, hidden, scope=net)
    build.output("out", loss)
    build.values = {"x": x, "first": first, "hidden": hidden, "second": second, "loss": loss}
    return build


def scopes_of(build):
    return {scope.path: scope for scope in build.graph.scopes()}


def test_what_enters_is_read_inside_and_made_outside(build):
    crossed, scopes, values = scope_inputs_outputs(build.graph), scopes_of(build), build.values
    assert crossed[scopes["Net/Sequential[body]"]].entering == [values["x"]]
    assert crossed[scopes["Net/Linear[head]"]].entering == [values["hidden"]]


def test_what_leaves_is_made_inside_and_read_outside_or_an_output(build):
    crossed, scopes, values = scope_inputs_outputs(build.graph), scopes_of(build), build.values
    # `first` is read by nobody outside.
    assert crossed[scopes["Net/Sequential[body]"]].leaving == [values["hidden"]]
    assert crossed[scopes["Net/Sequential[body]/Linear[0]"]].leaving == [values["first"]]
    assert crossed[scopes["Net"]].leaving == [values["loss"]]


def test_what_enters_stands_as_it_is_read_and_what_leaves_as_it_is_made():
    build = GraphBuilder("Net")
    one, two = build.input("one", (1,)), build.input("two", (1,))
    build.call("Net")
    part = build.call("Net/Part[part]")
    first = build.op("neg", two, scope=part)
    second = build.op("add", one, two, scope=part)
    build.op("stack", second, first, first, scope=build.scope("Net"))
    crossed = scope_inputs_outputs(build.graph)[part]
    assert crossed.entering == [two, one]
    assert crossed.leaving == [first, second]


def test_what_crosses_is_told_of_the_call_in_which_a_scope_runs(build):
    scopes, values = scopes_of(build), build.values
    inner, head = scopes["Net/Sequential[body]/Linear[0]"], scopes["Net/Linear[head]"]
    body = scopes["Net/Sequential[body]"]
    crossed = scope_inputs_outputs(
        build.graph, {inner: head, body: scopes["Net"], head: scopes["Net"]}.get
    )
    assert crossed[body].entering == [values["first"]]
    assert crossed[head].entering == [values["x"], values["hidden"]]
    assert crossed[head].leaving == [values["first"], values["second"]]


def test_of_calls_in_one_scope_the_first_is_found(build):
    (first,) = [call for call in build.graph.calls if call.scope.path == "Net"]
    build.door.add_call(first.scope, class_name="Net", number=1)
    assert first_calls(build.graph)[first.scope] is first
    assert len(first_calls(build.graph)) == len(build.graph.calls) - 1
