"""The proof: the page's own search finds keys of a state_dict also where boxes tell classes."""

import pytest
from browser import Browser, TensorBoard
from real_graphs import real_graph

import tbscope


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    with tbscope.SummaryWriter(logdir) as writer:
        writer.add_graph(real_graph("BertModel"), labels="class")
    with TensorBoard(logdir) as server, Browser() as browser:
        yield browser.open(server.url)


def test_every_key_finds_its_node(page):
    graph = real_graph("BertModel")
    keys = [node.name for node in graph.nodes if node.kind == "parameter"]
    found = page.search_all(keys)
    assert [
        key for key in keys if not any(name.replace("/", ".").endswith(key) for name in found[key])
    ] == []
    assert (
        "encoder/layer/0_Layer/attention/self/query/encoder.layer.0.attention.self.query.bias"
        in (found["encoder.layer.0.attention.self.query.bias"])
    )


def test_the_boxes_of_a_list_tell_their_class(page):
    page.expand("encoder")
    page.expand("encoder/layer")
    held = {name for name in page.nodes if name.startswith("encoder/layer/")}
    assert held == {"encoder/layer/0_Layer", "encoder/layer/1_Layer"}
