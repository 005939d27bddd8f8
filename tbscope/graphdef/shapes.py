"""Shapes, dtypes and devices in the form that TensorBoard reads."""

from tbscope.errors import ConversionError
from tbscope.graphdef.wire import field, varint
from tbscope.ir.facts import split_device
from tbscope.ir.graph import Shape

__all__ = ["device_to_text", "shape_bytes"]

# What TensorFlow calls the devices that it knows too; others are called as torch does.
_DEVICE_WORDS = {"CUDA": "GPU"}
# tensorboard/compat/proto/tensor_shape.proto: the fields `dim` and `unknown_rank` of a
# shape, and the field `size` of a dimension.
_DIM = 2
_SIZE = b"\x08"
_UNKNOWN_DIM = field(_DIM, _SIZE + varint(2**64 - 1))
_UNKNOWN_RANK = b"\x18\x01"


def shape_bytes(shape: Shape | None) -> bytes:
    """Return the protobuf form of a tensor shape, serialised.

    Args:
        shape: Sizes per dimension; None where unknown. None for an unknown rank.
    Returns:
        A TensorShapeProto; n dimensions give n `dim` entries in the same order, of size
        -1 where the size is unknown.
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
            dims.append(field(_DIM, _SIZE + varint(size)))
        elif size == 0:
            # A number that is 0 is not written.
            dims.append(field(_DIM, b""))
        else:
            raise ConversionError(
                f"the shape {shape} has the size {size}",
                why="a tensor has no negative sizes",
                fix="give None where a size is not known",
            )
    return b"".join(dims)


def device_to_text(device: str) -> str:
    """Return the name that TensorFlow has for a device.

    Args:
        device: As torch prints it: `cpu`, `cuda:0`, `meta`; empty for none. In a merged graph
            the ranks stand before it: `ranks 0-7 cuda:0`.
    Returns:
        `/device:CPU:0`, `/device:GPU:0`, `/device:META:0`, `/device:ranks_0-7_GPU:0`; empty for
        none. Without spaces, with which the page would leave a node in its old colour.
    """
    if not device:
        return ""
    ranks, own = split_device(device)
    kind, _, index = own.partition(":")
    word = kind.upper()
    # The legend leaves out what all begin with, letter by letter: of `ranks` an `s` would stay.
    of_ranks = f"ranks_{ranks.partition(' ')[2].replace(' ', '_')}_" if ranks else ""
    return f"/device:{of_ranks}{_DEVICE_WORDS.get(word, word)}:{index or 0}"
