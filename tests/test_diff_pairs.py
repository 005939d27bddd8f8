"""Differences of pairs of models that people know: told as a person would tell them."""

import copy
import warnings

import pytest
import torch
import transformers
from build import GraphBuilder, chain
from torch import nn

import tbscope
from tests.sweeps import sampled

SMALL = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
IDS = torch.ones(1, 8, dtype=torch.long)


def lines(before, after, *inputs):
    """Give the lines that a difference prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        difference = tbscope.diff(before, after, inputs)
    difference.graph.verify()
    return str(difference).splitlines()


def bert(**settings):
    return transformers.BertModel(
        transformers.BertConfig(**{"num_hidden_layers": 12, **SMALL, **settings})
    )


def resnet(*depths):
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=list(depths)
    )
    return transformers.ResNetModel(config)


def llama(layers=4):
    config = transformers.LlamaConfig(num_hidden_layers=layers, **SMALL)
    return transformers.LlamaForCausalLM(config)


def test_a_deeper_resnet_has_more_blocks_in_its_third_stage():
    told = lines(resnet(3, 4, 6, 3), resnet(3, 4, 23, 3), torch.rand(1, 3, 64, 64))
    assert told == [
        "ResNetModel: 17 added",
        "+ 17 x ResNetBottleNeckLayer: encoder.stages.2.layers.6-22 (4,544 parameters each)",
        "parameters: 96,168 -> 173,416 (+80.3%)",
        "trainable parameters: 96,168 -> 173,416 (+80.3%)",
        "parameter bytes: 384,672 -> 693,664 (+80.3%)",
        "FLOPs: 4,980,736 -> 7,348,224 (+47.5%)",
        "activation bytes: 707,584 -> 1,020,928 (+44.3%)",
        "operations: 201 -> 405 (+101.5%)",
        "module calls: 277 -> 549 (+98.2%)",
    ]


def test_a_distilled_bert_has_half_of_the_layers_no_token_types_and_no_pooler():
    config = transformers.DistilBertConfig(
        dim=32, n_heads=4, hidden_dim=64, vocab_size=100, n_layers=6
    )
    told = lines(bert(), transformers.DistilBertModel(config), IDS)
    assert told[0].startswith("BertModel -> DistilBertModel: ")
    assert told[1:4] == [
        "- output: pooler_output (type=Float(1, 32))",
        "- BertPooler: pooler (1,056 parameters)",
        "- Embedding: embeddings.token_type_embeddings "
        "(embedding_dim=32, num_embeddings=2, 64 parameters)",
    ]
    assert told[4] == "- 6 x BertLayer: encoder.layer.6-11 (8,544 parameters each)"
    blocks = "~ 6 x TransformerBlock: transformer.layer.0-5, class BertLayer -> TransformerBlock"
    assert sum(line.startswith(blocks) for line in told) == 1


def test_one_rate_in_each_of_twelve_layers_is_one_line():
    told = lines(bert(), bert(hidden_dropout_prob=0.0), IDS)
    assert told == [
        "BertModel: 25 changed",
        "~ 25 x Dropout: embeddings.dropout, encoder.layer.0-11.attention.output.dropout, "
        "encoder.layer.0-11.output.dropout, p 0.1 -> 0.0",
    ]


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank beside it."""

    def __init__(self, base_layer, rank):
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.Linear(base_layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * 2.0


class Holder(nn.Module):
    """Holds a model, as libraries of adapters do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


def adapted(model):
    """Give a copy of a model with adapters in its queries and values, held twice."""
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, 8)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj, 8)
    return Holder(Holder(model))


def test_adapters_are_told_as_added_in_queries_and_values():
    model = llama()
    told = lines(model, adapted(model), IDS)
    where = "model.model.model.layers.0-3.self_attn.{q_proj,v_proj}"
    assert told[:9] == [
        "LlamaForCausalLM -> Holder: 32 added, 19 changed",
        "~ input: input_ids -> args.0, renamed",
        f"+ 8 x Linear: {where}.lora_A "
        "(bias=False, in_features=32, out_features=8, 256 parameters each)",
        f"+ 8 x Linear: {where}.lora_B "
        "(bias=False, in_features=8, out_features=32, 256 parameters each)",
        "~ 2 x Holder: {the model,model}, wrapped in Holder",
        f"~ 8 x Adapted: {where}, wrapped in Adapted",
        f"~ 8 x Linear: {where}.base_layer, trainable True -> False",
        f"+ 8 x mul in {where} (other=2.0)",
        f"+ 8 x add in {where}",
    ]


@pytest.mark.parametrize("count", sampled([126, 24], [24]))
def test_one_layer_less_of_many_is_one_line(count):
    with torch.device("meta"):
        last = count - 1
        one, other = llama(count), llama(last)
        told = lines(one, other, torch.ones(1, 8, dtype=torch.long))
    assert told[:3] == [
        "LlamaForCausalLM: 3 removed",
        f"- 2 x output: past_key_values.layers.{last}.{{keys,values}} (type=Float(1, 4, 8, 8))",
        f"- LlamaDecoderLayer: model.layers.{last} (10,304 parameters)",
    ]


def layers(*names):
    """Give a graph of linear layers, one after the other; one called `odd` has another class."""
    build = GraphBuilder("Chain")
    build.call("Chain")
    value = build.input("x", (1, 2))
    for name in names:
        number, _, odd = name.partition(" ")
        if odd:
            scope = build.call(f"Chain/Odd[{number}]", value)
            value = build.op("relu", value, scope=scope)
            build.returns(scope, value)
        else:
            value = build.linear(f"Chain/Linear[{number}]", value, 2)
    build.output("out", value)
    return build.graph


OF_LINEAR = "bias=True, in_features=2, out_features=2, 6 parameters"


def numbers(count, start=0):
    return list(map(str, range(start, start + count)))


def heads(one, other):
    """Give the lines of a difference that tell of modules."""
    return [line for line in str(tbscope.diff(one, other)).splitlines() if line[0] in "+-~"]


@pytest.mark.parametrize("count", sampled([10_000, 1_000], [1_000]))
def test_thousands_of_layers_against_one_less(count):
    one, other = chain(count), chain(count - 1)
    assert heads(one, other) == [f"- Linear: {count - 1} ({OF_LINEAR})"]
    assert heads(other, one) == [f"+ Linear: {count - 1} ({OF_LINEAR})"]


@pytest.mark.parametrize("count", [8, 600])
def test_an_odd_layer_in_between_renames_those_behind_it(count):
    middle = count // 2
    one = layers(*numbers(count))
    other = layers(*numbers(middle), f"{middle} odd", *numbers(count - middle, middle + 1))
    assert heads(one, other) == [
        f"+ Odd: {middle}",
        f"~ {count - middle} x Linear: {middle}-{count - 1} -> {middle + 1}-{count}, renamed",
    ]


@pytest.mark.parametrize("count", [8, 600])
def test_two_layers_of_another_class_leave_the_others_as_they_are(count):
    names = numbers(count)
    other = [f"{name} odd" if name in (names[1], names[-2]) else name for name in names]
    assert heads(layers(*names), layers(*other)) == [
        f"~ 2 x Odd: {{1,{count - 2}}}, class Linear -> Odd"
    ]


def test_a_layer_that_is_not_told_by_a_number_goes_by_its_name():
    assert heads(layers("a", "b", "c"), layers("b", "c")) == [f"- Linear: a ({OF_LINEAR})"]
    assert heads(layers("a", "b", "c"), layers("a", "c")) == [f"- Linear: b ({OF_LINEAR})"]
    told = heads(layers("s", "a", "b", "t"), layers("s odd", "b", "t odd"))
    assert told[0] == f"- Linear: a ({OF_LINEAR})"
    assert [line.split(",")[0] for line in told[1:]] == ["~ 2 x Odd: {s"]
    assert heads(layers("a", "b"), layers("a", "z")) == ["~ Linear: b -> z, renamed"]


def test_blocks_that_changed_places_are_moved():
    assert heads(layers("a", "b odd", "c"), layers("b odd", "a", "c")) == ["~ Odd: b, moved: first"]
