"""Tells of storages that get another size, before they do.

`tensor.untyped_storage().resize_(0)` gives the memory of a tensor back though the tensor
stays, as sharded training does after forward. It is no operation, so that no mode sees it.
"""

from contextlib import AbstractContextManager

import torch

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replacement
from tbscope.sources.torch.internals import outside_modes

__all__ = ["watch_sizes"]

_resize = Replacement(torch.UntypedStorage, "resize_")


def watch_sizes() -> AbstractContextManager[None]:
    """Have this thread's recorders told of storages that get another size, during a block."""
    return _resize.by(_watched_resize)


def _watched_resize(storage: torch.UntypedStorage, size: int) -> object:
    """Do what `UntypedStorage.resize_` does; what it may destroy is a write like any other."""
    for recorder in watching.recorders:
        if not recorder.paused:
            with outside_modes():
                none = torch.empty(0, dtype=torch.uint8, device=storage.device)
                recorder.about_to_write(none.set_(storage, 0, (0,), (1,)))
    return _resize.original(storage, size)
