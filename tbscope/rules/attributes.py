"""Rules on attributes and devices."""

import re
from collections.abc import Iterator
from typing import Any

from tbscope.page.constants import ATTRIBUTE_BYTES, EXACT_INTEGER
from tbscope.rules.reading import Fault, Reading, quote

__all__ = [
    "attribute_number",
    "attribute_text",
    "device_legend",
    "ignored_attribute",
    "large_attribute",
    "legend_device",
]

_DEVICE = re.compile(r"/device:[^:]+:[0-9]+\Z")
# How special attributes must be given, and what they are for.
_KINDS = {"_output_shapes": ("list", "a list of shapes"), "_XlaCluster": ("s", "a text")}


def large_attribute(reading: Reading) -> Iterator[Fault]:
    """Find attributes of more than 1 KB; shapes of outputs may be as long as they are.

    Source: tensorboard/plugins/graph/tf_graph_dashboard/tf-graph-dashboard-loader.ts:116-129
    never asks for `limit_attr_size`
    """
    for node in reading.nodes:
        for key, value in node.attr.items():
            size = value.ByteSize()
            if size > ATTRIBUTE_BYTES and key != "_output_shapes":
                yield Fault(
                    node.name,
                    f"the attribute {quote(key)} has {size} bytes, and the page loads them all",
                    f"cut it to {ATTRIBUTE_BYTES} bytes, and name it in '_too_large_attrs'",
                )


def attribute_text(reading: Reading) -> Iterator[Fault]:
    """Find texts that are shown with escapes: several lines, and what is not ASCII.

    Source: tf_graph_common/parser.ts:20-33, :316-341, which undoes no escapes
    """
    for node in reading.nodes:
        for key, value in node.attr.items():
            for text in (key.encode(), *_texts(value)):
                if not (text.isascii() and text.decode("ascii").isprintable()):
                    yield Fault(
                        node.name,
                        f"the attribute {quote(key)} is not one line of ASCII, "
                        "and is shown with escapes",
                        "give one line of ASCII characters",
                    )
                    break


def _texts(value: Any) -> list[bytes]:
    if value.s:
        return [value.s]
    return list(value.list.s) if value.HasField("list") else []


def attribute_number(reading: Reading) -> Iterator[Fault]:
    """Find integers that JavaScript cannot hold.

    Source: tf_graph_common/parser.ts:20-33, `parseValue`
    """
    for node in reading.nodes:
        for key, value in node.attr.items():
            numbers = (value.i, *value.list.i) if value.HasField("list") else (value.i,)
            for number in numbers:
                if abs(number) > EXACT_INTEGER:
                    yield Fault(
                        node.name,
                        f"the attribute {quote(key)} has the integer {number}, "
                        "and the page shows a rounded one",
                        "give it as a text",
                    )
                    break


def ignored_attribute(reading: Reading) -> Iterator[Fault]:
    """Find attributes that mean something to the page, in a form that it ignores.

    Source: tf_graph_common/graph.ts:844-912, `extractOutputShapes`, `extractXlaCluster`
    """
    for node in reading.nodes:
        for key, (form, words) in _KINDS.items():
            if key in node.attr and not node.attr[key].HasField(form):
                yield Fault(
                    node.name,
                    f"the attribute {key!r} is not {words}, and the page ignores it",
                    f"give it as {words}",
                )


def device_legend(reading: Reading) -> Iterator[Fault]:
    """Find devices that the legend of colours leaves out.

    Source: tensorboard/plugins/graph/tf_graph_controls/tf-graph-controls.ts:35, :1304-1326
    """
    first: dict[str, str] = {}
    for node in reading.nodes:
        if node.device:
            first.setdefault(node.device, node.name)
    for device, name in first.items():
        if not _DEVICE.search(device):
            yield Fault(
                name,
                f"the device {quote(device)} is coloured, and the legend does not list it",
                f"write it as {quote(legend_device(device))}",
            )


def legend_device(device: str) -> str:
    """Return a device in the form that the legend lists: `/device:GPU:0`."""
    if _DEVICE.search(device):
        return device
    kind, _, index = device.strip("/").rpartition(":")
    if not kind or not index.isdigit():
        kind, index = device.strip("/") or "CPU", "0"
    kind = kind.rpartition(":")[2] or "CPU"
    return f"/device:{kind.upper().replace('CUDA', 'GPU')}:{index}"
