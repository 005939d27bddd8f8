"""The proof: TensorBoard's real server and page, with graphs made by hand."""

import gzip
import json
import urllib.request
from urllib.parse import urlencode

import pytest
from browser import Browser, TensorBoard, write_runs
from build import GraphBuilder
from gallery import GALLERY
from google.protobuf import text_format
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.pipeline import to_graph_def


def lone_leaves():
    """Boxes that hold one drawn node, or several with no edge between them."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    build.call("Net/Sequential[seq]")
    x = build.linear("Net/Sequential[seq]/Linear[0]", build.input("x", (1, 2)), 2)
    x = build.op("relu", x, scope=net)
    heads = [build.linear(f"Net/ModuleList[heads]/Linear[{i}]", x, 2) for i in range(2)]
    build.output("out", build.op("add", *heads, scope=net))
    return build.graph


def fused_kernel():
    """A box with one operation that reads many parameters, of its own and of boxes below."""
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1, 2))
    attn = build.call("Net/Attention[attn]", x)
    below = build.scope("Net/Attention[attn]/Linear[out_proj]")
    weights = [build.parameter(f"attn.w_{word}", (2, 2), attn) for word in "qkvbcd"]
    weights.append(build.parameter("attn.out_proj.weight", (2, 2), below))
    build.output("out", build.op("native_attention", x, *weights, scope=attn))
    return build.graph


GRAPHS = {
    **{name: to_graph_def(made()) for name, made in GALLERY.items()},
    "leaf_boxes": to_graph_def(GALLERY["leaf_modules"](), leaves="box"),
    "torch_style": to_graph_def(GALLERY["calls_and_hand_scopes"](), style="torch"),
    "fused_kernel": to_graph_def(fused_kernel()),
    "lone_leaves": to_graph_def(lone_leaves()),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    write_runs(logdir, GRAPHS)
    with TensorBoard(logdir) as server:
        yield server


@pytest.fixture(scope="module")
def page(browser, server):
    # A double-click needs a shape that nothing covers.
    return browser.open(server.url, size=(1200, 800))


def ask(server, path, **query):
    """Give what TensorBoard answers over HTTP."""
    url = f"{server.url}/data/plugin/graphs/{path}?{urlencode(query)}"
    with urllib.request.urlopen(url) as answer:
        body = answer.read()
        return gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body


def test_without_a_browser_nothing_is_proved(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError) as caught:
        Browser()
    assert str(caught.value) == (
        "no chromium was found, and without it nothing proves that the page draws\n"
        "  fix: apt-get install chromium"
    )


def test_the_server_lists_a_graph_for_every_run(server):
    listed = json.loads(ask(server, "info"))
    assert {run for run, facts in listed.items() if facts["run_graph"]} == set(GRAPHS)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_server_gives_back_the_graph_def_that_was_written(server, name):
    message = text_format.Parse(ask(server, "graph", run=name), GraphDef())
    assert message == GRAPHS[name]


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_is_drawn_and_nothing_goes_wrong(page, name):
    page.show(name).expand_all()
    drawn = page.nodes
    seen = set(drawn).union(*(node.circles for node in drawn.values()))
    assert {node.name for node in GRAPHS[name].node} <= seen
    assert not [node.name for node in drawn.values() if node.kind == "series"]
    assert page.errors == []


def test_the_first_look_is_the_model_between_its_inputs_and_outputs(page):
    page.show("leaf_modules")
    assert {name: node.kind for name, node in page.nodes.items()} == {
        "image": "op",
        "features": "box",
        "flatten": "op",
        "head": "op",
        "logits": "op",
        "Net": "op",
    }
    assert page.nodes["Net"].section == "out-extract"
    assert {(edge.start, edge.end, edge.label) for edge in page.edges} == {
        ("image", "features", "1×3×8×8"),
        ("features", "flatten", "1×4×8×8"),
        ("flatten", "head", "1×256"),
        ("head", "logits", "1×10"),
    }


def test_a_double_click_opens_a_box(page):
    page.show("leaf_modules")
    page.double_click("features")
    assert {"features/0", "features/1"} <= set(page.nodes)
    assert page.errors == []


def test_leaf_modules_are_nodes_with_circles(page):
    page.show("leaf_modules").expand_all()
    assert page.boxes == {"features"}
    conv = page.nodes["features/0"]
    assert (conv.kind, conv.op) == ("op", "Conv2d")
    assert conv.circles == ["features/0/weight"]
    assert page.nodes["head"].circles == ["head/weight", "head/bias"]


def test_leaf_modules_can_be_boxes(page):
    page.show("leaf_boxes").expand_all()
    assert page.boxes == {"features", "features/0", "features/1", "head"}
    assert page.nodes["head/weight"].op == "Parameter"
    assert ("head/weight", "head/linear", "10×256", False) in page.edges


def test_each_call_of_a_module_has_a_place_of_its_own(page):
    page.show("calls_and_hand_scopes").expand_all()
    assert page.boxes == {"residual", "residual.2nd"}
    edges = {(edge.start, edge.end) for edge in page.edges}
    assert {("embed", "fc"), ("fc", "fc.2nd")} <= edges
    assert page.nodes["fc.2nd"].circles == ["fc/weight", "fc/bias"]
    assert page.nodes["linear"].circles == ["embed/weight"]


def test_style_torch_shows_boxes_as_pytorch_prints_them(page):
    page.show("torch_style").expand_all()
    assert {"Net/Embedding[embed]", "Net/Linear[fc]", "Net/Linear[fc].1"} <= set(page.nodes)


def test_inputs_from_one_node_stay_two_edges_and_waiting_is_dashed(page):
    page.show("several_outputs_and_writes").expand_all()
    edges = set(page.edges)
    assert ("chunk", "cat", "2 tensors", False) in edges
    assert ("cat", "to", "2×4", False) in edges
    assert ("fill_", "to", "2", True) in edges
    assert ("to", "unique.2nd", "2×4", False) in edges
    assert any(edge.start == "unique.2nd" and edge.label == "?" for edge in edges)


def test_a_leaf_module_alone_in_its_box_tells_what_it_reads_and_gives(page):
    page.show("lone_leaves").expand_all()
    assert page.boxes == {"seq", "heads"}
    card = page.info_card("seq/0")
    assert "Inputs ( 3 ) seq/0.weight 2×2 seq/0.bias 2 x 1×2" in card
    assert "Outputs ( 1 ) relu 1×2" in card


def test_an_operation_alone_in_its_box_stays_in_the_flow(page):
    page.show("fused_kernel").expand_all()
    assert page.nodes["attn/native_attention"].section == "core"
    assert page.nodes["attn/w_q"].op == "Parameter"
    edges = {(edge.start, edge.end) for edge in page.edges}
    assert ("attn/w_q", "attn/native_attention") in edges
    assert ("attn/out_proj", "attn/native_attention") in edges
    assert ("x~~attn~~IN", "attn/native_attention") in edges


def test_the_info_card_tells_what_a_node_is(page):
    card = page.show("leaf_modules").info_card("features/0")
    assert card.startswith("features/ 0 Operation: Conv2d Attributes")
    assert 'kernel_size {"list":{"i":[3,3]}}' in card
    assert 'padding {"s":"same"}' in card
    assert 'scope {"s":"Net/Sequential[features]/Conv2d[0]"}' in card
    assert 'class {"s":"torch.nn.modules.conv.Conv2d"}' in card
    assert "/device:CPU:0" in card


def test_the_info_card_of_a_circle_tells_what_the_parameter_is(page):
    card = page.show("leaf_modules").info_card("head/weight")
    assert 'name {"s":"head.weight"}' in card
    assert 'shape {"list":{"i":[10,256]}}' in card


def test_a_name_in_the_state_dict_finds_its_place(page):
    page.show("leaf_modules")
    assert page.search("features.0.weight") == ["features/0/weight"]
    assert page.search("head$") == ["head"]
    assert page.errors == []
