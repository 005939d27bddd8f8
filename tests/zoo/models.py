"""The zoo: every architecture of `transformers`, small, with random weights and inputs.

models = catalogue()             # [Entry("BertModel", "bert", ...), ...]
example = build(models[0])       # Example(model, inputs, ...)
example.model(**example.inputs)
"""

import inspect
import os
import random
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import numpy as np
import torch
import transformers
import transformers.modeling_utils  # (Once, before a child is forked.)
from transformers.models.auto import configuration_auto, modeling_auto

from tests.zoo.inputs import NoInputsError, example_inputs
from tests.zoo.shrink import PLANS, Plan, shrink

__all__ = ["CannotBuildError", "Entry", "Example", "build", "catalogue", "choose", "run", "seed"]

MOST_PARAMETERS = 6_000_000

PATIENCE_S = 30.0
"""How long plans are tried, with all inputs and then with fewer."""


class CannotBuildError(RuntimeError):
    """A class that the zoo cannot hold; the message tells why."""


_KINDS = (
    ("multimodal", r"IMAGE_TEXT|MULTIMODAL|VISUAL_QUESTION|ZERO_SHOT|DOCUMENT_QUESTION"),
    ("series", r"TIME_SERIES"),
    ("audio", r"AUDIO|CTC|SPEECH|SPECTROGRAM|WAVEFORM|RNNT|TDT"),
    ("vision", r"IMAGE|VIDEO|DEPTH|OBJECT|KEYPOINT|MASK_GENERATION|SEGMENTATION|BACKBONE"),
    ("text", r"CAUSAL_LM|MASKED_LM|SEQUENCE_CL|TOKEN_CL|QUESTION_ANSWERING|SEQ_TO_SEQ"),
)


def _kind_of_input(name: str) -> str:
    """Tell what a class works on by its main input."""
    model_class = getattr(transformers, name)
    parameters = set(inspect.signature(model_class.forward).parameters)
    media = {"pixel_values", "pixel_values_videos", "input_features", "input_values"} & parameters
    if media and "input_ids" in parameters:
        return "multimodal"
    main = getattr(model_class, "main_input_name", "")
    if main == "past_values":
        return "series"
    if media or main in ("hidden_states", "latents", "audio_mel"):
        return "audio" if any(name.startswith("input") for name in media) else "vision"
    return "text"


@dataclass(frozen=True)
class Entry:
    """One model class.

    Attributes:
        name: The class's name (`BertForMaskedLM`).
        model_type: The architecture (`bert`).
        tasks: The auto mappings that hold it (`MASKED_LM`).
    """

    name: str
    model_type: str
    tasks: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What it works on, told by its tasks and its input."""
        tasks = " ".join(self.tasks)
        for kind, words in _KINDS:
            if re.search(words, f"{tasks} {self.name}"):
                return kind
        return _kind_of_input(self.name)


@dataclass
class Example:
    """A model that runs, and what it is called with."""

    entry: Entry
    plan: Plan
    model: torch.nn.Module
    inputs: dict[str, Any]


def catalogue() -> list[Entry]:
    """Give every class that an auto mapping names, in the order of the mappings."""
    tasks: dict[str, list[str]] = {}
    types: dict[str, str] = {}
    for task, mapping in _mappings():
        for model_type, names in mapping.items():
            for name in [names] if isinstance(names, str) else names:
                tasks.setdefault(name, []).append(task)
                types.setdefault(name, model_type)
    return [Entry(name, types[name], tuple(tasks[name])) for name in tasks]


def choose(entries: list[Entry]) -> list[Entry]:
    """Give the bare model of each architecture, and for each the head that tells most of it."""
    chosen: dict[str, Entry] = {}
    headed: set[str] = set()
    for entry in entries:
        if "BASE" in entry.tasks:
            chosen[entry.name] = entry
    for task in _TELLING:
        for entry in entries:
            if task in entry.tasks and entry.model_type not in headed:
                headed.add(entry.model_type)
                chosen.setdefault(entry.name, entry)
    return list(chosen.values())


_TELLING = (
    "IMAGE_TEXT_TO_TEXT",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "CAUSAL_LM",
    "CTC",
    "OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "MASKED_LM",
    "TIME_SERIES_PREDICTION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
)
"""The tasks whose head is drawn with a model, the most telling first."""


def _mappings() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "BASE", modeling_auto.MODEL_MAPPING_NAMES
    for name in sorted(vars(modeling_auto)):
        if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES"):
            yield name[10:-14], getattr(modeling_auto, name)


def seed() -> None:
    """Set every random generator to where each run begins."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (The models draw from numpy's global one.)
    random.seed(0)


def run(model: torch.nn.Module, inputs: dict[str, Any], *, training: bool = False) -> Any:
    """Call a model once, without gradients, its flags set and set back."""
    flags = {module: module.training for module in model.modules()}
    for module in flags:
        module.training = training
    seed()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model(**inputs)
    finally:
        for module, flag in flags.items():
            module.training = flag


_FOUND = {
    "SwinForImageClassification": Plan(scale=8, grid=None),
    "Qwen2_5_VLForConditionalGeneration": Plan(scale=None, head_width=128),
}
"""The first plan that gives a running model, where many others give none: it is tried before
them."""


def build(entry: Entry, plans: tuple[Plan, ...] = PLANS) -> Example:
    """Build a small model and inputs with which it runs in eval mode.

    Raises:
        CannotBuildError: No plan gives a model that runs.
    """
    model_class = _model_class(entry)
    reasons: list[str] = []
    # Every plan is tried with all that a model takes before any is with less.
    found = _FOUND.get(entry.name)
    if found in plans:
        plans = (found, *plans)
    for whole in (True, False):
        ends = time.monotonic() + PATIENCE_S
        for plan in plans:
            if time.monotonic() > ends:
                break
            try:
                model = _make(model_class, entry, plan)
                inputs = example_inputs(model, lambda i, m=model: run(m, i), whole=whole)
                return Example(entry, plan, model, inputs)
            except NoInputsError as error:
                reasons.append(f"inputs: {error}")
            except Exception as error:  # noqa: BLE001  (Any error of a model rejects a plan.)
                reasons.append(f"build: {type(error).__name__}: {error}")
    told = [reason for reason in dict.fromkeys(reasons) if "parameters by" not in reason]
    raise CannotBuildError("\n  then ".join(reason[:2000] for reason in told or reasons[:1]))


def _model_class(entry: Entry) -> type[torch.nn.Module]:
    try:
        model_class = getattr(transformers, entry.name)
        model_class.main_input_name  # noqa: B018  (A class whose library is missing raises here.)
    except (ImportError, AttributeError) as error:
        raise CannotBuildError(f"import: {str(error).strip()[:200]}") from error
    return model_class


def _make(model_class: type[torch.nn.Module], entry: Entry, plan: Plan) -> torch.nn.Module:
    config_class = model_class.config_class
    if config_class is None:
        config_class = configuration_auto.CONFIG_MAPPING[entry.model_type]
    config = config_class(**_plain(shrink(config_class().to_dict(), plan)))
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > MOST_PARAMETERS:
        raise CannotBuildError(f"{size:,} parameters by {plan}")
    seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model_class(config).eval()


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Give the data of a configuration without what is derived from the rest."""
    return {
        key: _plain(value) if isinstance(value, dict) and str(key).endswith("config") else value
        for key, value in config.items()
        if key not in ("transformers_version", "architectures", "stage_names")
    }
