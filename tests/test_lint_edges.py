"""The rules of the page at their edges: what just breaks one, and what just does not."""

import pytest
from test_linter import chain, gathered, message, stack, wide_stack, with_attribute, with_library

from tbscope.rules.linter import lint

LIBRARY = "__function_library__"
SEEDS = [f"__function_library__F{at}_template/a A" for at in range(9)]


def changed(graph_def, name, key, text):
    """Give one of the nodes another text as an attribute."""
    (node,) = (node for node in graph_def.node if node.name == name)
    node.attr[key].s = text
    return graph_def


def long_shapes(key):
    """Give a node a list of shapes of more than 1 KB as this attribute."""
    graph_def = message("x In", shapes=0)
    shapes = graph_def.node[0].attr[key].list.shape
    for _ in range(400):
        shapes.add().dim.add(size=7)
    return graph_def


PAIRS = [
    # Names.
    ("broken-name", message("/x Op"), message("x/y Op")),
    ("broken-name", message("x/ Op"), message("x/y Op")),
    ("broken-name", message("x//y Op", "z/ Op"), message("x/y Op")),
    ("broken-name", message("^x/y Op"), message("x/^y Op")),
    ("broken-name", message("a/x:0 Op"), message("a/x a::Op")),
    ("reserved-name", message("constructor Op"), message("constructor_ Op")),
    ("reserved-name", message("x In", "y Op x toString:1"), message("x In", "y Op x length")),
    ("reserved-name", message("x In", "y Op x ^toString"), message("x In", "y Op x __root__")),
    ("duplicate-name", message("x In", "a/y Op x", "a/y Op x"), message("x In", "a/y Op", "y Op")),
    ("scope-constant", message("a Const", "a/x In"), message("a Const", "ab/x In")),
    ("scope-constant", message("a OneSummary", "a/x In"), message("a One1Summary", "a/x In")),
    # A constant below it makes no box of a node.
    ("scope-constant", message("a Const", "a/b Op"), message("a Const", "a/b Const")),
    *(("odd-character", message(f"x{odd} Op"), message("x Op")) for odd in "!\"$%&'*;<=?@^`{|}"),
    *(("odd-character", message("x? Op"), message(f"x{even} Op")) for even in "+#>~\\,.-_()[]"),
    ("non-ascii", message("x Öp"), message("x Op")),
    ("non-ascii", message("x In", x="/device:ß:0"), message("x In", x="/device:S:0")),
    ("non-ascii", message("ß/x In"), message("s/x In")),
    # Op types.
    ("reserved-op", message("x __proto__"), message("x __root__")),
    ("reserved-op", message("x length"), message("x Length")),
    ("swallowed-op", message("c Const", "y Op c:1"), message("c Const", "y Op c:0")),
    ("swallowed-op", message("x In", "c Const x"), message("x In", "c Const  ^x", "y Op c")),
    ("swallowed-op", message("s OneSummary", "y Op s"), message("s OneSummary", "y Op ^s")),
    ("no-op", message("x NoOp", "y Op x"), message("x NoOp", "y Op ^x")),
    (
        "no-op",
        message("x In", "a/a NoOp", "a/(a) NoOp", "a/y Op x"),
        message("x In", "a/b NoOp", "a/y Op x"),
    ),
    # Inputs.
    ("dangling-input", message("x In", "y Op a"), message("a In", "y Op a")),
    ("dangling-input", message("x In", "y Op ^a"), message("a In", "y Op ^a")),
    ("dangling-input", message("a/x In", "y Op ^a"), message("a/x In", "y Op ^a/x")),
    ("dangling-input", message("x/a In", "y Op x"), message("x In", "x/a In", "y Op x")),
    ("self-input", message("x In ^x"), message("x In ^y", "y In")),
    ("self-input", message("x In x:1"), message("x In ")),
    ("collapsed-edges", message("x In", "y Op x ^x"), message("x In", "z In", "y Op x z ^x")),
    ("missing-shape", message("x In", "y Op x", shapes=0), message("x In", "y Op ^x", shapes=0)),
    ("missing-shape", message("x In", "y Op x:1"), message("x In", "y Op x:0")),
    # The last output that is read counts, in whichever order they are read.
    (
        "missing-shape",
        message("x In", "y Op x:1", "z Op x"),
        message("x In", "y Op x:1", "z Op x", shapes=2),
    ),
    (
        "missing-shape",
        message(f"{LIBRARY[:-2]}/x In", f"y Op {LIBRARY[:-2]}/x", shapes=0),
        message(f"{LIBRARY}/x In", f"y Op {LIBRARY}/x", shapes=0),
    ),
    ("missing-shape", message("x In", "y Op x", shapes=0), message("c Const", "y Op c", shapes=0)),
    ("collapsed-edges", message("x In", "y Op x x"), message("x In", "y Op x   x")),
    ("empty-graph", message(), with_library()),
    # Attributes.
    ("large-attribute", long_shapes("output_shapes"), long_shapes("_output_shapes")),
    ("attribute-text", with_attribute(s=b"a\tb"), with_attribute(s=b"a b")),
    ("attribute-text", with_attribute(s=b"\x7f"), with_attribute(s=b"~")),
    ("attribute-text", with_attribute("größe", s=b"a"), with_attribute("groesse", s=b"a")),
    ("attribute-text", with_attribute(s=[b"a", b"\xff"]), with_attribute(s=[b"a", b"b"])),
    # Levels.
    ("wide-level", wide_stack(301), wide_stack(300)),
    ("wide-level", message(*SEEDS, *(f"n{at}x In" for at in range(301))),
     message(*SEEDS, *(f"n{at}x In" for at in range(300)))),
    # A node is on the way out of a box and back, or beside it; without a box there is no way.
    (
        "box-cycle",
        message("x In", "a/p Op x", "q Op a/p", "a/r Op q"),
        message("x In", "a/p Op x", "q Op a/p", "a/r Op x"),
    ),
    (
        "box-cycle",
        message("a/b/p Op", "a/q Op a/b/p", "a/b/r Op ^a/q"),
        message("a/b/p Op", "a/q Op a/b/p", "a/c/r Op ^a/q"),
    ),
    ("box-cycle", message("a/p Op q", "q Op a/p"), message("p Op q", "q Op p")),
    ("false-series", stack(1, 1, 1, 1, 2), stack(1, 1, 1, 2)),
    *(
        (
            "false-series",
            changed(stack(1, 1, 1, 1, 1), "n2", "new", b"1"),
            changed(stack(1, 1, 1, 1, 1), "n2", own, b"1"),
        )
        for own in ("_XlaCluster", "kernels", "name", "scope", "source")
    ),
    (
        "false-series",
        changed(stack(1, 2, 3, 4, 5, module="cell"), "n4", "module", b"head"),
        stack(1, 2, 3, 4, 5, module="cell"),
    ),
    # What is put aside for many inputs is cut off; with as few as the others, it is not.
    ("lost-output", gathered(14, 5), gathered(14, 4)),
]  # fmt: skip


