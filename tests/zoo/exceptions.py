"""Inputs of the few models whose call neither names nor configuration tell."""

from collections.abc import Callable
from typing import Any

import torch

INPUTS: dict[str, Callable[[torch.nn.Module], dict[str, Any]]] = {}
