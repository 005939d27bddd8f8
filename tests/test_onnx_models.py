"""Real models with each module call as a function: the same numbers, operators and scopes."""

import onnx
import onnx.inliner
import onnx_ir
import pytest
import torch
import transformers
from onnx_build import export, feeds_of, operators, run, same_numbers

import tbscope
from tests.sweeps import sampled

IDS, MORE = torch.arange(6).view(1, 6) % 50, torch.arange(4).view(1, 4) + 3
SMALL = {"vocab_size": 50, "use_cache": False}


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 1], "layer_type": "basic"}
    config = transformers.ResNetConfig(**sizes)
    return transformers.ResNetModel(config), {"pixel_values": torch.rand(1, 3, 32, 32)}


def bert():
    config = transformers.BertConfig(
        **SMALL,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    mask = torch.ones(1, 6, dtype=torch.long)
    return transformers.BertModel(config), {"input_ids": IDS, "attention_mask": mask}


def gpt2():
    config = transformers.GPT2Config(**SMALL, n_embd=16, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS}


def t5():
    config = transformers.T5Config(
        **{**SMALL, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        # The exporter of torch 2.13 cannot take apart the other attention.
        attn_implementation="eager",
    )
    return transformers.T5Model(config), {"input_ids": IDS, "decoder_input_ids": MORE}


def whisper():
    config = transformers.WhisperConfig(
        **SMALL,
        d_model=16,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        encoder_layers=1,
        decoder_layers=2,
        **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 32 for part in ("encoder", "decoder")},
        decoder_start_token_id=1,
    )
    sound = torch.rand(1, 8, 20)
    return transformers.WhisperModel(config), {"input_features": sound, "decoder_input_ids": MORE}


class Tagger(torch.nn.Module):
    """An LSTM in two directions between an embedding and a layer."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 8)
        self.lstm = torch.nn.LSTM(8, 4, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(8, 3)

    def forward(self, input_ids):
        found, (state, _) = self.lstm(self.embed(input_ids))
        return self.out(found), state


def lstm():
    return Tagger(), {"input_ids": IDS}


# The module that is there several times, and how many functions it becomes: the first one of the
# layers may give what the exporter computes only once for all.
MODELS = {
    "resnet": (resnet, "ResNetBasicLayer", 2),
    "bert": (bert, "BertLayer", 2),
    "gpt2": (gpt2, "GPT2Block", 1),
    "t5": (t5, "T5Block", 4),
    "whisper": (whisper, "WhisperDecoderLayer", 1),
    "lstm": (lstm, "LSTM", 1),
}


def paths(graph):
    return sorted((node.op, str(node.scope)) for node in graph.nodes if node.kind == "op")


# The reference takes the logarithm of distances of 0, which nothing reads.
@pytest.mark.filterwarnings("ignore:divide by zero|invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", sampled(MODELS, [*MODELS][::2]))
def test_every_module_call_of_a_real_model_is_a_function(name):
    make, repeated, kinds = MODELS[name]
    torch.manual_seed(0)
    model, kwargs = make()
    model.eval()
    # The exporter has equal tensors once: in a model that has learnt, none are.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    program = export(model, (), kwargs)
    plain = program.model_proto
    result = tbscope.modules_to_functions(program, record=tbscope.trace(model, kwargs=kwargs))
    message = onnx_ir.to_proto(result.model)

    onnx.checker.check_model(message, full_check=True)
    feeds = feeds_of(plain, kwargs.values())
    expected = run(plain, feeds)
    same_numbers(message, feeds, expected)
    inlined = onnx.inliner.inline_local_functions(message)
    assert operators(inlined) == operators(plain)
    same_numbers(inlined, feeds, expected)

    assert result.left == []
    names = [line.partition("(")[0].partition("::")[2] for line in result.functions]
    assert sum(each.rstrip("_0123456789") == repeated for each in names) == kinds
    graph = tbscope.from_onnx(message)
    assert paths(graph) == paths(tbscope.from_onnx(plain))
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
