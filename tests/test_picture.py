"""Pictures: the boxes, names and cards of the page, for forms that draw by themselves."""

import pytest
import torch
from build import GraphBuilder
from nasty_models import NASTY
from saved import drawn, nested, net
from torch import nn

import tbscope
from tbscope.ir.graph import Note
from tbscope.page.hierarchy import Hierarchy
from tbscope.saving.box_tree import Picture, Tensor, picture_of


def item(picture: Picture, name: str):
    return picture.hierarchy.items[name]


@pytest.mark.parametrize("name", NASTY)
def test_nodes_and_boxes_are_those_of_the_page(name):
    model, given = NASTY[name]
    graph = net(model(), *given)
    page = Hierarchy.of(tbscope.to_graph_def(graph, templates=False))
    picture = picture_of(graph)
    assert [box.name for box in picture.boxes] == list(page.boxes)
    cards = {name for name, node in page.items.items() if node.op == "NoOp"}
    assert sorted(node.name for node in picture.items) == sorted(page.items.keys() - cards)


def test_a_card_tells_of_its_box_in_the_order_of_the_page():
    graph = nested()
    message = tbscope.to_graph_def(graph, templates=False)
    picture = picture_of(graph)
    (card,) = (node for node in message.node if node.name == "blocks/0/Block")
    facts = picture.facts(picture.hierarchy.boxes["blocks/0"])
    assert list(facts) == [key.strip() for key in sorted(card.attr, reverse=True)]
    assert facts["class"] == "nets.Block"
    assert list(facts).index("class") < list(facts).index("parameter_count")


def test_no_shape_is_drawn_for_a_card():
    picture = picture_of(nested())
    box = picture.hierarchy.boxes["blocks/0"]
    assert [child.label for child in picture.children(box)] == ["fc", "relu", "add"]
    assert "blocks/0/Block" in picture.hierarchy.items


def test_an_output_is_told_with_its_sizes_and_its_type():
    picture = picture_of(nested())
    assert picture.outputs(item(picture, "blocks/0/fc")) == (Tensor((2, 4), "float32"),)
    assert [Tensor(sizes, "f").size_text for sizes in ((2, 4), (), (None, 3), None)] == [
        *("2×4", "scalar", "?×3", "?")
    ]
    assert [Tensor(sizes, "f").elements for sizes in ((2, 4), (), (None, 3), None)] == [8, 1, 3, 1]


def test_each_of_several_outputs_has_its_type():
    graph = net(nn.LSTM(3, 4), torch.ones(5, 1, 3))
    picture = picture_of(graph, leaves="box")
    (node,) = (one for one in picture.items if one.op == "lstm")
    assert [tensor.size_text for tensor in picture.outputs(node)] == ["5×1×4", "1×1×4", "1×1×4"]
    reads = {
        read.output for one in picture.items for read in picture.flow(one) if read.source is node
    }
    assert reads == {0, 1, 2}


def test_outputs_of_several_types_are_told_each_with_its_own():
    graph = tbscope.trace(lambda x: x.max(dim=0), (torch.ones(3, 4),))
    picture = picture_of(graph)
    (node,) = (one for one in picture.items if one.op == "max")
    assert [tensor.dtype for tensor in picture.outputs(node)] == ["float32", "int64"]


def test_a_line_goes_through_circles_to_what_they_read():
    picture = drawn("a:Op b:Op c:Const<-a d:Const<-c,c e:Op<-d,b,^a")
    found = [(read.source.name, read.waits) for read in picture.flow(item(picture, "e"))]
    assert found == [("a", False), ("b", False), ("a", True)]


def test_what_a_circle_reads_keeps_its_order():
    picture = drawn("a:Op b:Op c:Const<-a,b e:Op<-c")
    assert [read.source.name for read in picture.flow(item(picture, "e"))] == ["a", "b"]


def test_no_line_leads_from_a_node_to_itself():
    picture = drawn("a:Op<-a,b b:Op c:Const<-d d:Op<-c")
    assert [read.source.name for read in picture.flow(item(picture, "a"))] == ["b"]
    assert list(picture.flow(item(picture, "d"))) == []


def test_circles_that_read_each_other_end():
    picture = drawn("a:Op c:Const<-d d:Const<-c,a e:Op<-c")
    assert [read.source.name for read in picture.flow(item(picture, "e"))] == ["a"]


def test_what_is_read_has_a_type_where_it_is_known():
    picture = picture_of(nested())
    (first, second) = picture.flow(item(picture, "blocks/1/add"))
    assert picture.tensor(first) == picture.tensor(second) == Tensor((2, 4), "float32")
    assert picture.tensor(first._replace(waits=True)) is None
    assert picture.tensor(first._replace(output=1)) is None


def test_the_numbers_of_a_box_are_those_of_its_card():
    picture = picture_of(nested())
    box = picture.hierarchy.boxes["blocks/0"]
    assert picture.figure(box, "parameter_count") == 4 * 4 + 4
    assert picture.figure(picture.root, "parameter_count") == 2 * (4 * 4 + 4)


def test_a_parameter_that_is_read_twice_counts_once_in_the_box_with_a_card():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x))

    picture = picture_of(net(Twice(), torch.ones(1, 4)))
    numbers = [(picture.figure(node, "parameter_count") or 0) for node in picture.items]
    assert (sum(numbers), picture.figure(picture.root, "parameter_count")) == (40, 20)


def test_a_box_without_a_card_has_the_sum_of_what_is_in_it():
    picture = picture_of(nested(), cards=False)
    box = picture.hierarchy.boxes["blocks"]
    assert picture.facts(box) == {}
    assert picture.figure(box, "parameter_count") == 2 * (4 * 4 + 4)
    assert picture.figure(box, "peak_bytes") is None


def test_of_peaks_a_box_has_the_largest():
    graph = tbscope.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), profile=1)
    picture = picture_of(graph, cards=False)
    peaks = [(picture.figure(node, "peak_bytes") or 0) for node in picture.items]
    assert picture.figure(picture.root, "peak_bytes") == max(peaks) < sum(peaks)


def test_a_number_that_is_told_for_readers_is_read_back():
    graph = net(nn.Linear(300, 300), torch.ones(1, 300))
    picture = picture_of(graph)
    (node,) = (one for one in picture.items if one.op == "Linear")
    assert picture.figure(node, "parameter_count") == 300 * 300 + 300
    assert picture.facts(node)["parameter_count"].endswith("(90,300)")


def test_kinds_are_told_and_are_no_labels_unless_they_are_asked_for():
    picture = picture_of(nested())
    node = item(picture, "blocks/0/fc")
    assert (picture.mark(node, "kind"), picture.mark(node, "label")) == ("linear", "")
    picture = picture_of(nested(), color_by="kind")
    node = item(picture, "blocks/0/fc")
    assert (picture.mark(node, "kind"), picture.mark(node, "label")) == ("", "linear")


def test_the_second_line_of_a_layer_is_its_class():
    picture = picture_of(net(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), torch.ones(1, 3)))
    assert [one.label for one in picture.items] == ["input", "weight", "bias", "0", "1", "out"]
    assert picture.second_line(item(picture, "0")) == "Linear"


def test_a_class_that_is_the_label_is_not_told_twice():
    picture = drawn("relu:ReLU act:ReLU Sum:sum")
    assert [picture.second_line(one) for one in picture.items] == ["", "ReLU", ""]


def test_notes_are_told_once():
    build = GraphBuilder("Net")
    build.output("out", build.op("relu", build.input("x", (1,))))
    build.graph.notes += [Note("it is so"), Note("it is so")]
    assert picture_of(build.graph).notes == ("it is so",)
