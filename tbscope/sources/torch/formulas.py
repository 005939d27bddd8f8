"""FLOPs of kernels for which torch's own counter has no formula.

Each of these does the matrix products of a whole layer in one kernel, or one that torch
leaves out. They count as torch's do: two operations for each multiplication with its
addition, and nothing for what goes element by element. A formula gives the operations of
the forward pass, and for each operand what the backward pass adds for it.

Source: torch/utils/flop_counter.py; aten/src/ATen/native/native_functions.yaml
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeAlias

import torch

from tbscope.sources.torch.internals import nested_lengths, storage_key

__all__ = ["CLOSED_FORMS", "FORMULAS", "Formula", "KernelWork", "attention_work"]

KernelWork: TypeAlias = tuple[int, list[tuple[int, tuple[int | None, ...]]]]
"""Operations of the forward pass; for each part of the backward pass its operations and the
storages of the tensors of which one must need a gradient for it."""

Formula: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any], Any], KernelWork]
"""A function that computes a kernel's work from its arguments, keyword arguments and result."""


def _each(flops: int, operands: Iterable[torch.Tensor]) -> KernelWork:
    """Return the work of a product: the gradient of each operand is a product of the same size."""
    return flops, [(flops, (storage_key(operand),)) for operand in operands]


def _keys(*operands: torch.Tensor) -> tuple[int | None, ...]:
    return tuple([storage_key(operand) for operand in operands])


