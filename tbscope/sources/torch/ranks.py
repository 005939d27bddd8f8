"""Distributed runs: which of its processes this one is."""

import torch

__all__ = ["process_rank"]


def process_rank() -> int:
    """Return which process of a distributed run this is; 0 in any other run."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return 0
