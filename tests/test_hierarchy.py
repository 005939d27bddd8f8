"""The tree of boxes and the edges in it, as the page reads them from names and inputs."""

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.page.hierarchy import Hierarchy, Link, parse_input
from tbscope.page.op_types import is_circle, is_embedded


def tree(*nodes):
    """Read nodes given as `name op input input ...`."""
    words = [node.split(" ") for node in nodes]
    return Hierarchy([(name, op, inputs) for name, op, *inputs in words])


def names(items):
    return [item.name for item in items]


def link_names(hierarchy, box=None):
    links = hierarchy.links(hierarchy.root if box is None else hierarchy.boxes[box])
    return {(start.name, end.name): tuple(link) for (start, end), link in links.items()}


def test_each_prefix_is_a_box_in_order_of_first_appearance():
    hierarchy = tree("b/x/1 op", "a op", "b/y op", "c/z op")
    assert list(hierarchy.boxes) == ["b", "b/x", "c"]
    assert list(hierarchy.root.children) == ["b", "a", "c"]
    assert list(hierarchy.boxes["b"].children) == ["x", "y"]
    box = hierarchy.boxes["b/x"]
    assert (box.label, box.parent, box.depth) == ("x", hierarchy.boxes["b"], 2)
    assert hierarchy.items["b/x/1"].box is box
    assert hierarchy.root.parent is None


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_a_node_named_like_a_box_stands_in_it_in_brackets(order):
    nodes = ["a op", "a/b op a", "a/b/c op a/b"]
    hierarchy = tree(*(nodes[at] for at in order))
    assert set(hierarchy.items) == {"a/(a)", "a/b/(b)", "a/b/c"}
    assert hierarchy.strict == {"a": "a/(a)", "a/b": "a/b/(b)"}
    assert hierarchy.items["a/(a)"].box is hierarchy.boxes["a"]
    assert hierarchy.items["a/(a)"].label == "(a)"
    assert set(hierarchy.boxes["a"].children) == {"(a)", "b"}
    assert names(hierarchy.items["a/b/c"].sources) == ["a/b/(b)"]
    assert list(hierarchy.root.children) == ["a"]


def test_a_node_is_found_by_its_name_on_the_page_too():
    hierarchy = tree("a op", "a/b op", "c op a/(a)")
    assert names(hierarchy.items["c"].sources) == ["a/(a)"]


def test_a_node_with_only_circles_below_it_stays_a_node():
    hierarchy = tree("net/fc Linear net/fc/weight", "net/fc/weight ParameterConst")
    assert set(hierarchy.boxes) == {"net"}
    assert list(hierarchy.boxes["net"].children) == ["fc"]
    weight = hierarchy.items["net/fc/weight"]
    assert weight.embedded
    assert weight.box is hierarchy.boxes["net"]
    assert names(hierarchy.items["net/fc"].sources) == ["net/fc/weight"]


def test_a_circle_named_like_a_box_stands_in_it_in_brackets():
    hierarchy = tree("a Const", "a/b op a", "z op")
    assert set(hierarchy.items) == {"a/(a)", "a/b", "z"}
    assert hierarchy.items["a/(a)"].box is hierarchy.boxes["a"]


@pytest.mark.parametrize(
    ("op", "circle", "embedded"),
    [
        ("Const", True, True),
        ("prim::ListConstruct", True, True),
        ("const", False, False),
        ("HistogramSummary", False, True),
        ("Histogram2Summary", False, False),
        ("Summary", False, False),
        ("", False, False),
    ],
)
def test_what_is_embedded_is_told_by_the_op_type(op, circle, embedded):
    assert (is_circle(op), is_embedded(op)) == (circle, embedded)


@pytest.mark.parametrize(
    ("text", "name", "control"),
    [
        ("a", "a", False),
        ("a:1", "a", False),
        ("a:out:1", "a", False),
        ("a:out", "a:out", False),
        ("a:1\n", "a:1\n", False),
        ("a::1", "a::1", False),
        ("^a", "a", True),
        ("^a:0", "a", True),
        ("^^a", "^a", True),
        ("", "", False),
    ],
)
def test_an_input_is_a_name_with_an_output_and_a_sign(text, name, control):
    assert parse_input(text) == (name, control)


