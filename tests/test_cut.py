"""Cuts: which boxes are open down to a depth, and the lines between what is drawn."""

import pytest
from build import GraphBuilder
from saved import drawn, nested

import tbscope
from tbscope.saving.box_tree import Tensor, picture_of
from tbscope.saving.depth_limit import Cut


def lines(cut):
    return [(line.start.name, line.end.name, line.text) for line in cut.lines]


def test_at_depth_nought_every_box_is_closed():
    cut = Cut(picture_of(nested()), 0)
    assert [glyph.name for glyph in cut.walk()] == ["x", "blocks", "out"]
    assert lines(cut) == [("x", "blocks", "2×4"), ("blocks", "out", "2×4")]


def test_one_deeper_the_boxes_in_it_are_closed():
    cut = Cut(picture_of(nested()), 1)
    assert [glyph.name for glyph in cut.walk()] == ["x", "blocks", "blocks/0", "blocks/1", "out"]
    assert ("blocks/0", "blocks/1", "2×4") in lines(cut)
    assert cut.is_open(cut.picture.hierarchy.boxes["blocks"])
    assert not cut.is_open(cut.picture.hierarchy.boxes["blocks/0"])


def test_without_a_depth_all_boxes_are_open():
    picture = picture_of(nested())
    cut, deep = Cut(picture), Cut(picture, 99)
    assert (cut.depth, deep.depth) == (2, 2)
    assert ("x", "blocks/0/add", "2×4") in lines(cut)
    assert cut.shapes == 3 + 2 + 6


def test_a_tensor_that_several_nodes_of_a_box_read_goes_along_once():
    picture = drawn("a:Op b/c:Op<-a b/d:Op<-a,a e:Op<-a@0,a@1")
    (line,) = (line for line in Cut(picture, 0).lines if line.end.name == "b")
    assert len(line.tensors) == 1
    (line,) = (line for line in Cut(picture, 0).lines if line.end.name == "e")
    assert [output for _, output in line.tensors] == [0, 1]


def test_several_tensors_are_counted():
    build = GraphBuilder("Net")
    x = build.input("x", (2, 4))
    halves = build.node("chunk", x, outputs=((1, 4), (1, 4))).outputs
    parts = build.node("split", x, outputs=((1, 4), (2, 4))).outputs
    build.output("out", build.op("cat", list(halves)))
    build.output("other", build.op("cat", list(parts)))
    texts = {line.start.name: line.text for line in Cut(picture_of(build.graph)).lines}
    assert (texts["chunk"], texts["split"]) == ("2 of 1×4", "2 tensors")


def test_a_tensor_that_is_not_known_is_counted_without_sizes(monkeypatch):
    picture = drawn("a:Op b:Op<-a@0,a@1")
    known = Tensor((1, 4), "float32")
    types = {picture.hierarchy.items["a"]: (known,)}
    monkeypatch.setattr(picture, "outputs", lambda glyph: types.get(glyph, ()))
    assert lines(Cut(picture)) == [("a", "b", "2 tensors")]
    types[picture.hierarchy.items["a"]] = (known, known)
    assert lines(Cut(picture)) == [("a", "b", "2 of 1×4")]


def test_no_line_ends_at_a_circle():
    assert lines(Cut(drawn("a:Op c:Const<-a e:Op<-c"))) == [("a", "e", "")]


def test_a_line_of_control_inputs_alone_only_waits():
    (first, second) = Cut(drawn("a:Op b:Op<-^a c:Op<-^a,a")).lines
    assert (first.end.name, first.tensors, first.text) == ("b", {}, "")
    assert (second.end.name, list(second.tensors.values())) == ("c", [None])


def test_the_largest_tensor_counts():
    build = GraphBuilder("Net")
    x = build.input("x", (2, 4))
    parts = build.node("split", x, outputs=((1, 4), (2, 4))).outputs
    build.output("out", build.op("cat", list(parts)))
    elements = {line.start.name: line.elements for line in Cut(picture_of(build.graph)).lines}
    assert elements["split"] == 8
    (waits,) = Cut(drawn("a:Op b:Op<-^a")).lines
    assert waits.elements == 0


@pytest.mark.parametrize("depth", [-1, 1.0, True, "2", [1]])
def test_a_depth_is_a_whole_number(depth, tmp_path):
    with pytest.raises(tbscope.ArgumentError, match="cannot be drawn to the depth"):
        nested().save(tmp_path / "graph.dot", depth=depth)
    nested().save(tmp_path / "graph.dot", depth=0)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.dot"]