def attention_work(flops: int, operands: Iterable[torch.Tensor]) -> KernelWork:
    """Return the work of fused attention: its backward pass recomputes the scores.

    That makes five products of the size of the two in the forward pass.
    """
    return flops, [(flops * 5 // 2, _keys(*operands))]


def _attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    query, key, value = args[:3]
    *batch, rows, depth = query.shape
    flops = 2 * prod(batch) * rows * key.shape[-2] * (depth + value.shape[-1])
    return attention_work(flops, args[:3])


def _product(first: int, second: int) -> Formula:
    """Return the formula of `first @ second`; the operands are the arguments at these positions."""

    def work(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
        one, other = args[first], args[second]
        flops = 2 * one.numel() * (other.size(-1) if other.dim() > 1 else 1)
        return flops, [(flops, (storage_key(one),)), (flops, (storage_key(other),))]

    return work


def _convolution(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of a convolution; a transposed one spreads each element of its input."""
    given, weight = args[:2]
    transposed = len(args) > 6 and args[6]
    flops = 2 * (given if transposed else result).numel() * prod(weight.shape[1:])
    return _each(flops, args[:2])


def _transposed_product(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> KernelWork:
    """Return the work of `x @ weight.T`, as in `linear`."""
    return _each(2 * args[0].numel() * args[1].shape[0], args[:2])


def _grouped(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of a product in groups, which share the rows, columns or sums of one."""
    one, other = args[0].shape, args[1].shape
    groups = one[0] if len(one) == len(other) == 3 else 1
    return _each(2 * groups * one[-2] * one[-1] * other[-1], args[:2])


def _trilinear(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of `Bilinear`: a product with the weight, then one with the other input."""
    shapes = []
    for tensor, added in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for position in added:
            shape.insert(position, 1)
        shapes.append(shape)
    whole = [max(lengths) for lengths in zip(*shapes, strict=True)]
    flops = 2 * prod(whole) + 2 * prod(whole) // whole[args[6][0]]
    return _each(flops, args[:3])


def _layer_of_rnn(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of one layer in one direction (`mkldnn_rnn_layer`)."""
    given, weight_ih, weight_hh = args[:3]
    rows = prod(given.shape[:-1])
    of_input, of_state = 2 * rows * weight_ih.numel(), 2 * rows * weight_hh.numel()
    # The gradient of the state runs through all steps, whoever asks for one.
    parts = [(of_input, _keys(given)), (of_input, _keys(weight_ih))]
    parts += [(of_state, _keys(weight_hh)), (of_state, _keys(*args[:7]))]
    return of_input + of_state, parts


def _whole_rnn(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of all layers and directions (`_cudnn_rnn`)."""
    rows = prod(args[0].shape[:-1])
    flops = sum(2 * rows * weight.numel() for weight in args[1] if weight.dim() == 2)
    # Every gradient runs back through all steps; those of the weights are products on top.
    return flops, [(flops, _keys(args[0], *args[1])), (flops, _keys(*args[1]))]


def _self_attention(given: tuple[Any, Any, Any], packed: Any, out: Any) -> tuple[int, int, int]:
    """Return the FLOPs of the input projections, of the attention, and of the output projection."""
    third, width = packed.numel() // 3, given[0].size(-1)
    inwards = attention = outwards = 0
    for queries, keys, values in zip(*map(_lengths, given), strict=True):
        inwards += 2 * third * (queries + keys + values)
        attention += 4 * queries * keys * width
        outwards += 2 * queries * out.numel()
    return inwards, attention, outwards


def _lengths(tensor: torch.Tensor) -> list[int]:
    """Return the length of each sequence in a batch; the true lengths for a nested tensor."""
    lengths = nested_lengths(tensor)
    if lengths is not None:
        return lengths
    batch, length = (1, tensor.shape[0]) if tensor.dim() == 2 else tensor.shape[:2]
    return [length] * batch


# The fast paths below run only where no gradient is kept. What their backward pass would
# cost is told all the same, as the way that is taken then has it.


def _fast_attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of `_native_multi_head_attention`."""
    given, packed, out = args[:3], args[5], args[7]
    inwards, attention, outwards = _self_attention(given, packed, out)
    before = _keys(*given, packed, args[6])
    parts = [(inwards, before[:3]), (inwards, _keys(packed)), (attention * 5 // 2, before)]
    parts += [(outwards, before), (outwards, _keys(out))]
    return inwards + attention + outwards, parts


def _fast_layer(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> KernelWork:
    """Return the work of `_transformer_encoder_layer_fwd`."""
    source, packed, out, first, second = (args[place] for place in (0, 3, 5, 14, 16))
    inwards, attention, outwards = _self_attention((source,) * 3, packed, out)
    rows = sum(_lengths(source))
    wide, narrow = 2 * rows * first.numel(), 2 * rows * second.numel()
    # Each product reads what all weights before it have made, norms included: where these do
    # not go first, they come after the attention, and after all.
    norms_first = args[8]
    before = _keys(source, *(args[10:12] if norms_first else ()))
    parts = [(inwards, before), (inwards, _keys(packed))]
    before += _keys(packed, args[4])
    parts += [(attention * 5 // 2, before), (outwards, before), (outwards, _keys(out))]
    before += _keys(out, args[6], *(args[12:14] if norms_first else args[10:12]))
    parts += [(wide, before), (wide, _keys(first))]
    before += _keys(first, args[15])
    parts += [(narrow, before), (narrow, _keys(second))]
    return inwards + attention + outwards + wide + narrow, parts


def _attention_backward(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> KernelWork:
    flops, _ = _attention(args[1:4], {}, None)
    return flops * 5 // 2, []


CLOSED_FORMS: dict[str, Formula] = {
    "aten::mm": _product(0, 1),
    "aten::addmm": _product(1, 2),
    "aten::bmm": _product(0, 1),
    "aten::baddbmm": _product(1, 2),
    "aten::_scaled_mm": _product(0, 1),
    "aten::convolution": _convolution,
}
"""The same numbers as torch's formulas for these kernels, in a hundredth of their time."""

FORMULAS: dict[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_attention_math_for_mps": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "aten::_native_multi_head_attention": _fast_attention,
    "aten::_transformer_encoder_layer_fwd": _fast_layer,
    "aten::mkldnn_rnn_layer": _layer_of_rnn,
    "aten::_cudnn_rnn": _whole_rnn,
    "aten::miopen_rnn": _whole_rnn,
    "aten::_trilinear": _trilinear,
    "aten::mv": _product(0, 1),
    "aten::dot": _product(0, 1),
    "aten::vdot": _product(0, 1),
    "aten::addmv": _product(1, 2),
    "aten::addbmm": _product(1, 2),
    "aten::_int_mm": _product(0, 1),
    "aten::_addmm_activation": _product(1, 2),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_weight_int8pack_mm": _transposed_product,
    "aten::linear": _transposed_product,
    "aten::mkldnn_linear": _transposed_product,
}
"""By the name of the kernel; one that torch has, or that a user registers there, goes first."""
