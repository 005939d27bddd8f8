"""Climbs: what scopes have of those around them."""

import pytest

from tbscope.ir.scopes import (
    InheritedProperty,
    NearestProperty,
    add_with_ancestors,
    children_first,
    self_and_ancestors,
    with_above,
)
from tests.build import GraphBuilder

LEAF = "Net/Sequential[body]/Linear[0]"


@pytest.fixture
def scopes():
    """Two scopes in a net, and one more in one of them, by path."""
    build = GraphBuilder("Net")
    for path in ("Net", "Net/Sequential[body]", LEAF, "Net/Linear[head]"):
        build.call(path)
    return {scope.path: scope for scope in build.graph.scopes()}


def test_what_is_inherited_is_told_from_outside_in_and_once(scopes):
    asked = []

    def tell(scope, above):
        asked.append(str(scope.part))
        return [*above, len(above)]

    inherited = InheritedProperty(tell, top=[])
    assert inherited(None) == []
    assert inherited(scopes[LEAF]) == inherited(scopes[LEAF]) == [0, 1, 2]
    assert inherited(scopes["Net/Linear[head]"]) == [0, 1]
    assert asked == ["Net", "Sequential[body]", "Linear[0]", "Linear[head]"]


def test_climbing_takes_no_recursion_and_one_question_for_each_scope():
    build = GraphBuilder("Deep")
    deepest = build.scope("/".join(f"S[{depth}]" for depth in range(2000)))
    count = InheritedProperty(lambda scope, above: above + 1, top=0)
    assert count(deepest) == 2000
    assert count(deepest.parent) == 1999


def test_the_nearest_scope_that_tells_something_is_the_innermost_one(scopes):
    told = {"Net": 1, "Net/Linear[head]": 0}
    nearest = NearestProperty(lambda scope: told.get(scope.path), top=9)
    # What is told may be as good as nothing, as 0 is.
    assert [nearest(scopes[path]) for path in (LEAF, "Net/Linear[head]", "Net")] == [1, 0, 1]
    assert nearest(None) == 9
    silent = NearestProperty(lambda scope: None, top=9)
    assert silent(scopes[LEAF]) == 9


def test_upward_from_a_scope_it_comes_first_and_the_root_last(scopes):
    assert [str(scope.part) for scope in self_and_ancestors(scopes[LEAF])] == [
        "Linear[0]",
        "Sequential[body]",
        "Net",
    ]
    assert list(self_and_ancestors(None)) == []


def test_a_scope_is_added_with_all_above_it_that_are_not_there(scopes):
    found = {scopes["Net"]}
    added = add_with_ancestors(scopes[LEAF], found)
    assert added == [scopes[LEAF], scopes["Net/Sequential[body]"]]
    assert add_with_ancestors(scopes[LEAF], found) == add_with_ancestors(None, found) == ()
    assert found == set(scopes.values()) - {scopes["Net/Linear[head]"]}


def test_several_scopes_stand_with_all_above_any_of_them(scopes):
    assert with_above([scopes[LEAF], None, scopes["Net/Linear[head]"]]) == set(scopes.values())
    assert with_above([None]) == set()


def test_inside_out_has_each_scope_before_the_one_around_it(scopes):
    pairs = [(str(inner.part), str(outer.part)) for inner, outer in children_first(scopes.values())]
    assert pairs.index(("Linear[0]", "Sequential[body]")) < pairs.index(("Sequential[body]", "Net"))
    assert len(pairs) == 3
