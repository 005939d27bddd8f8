"""What a run may change in tensors: their content, their place in memory, their gradients.

Contents are not copied beforehand. Each tensor costs a second handle on its memory;
its content is copied only when something is about to write into it.

Beside other threads, a gradient is not even looked at before the run does so: one that
trains the model may be writing it, and torch guards neither the reading nor the setting of
one. For the same reason a tensor's place, and whether it asks for gradients, are then put
back only where the run itself is known to have changed them.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from tbscope.sources.eager.restore.object_snapshot import Report
from tbscope.sources.torch.compat.modules import UNINITIALIZED
from tbscope.sources.torch.compat.tensors import (
    GRADIENT_HOOKS,
    flattened,
    outside_modes,
    set_version,
    storage_key,
    version_of,
    without_functions,
)

__all__ = ["KeptTensors", "is_only_thread"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_UNKNOWN = object()
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_only_thread() -> bool:
    """Whether the running thread is the only one of Python's in this process."""
    # Those that were not started by `threading` are counted here, too.
    return len(sys._current_frames()) == 1


class _Kept(NamedTuple):
    """A tensor as it was.

    Attributes:
        tensor: The tensor.
        handle: A tensor on the same memory that nothing else has, of the same shape and strides.
        key: The identity of that memory.
        shape: Its shape.
        requires_grad: Whether it asks for gradients.
        history: Where it comes from in autograd; None for a leaf.
    """

    tensor: torch.Tensor
    handle: torch.Tensor
    key: int
    shape: torch.Size
    requires_grad: bool
    history: Any


class KeptTensors:
    """Tensors as they were, with their gradients."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        # By identity.
        self._leaves: dict[int, torch.Tensor] = {}
        # By identity, the tensors that the run has set in another way than by an operation,
        # or of which it has seen the gradient; and the gradients that they had.
        self._set: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._alone = is_only_thread()
        # Those whose gradients had no hooks, by the attribute that has these.
        self._unhooked: list[tuple[str, list[torch.Tensor]]] = []
        self._lazy: list[tuple[Any, type, torch.device, torch.dtype]] = []
        # The tensors of each storage that no write has touched so far, and by identity those
        # without one; the copies of either, and the versions before the first write.
        self._untouched: dict[int, list[_Kept]] = {}
        self._odd: dict[int, torch.Tensor] = {}
        self._contents: list[_Content] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._moved: list[_Kept] = []

    def add(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Keep tensors as they are now.

        Returns:
            What is to be kept with them: their attributes and hooks, the tensors that they
            wrap, and, where no other thread may be writing these, their gradients.
        """
        with without_functions():
            belongings: list[Any] = [tensor.__dict__ for tensor in tensors]
            for name in GRADIENT_HOOKS:
                hooks: list[Any] = [getattr(tensor, name) for tensor in tensors]
                pairs = zip(tensors, hooks, strict=True)
                self._unhooked.append((name, [tensor for tensor, hook in pairs if hook is None]))
                belongings += [hook for hook in hooks if hook is not None]
            stored, keys = list[torch.Tensor](), list[int]()
            for tensor in tensors:
                plain = type(tensor) in _PLAIN
                if not plain and isinstance(tensor, UNINITIALIZED):
                    self._lazy.append((tensor, type(tensor), tensor.device, tensor.dtype))
                    continue
                self._leaves[id(tensor)] = tensor
                inner = [] if plain else flattened(tensor)
                belongings += inner
                key = None if inner or tensor.is_nested else storage_key(tensor)
                if key is not None:
                    stored.append(tensor)
                    keys.append(key)
                elif not inner:
                    self._odd[id(tensor)] = tensor
            # Column by column, as a model has many.
            handles = [tensor.data for tensor in stored]
            shapes = [tensor.shape for tensor in stored]
            asking = [tensor.requires_grad for tensor in stored]
            columns = stored, handles, keys, shapes, asking, _histories(stored)
            added = list(map(_Kept._make, zip(*columns, strict=True)))
            self._kept += added
            for kept in added:
                self._untouched.setdefault(kept.key, []).append(kept)
            return belongings + (self._take_gradients(tensors) if self._alone else [])

    def kept(self) -> list[torch.Tensor]:
        """Return the tensors that are kept by their storage."""
        return [kept.tensor for kept in self._kept]

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that were announced as about to be written into."""
        return [*(kept.tensor for kept in self._moved), *(tensor for tensor, _ in self._copies)]

    def about_to_set(self, tensor: torch.Tensor) -> None:
        """Keep the gradient of a tensor, and remember that the run has changed it.

        To be called right before the run sets its data, its gradient or whether it asks for
        gradients, and before it takes its gradient, into which it may write.
        """
        if id(tensor) in self._leaves and id(tensor) not in self._set:
            with outside_modes():
                self._add_gradients([tensor])
            self._set[id(tensor)] = tensor

    def about_to_accumulate(self) -> None:
        """Keep the gradients of all tensors. To be called right before the run adds to them."""
        with outside_modes():
            self._add_gradients(self._leaves.values())
        self._set = self._leaves.copy()

    def _add_gradients(self, tensors: Iterable[torch.Tensor]) -> None:
        found: list[Any] = self._take_gradients(tensors)
        while found:
            found = [one for one in self.add(found) if isinstance(one, torch.Tensor)]

    def _take_gradients(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Take note of the gradients of leaves, and return those that there are."""
        found, known, leaves = [], self._gradients, self._leaves
        # Those that are not initialised are no leaves, as they cannot be asked.
        new = [each for each in tensors if id(each) in leaves and id(each) not in known]
        for tensor, history in zip(new, _histories(new), strict=True):
            if history is None:
                gradient = tensor.grad
                known[id(tensor)] = tensor, gradient
                if gradient is not None:
                    found.append(gradient)
        return found

    def were_set(self) -> list[torch.Tensor]:
        """Return the tensors that were announced as about to be set."""
        return list(self._set.values())

    def about_to_write(self, tensor: torch.Tensor) -> None:
        """Copy the content that a write into a tensor would destroy, if a kept tensor owns it.

        To be called right before an operation that writes into the tensor, or that gives
        it another shape or place.
        """
        with without_functions():
            key = storage_key(tensor) if type(tensor) in _PLAIN else None
            if key in self._untouched:
                self._copy_storage(key)
            elif key is None or self._odd:
                self._about_to_write_oddly(tensor)

    def _about_to_write_oddly(self, tensor: torch.Tensor) -> None:
        """Do the same for a tensor of no plain class, or without storage of its own."""
        inner = flattened(tensor)
        for part in inner:
            self.about_to_write(part)
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
        """Put everything back: content, place, history, gradients, and last the versions."""
        self._alone = self._alone and is_only_thread()
        with outside_modes(), torch.no_grad():
            # The last first: what a storage had when it was met first is what it had before.
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
            for kept in changed:
                tensor = kept.tensor
                if storage_key(tensor) != kept.key or tensor.shape != kept.shape:
                    _attempt(report, tensor, setattr, tensor, "data", kept.handle)
            for lazy in self._lazy:
                if type(lazy[0]) is not lazy[1]:
                    _attempt(report, lazy[0], _make_lazy, *lazy)
            for name, tensors in self._unhooked:
                for tensor in tensors:
                    if getattr(tensor, name) is not None:
                        _attempt(report, tensor, setattr, tensor, name, None)
            for kept, history in zip(
                changed, _histories([kept.tensor for kept in changed]), strict=True
            ):
                if history is not kept.history or kept.tensor.requires_grad != kept.requires_grad:
                    _attempt(report, kept.tensor, _restore_history, kept)
            for key, (tensor, gradient) in self._gradients.items():
                if (self._alone or key in self._set) and tensor.grad is not gradient:
                    _attempt(report, tensor, setattr, tensor, "grad", gradient)
            for tensor, version in reversed(self._versions):
                if version_of(tensor) != version:
                    _attempt(report, tensor, set_version, tensor, version)

    def _changed(self) -> list[_Kept]:
        """Return the tensors that the run may have written into or set."""
        if self._alone:
            return self._kept
        changed = {id(kept.tensor) for kept in self._moved} | self._set.keys()
        return [kept for kept in self._kept if id(kept.tensor) in changed]


