"""Regions: nodes of scopes and below them, what enters and what leaves."""

import pytest

from tbscope.ir.regions import Regions, crossings
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


def test_the_nodes_of_a_scope_are_its_own_and_those_below_it_all(build):
    regions, scopes = Regions(build.graph), scopes_of(build)
    body = scopes["Net/Sequential[body]"]
    assert [node.op for node in regions.nodes(body)] == ["relu"]
    below = regions.below(body)
    assert {node.name for node in below} == {
        node.name
        for node in build.graph.nodes
        if node.scope and node.scope.path.startswith(body.path)
    }
    assert [node.kind for node in regions.nodes(None)] == ["input"]


def test_children_stand_in_the_order_in_which_they_came(build):
    regions, scopes = Regions(build.graph), scopes_of(build)
    assert [str(scope.part) for scope in regions.children(scopes["Net"])] == [
        "Sequential[body]",
        "Linear[head]",
    ]
    assert regions.children(scopes["Net/Linear[head]"]) == []
    assert regions.children(None) == [scopes["Net"]]


def test_what_enters_is_read_inside_and_made_outside(build):
    crossed, scopes, values = crossings(build.graph), scopes_of(build), build.values
    assert crossed[scopes["Net/Sequential[body]"]].entering == [values["x"]]
    assert crossed[scopes["Net/Linear[head]"]].entering == [values["hidden"]]


def test_what_leaves_is_made_inside_and_read_outside_or_an_output(build):
    crossed, scopes, values = crossings(build.graph), scopes_of(build), build.values
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
    crossed = crossings(build.graph)[part]
    assert crossed.entering == [two, one]
    assert crossed.leaving == [first, second]


def test_what_crosses_is_told_of_the_call_in_which_a_scope_runs(build):
    scopes, values = scopes_of(build), build.values
    inner, head = scopes["Net/Sequential[body]/Linear[0]"], scopes["Net/Linear[head]"]
    body = scopes["Net/Sequential[body]"]
    crossed = crossings(build.graph, {inner: head, body: scopes["Net"], head: scopes["Net"]}.get)
    assert crossed[body].entering == [values["first"]]
    assert crossed[head].entering == [values["x"], values["hidden"]]
    assert crossed[head].leaving == [values["first"], values["second"]]


def test_the_call_around_a_scope_is_its_own_or_the_innermost_one(build):
    by_hand = build.hand("Net/loss")
    build.op("mean", build.values["loss"], scope=by_hand)
    regions, scopes = Regions(build.graph), scopes_of(build)
    assert regions.call_around(by_hand).scope is scopes["Net"]
    assert regions.call_around(scopes["Net/Linear[head]"]).scope is scopes["Net/Linear[head]"]
    assert regions.call_around(None) is None
