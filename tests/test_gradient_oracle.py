"""Gradients of real models of many families stand where autograd's own numbers say."""

from collections import Counter

import pytest
import torch
import transformers
from test_whole_steps import Numbered
from torch import nn
from training_steps import backward_nodes, gradients_of, recorded

TOKENS = torch.arange(24).reshape(2, 12) % 40
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
WORDS = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = WORDS | {"intermediate_size": 32}
PIXELS = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2}
PIXELS |= {"num_attention_heads": 2, "intermediate_size": 32}
LEVELS = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0}

# For the gradient of a parameter whose strides are others: run by a node for that, or by another.
ROOM = "aten::new_empty_strided"

# The class of the model, that of its configuration begins with, and what it is given.
TEXT = {
    "Bert": ("BertForMaskedLM", WIDE),
    "Roberta": ("RobertaForMaskedLM", WIDE),
    "Albert": ("AlbertForMaskedLM", WIDE | {"embedding_size": 8}),
    "Electra": ("ElectraForMaskedLM", WIDE | {"embedding_size": 8}),
    "Llama": ("LlamaForCausalLM", WIDE | {"num_key_value_heads": 1}),
    "Qwen2": ("Qwen2ForCausalLM", WIDE | {"num_key_value_heads": 1}),
    "GPTNeoX": ("GPTNeoXForCausalLM", WIDE),
    "OPT": ("OPTForCausalLM", WORDS | {"ffn_dim": 32, "word_embed_proj_dim": 16}),
    "T5": ("T5ForConditionalGeneration", T5),
}
IMAGE = {
    "ViT": ("ViTForImageClassification", PIXELS),
    "DeiT": ("DeiTForImageClassification", PIXELS),
    "ResNet": ("ResNetForImageClassification", LEVELS | {"layer_type": "basic"}),
    "ConvNext": ("ConvNextForImageClassification", {"hidden_sizes": [8, 16], "depths": [1, 1]}),
    "MobileNetV2": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.25}),
}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(40, 8), nn.Linear(16, 40)
        self.lstm = nn.LSTM(8, 8, 2, bidirectional=True, batch_first=True)

    def forward(self, input_ids, labels):
        return {"loss": self.out(self.lstm(self.embed(input_ids))[0]).pow(2).mean()}


def made(name):
    torch.manual_seed(0)
    if name == "LSTM":
        return Tagger()
    kind, given = (TEXT | IMAGE)[name]
    config = getattr(transformers, f"{name}Config")(**given)
    if hasattr(config, "num_stages"):
        config.num_stages = len(given["depths"])
    return getattr(transformers, kind)(config).train()


def step(model):
    torch.manual_seed(1)
    if hasattr(getattr(model, "config", None), "image_size") or "Image" in type(model).__name__:
        loss = model(pixel_values=IMAGES).logits.pow(2).mean()
    else:
        loss = model(input_ids=TOKENS, labels=TOKENS)["loss"]
    loss.backward()


def module_of(scope, modules):
    while scope is not None and str(scope) not in modules:
        scope = scope.parent
    return None if scope is None else modules[str(scope)]


@pytest.mark.parametrize("name", [*TEXT, *IMAGE, "LSTM"])
def test_the_gradients_of_a_real_model_are_whole_and_in_their_places(name):
    model, other = made(name), made(name)
    graph = recorded(model, step)
    modules = {f"gradients/{call.scope}": call.qualified_name for call in graph.calls}
    nodes = backward_nodes(graph)
    told = [
        (kernel, module_of(node.scope, modules))
        for node in nodes
        if "gradient_of" not in node.attributes
        for kernel in node.kernels
        if kernel != ROOM
    ]
    with Numbered(other) as numbered:
        step(other)
    ran = [(kernel, place) for kernel, place in numbered.ran if kernel != ROOM]
    assert Counter(kernel for kernel, _ in told) == Counter(kernel for kernel, _ in ran)
    same = [one == another for one, another in zip(told, ran, strict=True)]
    assert sum(same) >= 0.98 * len(same)
    wanted = {name for name, one in other.named_parameters() if one.grad is not None}
    assert set(gradients_of(graph)) == wanted
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        assert (one.grad is None and another.grad is None) or torch.equal(one.grad, another.grad)
