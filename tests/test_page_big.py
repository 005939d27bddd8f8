"""A model of 405 billion parameters, traced without memory for them, in TensorBoard's page.

What is wide, long or deep without being real is in test_chunks_page.py.
"""

import time

import pytest
import torch
import transformers
from browser import TensorBoard
from google.protobuf import text_format

import tbscope

LAYERS = 126


def llama():
    """Give Llama 3.1 405B, and words for it."""
    config = transformers.LlamaConfig(
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=LAYERS,
        num_attention_heads=128,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
        return model, {"input_ids": torch.zeros(1, 16, dtype=torch.long)}


def timed(run, *given):
    start = time.perf_counter()
    found = run(*given)
    return time.perf_counter() - start, found


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return tmp_path_factory.mktemp("big")


@pytest.fixture(scope="module")
def message(logdir):
    model, given = llama()
    assert sum(parameter.numel() for parameter in model.parameters()) > 405e9
    tracing, graph = timed(tbscope.trace, model, given)
    making, message = timed(tbscope.to_graph_def, graph)
    with tbscope.SummaryWriter(logdir) as writer:
        writing, _ = timed(writer.add_graph, graph)
    size = sum(path.stat().st_size for path in logdir.iterdir())
    text = len(text_format.MessageToString(message))
    print(
        f"Llama 3.1 405B: {len(message.node)} nodes, traced in {tracing:.1f} s, "
        f"made in {making:.1f} s, written in {writing:.1f} s, "
        f"{size / 1e6:.1f} MB in the event file, {text / 1e6:.1f} MB of pbtxt"
    )
    return message


@pytest.fixture(scope="module")
def page(browser, logdir, message):
    with TensorBoard(logdir) as server:
        seconds, page = timed(browser.open, server.url)
        print(f"opened in {seconds:.1f} s")
        yield page


def test_it_breaks_no_rule_of_the_page(message):
    assert tbscope.lint(message) == []


def test_it_is_drawn_between_its_input_and_its_output(page):
    seconds, _ = timed(page.show, ".")
    print(f"drawn in {seconds:.1f} s")
    edges = {(edge.start, edge.end, edge.label) for edge in page.edges}
    assert edges == {
        ("input_ids", "model", "1×16"),
        ("model", "lm_head", "1×16×16384"),
        ("model", "past_key_values", f"{2 * LAYERS} tensors"),
        ("lm_head", "logits", "1×16×128256"),
    }
    assert page.errors == []


def test_its_boxes_open_down_to_a_layer_found_by_the_last_parts_of_its_name(page):
    page.show(".")
    (layer,) = page.search("/77/self_attn$")
    parts = layer.split("/")
    seconds = {}
    for depth in range(1, len(parts) + 1):
        box = "/".join(parts[:depth])
        seconds[box], _ = timed(page.evaluate, "(name) => tbscope.expand(name)", box)
    slowest = max(seconds, key=seconds.get)
    print(f"{len(seconds)} boxes opened, {slowest!r} in {seconds[slowest]:.2f} s")
    # In a box of a long row, names of parameters end with their whole key.
    weight = f"{layer}/q_proj/model.layers.77.self_attn.q_proj.weight"
    assert page.nodes[f"{layer}/q_proj"].circles == [weight]
    card = page.info_card(weight)
    assert 'name {"s":"model.layers.77.self_attn.q_proj.weight"}' in card
    assert 'shape {"list":{"i":[16384,16384]}}' in card
    assert page.errors == []
