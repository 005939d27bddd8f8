"""Autograd's own graph: which of its nodes runs, and which number it has."""

from typing import Any

import torch

from tbscope.sources.torch.internals import running_node, sequence_number

__all__ = ["accumulates_into", "running_node", "sequence_number"]


def accumulates_into(node: Any) -> torch.Tensor | None:
    """Return the leaf tensor whose gradient a node of autograd's graph adds to; None if none."""
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, torch.Tensor) else None
