"""Pickles of torch: tensors as types, and a substitute for each object, so that nothing runs."""

import pickle
from functools import partial
from typing import Any, NamedTuple

from tbscope.ir.nodes import DTYPE_WORDS

_DTYPES = {word: dtype for dtype, word in DTYPE_WORDS.items()}


class PickledTensor(NamedTuple):
    """A tensor of a pickle, without its data.

    Attributes:
        shape: The sizes per dimension.
        dtype: The element type (`float32`), or `unknown`.
        stride: The strides.
        place: Its storage and its position there, equal for tied tensors.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    place: tuple[object, ...]


class PickledObject(dict[Any, Any]):
    """Substitute for an object of any class; an entry of the object is an entry of this dict."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # A key of another dict, maybe.
    state: object = None
    """The attributes of the object, as `__setstate__` would receive them."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def append(self, entry: object) -> None:
        """Add an entry of a list, or of a set."""
        self[len(self)] = entry

    add = append

    def __setstate__(self, state: object) -> None:
        self.state = state


class TensorUnpickler(pickle._Unpickler):
    """Unpickler that imports no class, and calls no function of the pickle.

    The unpickler in C allocates a table as large as a number in the file claims.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the substitute for a class or a function."""
        if module == "torch._utils" and name.startswith(("_rebuild_tensor", "_rebuild_qtensor")):
            return self.tensor
        if name in _FIRST:
            return _first
        if name == "_rebuild_from_type_v2":
            return _call
        return type(name, (PickledObject,), {"__module__": module})

    def persistent_load(self, pid: Any) -> Any:
        """Return the element type of a storage, and its key."""
        # Old files have a record of each class of modules in the form of a storage.
        if pid[0] != "storage":
            return pid[1]
        word = pid[1].__name__.removesuffix("Storage")
        quantized = word.lower() if word.startswith(("QInt", "QUInt")) else "unknown"
        return _DTYPES.get(word, quantized), pid[2]

    def tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, *others: Any) -> object:
        """Return the substitute for a tensor."""
        dtype, key = storage
        if dtype == "unknown" and len(others) > 2:
            # A storage without a type: the type of the tensor follows.
            dtype = getattr(others[2], "__name__", dtype)
        shape = tuple(map(int, sizes))
        return PickledTensor(shape, dtype, tuple(strides), (str(key), int(offset), shape))


# Functions whose results have the data of their first argument.
_FIRST = ("_rebuild_parameter", "_rebuild_parameter_with_state", "restore_type_tag")


def _first(content: object, *_: object) -> object:
    return content


def _call(function: partial[object], _: object, arguments: tuple[Any, ...], *__: object) -> object:
    """Return the tensor of a subclass; `find_class` has returned the function."""
    return function(*arguments)
