"""Where the processes of a distributed run meet, and leave things for each other."""

import os
from typing import Any

import torch

from tbscope.sources.torch.rank_internals import default_store

__all__ = ["is_pretended", "is_started_with_others", "shared_store"]


def is_started_with_others() -> bool:
    """Tell whether a launcher started this process as one of several, whether they met or not."""
    count = os.environ.get("WORLD_SIZE", "")
    return count.isdecimal() and int(count) > 1


def is_pretended() -> bool:
    """Tell whether the other processes of a distributed run are pretended only."""
    return bool(torch.distributed.get_backend() == "fake")


def shared_store(prefix: str) -> Any:
    """Return what all processes of a distributed run put things into and take them from.

    Args:
        prefix: What all keys begin with.
    """
    distributed: Any = torch.distributed
    return distributed.PrefixStore(prefix, default_store())
