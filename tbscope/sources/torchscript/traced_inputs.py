"""The inputs with which a module was traced, as its file tells them; nothing in it is unpickled."""

import functools
import io
import pickle
from typing import Any

import torch

from tbscope.sources.programs.types import UNKNOWN, TensorType, dtype_name

__all__ = ["traced_inputs"]

_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")
_TYPED = "torch.jit._pickle.restore_type_tag"


class _Stub:
    """Anything that a pickle names: it does nothing.

    Attributes:
        named: The name in the pickle.
        held: The arguments of its call.
    """

    named = ""
    held: tuple[Any, ...] = ()

    def __new__(cls, *given: Any) -> "_Stub":
        """Make one, also where the pickle calls the class alone."""
        stub = super().__new__(cls)
        stub.held = given
        return stub

    def __setstate__(self, state: Any) -> None:
        """Take the content of an object."""


@functools.lru_cache(maxsize=1000)
def _stub(named: str) -> type[_Stub]:
    """Return a class of stubs for a name."""
    return type("_Named", (_Stub,), {"named": named})


class _Stubbed(pickle.Unpickler):
    """Reads a pickle with stubs for its names, and element types for its storages."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a class of stubs."""
        return _stub(f"{module}.{name}")

    def persistent_load(self, pid: Any, /) -> str:
        """Return the type of the elements of a storage, as torch names it."""
        kind = getattr(torch, pid[1].named.rpartition(".")[2], None)
        return UNKNOWN.dtype if kind is None else dtype_name(kind.dtype)


def traced_inputs(content: bytes, method: str) -> list[Any] | None:
    """Return the inputs with which a method was traced; None where the file has none.

    Args:
        content: The pickle of torch's notes.
        method: The method.
    Returns:
        A nest of lists and dicts for each input, with a `TensorType` for each tensor.
    Raises:
        Exception: Of any class: the pickle is none, or holds no inputs.
    """
    noted = _plain(_Stubbed(io.BytesIO(content)).load())
    own = noted.get(method)
    return own if isinstance(own, list) else None


def _plain(thing: Any) -> Any:
    """Return a nest without the marks of its types, with a `TensorType` for each tensor."""
    if isinstance(thing, _Stub):
        if thing.named == _TYPED:
            return _plain(thing.held[0])
        if thing.named in _TENSORS:
            dtype, _, sizes, strides = thing.held[:4]
            return TensorType(sizes, dtype, "cpu", stride=strides if dtype != "unknown" else None)
        return None
    if isinstance(thing, list | tuple):
        return [_plain(each) for each in thing]
    if isinstance(thing, dict):
        return {key: _plain(each) for key, each in thing.items()}
    return thing
