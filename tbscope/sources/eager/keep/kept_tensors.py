"""What a run may change in tensors: their content, their place in memory, their gradients.

Contents are not copied beforehand. Each tensor costs a second handle on its memory;
its content is copied only when somebody is about to write into it.

Beside other threads, a gradient is not even looked at before the run does so: one that
trains the model may be writing it, and torch guards neither the reading nor the setting of
one. For the same reason a tensor's place, and whether it asks for gradients, are then put
back only where the run itself is known to have changed them.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tbscope.sources.eager.active import is_only_thread
from tbscope.sources.eager.keep.kept_contents import Report
from tbscope.sources.eager.keep.kinds import refill, same
from tbscope.sources.torch.internals import (
    GRADIENT_HOOKS,
    flattened,
    outside_modes,
    set_version,
    storage_key,
    version_of,
    without_functions,
)
from tbscope.sources.torch.module_internals import UNINITIALIZED

__all__ = ["KeptTensors"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_UNTOLD = object()
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class KeptTensors:
    """Tensors as they were, with their gradients.

    Attributes:
        hooks: The functions that run on their gradients.
    """

    def __init__(self) -> None:
        self.hooks: list[Any] = []
        self._tensors: list[torch.Tensor] = []
        # For each tensor: a handle on its memory that nobody else has, what identifies
        # that memory, its shape, whether it asks for gradients, and where it came from.
        self._handles: list[torch.Tensor] = []
        self._keys: list[int | None] = []
        self._shapes: list[torch.Size] = []
        self._asking: list[bool] = []
        self._histories: list[Any] = []
        self._leaves: list[torch.Tensor] = []
        # By identity, the tensors that the run has set in another way than by an operation,
        # or of which it has seen the gradient; and the gradients that they had.
        self._set: dict[int, torch.Tensor] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._known: set[int] = set()
        self._alone = is_only_thread()
        # What Python knows of them: the tables of their attributes, those that held
        # something with a copy, and the tensors whose gradients had no hooks.
        self._tables: list[dict[str, Any]] = []
        self._attributes: list[tuple[Any, dict[Any, Any]]] = []
        self._unhooked: list[tuple[str, list[torch.Tensor]]] = []
        self._lazy: list[tuple[Any, type, torch.device, torch.dtype]] = []
        # The storages that no write has touched so far, and by id the tensors without
        # one; what was copied of either, and the versions before the first write.
        self._untouched: set[int | None] = set()
        self._odd: dict[int, torch.Tensor] = {}
        self._by_storage: dict[int | None, dict[int, int]] | None = None
        self._contents: list[_Content] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep tensors as they are now, with their gradients and the tensors that they wrap."""
        with without_functions():
            tensors = list(tensors)
            self._keep_attributes(tensors)
            try:
                if _PLAIN.issuperset(map(type, tensors)):
                    self._keep(tensors)
                    return
            except (RuntimeError, NotImplementedError):
                # A sparse, opaque or nested one among them: each by itself.
                pass
            self._keep([tensor for tensor in tensors if self._has_storage(tensor)])

    def _keep(self, tensors: list[torch.Tensor]) -> None:
        keys: list[int | None] = [tensor.untyped_storage()._cdata for tensor in tensors]
        self._shapes += [tensor.shape for tensor in tensors]
        self._keys += keys
        self._tensors += tensors
        self._handles += [tensor.data for tensor in tensors]
        self._asking += [tensor.requires_grad for tensor in tensors]
        self._histories += _histories_of(tensors)
        self._untouched.update(keys)
        self._by_storage = None
        self._leaves += tensors
        if self._alone:
            self._take_gradients(tensors)

    def kept(self) -> list[torch.Tensor]:
        """Return the tensors that are kept by their storage."""
        return list(self._tensors)

    def written(self) -> list[torch.Tensor]:
        """Return the tensors that were announced as about to be written into."""
        return [tensor for tensor, _ in (*self._moved, *self._copies)]

    def _has_storage(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is kept by its storage; if not, keep it in another way."""
        if isinstance(tensor, UNINITIALIZED):
            self._lazy.append((tensor, type(tensor), tensor.device, tensor.dtype))
            return False
        inner = flattened(tensor)
        if inner:
            self.add(inner)
        elif tensor.is_nested or storage_key(tensor) is None:
            self._odd[id(tensor)] = tensor
        else:
            return True
        self._leaves.append(tensor)
        if self._alone:
            self._take_gradients([tensor])
        return False

    def _keep_attributes(self, tensors: list[torch.Tensor]) -> None:
        """Keep what Python knows of tensors: their attributes, and the hooks of their gradients."""
        tables = [tensor.__dict__ for tensor in tensors]
        self._tables += tables
        if any(tables):
            self._attributes += [(table, table.copy()) for table in tables if table]
        for name in GRADIENT_HOOKS:
            found: list[Any] = [getattr(tensor, name) for tensor in tensors]
            pairs = zip(tensors, found, strict=True)
            self._unhooked.append((name, [tensor for tensor, hooks in pairs if hooks is None]))
            hooked = [hooks for hooks in found if hooks is not None]
            self._attributes += [(hooks, dict(hooks)) for hooks in hooked]
            self.hooks += [hook for hooks in hooked for hook in hooks.values()]

    def _restore_attributes(self, report: Report) -> None:
        if any(self._tables):
            kept = {id(table) for table, _ in self._attributes}
            for table in self._tables:
                if id(table) not in kept:
                    table.clear()
        for table, held in self._attributes:
            if not same(table, held):
                refill(table, held)
        for name, tensors in self._unhooked:
            for tensor in tensors:
                if getattr(tensor, name) is not None:
                    _attempt(report, tensor, setattr, tensor, name, None)

    def about_to_set(self, tensor: torch.Tensor) -> None:
        """Keep the gradient of a tensor, and remember that the run has changed it.

        To be called right before the run sets its data, its gradient or whether it asks for
        gradients, and before it takes its gradient, into which it may write.
        """
        if len(self._known) != len(self._leaves):
            self._known = set(map(id, self._leaves))
        if id(tensor) in self._known and id(tensor) not in self._set:
            with outside_modes():
                self._take_gradients([tensor])
            self._set[id(tensor)] = tensor

    def about_to_accumulate(self) -> None:
        """Keep the gradients of all tensors. To be called right before the run adds to them."""
        with outside_modes():
            self._take_gradients(self._leaves)
        self._set = {id(tensor): tensor for tensor in self._leaves}

    def _take_gradients(self, tensors: list[torch.Tensor]) -> None:
        leaves = [
            tensor
            for tensor, history in zip(tensors, _histories_of(tensors), strict=True)
            if history is None and id(tensor) not in self._gradients
        ]
        gradients = [tensor.grad for tensor in leaves]
        for leaf, gradient in zip(leaves, gradients, strict=True):
            self._gradients[id(leaf)] = (leaf, gradient)
        held = [gradient for gradient in gradients if gradient is not None]
        if held:
            self.add(held)

    def were_set(self) -> list[torch.Tensor]:
        """Return the tensors that were announced as about to be set."""
        return list(self._set.values())

    def about_to_write(self, tensor: torch.Tensor) -> None:
        """Copy the content that a write into a tensor would destroy, if a kept tensor owns it.

        To be called right before an operation that writes into the tensor, or that gives
        it another shape or place.
        """
        with without_functions():
            try:
                key = tensor.untyped_storage()._cdata if type(tensor) in _PLAIN else None
            except (RuntimeError, NotImplementedError):
                key = None
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

    def _copy_storage(self, key: int | None) -> None:
        if self._by_storage is None:
            self._by_storage = {}
            for at, (tensor, owner) in enumerate(zip(self._tensors, self._keys, strict=True)):
                self._by_storage.setdefault(owner, {})[id(tensor)] = at
        group = self._by_storage[key].values()
        with outside_modes(), torch.no_grad():
            self._contents.append(_Content([self._handles[at] for at in group]))
        for at in group:
            self._note_version(self._tensors[at])
            self._moved.append((self._tensors[at], self._handles[at]))
        self._untouched.discard(key)

    def _note_version(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():
            self._versions.append((tensor, version_of(tensor)))

    def restore(self, report: Report) -> None:
        """Put everything back: content, place, history, gradients, and last the versions."""
        self._alone = self._alone and is_only_thread()
        with outside_modes(), torch.no_grad():
            for content in self._contents:
                _attempt(report, content.handle, content.restore)
            for tensor, copy in self._copies:
                _attempt(report, tensor, _fill, tensor, copy)
            for tensor, handle in self._displaced():
                _attempt(report, tensor, _put, tensor, handle)
            for lazy in self._lazy:
                if type(lazy[0]) is not lazy[1]:
                    _attempt(report, lazy[0], _make_lazy, *lazy)
            self._restore_attributes(report)
            self._restore_histories(report)
            self._restore_gradients(report)
            for tensor, version in self._versions:
                if version_of(tensor) != version:
                    _attempt(report, tensor, set_version, tensor, version)

    def _displaced(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the tensors whose memory or shape has changed, each with its old handle."""
        displaced = [
            (tensor, handle)
            for tensor, handle in self._moved
            if tensor.stride() != handle.stride()
            or tensor.storage_offset() != handle.storage_offset()
        ]
        displaced += [
            (tensor, self._handles[at])
            for at, tensor in self._changed()
            if storage_key(tensor) != self._keys[at] or tensor.shape != self._shapes[at]
        ]
        return displaced

    def _changed(self) -> list[tuple[int, torch.Tensor]]:
        """Return the tensors that the run may have written into or set, by position."""
        if self._alone:
            return list(enumerate(self._tensors))
        changed = {id(tensor) for tensor, _ in self._moved} | self._set.keys()
        if not changed:
            return []
        return [(at, tensor) for at, tensor in enumerate(self._tensors) if id(tensor) in changed]

    def _restore_histories(self, report: Report) -> None:
        changed = self._changed()
        histories = _histories_of([tensor for _, tensor in changed])
        if all(
            history is self._histories[at] and tensor.requires_grad == self._asking[at]
            for (at, tensor), history in zip(changed, histories, strict=True)
        ):
            return
        # Those of views may change with that of what they show.
        for at, tensor in changed:
            history = _history_of(tensor)
            if history is not self._histories[at] or tensor.requires_grad != self._asking[at]:
                _attempt(report, tensor, self._restore_history, at, history)

    def _restore_history(self, at: int, history: Any) -> None:
        tensor = self._tensors[at]
        if history is not self._histories[at]:
            if self._histories[at] is not None:
                raise RuntimeError("a write gave it another history in autograd")
            tensor.detach_()
        tensor.requires_grad_(self._asking[at])

    def _restore_gradients(self, report: Report) -> None:
        for key, (tensor, gradient) in self._gradients.items():
            if (self._alone or key in self._set) and tensor.grad is not gradient:
                _attempt(report, tensor, setattr, tensor, "grad", gradient)


def _histories_of(tensors: list[torch.Tensor]) -> list[Any]:
    """Return `_history_of` each tensor, in a third of the time where all tell it."""
    try:
        return [tensor.grad_fn for tensor in tensors]
    except RuntimeError:
        return list(map(_history_of, tensors))


def _history_of(tensor: torch.Tensor) -> Any:
    """Return where a tensor came from in autograd; None for a leaf.

    torch tells nobody that of one of several views whose base was written into since.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return _UNTOLD


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


def _put(tensor: torch.Tensor, handle: torch.Tensor) -> None:
    """Restore the memory, shape and strides of a tensor from the handle on them."""
    tensor.data = handle


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
