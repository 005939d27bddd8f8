"""The proof with real models: traced, converted, served and drawn in TensorBoard's page."""

import json
import urllib.request

import pytest
import torch
import transformers
from browser import Browser, TensorBoard, write_runs
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import tbscope

IDS = torch.ones(1, 8, dtype=torch.long)
IMAGE = torch.ones(1, 3, 32, 32)
BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic")
    return transformers.ResNetForImageClassification(config), IMAGE


def bert():
    config = transformers.BertConfig(**BERT, num_hidden_layers=2, vocab_size=100)
    return transformers.BertForSequenceClassification(config), {"input_ids": IDS}


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 100}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **SPECIAL)), {
        "input_ids": IDS
    }


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, vocab_size=100, decoder_start_token_id=0)
    )
    return model, {"input_ids": IDS, "decoder_input_ids": IDS.clone()}


def vit():
    config = transformers.ViTConfig(**BERT, num_hidden_layers=2, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(config), IMAGE


def whisper():
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": 2 for side in sides} | {f"{side}_ffn_dim": 64 for side in sides}
    sizes |= {f"{side}_attention_heads": 2 for side in sides}
    config = transformers.WhisperConfig(
        **sizes,
        **SPECIAL,
        d_model=32,
        vocab_size=100,
        max_source_positions=50,
        num_mel_bins=8,
        pad_token_id=0,
        decoder_start_token_id=1,
    )
    features = torch.ones(1, 8, 100)
    model = transformers.WhisperForConditionalGeneration(config)
    return model, {"input_features": features, "decoder_input_ids": IDS}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


def lstm():
    return nn.LSTM(4, 8, 2, batch_first=True), torch.ones(2, 5, 4)


def attention():
    return Attention(), torch.ones(2, 5, 8)


def transformer():
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True)
    return model, (torch.ones(2, 5, 8), torch.zeros(2, 5, 8))


# What goes in and out at the first look, and boxes deep inside.
MODELS = {
    resnet: ({"pixel_values", "logits"}, {"resnet/embedder", "resnet/encoder/stages/1/layers/0"}),
    bert: ({"input_ids", "logits"}, {"bert/encoder/layer/1/attention/self", "bert/pooler"}),
    gpt2: ({"input_ids", "logits"}, {"transformer/h/2/attn", "transformer/h/0/mlp"}),
    t5: ({"input_ids", "decoder_input_ids"}, {"decoder/block/1/layer/1/EncDecAttention"}),
    vit: ({"pixel_values", "logits"}, {"vit/embeddings/patch_embeddings"}),
    whisper: ({"input_features", "logits"}, {"model/decoder/layers/1/encoder_attn"}),
    lstm: ({"input", "out.0", "out.1.0", "out.1.1"}, set()),
    attention: ({"x", "out"}, {"attn"}),
    transformer: ({"src", "tgt", "out"}, {"decoder/layers/1/multihead_attn", "encoder/layers/0"}),
}


def modules_that_run(model, given):
    """Give the qualified names of the modules whose forward runs, by a hook of torch's own.

    It is the global one: with hooks of their own, some of torch's modules take another way.
    """
    names = {module: name for name, module in model.named_modules()}
    ran = set()
    handle = register_module_forward_hook(lambda module, *_: ran.add(names[module]))
    with handle, torch.no_grad():
        if isinstance(given, dict):
            model(**given)
        else:
            model(*(given if isinstance(given, tuple) else (given,)))
    return ran


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    return {make.__name__: (model.eval(), given) for make in MODELS for model, given in [make()]}


@pytest.fixture(scope="module")
def server(tmp_path_factory, models):
    logdir = tmp_path_factory.mktemp("models")
    graphs = {name: tbscope.trace(model, given) for name, (model, given) in models.items()}
    write_runs(logdir, {name: tbscope.to_graph_def(graph) for name, graph in graphs.items()})
    with TensorBoard(logdir) as server:
        yield server


@pytest.fixture(scope="module")
def page(server):
    with Browser() as browser:
        yield browser.open(server.url)


def test_the_server_lists_every_model(server):
    with urllib.request.urlopen(f"{server.url}/data/plugin/graphs/info") as answer:
        assert set(json.load(answer)) == {make.__name__ for make in MODELS}


@pytest.mark.parametrize("make", MODELS)
def test_a_model_is_drawn_as_its_author_wrote_it(page, models, make):
    ends, inside = MODELS[make]
    model, given = models[make.__name__]
    ran = {name.replace(".", "/") for name in modules_that_run(model, given)} - {""}
    page.show(make.__name__)
    assert ends <= set(page.nodes)
    assert {name for name in ran if "/" not in name} <= set(page.nodes)

    page.expand_all()
    drawn = page.nodes
    assert inside <= page.boxes
    assert ran <= set(drawn)
    assert not [name for name, node in drawn.items() if node.kind == "series"]
    assert page.errors == []
