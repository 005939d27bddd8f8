"""What torch.jit traces or scripts: the models of programs, and others that it takes."""

import functools
import warnings
from typing import Any

import torch

from tests.program_models import MODELS, TRANSFORMERS, example
from tests.sweeps import sampled

__all__ = ["SCRIPTED", "TRACED", "scripted", "traced"]

# What torch.jit.trace takes: tensors, and nests of them in plain containers.
TRACED = (
    *(name for name in MODELS if name not in ("keywords", "dataclass", "branches")),
    *(name for name in TRANSFORMERS if name not in ("CLIPModel", "XLNetModel")),
    *sampled(
        [
            *("AlbertModel", "DistilBertModel", "T5EncoderModel", "ViTModel"),
            *("ConvNextModel", "MobileBertModel"),
        ],
        ["T5EncoderModel", "ConvNextModel"],
    ),
)
# What torch.jit.script takes: code that it can compile.
SCRIPTED = tuple(name for name in MODELS if name not in ("keywords", "dataclass", "branches"))


@functools.cache
def traced(name: str) -> Any:
    """Give a model as torch.jit.trace has it."""
    model, args, kwargs, _ = example(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kwargs:
            return torch.jit.trace(model, example_kwarg_inputs=kwargs, strict=False)
        return torch.jit.trace(model, args, strict=False)


@functools.cache
def scripted(name: str) -> Any:
    """Give a model as torch.jit.script has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(example(name)[0])