def found(graph_def):
    return {finding.rule for finding in lint(graph_def)}


@pytest.mark.parametrize(
    ("rule", "broken", "kept"), PAIRS, ids=[f"{at}-{rule}" for at, (rule, _, _) in enumerate(PAIRS)]
)
def test_a_rule_is_broken_just_beyond_its_edge(rule, broken, kept):
    assert rule in found(broken)
    assert rule not in found(kept)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        # Data enters the box, leaves it, or both; what has circles at one side is put aside.
        (["x In", "box/w Const", "box/op Op x box/w"], ["box/op"]),
        (["box/w Const", "box/op Op box/w", "out Out box/op"], ["box/op"]),
        (["x In", "box/w Const", "box/op Op x box/w", "out Out box/op"], ["box/op"]),
        (["x In", "box/w Const", "box/op Op x ^box/w"], ["box/op"]),
        # Nothing crosses, so nothing is cut off.
        (["x In", "box/w Const", "box/op Op box/w"], []),
        (["x In", "box/w Const", "box/op Op ^x box/w", "out Out x"], []),
        # No circle, or one at each side: it stays.
        (["x In", "box/op Op x", "out Out box/op"], []),
        (["x In", "box/w Const", "box/op Op x box/w", "box/s OneSummary box/op"], []),
        (["x In", "box/op Op x", "box/s OneSummary box/op"], ["box/op"]),
        # What the circle reads enters the box, whatever the edge from the circle is.
        (["x In", "box/w Const x", "box/op Op ^box/w", "out Out x"], ["box/op"]),
        (["x In", "box/w Const ^x", "box/op Op box/w", "out Out x"], []),
    ],
)
def test_an_operation_alone_with_circles_is_told_of_where_data_crosses_its_box(nodes, told):
    assert [one.node for one in lint(message(*nodes)) if one.rule == "lone-node"] == told


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("x", None),
        ("x x:1", "an input comes after one of the same node, as 'x:1', "),
        ("x x:1 ^x", "2 inputs come after one of the same node, as 'x:1', "),
    ],
)
def test_inputs_that_come_after_one_of_the_same_node_are_counted(inputs, text):
    told = [one for one in lint(message("x In", f"y Op {inputs}", shapes=2)) if one.node == "y"]
    assert [one.message for one in told] == (
        [f"{text}and the page draws no edge for it"] if text else []
    )