def test_inputs_of_one_node_in_a_row_are_one_edge():
    hierarchy = tree("a op", "b op a a:1 a:2 ^a", "c op ^a a:1", "d op a missing a:1  a:2")
    assert names(hierarchy.items["b"].sources) == ["a"]
    assert hierarchy.items["b"].controls == []
    assert hierarchy.items["c"].sources == []
    assert names(hierarchy.items["c"].controls) == ["a"]
    assert names(hierarchy.items["d"].sources) == ["a", "a", "a"]


def test_inputs_that_name_no_node_or_the_node_itself_are_no_edges():
    hierarchy = tree("s/a op", "b op s b s/a nothing ^b")
    assert names(hierarchy.items["b"].sources) == ["s/a"]
    assert hierarchy.items["b"].controls == []


def test_a_node_whose_name_reads_as_an_output_is_not_found_by_it():
    hierarchy = tree("a op", "a:0 op", "^a op", "b op a:0", "c op ^^a", "d op a::x", "a::x op")
    assert names(hierarchy.items["b"].sources) == ["a"]
    assert names(hierarchy.items["c"].controls) == ["^a"]
    assert names(hierarchy.items["d"].sources) == ["a::x"]


def test_of_two_nodes_of_one_name_the_last_gives_the_op_and_both_give_edges():
    hierarchy = tree("x op", "y op", "a first x", "a last y")
    assert hierarchy.items["a"].op == "last"
    assert names(hierarchy.items["a"].sources) == ["x", "y"]


def test_a_line_joins_the_shapes_of_the_level_on_which_the_ends_part():
    hierarchy = tree(
        "x op", "m/a op x", "m/b/c op m/a m/d:1 m/a", "m/d op m/a ^x", "y op m/b/c ^m/d"
    )
    assert link_names(hierarchy) == {("x", "m"): (1, 1), ("m", "y"): (1, 1)}
    assert link_names(hierarchy, "m") == {
        ("m/a", "m/b"): (2, 0),
        ("m/d", "m/b"): (1, 0),
        ("m/a", "m/d"): (1, 0),
    }
    assert link_names(hierarchy, "m/b") == {}
    link = next(iter(hierarchy.links(hierarchy.root).values()))
    assert link == Link(data=1, control=1)


def test_what_a_circle_reads_its_reader_reads():
    hierarchy = tree("x op", "c Const x ^w", "w op", "y op c", "z op ^c y")
    assert link_names(hierarchy) == {
        ("x", "y"): (1, 0),
        ("w", "y"): (0, 1),
        ("x", "z"): (1, 0),
        ("w", "z"): (0, 1),
        ("y", "z"): (1, 0),
    }


def test_through_a_summary_the_edge_is_of_the_kind_of_its_reader():
    hierarchy = tree("x op", "s HistogramSummary x", "y op ^s")
    assert link_names(hierarchy) == {("x", "y"): (0, 1)}


def test_a_circle_of_a_circle_leads_nowhere():
    assert link_names(tree("x op", "c Const x", "d Const c", "y op d")) == {}


@pytest.mark.parametrize("name", ["", "/", "/a", "a/", "a//b", "//", "a/b//"])
def test_names_that_break_the_page_are_read_nonetheless(name):
    hierarchy = tree(f"{name} op", f"b op {name}")
    assert names(hierarchy.items["b"].sources) == [name]
    assert hierarchy.items[name].box in {hierarchy.root, *hierarchy.boxes.values()}


def test_ten_thousand_boxes_in_each_other_are_read():
    deep = "/".join(["m"] * 10_000)
    hierarchy = tree(f"{deep}/a op", f"{deep}/b op {deep}/a", "c op m/x", f"d op {deep}/b")
    assert len(hierarchy.boxes) == 10_000
    assert link_names(hierarchy, deep) == {(f"{deep}/a", f"{deep}/b"): (1, 0)}
    assert link_names(hierarchy) == {("m", "d"): (1, 0)}


def test_a_graph_def_is_read_as_its_nodes_are():
    message = GraphDef()
    message.node.add(name="x", op="input")
    message.node.add(name="m/a", op="relu", input=["x"])
    hierarchy = Hierarchy.of(message)
    assert names(hierarchy.items["m/a"].sources) == ["x"]
    assert repr(hierarchy.boxes["m"]) == "Box('m')"
    assert repr(hierarchy.items["m/a"]) == "Item('m/a', 'relu')"
