"""The zoo: every architecture of `transformers`, small, with random weights and inputs.

    models = catalogue()             # [Entry("BertModel", "bert", ...), ...]
    example = build(models[0])       # Example(model, inputs, ...)
    example.model(**example.inputs)
"""

import os
import random
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

__all__ = ["CannotBuildError", "Entry", "Example", "build", "catalogue", "run", "seed"]

MOST_PARAMETERS = 6_000_000


class CannotBuildError(RuntimeError):
    """A class that the zoo cannot hold; the message tells why."""


@dataclass(frozen=True)
class Entry:
    """One model class.

    Attributes:
        name: The class's name (`BertForMaskedLM`).
        model_type: The architecture (`bert`).
        kind: What it works on: text, vision, audio, multimodal, series, ...
        tasks: The auto mappings that hold it (`MASKED_LM`).
    """

    name: str
    model_type: str
    tasks: tuple[str, ...]


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


def build(entry: Entry, plans: tuple[Plan, ...] = PLANS) -> Example:
    """Build a small model and inputs with which it runs in eval mode.

    Raises:
        CannotBuildError: No plan gives a model that runs.
    """
    model_class = _model_class(entry)
    reasons: list[str] = []
    for plan in plans:
        try:
            model = _make(model_class, entry, plan)
            return Example(entry, plan, model, example_inputs(model, lambda i, m=model: run(m, i)))
        except NoInputsError as error:
            reasons.append(f"inputs: {error}")
        except Exception as error:  # noqa: BLE001  (Any error of a model rejects a plan.)
            reasons.append(f"build: {type(error).__name__}: {error}")
    raise CannotBuildError(reasons[0] + "".join(f"\n  then {r[:2000]}" for r in reasons[1:]))


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
        key: _plain(value) if isinstance(value, dict) and key.endswith("config") else value
        for key, value in config.items()
        if key not in ("transformers_version", "architectures", "stage_names")
    }
