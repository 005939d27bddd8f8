"""The private part of torch that gives the store of a distributed run."""

from typing import Any

import torch.distributed.distributed_c10d

__all__ = ["default_store"]


def default_store() -> Any:
    """Return the store over which the processes of this run have found each other.

    Returns:
        The store; None where this torch gives none.
    """
    if not hasattr(torch.distributed.distributed_c10d, "_get_default_store"):
        return None
    return torch.distributed.distributed_c10d._get_default_store()