@pytest.mark.parametrize(
    ("between", "others"), [(1, "'q0'"), (2, "'q0' and 1 more"), (3, "'q0' and 2 more")]
)
def test_a_box_on_a_cycle_tells_what_it_is_on_it_with(between, others):
    reads = ["a/p", *(f"q{at}" for at in range(between))]
    nodes = [f"q{at} Op {reads[at]}" for at in range(between)]
    graph_def = message("x In", "a/p Op x", *nodes, f"a/r Op {reads[-1]}")
    (finding,) = (one for one in lint(graph_def) if one.rule == "box-cycle")
    assert finding.node == "a"
    assert finding.message == f"in the top level, it and {others} read each other by turns"


@pytest.mark.parametrize("cards", [0, 4])
def test_what_is_cut_off_names_what_is_put_aside_for_its_lines(cards):
    graph_def = gathered(13 + cards, 5)
    graph_def.MergeFrom(message(*(f"c{at} NoOp" for at in range(cards))))
    (finding,) = (one for one in lint(graph_def) if one.node == "out")
    assert "it is not connected any more since 'cat' is put aside, " in finding.message


@pytest.mark.parametrize(
    ("hubs", "text"),
    [
        (2, "since 'hub0', 'hub1' are put aside"),
        (3, "since 'hub0', 'hub1', 'hub2' are put aside"),
        (4, "since 'hub0', 'hub1', 'hub2' and 1 more are put aside"),
    ],
)
def test_what_is_cut_off_names_three_of_those_that_are_put_aside(hubs, text):
    # Each reads five of a chain of thirty, and the output reads all of them.
    names = [f"hub{at}" for at in range(hubs)]
    nodes = ["n0x In", *(f"n{at}x Op n{at - 1}x" for at in range(1, 30))]
    for at, name in enumerate(names):
        reads = " ".join(f"n{5 * at + read}x" for read in range(5))
        nodes.append(f"{name} Cat{at} {reads}")
    found_here = lint(message(*nodes, f"out Out {' '.join(names)}"))
    (finding,) = (one for one in found_here if one.node == "out")
    assert f"it is not connected any more {text}, " in finding.message


