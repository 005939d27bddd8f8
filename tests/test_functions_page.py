"""Functions in TensorBoard's page: boxes of calls stand in the flow, open in place, count right."""

import pytest
import torch
import transformers
from browser import Browser, TensorBoard, write_runs
from real_graphs import real_graph
from sweeps import sampled
from test_function_library import Hidden
from test_functions import Block, Stack

import tbscope

X = torch.ones(2, 4)
LAYERS = 7


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=100,
    )
    model = transformers.LlamaForCausalLM(config)
    return tbscope.trace(model, {"input_ids": torch.ones(1, 8, dtype=torch.long)})


def repeated(definition):
    return len(definition.uses) > 1


REAL = ("MixtralForCausalLM",)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("functions")
    stack = tbscope.trace(Stack(*[Block() for _ in range(LAYERS)]), X)
    hidden = tbscope.trace(Stack(Hidden(), torch.nn.Tanh()), X)
    layer = Block()
    again = tbscope.trace(lambda x: layer(layer(layer(x))), X)
    runs = {
        "again": tbscope.to_graph_def(again, functions=True),
        "llama": tbscope.to_graph_def(llama(), functions=True),
        "plain": tbscope.to_graph_def(llama()),
        "nested": tbscope.to_graph_def(llama(), functions={"LlamaDecoderLayer", "LlamaAttention"}),
        "stack": tbscope.to_graph_def(stack, functions={Block}),
        "hidden": tbscope.to_graph_def(hidden, functions={Block}),
    }
    for name in REAL:
        runs[name] = tbscope.to_graph_def(real_graph(name), functions=True)
        runs[f"{name}, nested"] = tbscope.to_graph_def(real_graph(name), functions=repeated)
    write_runs(logdir, runs)
    with TensorBoard(logdir) as server, Browser() as browser:
        yield browser.open(server.url)


def opened(page, run, *boxes):
    page.show(run)
    for box in boxes:
        page.expand(box)
    return page


def test_calls_are_boxes_in_the_flow_and_open_in_place(page):
    opened(page, "llama", "model", "model/layers", "model/layers/1_", "model/layers/1_/mlp")
    layers = [f"model/layers/{number}_" for number in range(LAYERS)]
    assert {(page.nodes[name].kind, page.nodes[name].section) for name in layers} == {
        ("box", "core")
    }
    inside = {name for name in page.nodes if name.startswith("model/layers/1_/")}
    assert {f"model/layers/1_/{name}" for name in ("self_attn", "mlp/gate_proj", "out")} <= inside
    edges = {(edge.start, edge.end): edge.label for edge in page.edges}
    assert edges["model/layers/1_/mlp", "model/layers/1_/add.2nd"] == "1×8×32"
    assert edges["model/layers/3_", "model/layers/4_"] == "1×8×32"
    assert page.errors == []


def test_the_card_of_a_call_tells_all_usages_of_the_function(page):
    opened(page, "llama", "model", "model/layers")
    card = page.info_card("model/layers/2_")
    assert f"Usages of the Function ( {LAYERS} )" in card
    assert page.nodes["__function_library__LlamaDecoderLayer"].section == "function-library"


def test_calls_of_which_nothing_is_read_at_the_top_level_are_in_the_flow_too(page):
    opened(page, "hidden", "layers", "layers/0", "layers/0/stack", "layers/0/stack/layers")
    drawn = [page.nodes[f"layers/0/stack/layers/{number}"] for number in range(2)]
    assert [(one.kind, one.section) for one in drawn] == [("box", "core")] * 2
    # Calls that are put in their places too late have no lines.
    ends = {(edge.start.split("~")[0], edge.end.split("~")[0]) for edge in page.edges}
    assert (drawn[0].name, drawn[1].name) in ends
    assert page.errors == []


def test_the_calls_of_one_module_are_usages_of_one_function(page):
    opened(page, "again", "Block.1")
    assert "Usages of the Function ( 3 )" in page.info_card("Block.1")
    edges = {(edge.start, edge.end) for edge in page.edges}
    assert ("Block.1/add", "Block.1/out") in edges
    assert page.errors == []


def test_calls_have_one_colour(page):
    opened(page, "llama", "model", "model/layers")
    fills = page.fills
    assert len({tuple(fills[f"model/layers/{number}_"]) for number in range(LAYERS)}) == 1


@pytest.mark.parametrize("run", sampled(["again", "llama", "stack", *REAL], ["again", "stack"]))
def test_every_box_opens_without_an_error(page, run):
    page.show(run)
    page.expand_each()
    assert page.errors == []


@pytest.mark.parametrize("run", sampled(["nested", f"{REAL[0]}, nested"], ["nested"]))
def test_nested_functions_open_without_an_error(page, run):
    page.show(run)
    page.expand_each()
    assert page.errors == []


def test_nested_functions_are_used_as_often_as_they_are_written(page):
    opened(page, "nested", "model", "model/layers", "model/layers/0_")
    assert "model/layers/0_/self_attn" in page.nodes
    card = page.info_card("model/layers/0_/self_attn")
    assert "Usages of the Function ( 1 )" in card


def test_without_functions_nothing_of_them_is_there(page):
    opened(page, "plain", "model", "model/layers")
    assert "Usages" not in page.info_card("model/layers/2")
    assert "__function_library__LlamaDecoderLayer" not in page.nodes
