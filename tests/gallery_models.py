"""The models of docs/gallery.md: small configs of well-known models, with random weights."""

import os
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import torch
import transformers
from torch import Tensor, nn

from tests import gallery_own as own

__all__ = ["SIGHTS", "Sight"]

_IDS = torch.arange(1, 9).reshape(1, 8)
_IMAGE = torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)
_TEXT = {"vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_BERT = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
_LLAMA = {**_BERT, **_TEXT, "num_key_value_heads": 2, "num_hidden_layers": 4}


class Sight(NamedTuple):
    """One model of the gallery.

    Attributes:
        name: How its pictures and its run are called.
        title: Its heading.
        make: Gives the model, what it is called with by name, and what torch's own
            `add_graph`, which takes no keyword arguments, is called with by position.
        sees: What one sees at first, in one sentence.
        opened: The box that the second picture shows open.
        inside: What one sees then, the end of a sentence.
    """

    name: str
    title: str
    make: Callable[[], tuple[nn.Module, dict[str, Tensor], tuple[Tensor, ...]]]
    sees: str
    opened: str
    inside: str


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic")
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": _IMAGE}, (_IMAGE,)


def vit():
    config = transformers.ViTConfig(**_BERT, num_hidden_layers=4, image_size=64, patch_size=16)
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": _IMAGE}, (_IMAGE,)


def bert():
    config = transformers.BertConfig(**_BERT, num_hidden_layers=4, vocab_size=100)
    return transformers.BertForSequenceClassification(config), {"input_ids": _IDS}, (_IDS,)


def gpt2():
    config = transformers.GPT2Config(**_TEXT, n_embd=32, n_layer=4, n_head=4)
    return transformers.GPT2LMHeadModel(config), {"input_ids": _IDS}, (_IDS,)


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=100, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    answer = _IDS.flip(1)
    words = {"input_ids": _IDS, "decoder_input_ids": answer}
    return model, words, (_IDS, torch.ones_like(_IDS), answer)


def whisper():
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": 3 for side in sides} | {f"{side}_ffn_dim": 64 for side in sides}
    sizes |= {f"{side}_attention_heads": 4 for side in sides}
    sizes |= {"d_model": 32, "max_source_positions": 50, "num_mel_bins": 8}
    config = transformers.WhisperConfig(**sizes, **_TEXT, decoder_start_token_id=1)
    model = transformers.WhisperForConditionalGeneration(config)
    sound = torch.linspace(-1, 1, 8 * 100).reshape(1, 8, 100)
    given = {"input_features": sound, "decoder_input_ids": _IDS}
    return model, given, (sound, torch.ones(1, 100, dtype=torch.long), _IDS)


def llama():
    config = transformers.LlamaConfig(**_LLAMA)
    return transformers.LlamaForCausalLM(config), {"input_ids": _IDS}, (_IDS,)


def clip():
    text = {**_BERT, **_TEXT, "num_hidden_layers": 3, "max_position_embeddings": 16}
    vision = {**_BERT, "num_hidden_layers": 3, "image_size": 64, "patch_size": 16}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    given = {"input_ids": _IDS, "pixel_values": _IMAGE}
    return transformers.CLIPModel(config), given, (_IDS, _IMAGE)


def detr():
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": 3 for side in sides} | {f"{side}_ffn_dim": 64 for side in sides}
    sizes |= {f"{side}_attention_heads": 4 for side in sides}
    config = transformers.DetrConfig(
        **sizes,
        d_model=32,
        num_queries=10,
        backbone_config=backbone,
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
    )
    return transformers.DetrForObjectDetection(config), {"pixel_values": _IMAGE}, (_IMAGE,)


def mixtral():
    config = transformers.MixtralConfig(**_LLAMA, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config), {"input_ids": _IDS}, (_IDS,)


def mamba():
    sizes = {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 4, "time_step_rank": 2}
    config = transformers.MambaConfig(**_TEXT, **sizes)
    return transformers.MambaForCausalLM(config), {"input_ids": _IDS}, (_IDS,)


def transformer():
    model = nn.Transformer(32, 4, 3, 3, 64, batch_first=True)
    src, tgt = torch.linspace(-1, 1, 320).reshape(1, 10, 32), torch.ones(1, 6, 32)
    return model, {"src": src, "tgt": tgt}, (src, tgt)


SIGHTS = (
    Sight(
        "resnet",
        "ResNet",
        resnet,
        "An image goes in, class scores come out, and the legend names the kinds of blocks.",
        "resnet/encoder/stages/1/layers/0",
        "two branches that meet in an addition.",
    ),
    Sight(
        "vit",
        "ViT",
        vit,
        "The trunk is one box, the head one node with its parameters beside it.",
        "vit/layers/0",
        "both residual branches; a dropout module that is called twice is drawn twice.",
    ),
    Sight(
        "bert",
        "BERT",
        bert,
        "Words go in, scores come out; every class of block has its colour.",
        "bert/encoder/layer/0",
        "attention, and the two halves of the feed-forward part with the residual around.",
    ),
    Sight(
        "gpt2",
        "GPT-2",
        gpt2,
        "The cache of keys and values is an output like any other, in one box.",
        "transformer/h/0",
        "two residual branches, and the keys and values that leave to the cache.",
    ),
    Sight(
        "t5",
        "T5",
        t5,
        "Encoder and decoder are two boxes; an edge leads from the encoder to the decoder.",
        "decoder/block/1/layer",
        "self-attention, cross-attention that reads the encoder, feed-forward: three colours.",
    ),
    Sight(
        "whisper",
        "Whisper",
        whisper,
        "Sound and words go in on two sides; the encoder's result is an output, too.",
        "model/decoder/layers/0",
        "the thick edge from below is the encoder's result, longer than the words.",
    ),
    Sight(
        "llama",
        "Llama",
        llama,
        "One trunk, a head, a cache.",
        "model/layers/0",
        "both norms have one colour; the edge from the left brings the rotary embedding.",
    ),
    Sight(
        "clip",
        "CLIP",
        clip,
        "Two towers meet in one product; the norms that their author wrote by hand are there.",
        "text_model",
        "the embedding of the last word is picked by `argmax`, from the input, and `getitem`.",
    ),
    Sight(
        "detr",
        "DETR",
        detr,
        "Two heads, for classes and for boxes, read one trunk.",
        "model",
        "the backbone, its positions, encoder and decoder, as in the paper's figure.",
    ),
    Sight(
        "mixtral",
        "Mixtral",
        mixtral,
        "From outside, a mixture of experts looks like any other decoder.",
        "model/layers/0/mlp",
        "the gate chooses, the experts read its choice and the words.",
    ),
    Sight(
        "mamba",
        "Mamba",
        mamba,
        "The state is an output, in one box.",
        "backbone/layers/0",
        "a norm, a mixer, a residual; the state leaves to the cache.",
    ),
    Sight(
        "transformer",
        "torch.nn.Transformer",
        transformer,
        "Without a trunk around them, encoder and decoder are the first look.",
        "decoder/layers/0",
        "attention to itself, to the encoder, and the feed-forward part, as the code reads.",
    ),
    Sight(
        "detector",
        "A detector (FPN)",
        own.detector,
        "One head is called for every size of map, and its results are joined.",
        "pyramid",
        "each map comes in from the side, and goes on upwards.",
    ),
    Sight(
        "diffusion",
        "A diffusion U-Net",
        own.diffusion,
        "Down, through the middle, up: the time reaches every block, and the skips cross.",
        "up",
        "every block reads the time, and the skip of its size.",
    ),
    Sight(
        "graph-net",
        "A graph net",
        own.graph_net,
        "Nodes are embedded, hear from each other, and are summed behind a gate.",
        "rounds/0",
        "the nodes at both ends of an edge make a message, which `index_add` brings home.",
    ),
    Sight(
        "state-space",
        "A state-space model",
        own.state_space,
        "A signal goes through the layers, and their mean comes out.",
        "layers/0/space",
        "the kernel of the long convolution is made, and multiplied with the signal's spectrum.",
    ),
    Sight(
        "speech",
        "A Conformer for speech",
        own.speech,
        "A spectrogram becomes shorter, goes through the layers, and becomes letters.",
        "layers/0",
        "two halves of a feed-forward part, attention and convolution between them.",
    ),
    Sight(
        "mixture",
        "A mixture of experts",
        own.mixture,
        "The head reads the weight of the embedding.",
        "layers/0",
        "attention and the mixture, each with its norm and the residual around.",
    ),
    Sight(
        "captioner",
        "A captioner",
        own.captioner,
        "Image and words come in on two sides; language reads vision.",
        "language/layers/0",
        "attention to the words, attention to the image, and the feed-forward part.",
    ),
    Sight(
        "translator",
        "A decoder, written as a loop",
        own.translator,
        "Twelve turns of a loop in `forward` are in one box.",
        "step.0-11",
        "the turns follow one another, each with the state and the word of the one before.",
    ),
    Sight(
        "adversarial",
        "A step of two adversaries",
        own.adversarial,
        "The discriminator is called three times: on made images, on real ones, and again.",
        "discriminator",
        "one of its calls.",
    ),
    Sight(
        "autoencoder",
        "A variational autoencoder",
        own.autoencoder,
        "The random draw is between encoder and decoder, and the loss at the top.",
        "decoder",
        "from eight numbers to an image.",
    ),
)