def test_an_exit_that_is_itself_put_aside_is_told_with_the_reason_and_others_with_its_name():
    # The last two of a chain of twenty: one reads seven before it, and the other reads that.
    names = [f"a/n{at}_" for at in range(20)]
    nodes = [f"{name} Op{at} {names[at - 1] if at else 'x'}" for at, name in enumerate(names)]
    nodes += [f"a/cat Cat {' '.join(names[:7])}", "a/end End a/cat"]
    read = ["seen Seen a/end", f"out Out {names[-1]}"]
    message_of = "{}, and no drawn line leads to it from where data comes in"
    told = [one for one in lint(message("x In", *nodes, *read)) if one.rule == "lost-output"]
    assert {one.node: one.message for one in told} == {
        "a/end": message_of.format(
            "in the box 'a', it is not connected any more since 'a/cat' is put aside"
        )
    }
    read[0] = "seen Seen a/cat"
    told = [one for one in lint(message("x In", *nodes[:-1], *read)) if one.rule == "lost-output"]
    assert {one.node: one.message for one in told} == {
        "a/cat": message_of.format("in the box 'a', it is put aside for its many lines")
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a" * 30 + "b" * 30, "a" * 30 + "b" * 30),
        ("a" * 30 + "b" * 31, "a" * 28 + "..." + "b" * 28),
    ],
)
def test_a_name_of_more_than_sixty_characters_is_told_by_its_ends(name, shown):
    (finding,) = lint(message("x In", f"y Op {name}"))
    assert finding.message.startswith(f"the input '{shown}' names no node")


@pytest.mark.parametrize("last", [{}, {"n30": 1}])
def test_attributes_that_name_the_same_in_another_order_are_alike(last):
    graph_def = message("x In", *(f"n{at} Op x" for at in range(5)))
    names = {f"n{at}": 0 for at in range(40)}
    for at, node in enumerate(graph_def.node[1:]):
        given = names if at % 2 else dict(reversed(names.items()))
        for name, number in (given | (last if at == 4 else {})).items():
            node.attr["body"].func.attr[name].i = number
    assert ("false-series" in found(graph_def)) == bool(last)


@pytest.mark.parametrize(
    ("name", "told", "fix"),
    [
        ("", ["a node of op 'Op' has no name, and the page fails"], "give it a name"),
        ("/x/y", ["the name begins with '/', and the page stays blank"], "name it 'x/y'"),
        (
            "x:0",
            ["the name has a ':', and an input of it is read as one of 'x'"],
            "name it 'x.0'",
        ),
        (
            "x//y",
            ["a part of the name is empty, and what it names is drawn without a label"],
            "name it 'x/y'",
        ),
        (
            "/x//y",
            [
                "the name begins with '/', and the page stays blank",
                "a part of the name is empty, and what it names is drawn without a label",
            ],
            "name it 'x/y'",
        ),
        (
            "^",
            ["the name begins with '^', and inputs of it are read as control inputs of another"],
            "name it 'unnamed'",
        ),
    ],
)
def test_all_that_is_wrong_with_a_name_is_told(name, told, fix):
    found_here = [one for one in lint(message(f"{name} Op")) if one.rule == "broken-name"]
    assert [one.message for one in found_here] == told
    assert {one.fix for one in found_here} == {fix}


@pytest.mark.parametrize(
    ("graph_def", "fix"),
    [
        (chain(301, "n{}x"), "group them in boxes of 100 or less"),
        (wide_stack(301), "group them in boxes of 250 or less"),
    ],
)
def test_a_level_that_is_too_wide_may_be_parted_in_boxes_and_a_stack_in_larger_ones(graph_def, fix):
    assert [one.fix for one in lint(graph_def) if one.rule == "wide-level"] == [fix]


@pytest.mark.parametrize(
    ("inputs", "message_of"),
    [
        ("a", "the input 'a' names a box, its edge is not drawn, and tracing inputs fails"),
        ("b", "the input 'b' names no node, and its edge is not drawn"),
    ],
)
def test_an_input_that_names_a_box_is_told_from_one_that_names_nothing(inputs, message_of):
    (finding,) = lint(message("a/x In", f"y Op {inputs}"))
    assert finding.message == message_of


@pytest.mark.parametrize(
    "graph_def",
    [
        with_attribute(s=[b"a\n", b"b\n"]),
        message("x In", "y Op x x:1 ^x", shapes=2),
        message("a&b/x In", "a&b/y Op"),
        message("toString/a In", "toString/b Op"),
        message("toString In", "y Op toString"),
        message("x In", "n NoOp x", "y Op x n"),
    ],
)
def test_what_is_wrong_at_several_places_of_one_is_told_once(graph_def):
    assert len(lint(graph_def)) == 1


def test_an_input_may_give_the_name_that_a_node_has_on_the_page():
    assert lint(message("x In", "x/z In", "y Op x/(x)")) == []
