"""Cards: what is told of a module that is drawn as a box, and which boxes have one."""

from collections import Counter

import pytest
from build import GraphBuilder, chain

from tbscope.analysis.costs import Costs
from tbscope.drawing.info_cards import blank_cards, module_cards, uncounted_text
from tbscope.ir.graph import Argument, Source
from tbscope.ir.module_tree import ModuleTree


def told_of(graph, work=()):
    return list(module_cards(graph, dict(work), ModuleTree(graph).part_of))


def cards(graph, work=()):
    return {card.scope.path: card for card in told_of(graph, work)}


def boxed(**facts):
    """Give the card of a module whose call holds an operation."""
    build = GraphBuilder()
    x = build.input("x", (2, 3))
    facts.setdefault("arguments", [Argument(None, x)])
    scope = build.call("Net/Block[block]", **facts)
    y = build.op("relu", x, scope=scope)
    build.returns(scope, facts.get("results", y))
    return scope, cards(build.graph)[scope.path]


def test_only_boxes_have_cards():
    build = GraphBuilder()
    x = build.input("x", (2,))
    build.call("Net")
    leaf, empty = build.call("Net/Linear[fc]"), build.call("Net/Empty[empty]")
    build.op("Linear", x, scope=leaf, kind="module")
    assert list(cards(build.graph)) == ["Net"]
    build.op("relu", x, scope=empty)
    assert list(cards(build.graph)) == ["Net", "Net/Empty[empty]"]


def test_a_card_tells_the_module_and_what_it_is_given():
    _, card = boxed(training=True, hyperparameters={"width": 3, "class": "own"})
    assert card.label == "Block"
    assert card.facts == {
        "class": "models.Block",
        "module": "block",
        "training": True,
        "arguments": "Float(2, 3)",
        "results": "Float(2, 3)",
        "width": 3,
        "class_": "own",
    }


def test_parameters_are_those_of_all_that_is_inside():
    graph = chain(2)
    facts = cards(graph)["Chain"].facts
    names = ("parameter_count", "bytes")
    assert [facts[name] for name in names] == [12, 48]


def test_a_further_call_has_its_number():
    build = GraphBuilder()
    x = build.input("x", (2,))
    for path in ("Net/Block[a]", "Net/Block[a].1", "Net/Block[b]"):
        name = path.removesuffix(".1")[-2:-1]
        build.op("relu", x, scope=build.call(path, qualified_name=name))
    told = [card.facts.get("call") for card in told_of(build.graph)]
    assert told == [None, 2, None]


def test_a_call_that_reruns_in_the_scope_of_another_has_no_card_of_its_own():
    build = GraphBuilder()
    x = build.input("x", (2,))
    scope = build.call("Net/Block[a]", qualified_name="a")
    build.call("Net/Block[a]", qualified_name="a", number=1)
    build.op("relu", x, scope=scope)
    assert [card.facts.get("call") for card in told_of(build.graph)] == [None]


def test_work_is_told_where_there_is_any():
    graph = chain(1)
    scope = graph.calls[0].scope
    none = cards(graph, {scope: Costs()})["Chain"].facts
    assert not {"flops", "flops_not_counted"} & none.keys()
    some = cards(graph, {scope: Costs(5, uncounted=Counter(["aten::gelu"]))})["Chain"].facts
    assert (some["flops"], some["flops_not_counted"]) == (5, "aten::gelu")


def test_kernels_are_told_by_how_often_they_ran_then_by_name():
    text = uncounted_text({"aten::b": 1, "aten::c": 3, "aten::a": 1})
    assert text == "aten::c x3, aten::a, aten::b"


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (lambda x: (x, None), "(Float(1, 2), None)"),
        (lambda x: (x,), "(Float(1, 2),)"),
        (lambda x: [x], "[Float(1, 2)]"),
        (lambda x: {"a": x, "b": (1, True)}, "{a: Float(1, 2), b: (1, True)}"),
    ],
)
def test_nests_are_told_with_the_types_of_their_tensors(shape, text):
    x = GraphBuilder().input("x", (1, 2))
    _, card = boxed(arguments=[Argument("y", shape(x)), Argument(None, 1)], results=shape(x))
    assert card.facts["arguments"] == f"y: {text}, 1"
    assert card.facts["results"] == text


def test_where_a_class_is_defined_is_told_if_it_is_known():
    assert "defined" not in boxed()[1].facts
    assert boxed(defined=Source("net.py", 7, "Net"))[1].facts["defined"] == "net.py:7 in Net"


def test_blank_cards_are_for_boxes_without_one():
    build = GraphBuilder()
    x = build.input("x", (2,))
    net, block, idle = build.call("Net"), build.hand("Net/loss"), build.hand("Net/idle")
    leaf = build.call("Net/Linear[fc]")
    build.op("relu", x, scope=block)
    build.op("Linear", x, scope=leaf, kind="module")
    told = told_of(build.graph)
    blank = list(blank_cards(build.graph, [block, net, idle, leaf, block], told))
    assert [(card.scope, card.label, card.facts) for card in blank] == [(block, "loss", {})]
