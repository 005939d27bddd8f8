"""Shapes, dtypes and devices in the form that TensorBoard reads."""

import re

from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from tbscope.errors import ConversionError
from tbscope.graph import Shape

__all__ = ["device_to_text", "item_size_bytes", "shape_to_proto"]

# What TensorFlow calls the devices that it knows too; others are called as torch does.
_DEVICE_WORDS = {"CUDA": "GPU"}
_BITS = re.compile(r"[0-9]+")


def shape_to_proto(shape: Shape | None) -> TensorShapeProto:
    """Give the protobuf form of a tensor shape.

    Args:
        shape: Sizes per dimension; None where unknown. None for an unknown rank.
    Returns:
        A new message; n dimensions give n `dim` entries in the same order, of size -1
        where the size is unknown.
    Raises:
        ConversionError: A size is negative.

    Source: tensorboard/compat/proto/tensor_shape.proto
    """
    if shape is None:
        return TensorShapeProto(unknown_rank=True)
    message = TensorShapeProto()
    for size in shape:
        if size is not None and size < 0:
            raise ConversionError(
                f"the shape {shape} has the size {size}",
                why="a tensor has no negative sizes",
                fix="give None where a size is not known",
            )
        message.dim.add(size=-1 if size is None else size)
    return message


def device_to_text(device: str) -> str:
    """Give a device as TensorFlow names it.

    Args:
        device: As torch prints it: `cpu`, `cuda:0`, `meta`; empty for none.
    Returns:
        `/device:CPU:0`, `/device:GPU:0`, `/device:META:0`; empty for none.
    """
    if not device:
        return ""
    kind, _, index = device.partition(":")
    word = kind.upper()
    return f"/device:{_DEVICE_WORDS.get(word, word)}:{index or 0}"


def item_size_bytes(dtype: str) -> int | None:
    """Give the bytes of one element (`float32` has 4); None where the name does not tell."""
    if dtype == "bool":
        return 1
    bits = _BITS.search(dtype)
    return int(bits[0]) // 8 if bits and int(bits[0]) % 8 == 0 else None
