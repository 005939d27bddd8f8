"""The real models whose sources are compared: small, of every family."""

import functools
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch

import tbscope
from tests.zoo.models import build, catalogue

__all__ = ["NAMES", "Model", "model_of"]

NAMES = (
    # Text: encoders, decoders, and both.
    *("BertModel", "AlbertModel", "DebertaV2Model", "XLNetModel", "ModernBertModel"),
    *("GPT2LMHeadModel", "GPTNeoXModel", "LlamaForCausalLM", "MixtralForCausalLM"),
    *("T5ForConditionalGeneration", "BartModel", "MambaModel", "Mamba2Model", "JambaModel"),
    # Images.
    *("ViTForImageClassification", "SwinForImageClassification", "ResNetForImageClassification"),
    *("ConvNextModel", "SegformerForSemanticSegmentation", "DetrForObjectDetection", "YolosModel"),
    # Sound, series, and several at once.
    *("WhisperForConditionalGeneration", "Wav2Vec2ForCTC", "HubertModel", "PatchTSTModel"),
    *("CLIPModel", "SamModel"),
)


@dataclass(frozen=True)
class Model:
    """A model, its inputs by name, and its graph of an eager call."""

    module: torch.nn.Module
    inputs: dict[str, Any]
    eager: tbscope.Graph


@functools.cache
def model_of(name: str) -> Model:
    """Give the small model of a class of transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = build(next(entry for entry in catalogue() if entry.name == name))
        module, inputs = example.model.eval(), dict(example.inputs)
        # What a cache is made of is no type that a program may give.
        for part in module.modules():
            config = getattr(part, "config", None)
            if hasattr(config, "use_cache"):
                config.use_cache = False
        if "use_cache" in inspect.signature(module.forward).parameters:
            inputs["use_cache"] = False
        return Model(module, inputs, tbscope.trace(module, kwargs=inputs, training=None))
