"""Entries of the map `attr` of a NodeDef, as bytes, each made once.

Nodes of one graph share most of their attributes; joining cached bytes takes a small part
of the time of setting one message after the other.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from tbscope.analysis.units import counted, number_by_worth
from tbscope.errors import ConversionError
from tbscope.graphdef import wire
from tbscope.graphdef.attributes import (
    MOST_CHARACTERS,
    ascii_line,
    key_by_worth,
    to_attr_value,
)
from tbscope.ir.graph import Nest, Shape
from tbscope.ir.metadata import split_device
from tbscope.ir.pytree import form_of
from tbscope.messages import cut

__all__ = [
    "TOO_LARGE",
    "FactEntries",
    "Once",
    "device_to_text",
    "fact_key",
    "kernels_entry",
    "label_entry",
    "outputs_entries",
    "scope_entries",
    "shape_bytes",
    "source_entry",
    "text_entries",
    "too_large_entry",
]

TOO_LARGE = "_too_large_attrs"
"""The attribute that names those which were left out for their size
(tensorboard/plugins/graph/tf_graph_common/graph.ts, `LARGE_ATTRS_KEY`)."""

# Names with a meaning for us or for the page: a fact of the user's must not take one.
_OURS = frozenset(
    {"_XlaCluster", "_class", "_output_shapes", "dtype", "kernels", "scope", "source", TOO_LARGE}
)
_MOST_OF_NAME = 64
_MOST_OF_SCOPE = 10_000

_SCOPE, _SOURCE, _KERNELS = (
    wire.attribute_head(key_by_worth(name)) for name in ("scope", "source", "kernels")
)
_LABEL, _SHAPES, _DTYPE = map(wire.attribute_head, ("_XlaCluster", "_output_shapes", "dtype"))
# tensorboard/compat/proto/attr_value.proto: the field `shape` of a list.
_SHAPE_ITEM = 7

# TensorFlow's names of devices, if they differ from torch's.
_DEVICE_WORDS = {"CUDA": "GPU"}
# tensorboard/compat/proto/tensor_shape.proto: the fields `dim` and `unknown_rank` of a
# shape, and the field `size` of a dimension.
_DIM = 2
_SIZE = b"\x08"
_UNKNOWN_DIM = wire.field(_DIM, _SIZE + wire.varint(2**64 - 1))
_UNKNOWN_RANK = b"\x18\x01"

_Key = TypeVar("_Key", bound=Hashable)
_Made = TypeVar("_Made")


class Once(dict[_Key, _Made]):
    """A dict that makes a missing entry from its key, and keeps it.

    Args:
        make: Makes the entry of a key that is missing.
    """

    def __init__(self, make: Callable[[_Key], _Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: _Key) -> _Made:
        made = self[key] = self._make(key)
        return made


class FactEntries:
    """Makes and caches the entries of facts: hyper-parameters, constant arguments, sizes."""

    def __init__(self) -> None:
        self._joined: dict[bytes, tuple[bytes, list[str]]] = {}
        # The AttrValues of constants, by their forms.
        self._values: dict[bytes, bytes] = {}

    def join(self, facts: dict[str, Nest]) -> tuple[bytes, list[str]]:
        """Return the joined entries of all facts of a node, and the keys of facts too large.

        Layers of one kind have equal facts, so the result is cached by them.
        """
        form = form_of(facts)
        known = None if form is None else self._joined.get(form)
        if known is None:
            entries = self.make(facts)
            named = zip(facts, entries, strict=True)
            known = b"".join(entries), [fact_key(name) for name, entry in named if not entry]
            if form is not None:
                self._joined[form] = known
        return known

    def make(self, facts: Mapping[str, Nest]) -> list[bytes]:
        """Return the entry of each fact, or empty bytes if it would be too large."""
        shown = [
            number_by_worth(name, constant) if type(constant) is int else constant
            for name, constant in facts.items()
        ]
        values = [_text_value(fact) if type(fact) is str else self._value(fact) for fact in shown]
        entries = wire.attributes(map(_fact_head, facts), values)
        return [entry if value else b"" for value, entry in zip(values, entries, strict=True)]

    def _value(self, constant: Nest) -> bytes:
        """Return the AttrValue of a constant, or empty bytes if it would be too large."""
        form = form_of(constant)
        known = None if form is None else self._values.get(form)
        if known is None:
            value = to_attr_value(constant)
            known = b"" if value is None else value.SerializeToString(deterministic=True)
            if form is not None:
                self._values[form] = known
        return known


def text_entries(name: str, texts: Sequence[str]) -> list[bytes]:
    """Return the entries of one fact of several nodes, each a text; empty if it is too large."""
    whole = "".join(texts)
    if not (whole.isascii() and whole.isprintable()):
        # Nearly all texts are plain: names of modules and parameters.
        texts = [*map(ascii_line, texts)]
    lines = [text.encode("ascii") for text in texts]
    entries = wire.text_attributes(_fact_head(name), lines)
    return [
        entry if len(line) <= MOST_CHARACTERS else b""
        for line, entry in zip(lines, entries, strict=True)
    ]


# Equal modules have equal texts: classes, lines of source, types of parameters.
@functools.lru_cache(maxsize=1000)
def _text_value(text: str) -> bytes:
    """Return the AttrValue of a text, or empty bytes if it would be too large."""
    line = ascii_line(text)
    return wire.text_value(line.encode("ascii")) if len(line) <= MOST_CHARACTERS else b""


def fact_key(name: str) -> str:
    """Return the attribute name of a fact: ASCII, and not one of the reserved names.

    Blanks at its start decide its position on the info card (see `key_by_worth`).
    """
    key = ascii_line(name)[:_MOST_OF_NAME]
    return f"{key}_" if key in _OURS else key_by_worth(key)


# The names are few: they come from info cards, and from hyper-parameters of layers.
@functools.lru_cache(maxsize=1000)
def _fact_head(name: str) -> bytes:
    return wire.attribute_head(fact_key(name))


def scope_entries(paths: Iterable[str]) -> list[bytes]:
    """Return the entries of printed scope paths, so that `Scope.parse` can read them back.

    A path of more than 10,000 characters is cut. The page shows each byte of a non-ASCII
    character in octal, so they are escaped as in Python. Line ends are escaped in the path
    already.
    """
    shown = [path if len(path) <= _MOST_OF_SCOPE else cut(path, _MOST_OF_SCOPE) for path in paths]
    return wire.text_attributes(
        _SCOPE, [path.encode("ascii", "backslashreplace") for path in shown]
    )


def source_entry(text: str) -> bytes:
    """Return the entry of a call site in the user's code."""
    return wire.text_attributes(_SOURCE, [ascii_line(text).encode("ascii")])[0]


