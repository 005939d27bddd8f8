"""Looks through the pickles of a TorchScript file, and runs nothing of them.

torch reads them with a reader of its own that calls no Python, and believes what they say: how
large a tensor is, how deep a nest. What it would believe wrongly is found here.
"""

import functools
import io
import pickle
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from tbscope.sources.programs.types import TensorType
from tbscope.words import shown

__all__ = ["DamagedError", "Stub", "check_nest", "check_pickle", "read_pickle", "traced_inputs"]

_DEEPEST = 200
_MOST_BYTES = 2**63
# The bytes of an element, and its type as torch names it, by the name of the storage.
_KINDS = {
    "Bool": (1, "bool"),
    "Byte": (1, "uint8"),
    "Char": (1, "int8"),
    "Short": (2, "int16"),
    "Int": (4, "int32"),
    "Long": (8, "int64"),
    "Half": (2, "float16"),
    "BFloat16": (2, "bfloat16"),
    "Float": (4, "float32"),
    "Double": (8, "float64"),
    "ComplexHalf": (4, "complex32"),
    "ComplexFloat": (8, "complex64"),
    "ComplexDouble": (16, "complex128"),
    "UInt16": (2, "uint16"),
    "UInt32": (4, "uint32"),
    "UInt64": (8, "uint64"),
    "QInt8": (1, "qint8"),
    "QUInt8": (1, "quint8"),
    "QInt32": (4, "qint32"),
    "QUInt4x2": (1, "quint4x2"),
    "QUInt2x4": (1, "quint2x4"),
    "Untyped": (1, "uint8"),
    **{name: (1, name.lower()) for name in ("Bits8", "Bits1x8", "Bits2x4", "Bits4x2")},
    "Bits16": (2, "bits16"),
    **{
        f"Float8_{form}": (1, f"float8_{form}")
        for form in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz")
    },
}
_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")
_TYPED = "torch.jit._pickle.restore_type_tag"
# The opcodes that torch writes or reads, with the bytes after each; those with a length of their
# own, with the bytes of that length. Source: torch/csrc/jit/serialization/unpickler.cpp.
_AFTER = {
    **dict.fromkeys(b"}])(NtsuaeRQb.02\x81\x85\x86\x87\x88\x89o", 0),
    **dict.fromkeys(b"K\x80qh", 1),
    **dict.fromkeys(b"M", 2),
    **dict.fromkeys(b"Jrj", 4),
    **dict.fromkeys(b"G", 8),
}
_LENGTH = {**dict.fromkeys(b"U\x8aC\x8c", 1), **dict.fromkeys(b"XTB", 4)}
# Those of a known length, as many as stand in a row, but for what is looked at closely.
_RUN = re.compile(
    rb"(?:[\])}(NtsuaeRQb.02\x81\x85\x86\x87\x88\x89o]|[K\x80qh].|M..|J.{4}|j.{4}|G.{8}"
    rb"|c[^\n]*\n[^\n]*\n){0,1000}",
    re.DOTALL,
)
_REMEMBER = ord("r")
_NAME = ord("c")
# What holds nothing else.
_FLAT = frozenset({int, str, float, bool, type(None), bytes})


class DamagedError(ValueError):
    """Tells in its text what is wrong with a pickle."""


class Stub:
    """Stands for anything that a pickle names; does nothing.

    Attributes:
        named: What the pickle names.
        held: What it was given, and what it was filled with.
    """

    named = ""

    def __new__(cls, *given: Any) -> "Stub":
        """Make one, also where a pickle never fills it."""
        stub = super().__new__(cls)
        stub.held = [*given]
        return stub

    def __init__(self, *given: Any) -> None:
        self.held: list[Any] = [*given]

    def __setstate__(self, state: Any) -> None:
        self.held.append(state)


@functools.lru_cache(maxsize=1000)
def _kind(named: str) -> type[Stub]:
    """Return a class that stands for one of a name."""
    return type("_Named", (Stub,), {"named": named})


class _Storage:
    """The bytes of a tensor in an entry of their own."""

    def __init__(self, length: int, dtype: str) -> None:
        self.length = length
        self.dtype = dtype


