"""Model Explorer's JSON: what its reader asks of nodes, edges and layers."""

import json

import pytest
from build import GraphBuilder
from nasty_models import NASTY
from saved import drawn, nested, net

from tbscope.saving.explorer import explorer_of
from tbscope.saving.picture import picture_of

# The fields of `graph_builder.py`.
GRAPH = {"id", "nodes", "groupNodeAttributes"}
NODE = {
    *("id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata", "inputsMetadata"),
}
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}


def read(picture):
    whole = json.loads(explorer_of(picture))
    assert set(whole) == {"label", "graphs"}
    (graph,) = whole["graphs"]
    assert set(graph) == GRAPH
    return graph


@pytest.mark.parametrize("name", NASTY)
def test_nodes_stand_in_the_layers_of_their_boxes_and_edges_join_them(name):
    model, given = NASTY[name]
    picture = picture_of(net(model(), *given))
    graph = read(picture)
    assert [node["id"] for node in graph["nodes"]] == [item.name for item in picture.items]
    assert [node["namespace"] for node in graph["nodes"]] == [
        item.box.name for item in picture.items
    ]
    for node, item in zip(graph["nodes"], picture.items, strict=True):
        assert set(node) <= NODE
        assert all(set(edge) == EDGE for edge in node["incomingEdges"])
        read_from = [
            (edge["sourceNodeId"], edge["sourceNodeOutputId"]) for edge in node["incomingEdges"]
        ]
        assert read_from == [(read.source.name, str(read.output)) for read in picture.reads(item)]
        assert [edge["targetNodeInputId"] for edge in node["incomingEdges"]] == [
            str(at) for at in range(len(read_from))
        ]
        assert all(isinstance(one["value"], (str, dict)) for one in node["attrs"])


def test_a_node_tells_its_card_and_its_tensors():
    graph = read(picture_of(nested()))
    (node,) = (node for node in graph["nodes"] if node["id"] == "blocks/0/fc")
    attrs = {one["key"]: one["value"] for one in node["attrs"]}
    assert attrs["in_features"] == "4"
    assert attrs["device"] == "cpu"
    assert node["label"] == "fc (Linear)"
    assert node["outputsMetadata"] == [
        {"id": "0", "attrs": [{"key": "tensor_shape", "value": "float32[2, 4]"}]}
    ]
    assert [one["attrs"][0]["value"] for one in node["inputsMetadata"]] == [
        *("x", "blocks/0/fc/weight", "blocks/0/fc/bias")
    ]


def test_sizes_are_told_as_the_reader_of_torch_tells_them():
    build = GraphBuilder("Net")
    x = build.input("x", (2,))
    for shape in ((), (None, 3)):
        build.output(f"out{len(shape)}", build.node("op", x, outputs=(shape,)).outputs[0])
    nodes = read(picture_of(build.graph))["nodes"]
    told = [node["outputsMetadata"][0]["attrs"][0]["value"] for node in nodes]
    assert {"float32[2]", "float32[]", "float32[?, 3]"} <= set(told)


def test_a_layer_tells_the_card_of_its_box_and_the_graph_that_of_the_model():
    groups = read(picture_of(nested()))["groupNodeAttributes"]
    assert groups["blocks/1"]["class"] == "nets.Block"
    assert groups[""]["class"] == "models.Net"


def test_what_a_node_waits_for_is_a_link():
    (_, node) = read(drawn("a:Op b:Op<-^a"))["nodes"]
    assert node["attrs"][-1] == {
        "key": "waits for",
        "value": {"type": "node_ids", "nodeIds": ["a"]},
    }
    assert node["inputsMetadata"] == []


def test_parameters_are_called_so():
    nodes = {node["id"]: node for node in read(picture_of(nested()))["nodes"]}
    assert nodes["blocks/0/fc/weight"]["label"] == "weight (Parameter)"
    assert nodes["blocks/0/relu"]["label"] == "relu"
