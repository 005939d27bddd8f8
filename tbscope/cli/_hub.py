"""Makes a model of a Hugging Face config: `hf:NAME`, a directory, or a config file.

The weights are random. Nothing is downloaded unless that is asked for, and no code of others runs.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tbscope.cli._parameters import HubConfig
from tbscope.errors import ArgumentError
from tbscope.words import error_text

if TYPE_CHECKING:
    import torch

__all__ = ["example_input", "load_hub_model"]


def load_hub_model(
    target: HubConfig, arguments: Mapping[str, Any], *, download: bool, meta: bool
) -> "torch.nn.Module":
    """Return a model with random weights.

    Args:
        target: The name of a config in the local cache, or the path of one.
        arguments: Settings that take the place of those in the config.
        download: Whether a config that is not in the cache may be downloaded.
        meta: Whether it is made without memory for its weights.
    Raises:
        ArgumentError: transformers is not installed; there is no such config; or no model can
            be made of it.
    """
    import torch

    try:
        import transformers
    except ImportError as error:
        raise ArgumentError(
            f"{target} needs the package transformers",
            why=error_text(error),
            fix="pip install transformers",
        ) from error
    config = _config(transformers, target, arguments, download=download)
    try:
        with _quiet(), torch.device("meta") if meta else contextlib.nullcontext():
            model: torch.nn.Module = _class_of(transformers, config)(config)
    except Exception as error:  # Each model checks its config in ways of its own.
        raise ArgumentError(
            f"no model can be made of {target}",
            why=error_text(error),
            fix="set what does not fit with --arg NAME=VALUE; add --debug to see where",
        ) from error
    return model


def example_input(model: Any) -> "torch.Tensor | None":
    """Return a picture for a model that takes one; None where it has examples of its own."""
    import torch

    config = model.config
    if getattr(model, "main_input_name", "") != "pixel_values":
        return None
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return torch.zeros(1, getattr(vision, "num_channels", 3), height, width)


def _config(
    transformers: Any, target: HubConfig, arguments: Mapping[str, Any], *, download: bool
) -> Any:
    path = Path(target.name)
    try:
        with _quiet():
            return transformers.AutoConfig.from_pretrained(
                target.name, local_files_only=not download, trust_remote_code=False, **arguments
            )
    except Exception as error:  # The hub and each config have errors of their own.
        if not path.exists() and not download and isinstance(error, OSError):
            raise ArgumentError(
                f"there is no config {target}",
                why="it is no path, and no model in the local cache",
                fix="add --download, or give the path of its config.json",
            ) from error
        raise ArgumentError(
            f"no config can be read from {target}",
            why=error_text(error),
            fix="give a config.json that transformers wrote, or the directory of one",
        ) from error


def _class_of(transformers: Any, config: Any) -> Any:
    """Return the class that a config names, else the plain model of its kind."""
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    return transformers.AutoModel.from_config


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from telling what an error tells, too."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
