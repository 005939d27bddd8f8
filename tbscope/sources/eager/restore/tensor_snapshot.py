"""Snapshot of tensors: their content, their memory, their gradients.

Contents are not copied beforehand. The snapshot of a tensor is a second handle on its memory; the
content is copied only before a write.

If there are other threads, a gradient is not even read before the run reads it: a thread that
trains the model may be writing the gradient, and torch guards neither reads nor writes of it. For
the same reason, the memory and the `requires_grad` of a tensor are then restored only if the run
itself has reported a change of them.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from tbscope.sources.eager.restore.object_snapshot import Report
from tbscope.sources.torch.compat.modules import UNINITIALIZED
from tbscope.sources.torch.compat.tensors import (
    GRADIENT_HOOKS,
    cuda_in_use,
    flattened,
    keys_of_storages,
    outside_modes,
    set_version,
    storage_key,
    version_of,
    without_functions,
)
from tbscope.sources.torch.subclasses import PLAIN

_UNKNOWN = object()
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_only_thread() -> bool:
    """Whether the running thread is the only Python thread in this process."""
    # Unlike `threading.enumerate()`, this includes threads that `threading` has not started.
    return len(sys._current_frames()) == 1


class _TensorState(NamedTuple):
    """Snapshot of a tensor.

    Attributes:
        tensor: The tensor.
        handle: A private tensor on the same memory, with the same shape and strides.
        key: The identity of the memory.
        shape: Shape of the tensor.
        requires_grad: Whether the tensor requires a gradient.
        history: The `grad_fn` of the tensor; None for a leaf.
    """

    tensor: torch.Tensor
    handle: torch.Tensor
    key: int
    shape: torch.Size
    requires_grad: bool
    history: object


class TensorSnapshot:
    """Snapshots of tensors and of their gradients."""

    def __init__(self) -> None:
        self._kept: list[_TensorState] = []
        # By identity.
        self._leaves: dict[int, torch.Tensor] = {}
        # By identity: tensors that the run has set other than by an operation, or whose gradient it
        # has read; and the gradients that they had.
        self._set: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._alone = is_only_thread()
        # Tensors without gradient hooks, by the attribute that would contain the hooks.
        self._unhooked: list[tuple[str, list[torch.Tensor]]] = []
        self._lazy: list[tuple[Any, type, torch.device, torch.dtype]] = []
        # Snapshots by storage, for storages without a write so far; and by identity the tensors
        # without a storage. Then the copies of both, and the version counters before the first
        # write.
        self._untouched: dict[int, list[_TensorState]] = {}
        # Snapshots that are not among `_untouched` yet: most runs write into none.
        self._new: list[_TensorState] = []
        self._odd: dict[int, torch.Tensor] = {}
        self._contents: list[_Content] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._moved: list[_TensorState] = []

    def add(self, tensors: Sequence[torch.Tensor]) -> list[object]:
        """Take a snapshot of tensors.

        Returns:
            Objects to add to the snapshot, too: attributes and hooks of the tensors, tensors inside
            of wrappers, and the gradients, unless another thread may be writing these.
        """
        with without_functions():
            belongings: list[object] = [tensor.__dict__ for tensor in tensors]
            for name in GRADIENT_HOOKS:
                hooks: list[object] = [*map(attrgetter(name), tensors)]
                unhooked = compress(tensors, [hook is None for hook in hooks])
                self._unhooked.append((name, [*unhooked]))
                belongings += [hook for hook in hooks if hook is not None]
            whole = tensors
            if not PLAIN.issuperset(map(type, tensors)):
                whole = [tensor for tensor in tensors if self._is_whole(tensor, belongings)]
            self._leaves.update(zip(map(id, whole), whole, strict=True))
            stored, keys = list[torch.Tensor](), list[int]()
            for tensor, key in zip(whole, keys_of_storages(whole), strict=True):
                if key is None or tensor.is_nested:
                    self._odd[id(tensor)] = tensor
                else:
                    stored.append(tensor)
                    keys.append(key)
            # Attributes are read column by column, because a model has many tensors.
            handles = [tensor.data for tensor in stored]
            shapes = [tensor.shape for tensor in stored]
            asking = [tensor.requires_grad for tensor in stored]
            columns = stored, handles, keys, shapes, asking, _histories(stored)
            added = list(map(_TensorState._make, zip(*columns, strict=True)))
            self._kept += added
            self._new += added
            return belongings + (self._take_gradients(tensors) if self._alone else [])

    def _is_whole(self, tensor: torch.Tensor, belongings: list[object]) -> bool:
        """Whether a tensor is no wrapper; add the tensors inside of a wrapper to `belongings`."""
        if type(tensor) in PLAIN:
            return True
        if isinstance(tensor, UNINITIALIZED):
            self._lazy.append((tensor, type(tensor), tensor.device, tensor.dtype))
            return False
        inner = flattened(tensor)
        if inner:
            self._leaves[id(tensor)] = tensor
            belongings += inner
        return not inner

    def kept(self) -> list[torch.Tensor]:
        """Return the tensors of the snapshot that have a storage."""
        return [kept.tensor for kept in self._kept]

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that were announced before a write."""
        return [*(kept.tensor for kept in self._moved), *(tensor for tensor, _ in self._copies)]

    def about_to_set(self, tensor: torch.Tensor) -> None:
        """Take a snapshot of a tensor's gradient, and record that the run changes the tensor.

        To be called right before the run sets the tensor's data, gradient or `requires_grad`, and
        before it reads the gradient, which it may then write into.
        """
        if id(tensor) in self._leaves and id(tensor) not in self._set:
            with outside_modes():
                self._add_gradients([tensor])
            self._set[id(tensor)] = tensor

    def about_to_accumulate(self) -> None:
        """Take a snapshot of all gradients. To be called right before the run adds to them."""
        with outside_modes():
            self._add_gradients(self._leaves.values())
        self._set = self._leaves.copy()

    def _add_gradients(self, tensors: Iterable[torch.Tensor]) -> None:
        pending: list[Any] = self._take_gradients(tensors)
        while pending:
            pending = [inner for inner in self.add(pending) if isinstance(inner, torch.Tensor)]

    def _take_gradients(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Record the gradients of leaves, and return the gradients that exist."""
        gradients, seen, leaves = [], self._gradients, self._leaves
        # Uninitialized parameters are not in `_leaves`, because their gradient cannot be read.
        new = [tensor for tensor in tensors if id(tensor) in leaves and id(tensor) not in seen]
        for tensor, history in zip(new, _histories(new), strict=True):
            if history is None:
                gradient = tensor.grad
                seen[id(tensor)] = tensor, gradient
                if gradient is not None:
                    gradients.append(gradient)
        return gradients

    def were_set(self) -> list[torch.Tensor]:
        """Return the tensors that were announced before they were set."""
        return list(self._set.values())

    def about_to_write(self, tensor: torch.Tensor) -> None:
        """Copy the content that a write into a tensor would destroy, if a snapshot covers it.

        To be called right before an operation that writes into the tensor, or that changes its
        shape or its memory.
        """
        for kept in self._new:
            self._untouched.setdefault(kept.key, []).append(kept)
        self._new.clear()
        with without_functions():
            key = storage_key(tensor) if type(tensor) in PLAIN else None
            if key in self._untouched:
                self._copy_storage(key)
            elif key is None or self._odd:
                self._about_to_write_oddly(tensor)

    def _about_to_write_oddly(self, tensor: torch.Tensor) -> None:
        """Do what `about_to_write` does for a tensor subclass, or a tensor without a storage."""
        inner = flattened(tensor)
        for inner_tensor in inner:
            self.about_to_write(inner_tensor)
        if id(tensor) in self._odd:
            with outside_modes(), torch.no_grad():
                self._copies.append((tensor, tensor.clone()))
            self._note_version(self._odd.pop(id(tensor)))
        elif not inner and (key := storage_key(tensor)) in self._untouched:
            self._copy_storage(key)

    def _copy_storage(self, key: Any) -> None:
        group = self._untouched.pop(key)
        with outside_modes(), torch.no_grad():
            self._contents.append(_Content([kept.handle for kept in group]))
        for kept in group:
            self._note_version(kept.tensor)
        self._moved += group

    def _note_version(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():
            self._versions.append((tensor, version_of(tensor)))

    def restore(self, report: Report) -> None:
        """Restore content, memory, history, gradients, and at last the version counters."""
        self._alone = self._alone and is_only_thread()
        with outside_modes(), torch.no_grad():
            if self._contents and cuda_in_use():
                # A kernel in another stream, or a copy to the CPU, may still be about to write.
                torch.cuda.synchronize()
            # In reverse order: the first copy of a storage contains the oldest content.
            for content in reversed(self._contents):
                _attempt(report, content.handle, content.restore)
            for tensor, copy in self._copies:
                _attempt(report, tensor, _fill, tensor, copy)
            changed = self._changed()
            for kept in self._moved:
                tensor, handle = kept.tensor, kept.handle
                if (tensor.stride(), tensor.storage_offset()) != (
                    handle.stride(),
                    handle.storage_offset(),
                ):
                    _attempt(report, tensor, setattr, tensor, "data", handle)
            tensors = [kept.tensor for kept in changed]
            for kept, key in zip(changed, keys_of_storages(tensors), strict=True):
                if key != kept.key or kept.tensor.shape != kept.shape:
                    _attempt(report, kept.tensor, setattr, kept.tensor, "data", kept.handle)
            for lazy in self._lazy:
                if type(lazy[0]) is not lazy[1]:
                    _attempt(report, lazy[0], _make_lazy, *lazy)
            for name, unhooked in self._unhooked:
                for tensor in unhooked:
                    if getattr(tensor, name) is not None:
                        _attempt(report, tensor, setattr, tensor, name, None)
            for kept, history in zip(changed, _histories(tensors), strict=True):
                if history is not kept.history or kept.tensor.requires_grad != kept.requires_grad:
                    _attempt(report, kept.tensor, _restore_history, kept)
            for key, (tensor, gradient) in self._gradients.items():
                if (self._alone or key in self._set) and tensor.grad is not gradient:
                    _attempt(report, tensor, setattr, tensor, "grad", gradient)
            for tensor, version in reversed(self._versions):
                if version_of(tensor) != version:
                    _attempt(report, tensor, set_version, tensor, version)

    def _changed(self) -> list[_TensorState]:
        """Return the tensors that the run may have written into or set."""
        if self._alone:
            return self._kept
        changed = {id(kept.tensor) for kept in self._moved} | self._set.keys()
        return [kept for kept in self._kept if id(kept.tensor) in changed]


def _restore_history(kept: _TensorState) -> None:
    """Restore the `grad_fn` and the `requires_grad` of a tensor."""
    # The history of a view may have changed with that of its base.
    if _histories([kept.tensor])[0] is not kept.history:
        if kept.history is not None:
            raise RuntimeError("a write has changed its history in autograd")
        kept.tensor.detach_()
    kept.tensor.requires_grad_(kept.requires_grad)


def _histories(tensors: list[torch.Tensor]) -> list[object]:
    """Return the `grad_fn` of each tensor, or None for a leaf.

    torch raises for one of several views of a base that was written into after they were made; then
    the result is `_UNKNOWN`.
    """
    try:
        return [tensor.grad_fn for tensor in tensors]
    except RuntimeError:
        if len(tensors) == 1:
            return [_UNKNOWN]
        return [history for tensor in tensors for history in _histories([tensor])]


class _Content:
    """Copy of the bytes of a storage that the tensors of a snapshot cover."""

    __slots__ = ("copy", "handle", "size_bytes")

    def __init__(self, handles: list[torch.Tensor]) -> None:
        storage = handles[0].untyped_storage()
        self.size_bytes = storage.nbytes()
        # A meta tensor has no content, nor has a tensor whose memory was freed.
        has_content = self.size_bytes > 0 and not handles[0].is_meta
        covers_exactly = not has_content or (len(handles) == 1 and handles[0].is_contiguous())
        self.handle = handles[0] if covers_exactly else _window(handles)
        self.copy = self.handle.clone() if has_content else None

    def restore(self) -> None:
        """Restore the size of the storage, and the content."""
        storage = self.handle.untyped_storage()
        if storage.nbytes() != self.size_bytes:
            storage.resize_(self.size_bytes)
        if self.copy is not None:
            with torch.inference_mode(self.handle.is_inference()):
                self.handle.copy_(self.copy)


def _window(handles: list[torch.Tensor]) -> torch.Tensor:
    """Return the bytes from the first to the last byte that tensors of one storage cover."""
    starts, ends = [], []
    for handle in handles:
        size = handle.element_size()
        start = handle.storage_offset() * size
        steps = zip(handle.shape, handle.stride(), strict=True)
        reach = sum((entry - 1) * stride for entry, stride in steps)
        starts.append(start)
        ends.append(start + (reach + 1) * size if handle.numel() else start)
    storage = handles[0].untyped_storage()
    nothing = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return nothing.set_(storage, min(starts), (max(ends) - min(starts),), (1,))


def _fill(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Copy content back into a tensor that has no storage of its own."""
    if tensor.layout in _COMPRESSED:
        # `copy_` does not change the number of elements, which may differ now.
        tensor.resize_as_sparse_(copy)
    tensor.copy_(copy)


def _make_lazy(tensor: Any, cls: type, device: torch.device, dtype: torch.dtype) -> None:
    """Make an initialized parameter or buffer uninitialized again."""
    tensor.data = torch.empty(0, device=device, dtype=dtype)
    tensor.__class__ = cls


def _attempt(
    report: Report, tensor: torch.Tensor, put_back: Callable[..., object], *args: object
) -> None:
    try:
        put_back(*args)
    except Exception as error:  # noqa: BLE001 (reported)
        shape = ", ".join(map(str, tensor.shape))
        report(f"a {type(tensor).__name__} of shape ({shape})", error)
