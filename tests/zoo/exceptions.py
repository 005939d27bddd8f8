"""Inputs of the few models whose call neither names nor configuration tell."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["INPUTS"]

Inputs = dict[str, Any]


def _tokens(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 50 + 4


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _decision(model: torch.nn.Module) -> Inputs:
    config = model.config
    return {
        "states": _noise(2, 6, config.state_dim),
        "actions": _noise(2, 6, config.act_dim),
        "rewards": _noise(2, 6, 1),
        "returns_to_go": _noise(2, 6, 1),
        "timesteps": torch.arange(6).repeat(2, 1),
        "attention_mask": torch.ones(2, 6, dtype=torch.long),
    }


def _regions(model: torch.nn.Module) -> Inputs:
    return {
        "input_ids": _tokens(2, 16),
        "visual_feats": _noise(2, 5, model.config.visual_feat_dim),
        "visual_pos": _noise(2, 5, 4),
    }


def _pairs(model: torch.nn.Module) -> Inputs:
    side = model.config.image_size
    sides = side if isinstance(side, list | tuple) else (side, side)
    return {
        "pixel_values": _noise(2, 3, *sides),
        "prompt_pixel_values": _noise(2, 3, *sides),
        "prompt_masks": _noise(2, 3, *sides),
    }


def _codebooks(model: torch.nn.Module) -> Inputs:
    return {"input_ids": _tokens(2 * model.config.num_codebooks, 12) % 60}


def _text_to_codes(model: torch.nn.Module) -> Inputs:
    return {
        "input_ids": _tokens(2, 16),
        "attention_mask": torch.ones(2, 16, dtype=torch.long),
        "decoder_input_ids": _tokens(2 * model.config.decoder.num_codebooks, 12) % 60,
    }


def _codes(model: torch.nn.Module) -> Inputs:
    return {"input_ids": _tokens(2, 12, model.config.num_codebooks + 1) % 60}


def _languages(_: torch.nn.Module) -> Inputs:
    return {"input_ids": _tokens(2, 16), "lang_ids": torch.zeros(2, dtype=torch.long)}


def _interleaved(model: torch.nn.Module) -> Inputs:
    side = model.config.vision_config.image_size
    return {
        "input_ids": _tokens(2, 16),
        "attention_mask": torch.ones(2, 16, dtype=torch.long),
        "pixel_values": _noise(2, 1, 3, side, side),
        "image_attention_mask": torch.ones(2, 16, 1, dtype=torch.long),
    }


def _grounded(model: torch.nn.Module) -> Inputs:
    side = model.config.vision_config.image_size
    images = model.config.latent_query_num
    mask = torch.zeros(2, images + 8, dtype=torch.long)
    mask[:, 2 : 2 + images] = 1
    return {
        "pixel_values": _noise(2, 3, side, side),
        "input_ids": _tokens(2, images + 8),
        "image_embeds_position_mask": mask,
    }


def _two_images(_: torch.nn.Module) -> Inputs:
    return {"pixel_values": _noise(1, 2, 3, 64, 64)}


def _speech_to_text(_: torch.nn.Module) -> Inputs:
    return {"input_values": _noise(2, 4000), "decoder_input_ids": _tokens(2, 8)}


INPUTS: dict[str, Callable[[torch.nn.Module], Inputs]] = {
    "DecisionTransformerModel": _decision,
    "IdeficsForVisionText2Text": _interleaved,
    "IdeficsModel": _interleaved,
    "Kosmos2ForConditionalGeneration": _grounded,
    "Kosmos2Model": _grounded,
    "KyutaiSpeechToTextForConditionalGeneration": _codes,
    "KyutaiSpeechToTextModel": _codes,
    "LightGlueForKeypointMatching": _two_images,
    "LxmertModel": _regions,
    "MusicgenForCausalLM": _codebooks,
    "MusicgenForConditionalGeneration": _text_to_codes,
    "MusicgenMelodyForCausalLM": _codebooks,
    "MusicgenMelodyForConditionalGeneration": _text_to_codes,
    "MusicgenModel": _codebooks,
    "SegGptModel": _pairs,
    "SpeechT5ForSpeechToText": _speech_to_text,
    "XmodForMaskedLM": _languages,
    "XmodModel": _languages,
}