def label_entry(label: str) -> bytes:
    """Return the entry of the label that sets a node's colour under "XLA cluster"."""
    line = ascii_line(label)[:_MOST_OF_NAME]
    return wire.text_attributes(_LABEL, [line.encode("ascii")])[0]


def kernels_entry(names: tuple[str, ...]) -> bytes:
    """Return the entry of the kernels, in order of first appearance: `aten::mm x2, aten::add`.

    It is empty if it would be too large.
    """
    value = _text_value(counted(Counter(names).items()))
    return wire.attribute(_KERNELS, value) if value else b""


def outputs_entries(outputs: tuple[tuple[Shape | None, str], ...]) -> bytes:
    """Return the entries `_output_shapes` and `dtype` for the shape and dtype of each output.

    Without outputs there are no entries: the page would show an empty list of shapes as an
    attribute. If the list of dtypes would be too large, a sequence of equal ones is one entry, with
    its length.
    """
    if not outputs:
        return b""
    shapes = b"".join([wire.field(_SHAPE_ITEM, shape_bytes(shape)) for shape, _ in outputs])
    entries = wire.attribute(_SHAPES, wire.list_value(shapes))
    dtypes = [ascii_line(dtype).encode("ascii") for _, dtype in outputs]
    if len(dtypes) == 1:
        return entries + wire.text_attributes(_DTYPE, dtypes)[0]
    if sum(map(len, dtypes)) + 2 * len(dtypes) > MOST_CHARACTERS:
        runs = itertools.groupby([dtype for _, dtype in outputs])
        text = _text_value(counted((dtype, len([*alike])) for dtype, alike in runs))
        return entries + (wire.attribute(_DTYPE, text) if text else b"")
    dtype = AttrValue()
    dtype.list.s.extend(dtypes)
    return entries + _entry(_DTYPE, dtype)


def too_large_entry(keys: Sequence[str]) -> bytes:
    """Return the entry that names the attributes left out because they are too large."""
    value = AttrValue()
    value.list.s.extend(key.encode("ascii") for key in keys)
    return _entry(wire.attribute_head(TOO_LARGE), value)


def _entry(head: bytes, value: AttrValue) -> bytes:
    return wire.attribute(head, value.SerializeToString(deterministic=True))


# -- shapes and devices ---------------------------------------------------------------------------


def shape_bytes(shape: Shape | None) -> bytes:
    """Return the protobuf form of a tensor shape, serialised.

    Args:
        shape: Sizes per dimension, None if a size is unknown; None for an unknown rank.
    Returns:
        A TensorShapeProto with one `dim` entry per dimension, in order; an unknown size is -1.
    Raises:
        ConversionError: A size is negative.

    Source: tensorboard/compat/proto/tensor_shape.proto
    """
    if shape is None:
        return _UNKNOWN_RANK
    dims = []
    for size in shape:
        if size is None:
            dims.append(_UNKNOWN_DIM)
        elif size > 0:
            dims.append(wire.field(_DIM, _SIZE + wire.varint(size)))
        elif size == 0:
            # Protobuf does not write a number that is 0.
            dims.append(wire.field(_DIM, b""))
        else:
            raise ConversionError(
                f"the shape {shape} has the size {size}",
                why="a tensor has no negative sizes",
                fix="give None where a size is not known",
            )
    return b"".join(dims)


def device_to_text(device: str) -> str:
    """Return TensorFlow's name of a device.

    Args:
        device: As torch prints it: `cpu`, `cuda:0`, `meta`; empty for none. In a merged graph
            the ranks come before it: `ranks 0-7 cuda:0`.
    Returns:
        `/device:CPU:0`, `/device:GPU:0`, `/device:META:0`, `/device:ranks_0-7_GPU:0`; empty for
        none. There are no spaces: with one, the page would leave a node in its old colour.
    """
    if not device:
        return ""
    ranks, own = split_device(device)
    kind, _, index = own.partition(":")
    word = kind.upper()
    # The legend cuts the common prefix of all devices, letter by letter: it would
    # leave the `s` of `ranks_` beside a `rank_`.
    of_ranks = f"ranks_{ranks.partition(' ')[2].replace(' ', '_')}_" if ranks else ""
    return f"/device:{of_ranks}{_DEVICE_WORDS.get(word, word)}:{index or 0}"
