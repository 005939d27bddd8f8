"""Shapes, devices and element sizes in the form that TensorBoard reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from tbscope.errors import ConversionError
from tbscope.graphdef.attr_bytes import device_to_text, shape_bytes
from tbscope.ir.graph import item_size_bytes


def shape_to_proto(shape):
    """Give the message that is read from the bytes of a shape, which are just its own."""
    message = TensorShapeProto.FromString(shape_bytes(shape))
    assert message.SerializeToString(deterministic=True) == shape_bytes(shape)
    return message


@given(st.lists(st.integers(0, 2**62) | st.none()).map(tuple))
def test_a_shape_has_one_dim_for_each_dimension(shape):
    message = shape_to_proto(shape)
    assert tuple(None if dim.size == -1 else dim.size for dim in message.dim) == shape
    assert not message.unknown_rank


def test_a_scalar_has_no_dims_and_a_known_rank():
    message = shape_to_proto(())
    assert not message.dim
    assert not message.unknown_rank


def test_an_unknown_rank_is_flagged():
    assert shape_to_proto(None).unknown_rank


def test_a_negative_size_is_refused():
    with pytest.raises(ConversionError) as caught:
        shape_bytes((2, -1))
    assert str(caught.value) == (
        "the shape (2, -1) has the size -1\n"
        "  why: a tensor has no negative sizes\n"
        "  fix: give None where a size is not known"
    )


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cpu", "/device:CPU:0"),
        ("cuda", "/device:GPU:0"),
        ("cuda:1", "/device:GPU:1"),
        ("meta", "/device:META:0"),
        ("mps:0", "/device:MPS:0"),
        ("rank 3 cpu", "/device:ranks_3_CPU:0"),
        ("ranks 0-6 step 2,9 cuda:1", "/device:ranks_0-6_step_2,9_GPU:1"),
        ("", ""),
    ],
)
def test_devices_are_called_as_tensorflow_calls_them(device, text):
    assert device_to_text(device) == text


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("bfloat16", 2),
        ("bool", 1),
        ("complex128", 16),
        ("float8_e4m3fn", 1),
        ("float4_e2m1fn_x2", None),
        ("opaque", None),
    ],
)
def test_the_size_of_an_element_is_told_by_the_name_of_its_dtype(dtype, size):
    assert item_size_bytes(dtype) == size
