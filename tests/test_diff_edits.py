"""Edits of real models: each reads as a line or two that name it, and its consequences as none."""

import copy
import warnings
from functools import partial

import pytest
import torch
import transformers
from test_diff_pairs import IDS, SMALL, Adapted, bert
from torch import nn

import tbscope

IMAGE, TOKENS = torch.rand(2, 3, 16, 16), torch.rand(2, 6, 32)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1, kernel=3, norm=nn.BatchNorm2d, drop=0.0):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn1, self.relu = norm(outputs), nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2, self.drop = norm(outputs), nn.Dropout(drop) if drop else None
        self.down = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y if self.drop is None else self.drop(y)))
        return self.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """Two stages of two blocks, written by hand."""

    def __init__(self, widths=(8, 16), stride=2, classes=10, both=False, **block):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1)
        sizes = [(widths[0], widths[0], 1), (*widths, stride)]
        self.layer1, self.layer2 = (
            nn.Sequential(Residual(a, b, stride, **block), Residual(b, b, **block))
            for a, b, stride in sizes
        )
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(widths[1], classes)
        self.both = both

    def forward(self, x):
        features = self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1)
        scores = self.fc(features)
        return {False: scores, "after": (scores, features), "before": (features, scores)}[self.both]


class Attention(nn.Module):
    """Attention without torch's own function for it."""

    def __init__(self, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        batch, length, width = x.shape
        size = width // self.heads
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-2, -1) * size**-0.5).softmax(dim=-1)
        return self.out((shares @ v).transpose(1, 2).reshape(batch, length, width))


class Unused(nn.Module):
    """Has layers that it never calls."""

    def __init__(self):
        super().__init__()
        self.fc, self.drop, self.spare = nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


class Language(nn.Module):
    def __init__(self, *, tied=False, drop=None):
        super().__init__()
        self.embed, self.drop = nn.Embedding(100, 32), drop
        self.head = nn.Linear(32, 100, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x if self.drop is None else self.drop(x))


def llama(**settings):
    config = {"num_hidden_layers": 2, **SMALL, **settings}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))


def after(model, change):
    """Give a changed copy of a model."""
    model = copy.deepcopy(model)
    change(model)
    return model