def _restore_history(kept: _Kept) -> None:
    """Put back where a tensor comes from in autograd, and whether it asks for gradients."""
    # That of a view may have come back with that of its base.
    if _history_of(kept.tensor) is not kept.history:
        if kept.history is not None:
            raise RuntimeError("a write gave it another history in autograd")
        kept.tensor.detach_()
    kept.tensor.requires_grad_(kept.requires_grad)


def _histories(tensors: list[torch.Tensor]) -> list[Any]:
    """Return where each tensor comes from in autograd, as `_history_of` does."""
    try:
        return [tensor.grad_fn for tensor in tensors]
    except RuntimeError:
        return list(map(_history_of, tensors))


def _history_of(tensor: torch.Tensor) -> Any:
    """Return where a tensor comes from in autograd; None for a leaf.

    torch raises for one of several views whose base was written into since.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return _UNKNOWN


class _Content:
    """A copy of the part of one storage that kept tensors cover."""

    __slots__ = ("copy", "handle", "size_bytes")

    def __init__(self, handles: list[torch.Tensor]) -> None:
        storage = handles[0].untyped_storage()
        self.size_bytes = storage.nbytes()
        # A meta tensor has no content, and neither has one whose memory was given back.
        there = self.size_bytes > 0 and not handles[0].is_meta
        alone = not there or (len(handles) == 1 and handles[0].is_contiguous())
        self.handle = handles[0] if alone else _window(handles)
        self.copy = self.handle.clone() if there else None

    def restore(self) -> None:
        """Put the content back, into a storage of the size that it had."""
        storage = self.handle.untyped_storage()
        if storage.nbytes() != self.size_bytes:
            storage.resize_(self.size_bytes)
        if self.copy is not None:
            with torch.inference_mode(self.handle.is_inference()):
                self.handle.copy_(self.copy)


def _window(handles: list[torch.Tensor]) -> torch.Tensor:
    """Return the bytes from the first to the last one that tensors of one storage cover."""
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
    """Copy the content of a copy back into a tensor that has no storage of its own."""
    if tensor.layout in _COMPRESSED:
        # It may have another number of elements now, which a copy does not change.
        tensor.resize_as_sparse_(copy)
    tensor.copy_(copy)


def _make_lazy(tensor: Any, cls: type, device: torch.device, dtype: torch.dtype) -> None:
    """Make a parameter or buffer that was initialised uninitialised again."""
    tensor.data = torch.empty(0, device=device, dtype=dtype)
    tensor.__class__ = cls


def _attempt(
    report: Report, tensor: torch.Tensor, put_back: Callable[..., object], *args: Any
) -> None:
    try:
        put_back(*args)
    except Exception as error:  # noqa: BLE001 (reported)
        shape = ", ".join(map(str, tensor.shape))
        report(f"a {type(tensor).__name__} of shape ({shape})", error)