class _Looking:
    """Gives the reader of a pickle stubs for all that is no plain data."""

    def __init__(self, content: bytes, sizes: Mapping[str, int] | None) -> None:
        super().__init__(io.BytesIO(content))  # type: ignore[call-arg]
        self._sizes = sizes
        self.named: set[str] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a class that stands for the one that is named."""
        named = f"{module}.{name}"
        self.named.add(named)
        return _kind(named)

    def persistent_load(self, pid: Any, /) -> Any:
        """Return what stands for a storage, which has to be as large as it claims."""
        if type(pid) is not tuple or len(pid) < 5 or pid[0] != "storage":
            raise DamagedError("it names bytes that are no storage")
        _, kind, key, place, length = pid[:5]
        name = str(getattr(kind, "named", "")).rpartition(".")[2].removesuffix("Storage")
        size, dtype = _KINDS.get(name, (0, ""))
        if not size or type(length) is not int or length < 0:
            raise DamagedError(
                f"it names a storage of {length!r} elements of the unknown kind {name!r}"
            )
        # On "meta", a tensor has no bytes, and torch asks for none.
        is_there = self._sizes is None or (place == "meta" and length * size < _MOST_BYTES)
        there = length * size if is_there else (self._sizes or {}).get(str(key), 0)
        if there < length * size:
            raise DamagedError(
                f"its storage {key!r} claims {length * size:,} bytes, and its entry has {there:,}"
            )
        return _Storage(length, dtype)


class _Looker(_Looking, pickle.Unpickler):
    """Reads a pickle as Python writes one."""


class _PatientLooker(_Looking, pickle._Unpickler):
    """Reads a pickle in which a function is called with one thing, as torch writes an `Enum`."""

    stack: list[Any]
    dispatch: ClassVar[Any] = {**pickle._Unpickler.dispatch}

    def load_reduce(self) -> None:
        """Call a function with what is on the stack, a tuple of arguments or one of them."""
        given = self.stack.pop()
        self.stack[-1] = self.stack[-1](*(given if type(given) is tuple else (given,)))

    dispatch[pickle.REDUCE[0]] = load_reduce


def check_pickle(content: bytes, sizes: Mapping[str, int]) -> set[str]:
    """Check that a pickle claims no more than there is, is no deep nest, and holds no circle.

    Args:
        content: The pickle.
        sizes: The bytes of each storage, by its key.
    Returns:
        The names of the classes and functions that it names.
    Raises:
        DamagedError: It does.
    """
    return _look(content, sizes)[1]


def traced_inputs(content: bytes, method: str) -> list[Any] | None:
    """Return with what a method was traced, as torch has noted it; None where it has not.

    Args:
        content: The pickle of these notes.
        method: The method.
    Returns:
        A nest of lists and dicts for each input, with a `TensorType` for each tensor.
    Raises:
        DamagedError: The pickle is none of these notes.
    """
    # The tensors have no content: only their sizes are kept.
    noted, _ = _look(content, None)
    given = _plain(noted)
    own = given.get(method) if isinstance(given, dict) else None
    return own if isinstance(own, list) else None


def _plain(thing: Any) -> Any:
    """Return a nest without the marks of its types, with a `TensorType` for each tensor."""
    if isinstance(thing, Stub):
        if thing.named == _TYPED and thing.held:
            return _plain(thing.held[0])
        if thing.named in _TENSORS:
            storage, _, sizes, strides = thing.held[:4]
            return TensorType(sizes, storage.dtype, "cpu", stride=strides)
        return None
    if isinstance(thing, list | tuple):
        return [_plain(each) for each in thing]
    if isinstance(thing, dict):
        return {key: _plain(each) for key, each in thing.items()}
    return thing


def _look(content: bytes, sizes: Mapping[str, int] | None) -> tuple[Any, set[str]]:
    """Return what a pickle holds, with stubs, and what it names; it is no deep nest."""
    result, named = read_pickle(content, sizes)
    check_nest(result)
    return result, named


def read_pickle(content: bytes, sizes: Mapping[str, int] | None) -> tuple[Any, set[str]]:
    """Return what a pickle holds, with stubs, and what it names."""
    try:
        _check_opcodes(content)
        looker: _Looker | _PatientLooker = _Looker(content, sizes)
        try:
            result = looker.load()
        except TypeError:
            looker = _PatientLooker(content, sizes)
            result = looker.load()
    except DamagedError:
        raise
    except Exception as error:
        # A pickle of anything but torch may have Python's reader raise anything.
        raise DamagedError(f"it is no whole pickle: {type(error).__name__}: {error}") from error
    return result, looker.named


def _check_opcodes(content: bytes) -> None:
    """Check that a pickle is made of what torch writes, and remembers no more than it has."""
    at, end = 0, len(content)
    while at < end:
        at = _RUN.match(content, at).end()  # type: ignore[union-attr]
        if at >= end:
            return
        opcode = content[at]
        at += 1
        size = _AFTER.get(opcode)
        if size is None:
            if opcode == _NAME:
                # Two lines: the module and the name.
                at = content.index(b"\n", content.index(b"\n", at) + 1) + 1
                continue
            length = _LENGTH.get(opcode)
            if length is None:
                raise DamagedError(f"torch writes no opcode {opcode:#x}, at byte {at - 1:,}")
            size = length + int.from_bytes(content[at : at + length], "little")
        elif opcode == _REMEMBER:
            number = int.from_bytes(content[at : at + 4], "little")
            if number > end:
                raise DamagedError(f"it remembers {number:,} things, and has {end:,} bytes")
        at += size


def check_nest(result: Any) -> None:
    """Check the tensors in a nest, and how deep it is; itself it is not deep for Python."""
    things = _things_in(result)
    for thing in things.values():
        if isinstance(thing, Stub):
            _check_thing(thing)
    # Level by level, each thing once on a level. What nests itself, or too deep, has no end.
    level = {id(result): result}
    looks = _MOST_LOOKS * len(things)
    for _ in range(_DEEPEST + 1):
        level = {id(each): each for thing in level.values() for each in _inside(thing)}
        looks -= len(level)
        if not level:
            return
        if looks < 0:
            break
    _check_heights(result)


# So often, on average, a thing may stand on another level.
_MOST_LOOKS = 10


def _things_in(result: Any) -> dict[int, Any]:
    """Return all that a nest holds that may hold more, each once, by identity."""
    found = {id(result): result}
    pending = [result]
    while pending:
        for each in _inside(pending.pop()):
            if id(each) not in found:
                found[id(each)] = each
                pending.append(each)
    return found


def _check_heights(result: Any) -> None:
    """Check how deep a nest is, thing by thing, from the innermost."""
    heights: dict[int, int | None] = {}
    pending: list[tuple[Any, bool]] = [(result, False)]
    while pending:
        thing, done = pending.pop()
        key = id(thing)
        inner = _inside(thing)
        if done:
            height = 1 + max((heights.get(id(each)) or 0 for each in inner), default=0)
            heights[key] = height
            if height > _DEEPEST:
                raise DamagedError(f"it nests more than {_DEEPEST} things in each other")
        elif key in heights:
            if heights[key] is None:
                raise DamagedError("it nests a thing in itself")
        elif inner:
            heights[key] = None
            pending.append((thing, True))
            pending += [(each, False) for each in inner]


def _inside(thing: Any) -> list[Any]:
    """Return what a thing holds that may hold more."""
    kind = type(thing)
    if kind is tuple or kind is list:
        return [each for each in thing if type(each) not in _FLAT]
    if kind is dict:
        return [each for pair in thing.items() for each in pair if type(each) not in _FLAT]
    if isinstance(thing, Stub):
        return [each for each in thing.held if type(each) not in _FLAT]
    return []


def _check_thing(thing: Stub) -> None:
    if thing.named == _TYPED and len(thing.held) > 1:
        _check_depth(thing.held[1])
    if thing.named in _TENSORS:
        _check_tensor(thing.held)


# torch reads a type as it reads code. None has a text or a remark, or anything so long without a
# comma or a bracket.
_NO_TYPE = re.compile(r"[^\w.,\[\]() <>$]|[^,\[\]()]{2000}")


def _check_depth(text: Any) -> None:
    if type(text) is not str:
        return
    odd = _NO_TYPE.search(text)
    if odd is not None:
        raise DamagedError(f"it names a type with {shown(odd[0])} in it")
    depth = 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if depth > _DEEPEST:
            raise DamagedError(f"it names a type that nests more than {_DEEPEST} others")


def _check_tensor(held: list[Any]) -> None:
    storage, offset, sizes, strides = [*held, None, None, None, None][:4]
    numbers = isinstance(sizes, tuple) and isinstance(strides, tuple) and type(offset) is int
    if not isinstance(storage, _Storage) or not numbers or len(sizes) != len(strides):
        raise DamagedError("it holds a tensor without sizes, strides or bytes")
    if not all(type(each) is int and each >= 0 for each in (*sizes, *strides, offset)):
        raise DamagedError(f"it holds a tensor of the sizes {sizes} and the strides {strides}")
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 not in sizes and last >= storage.length:
        raise DamagedError(
            f"it holds a tensor of the sizes {sizes} in a storage of {storage.length:,} elements"
        )