def encoder(heads):
    layer = nn.TransformerEncoderLayer(32, heads, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def quantize(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(model.eval(), {nn.LSTM, nn.Linear}, inplace=True)


def adapt(model):
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, 8)


def unstride(model):
    model.stem.stride = (2, 2)


def freeze(model):
    model.stem.requires_grad_(False)
    model.layer1.requires_grad_(False)


def of(make, *changes, inputs=IMAGE, others=None):
    """Give a model and its edit: by other settings, or by changes of it."""
    before = make()
    (change,) = changes
    after_it = make(**change) if isinstance(change, dict) else after(before, change)
    return before, after_it, inputs, inputs if others is None else others


X8 = torch.rand(2, 8)
EDITS = {
    "a stride": lambda: of(ResNet, {"stride": 1}),
    "the stride of the stem": lambda: of(ResNet, unstride),
    "a kernel size": lambda: of(ResNet, {"kernel": 5}),
    "a width": lambda: of(ResNet, {"widths": (8, 24)}),
    "the classes": lambda: of(ResNet, {"classes": 100}),
    "another norm": lambda: of(ResNet, {"norm": partial(nn.GroupNorm, 4)}),
    "a dropout": lambda: of(ResNet, {"drop": 0.1}),
    "a second result": lambda: of(ResNet, {"both": "after"}),
    "a second result before the first": lambda: of(ResNet, {"both": "before"}),
    "a frozen part": lambda: of(ResNet, freeze),
    "another dtype": lambda: of(ResNet, nn.Module.double, others=IMAGE.double()),
    "another image size": lambda: of(ResNet, {}, others=torch.rand(2, 3, 32, 32)),
    "another batch size": lambda: of(llama, {}, inputs=IDS, others=IDS.repeat(3, 1)),
    "another length": lambda: of(llama, {}, inputs=IDS, others=IDS.repeat(1, 2)),
    "heads by hand": lambda: (Attention(4), Attention(8), TOKENS, TOKENS),
    "heads of torch": lambda: (encoder(4), encoder(8), TOKENS, TOKENS),
    "heads of BERT": lambda: of(bert, {"num_attention_heads": 8}, inputs=IDS),
    "heads of Llama": lambda: of(
        llama, {"num_attention_heads": 8, "num_key_value_heads": 8}, inputs=IDS
    ),
    "keys and values of Llama": lambda: of(llama, {"num_key_value_heads": 2}, inputs=IDS),
    "a wider MLP": lambda: of(llama, {"intermediate_size": 96}, inputs=IDS),
    "a wider model": lambda: of(llama, {"hidden_size": 64}, inputs=IDS),
    "another activation": lambda: of(llama, {"hidden_act": "gelu"}, inputs=IDS),
    "tied weights": lambda: of(Language, {"tied": True}, inputs=IDS),
    "a layer that drops": lambda: of(Language, {"drop": nn.Dropout(0.1)}, inputs=IDS),
    "a layer more": lambda: of(bert, {"num_hidden_layers": 13}, inputs=IDS),
    "adapters": lambda: of(llama, adapt, inputs=IDS),
    "a block with unused layers": lambda: (
        nn.Sequential(Unused()),
        nn.Sequential(Unused(), Unused()),
        *(X8, X8),
    ),
    "quantized": lambda: of(Recurrent, quantize, inputs=torch.rand(2, 5, 8)),
}
EXPECTED = {
    "a stride": [
        "~ 2 x Conv2d: layer2.0.{conv1,down}, stride (2, 2) -> (1, 1)",
    ],
    "the stride of the stem": [
        "~ Conv2d: stem, stride (1, 1) -> (2, 2)",
    ],
    "a kernel size": [
        "~ 4 x Conv2d: {layer1,layer2}.0-1.conv1, kernel_size (3, 3) -> (5, 5), padding (1, "
        "1) -> (2, 2)",
    ],
    "a width": [
        "~ Linear: fc, in_features 16 -> 24",
        "~ 2 x Conv2d: layer2.0.{conv1,down}, out_channels 16 -> 24",
        "~ 4 x BatchNorm2d: layer2.0-1.{bn1,bn2}, num_features 16 -> 24",
        "~ 3 x Conv2d: layer2.0-1.conv2, layer2.1.conv1, in_channels 16 -> 24, out_channels "
        "16 -> 24",
    ],
    "the classes": [
        "~ Linear: fc, out_features 10 -> 100",
    ],
    "another norm": [
        "~ 8 x GroupNorm: {layer1,layer2}.0-1.{bn1,bn2}, class BatchNorm2d -> GroupNorm",
    ],
    "a dropout": [
        "+ 4 x Dropout: {layer1,layer2}.0-1.drop (inplace=False, p=0.1)",
    ],
    "a second result": [
        "+ a second result: out.1 (type=Float(2, 16))",
    ],
    "a second result before the first": [
        "+ a second result: out.0 (type=Float(2, 16))",
    ],
    "a frozen part": [
        "~ 9 x module: stem, layer1.0-1.{conv1,bn1,conv2,bn2}, trainable True -> False",
    ],
    "another dtype": [
        "~ input: x, type Float(2, 3, 16, 16) -> Double(2, 3, 16, 16)",
        "~ 19 x module: {stem,fc}, {layer1,layer2}.0-1.{conv1,bn1,conv2,bn2}, layer2.0.down, "
        "dtype Float -> Double",
    ],
    "another image size": [
        "~ input: x, type Float(2, 3, 16, 16) -> Float(2, 3, 32, 32)",
    ],
    "another batch size": [
        "~ input: input_ids, type Long(1, 8) -> Long(3, 8)",
    ],
    "another length": [
        "~ input: input_ids, type Long(1, 8) -> Long(1, 16)",
    ],
    "heads by hand": [
        "~ Attention: the model, num_heads 4 -> 8",
    ],
    "heads of torch": [
        "~ 2 x transformer_encoder_layer_fwd in layers.0-1, num_heads 4 -> 8",
    ],
    "heads of BERT": [
        "~ 12 x BertSelfAttention: encoder.layer.0-11.attention.self, num_heads 4 -> 8",
    ],
    "heads of Llama": [
        "~ LlamaRotaryEmbedding: model.rotary_emb, inv_freq Float(4) -> Float(2), "
        "original_inv_freq Float(4) -> Float(2)",
        "~ 2 x LlamaAttention: model.layers.0-1.self_attn, num_heads 4 -> 8",
    ],
    "keys and values of Llama": [
        "~ 4 x Linear: model.layers.0-1.self_attn.{k_proj,v_proj}, out_features 32 -> 16",
        "~ 2 x scaled_dot_product_attention in model.layers.0-1.self_attn, enable_gqa True added",
    ],
    "a wider MLP": [
        "~ 4 x Linear: model.layers.0-1.mlp.{gate_proj,up_proj}, out_features 64 -> 96",
        "~ 2 x Linear: model.layers.0-1.mlp.down_proj, in_features 64 -> 96",
    ],
    "a wider model": [
        "~ Embedding: model.embed_tokens, embedding_dim 32 -> 64",
        "~ LlamaRotaryEmbedding: model.rotary_emb, inv_freq Float(4) -> Float(8), "
        "original_inv_freq Float(4) -> Float(8)",
        "~ 5 x LlamaRMSNorm: model.layers.0-1.{input_layernorm,post_attention_layernorm}, "
        "model.norm, hidden_size (32,) -> (64,)",
        "~ 8 x Linear: model.layers.0-1.self_attn.{q_proj,k_proj,v_proj,o_proj}, in_features "
        "32 -> 64, out_features 32 -> 64",
        "~ 5 x Linear: model.layers.0-1.mlp.{gate_proj,up_proj}, lm_head, in_features 32 -> 64",
        "~ 2 x Linear: model.layers.0-1.mlp.down_proj, out_features 32 -> 64",
    ],
    "another activation": [
        "~ 2 x GELUActivation: model.layers.0-1.mlp.act_fn, class SiLUActivation -> GELUActivation",
    ],
    "tied weights": [
        "+ parameter tie: embed.weight = head.weight",
    ],
    "a layer that drops": [
        "+ Dropout: drop (inplace=False, p=0.1)",
    ],
    "a layer more": [
        "+ BertLayer: encoder.layer.12 (8,544 parameters)",
    ],
    "adapters": [
        "+ 2 x Linear: model.layers.0-1.self_attn.q_proj.lora_A (bias=False, in_features=32, "
        "out_features=8, 256 parameters each)",
        "+ 2 x Linear: model.layers.0-1.self_attn.q_proj.lora_B (bias=False, in_features=8, "
        "out_features=32, 256 parameters each)",
        "~ 2 x Adapted: model.layers.0-1.self_attn.q_proj, wrapped in Adapted",
        "~ 2 x Linear: model.layers.0-1.self_attn.q_proj.base_layer, trainable True -> False",
        "+ 2 x mul in model.layers.0-1.self_attn.q_proj (other=2.0)",
        "+ 2 x add in model.layers.0-1.self_attn.q_proj",
    ],
    "a block with unused layers": [
        "+ Unused: 1 (90 parameters)",
    ],
    "quantized": [
        "~ LSTM: rnn, class torch.nn.modules.rnn.LSTM -> "
        "torch.ao.nn.quantized.dynamic.modules.rnn.LSTM",
        "~ Linear: fc, class torch.nn.modules.linear.Linear -> "
        "torch.ao.nn.quantized.dynamic.modules.linear.Linear",
    ],
}


def traced(model, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tbscope.trace(model, inputs)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_reads_as_its_author_would_tell_it(name):
    before, after, *inputs = EDITS[name]()
    graphs = [traced(*pair) for pair in zip((before, after), inputs, strict=True)]
    difference = tbscope.diff(*graphs)
    difference.graph.verify()
    lines = [line for line in str(difference).splitlines() if line[0] in "+-~"]
    assert lines == EXPECTED[name]


@pytest.mark.parametrize(
    ("make", "inputs", "others"),
    [
        (ResNet, IMAGE, torch.rand(5, 3, 16, 16)),
        (partial(llama, num_key_value_heads=2), IDS, IDS.repeat(3, 1)),
        (partial(bert, num_hidden_layers=2), IDS, IDS.repeat(3, 1)),
        (partial(bert, num_hidden_layers=2, attn_implementation="eager"), IDS, IDS.repeat(3, 1)),
        (partial(encoder, 4), TOKENS, torch.rand(5, 6, 32)),
        (partial(Attention, 4), TOKENS, torch.rand(5, 6, 32)),
        (Recurrent, torch.rand(2, 5, 8), torch.rand(1, 5, 8)),
    ],
)
def test_a_model_of_another_batch_size_is_the_same_if_it_may_be(make, inputs, others):
    model = make()
    graphs = traced(model, inputs), traced(model, others)
    for pair in (graphs, graphs[::-1]):
        assert tbscope.diff(*pair)
        assert not tbscope.diff(*pair, any_batch_size=True)


def test_of_another_batch_size_only_what_follows_from_it_is_the_same():
    def changes(before, after, inputs, others):
        graphs = traced(before, inputs), traced(after, others)
        return [
            str(change.details[0]) for change in tbscope.diff(*graphs, any_batch_size=True).changes
        ]

    few, many = torch.rand(2, 8), torch.rand(4, 8)
    assert changes(lambda x: x.view(2, 2, 4), lambda x: x.view(4, 2, 4), few, many) == []
    assert changes(lambda x: x.view(2, 2, 4), lambda x: x.view(4, 4, 2), few, many) == [
        "argument 3 4 -> 2"
    ]
    assert changes(lambda x: x.sum(0), lambda x: x.sum(1), few, many) == ["dim 0 -> 1"]
    assert changes(lambda x: x * 2.0, lambda x: x * 4.0, few, many) == ["other 2.0 -> 4.0"]
    assert changes(lambda x: x * 1, lambda x: x * 1, few, torch.rand(2, 4)) == [
        "type Float(?, 8) -> Float(?, 4)"
    ]


def test_packed_parameters_are_not_counted_and_not_gone():
    before, after, inputs, _ = EDITS["quantized"]()
    lines = str(tbscope.diff(before, after, inputs)).splitlines()
    assert lines[3:7] == [
        "parameters: 612 -> 0, packed parameters not counted",
        "trainable parameters: 612 -> 0, packed parameters not counted",
        "parameter bytes: 2,448 -> 0, packed parameters not counted",
        "FLOPs: 10,368 -> 0, packed parameters not counted",
    ]


def test_the_training_flag_is_told_of_the_outermost_module_alone():
    model = nn.Sequential(nn.Sequential(nn.Dropout(0.0)), nn.ReLU())
    graphs = [tbscope.trace(model, TOKENS, training=training) for training in (False, True)]
    difference = tbscope.diff(*graphs)
    assert [change.name for change in difference.changed] == [""]
    assert str(difference).splitlines()[1:] == ["~ Sequential: the model, training False -> True"]


def test_an_output_under_another_name_is_renamed():
    def named(name):
        return lambda x: {name: x.exp(), "other": x + 1}

    assert str(tbscope.diff(named("a"), named("b"), TOKENS)).splitlines() == [
        "lambda: 1 changed",
        "~ output: a -> b, renamed",
    ]


def test_a_difference_shows_its_text_in_a_notebook():
    difference = tbscope.diff(nn.ReLU(), nn.GELU(), TOKENS)
    assert difference._repr_html_() == (
        "<pre>ReLU -&gt; GELU: 1 changed\n~ GELU: the model, class ReLU -&gt; GELU</pre>"
    )
