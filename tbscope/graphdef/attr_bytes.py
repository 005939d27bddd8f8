"""Attributes of a NodeDef: constants as the values of TensorBoard's info card, made once as bytes.

The page shows a value as JSON and escapes non-ASCII characters twice, so texts are ASCII
and one line. It loads every byte of every node before it draws, so no attribute is over 1 KB.

The page lists attributes by the bytes of their names, the largest first, and HTML shows no
blanks at the start of a line: a name that begins with a blank is listed after all names that do
not. So the less important attributes have blanks; class, shapes and hyper-parameters keep their
plain names, by which scripts read them.

Nodes of one graph share most of their attributes; joining cached bytes takes a small part
of the time of setting one message after the other.

Source: tensorboard/plugins/graph/tf_graph_info/tf-node-info.ts; upb prints maps in this order
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from tbscope.analysis.units import counted, number_by_worth
from tbscope.errors import ConversionError
from tbscope.graphdef import wire
from tbscope.ir.graph import Nest, Shape, Value
from tbscope.ir.metadata import split_device
from tbscope.ir.pytree import form_of
from tbscope.messages import cut
from tbscope.page.constants import ATTRIBUTE_BYTES, EXACT_INTEGER

MOST_BYTES = ATTRIBUTE_BYTES
"""The largest size of an attribute, in bytes."""

_MOST_CHARACTERS = MOST_BYTES - 3
"""The length of the longest ASCII text in such an attribute, after its tag and length."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FIELDS: dict[type | None, str] = {bool: "b", int: "i", float: "f", str: "s"}


def to_attr_value(constant: Nest) -> AttrValue | None:
    """Convert a constant to an attribute value.

    Args:
        constant: bool, int, float, str, a list or tuple of one of them, or any other
            pytree, which becomes its text (`None`, `(1, None)`, `torch.float32`).
    Returns:
        A new message, or None if it would be over `MOST_BYTES`. Numbers that the page
        cannot show exactly become their text, too.

    Source: tensorboard/compat/proto/attr_value.proto
    """
    several = type(constant) in (list, tuple)
    items: list[Any] = list(constant) if several else [constant]
    kind = type(items[0]) if items else None
    alike = kind in _FIELDS and {kind}.issuperset(map(type, items))
    if not (alike and all(map(_fits, items))):
        items, several, kind = [nest_to_text(constant)], False, str
    if kind is str:
        items = [ascii_line(item).encode("ascii") for item in items]
    message = AttrValue()
    if several:
        getattr(message.list, _FIELDS[kind]).extend(items)
    else:
        message = AttrValue(**{_FIELDS[kind]: items[0]})
    return message if message.ByteSize() <= MOST_BYTES else None


def _fits(item: object) -> bool:
    """Whether the page shows a number exactly: as a 32-bit float, if it is a float."""
    if type(item) is int:
        return -EXACT_INTEGER <= item <= EXACT_INTEGER
    if type(item) is float and item:
        return 1e-37 <= abs(item) < 1e38 and float(f"{item:.6g}") == item
    return True


def ascii_line(text: str) -> str:
    """Return a text in ASCII on one line; other characters are escaped as in Python."""
    if text.isascii() and text.isprintable():
        return text
    line = " ".join(text.split()).encode("ascii", "backslashreplace").decode("ascii")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def nest_to_text(nest: Nest) -> str:
    """Return a pytree as compact text, its tensors by their printed names: `(1, %3, None)`."""
    if isinstance(nest, Value):
        return f"%{nest.name}"
    if isinstance(nest, list):
        return f"[{', '.join(map(nest_to_text, nest))}]"
    if isinstance(nest, tuple):
        return f"({', '.join(map(nest_to_text, nest))}{',' if len(nest) == 1 else ''})"
    if isinstance(nest, dict):
        entries = (f"{nest_to_text(key)}: {nest_to_text(entry)}" for key, entry in nest.items())
        return f"{{{', '.join(entries)}}}"
    return repr(nest)


# -- worth ----------------------------------------------------------------------------------------

# Names that come after all others: each group after the group before it.
_LATER = (
    ("parameters", "buffers", "parameter_count", "trainable_parameter_count"),
    ("flops",),
    ("flops_not_counted", "bytes"),
    (
        *("module", "call", "name", "operation", "operations", "kernels", "via", "then"),
        *("training", "source", "scope", "defined"),
    ),
)
_BLANKS = {name: " " * blanks for blanks, names in enumerate(_LATER, 1) for name in names}


def key_by_worth(name: str) -> str:
    """Return the name of an attribute with the blanks that put it in its group on the card."""
    return _BLANKS.get(name, "") + name


_TOO_LARGE = "_too_large_attrs"
"""The attribute that names those which were left out for their size
(tensorboard/plugins/graph/tf_graph_common/graph.ts, `LARGE_ATTRS_KEY`)."""

# Names with a meaning for us or for the page: a fact of the user's must not take one.
_OURS = frozenset(
    {"_XlaCluster", "_class", "_output_shapes", "dtype", "kernels", "scope", "source", _TOO_LARGE}
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
        entry if len(line) <= _MOST_CHARACTERS else b""
        for line, entry in zip(lines, entries, strict=True)
    ]


# Equal modules have equal texts: classes, lines of source, types of parameters.
@functools.lru_cache(maxsize=1000)
def _text_value(text: str) -> bytes:
    """Return the AttrValue of a text, or empty bytes if it would be too large."""
    line = ascii_line(text)
    return wire.text_value(line.encode("ascii")) if len(line) <= _MOST_CHARACTERS else b""


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
    if sum(map(len, dtypes)) + 2 * len(dtypes) > _MOST_CHARACTERS:
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
    return _entry(wire.attribute_head(_TOO_LARGE), value)


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
