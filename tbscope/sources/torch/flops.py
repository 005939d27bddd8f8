"""FLOPs of kernels, by a formula of the user, by ours, or by torch's, in this order.

Users register formulas with `torch.utils.flop_counter.register_flop_formula`. A kernel that
computes and has no formula is reported by name (`Formulas.uncounted`), never silently counted
as 0.

Our formulas are for kernels that do the matrix products of a whole layer, for kernels that torch
leaves out, and for products that torch counts slowly. They count like torch's: two operations for
each multiplication with its addition, and none for elementwise work. A formula returns the
operations of the forward pass, and the operations that the backward pass adds for each operand.

Source: torch/utils/flop_counter.py; aten/src/ATen/native/native_functions.yaml
"""

import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, TypeAlias

import torch
from torch.utils import flop_counter

from tbscope.ir.graph import Gradient, Node
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import (
    keys_of_storages,
    nested_lengths,
    plain_size,
    storage_key,
    without_functions,
)
from tbscope.sources.torch.distributed import is_wait
from tbscope.sources.torch.operations import KernelInfo

NO_FORMULA = "torch has no formula for it, and none was registered"

KernelWork: TypeAlias = tuple[int, list[tuple[int, tuple[int | None, ...]]]]
"""Operations of the forward pass; for each part of the backward pass its operations, and the
storages of tensors: the part runs if one of these tensors needs a gradient."""

_Args: TypeAlias = tuple[Any, ...]
_Kwargs: TypeAlias = Mapping[str, Any]
Formula: TypeAlias = Callable[[_Args, _Kwargs, Any], KernelWork]
"""A function that computes a kernel's work from its arguments, keyword arguments and result."""


def _product_work(flops: int, left: torch.Tensor, right: torch.Tensor) -> KernelWork:
    """Return the work of a product: the gradient of each operand is a product of the same size."""
    return flops, [(flops, (storage_key(left),)), (flops, (storage_key(right),))]


def _keys(*operands: torch.Tensor) -> tuple[int | None, ...]:
    return tuple(keys_of_storages(operands))


def _attention_work(flops: int, operands: Iterable[torch.Tensor]) -> KernelWork:
    """Return the work of fused attention, whose backward pass recomputes the scores.

    The backward pass does five products, each as large as one of the two in the forward pass.
    """
    return flops, [(flops * 5 // 2, _keys(*operands))]


def _attention(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    query, key, value = args[:3]
    *batch, rows, depth = query.shape
    flops = 2 * prod(batch) * rows * key.shape[-2] * (depth + value.shape[-1])
    return _attention_work(flops, args[:3])


def _product(first: int, second: int) -> Formula:
    """Return the formula of a product of the arguments at positions `first` and `second`."""

    def work(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
        left, right = args[first], args[second]
        flops = 2 * left.numel() * (right.size(-1) if right.dim() > 1 else 1)
        return _product_work(flops, left, right)

    return work


def _convolution(args: _Args, kwargs: _Kwargs, result: Any) -> KernelWork:
    """Return the work of a convolution.

    Each element of the output is a dot product with a filter; in a transposed convolution, each
    element of the input is multiplied by a filter.
    """
    inputs, weight = args[:2]
    transposed = len(args) > 6 and args[6]
    flops = 2 * (inputs if transposed else result).numel() * prod(weight.shape[1:])
    return _product_work(flops, *args[:2])


def _transposed_product(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    """Return the work of `x @ weight.T`, as in `linear`."""
    return _product_work(2 * args[0].numel() * args[1].shape[0], *args[:2])


def _grouped(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    """Return the work of a grouped product.

    The groups split the rows, the columns or the contracted dimension, so together they do the
    work of one product. Only operands that both have three dimensions do a product per group.
    """
    left, right = args[0].shape, args[1].shape
    groups = left[0] if len(left) == len(right) == 3 else 1
    return _product_work(2 * groups * left[-2] * left[-1] * right[-1], *args[:2])


def _layer_of_rnn(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    """Return the work of one layer in one direction (`mkldnn_rnn_layer`)."""
    inputs, weight_ih, weight_hh = args[:3]
    rows = prod(inputs.shape[:-1])
    of_input, of_state = 2 * rows * weight_ih.numel(), 2 * rows * weight_hh.numel()
    # Every gradient needs the gradient of the state, which runs back through all steps. The first
    # seven arguments are the input, weights, biases and the initial states.
    parts = [(of_input, _keys(inputs)), (of_input, _keys(weight_ih))]
    parts += [(of_state, _keys(weight_hh)), (of_state, _keys(*args[:7]))]
    return of_input + of_state, parts


def _whole_rnn(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    """Return the work of all layers and directions (`_cudnn_rnn`)."""
    rows = prod(args[0].shape[:-1])
    flops = sum(2 * rows * weight.numel() for weight in args[1] if weight.dim() == 2)
    # Every gradient runs back through all steps; gradients of weights take further products.
    return flops, [(flops, _keys(args[0], *args[1])), (flops, _keys(*args[1]))]


def _self_attention(
    shapes: tuple[Any, object, object], packed: Any, out: Any
) -> tuple[int, int, int]:
    """Return the FLOPs of the input projections, of the attention, and of the output projection."""
    third, width = packed.numel() // 3, shapes[0].size(-1)
    inwards = attention = outwards = 0
    for queries, keys, values in zip(*map(_lengths, shapes), strict=True):
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


# The fast paths below run only if autograd records nothing. The cost of a backward pass is
# counted nevertheless: two products for each product, whichever parameters of the layer learn.


def _fast_attention(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    """Return the work of `_native_multi_head_attention`."""
    inputs, packed, out = args[:3], args[5], args[7]
    inwards, attention, outwards = _self_attention(inputs, packed, out)
    learning = inwards + attention * 5 // 2 + 2 * outwards
    parts = [(inwards, _keys(*inputs)), (learning, _keys(*inputs, packed, args[6], out))]
    return inwards + attention + outwards, parts


def _fast_layer(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    """Return the work of `_transformer_encoder_layer_fwd`."""
    # The input, the weights of both projections of the attention, and those of both linear layers.
    source, packed, out, first, second = (args[position] for position in (0, 3, 5, 14, 16))
    inwards, attention, outwards = _self_attention((source,) * 3, packed, out)
    products = outwards + 2 * sum(_lengths(source)) * (first.numel() + second.numel())
    # If the norms go first, the first product reads the output of a norm.
    first_operands = _keys(source, *(args[10:12] if args[8] else ()))
    everything = _keys(source, *args[3:7], *args[10:18])
    parts = [(inwards, first_operands), (inwards + attention * 5 // 2 + 2 * products, everything)]
    return inwards + attention + products, parts


def _attention_backward(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
    # The first argument is the gradient of the output, then come query, key and value.
    flops, _ = _attention(args[1:4], {}, None)
    return flops * 5 // 2, []


FORMULAS: dict[str, Formula] = {
    f"aten::{name}": formula
    for formula, names in (
        # torch's own formulas for some of these count the same, and take a hundred times as long.
        (_product(0, 1), ("mm", "bmm", "_scaled_mm", "mv", "dot", "vdot", "_int_mm")),
        (_product(1, 2), ("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation")),
        (_convolution, ("convolution",)),
        (_transposed_product, ("linear", "mkldnn_linear", "_weight_int8pack_mm")),
        (_grouped, ("_grouped_mm", "_scaled_grouped_mm")),
        (
            _attention,
            (
                "_scaled_dot_product_flash_attention",
                "_scaled_dot_product_flash_attention_for_cpu",
                "_scaled_dot_product_efficient_attention",
                "_scaled_dot_product_cudnn_attention",
                "_scaled_dot_product_fused_attention_overrideable",
                "_scaled_dot_product_attention_math_for_mps",
            ),
        ),
        (
            _attention_backward,
            (
                "_scaled_dot_product_flash_attention_backward",
                "_scaled_dot_product_flash_attention_for_cpu_backward",
                "_scaled_dot_product_efficient_attention_backward",
                "_scaled_dot_product_cudnn_attention_backward",
                "_scaled_dot_product_fused_attention_overrideable_backward",
            ),
        ),
        (_fast_attention, ("_native_multi_head_attention",)),
        (_fast_layer, ("_transformer_encoder_layer_fwd",)),
        (_layer_of_rnn, ("mkldnn_rnn_layer",)),
        (_whole_rnn, ("_cudnn_rnn", "miopen_rnn")),
    )
    for name in names
}
"""Our formulas by the name of the kernel; a formula that a user registers with torch precedes."""


class Formulas(dict[KernelInfo, Formula | None]):
    """Formulas of the kernels of a run, looked up at first use; None for a kernel without one.

    Args:
        uncounted: Receives each kernel that computes and has no formula, with the reason.
    """

    def __init__(self, uncounted: dict[str, str]) -> None:
        super().__init__()
        self.uncounted = uncounted
        # Whether the results of a kernel, by name, have memory of their own; None if that depends
        # on the call.
        self._allocates: dict[str, bool | None] = {}

    def __missing__(self, facts: KernelInfo) -> Formula | None:
        formula = _formula_of(facts)
        if formula is None and _computes(facts):
            self.uncounted[facts.name] = NO_FORMULA
        depends = facts.writes or facts.higher_order
        allocates = None if depends else facts.makes_tensor
        # Overloads share a name: if they differ, the name alone does not decide.
        if self._allocates.setdefault(facts.name, allocates) is not allocates:
            self._allocates[facts.name] = None
        self[facts] = formula
        return formula

    def fail(self, facts: KernelInfo, error: Exception) -> None:
        """Record that a formula raised: formulas may be the user's code."""
        reason = f"its formula raised {type(error).__name__}: {error}"
        self.uncounted.setdefault(facts.name, reason.replace("\n", " "))

    def describe(
        self,
        node: Node,
        work: list[KernelWork],
        read: list[torch.Tensor],
        results: list[torch.Tensor],
    ) -> None:
        """Set the FLOPs, gradients and allocated bytes of a node.

        Args:
            node: The node; its kernels have been recorded.
            work: The work of the kernels that have a formula.
            read: The tensors among the operation's arguments.
            results: The tensors that it returned.
        """
        # Most operations run one kernel, whose name alone decides whether the results have memory
        # of their own.
        kernels = node.kernels
        alone = not work and len(kernels) == 1
        allocates = self._allocates.get(kernels[0]) if alone else None
        keys = keys_of_storages(read) if allocates is None else []
        if work:
            node.flops = 0
            positions: dict[int | None, tuple[int, ...]] = {}
            for position, key in enumerate(keys):
                positions[key] = (*positions.get(key, ()), position)
            # A tensor made by an earlier kernel of the operation may depend on any input.
            every = tuple(range(len(read)))
            gradients = []
            for flops, parts in work:
                node.flops += flops if type(flops) is int else _hint(flops)
                for cost, operands in parts:
                    if len(operands) == 1:
                        needed = positions.get(operands[0], every)
                    else:
                        needed = _held_in(operands, positions) or every
                    gradients.append(Gradient(cost if type(cost) is int else _hint(cost), needed))
            node.gradients = tuple(gradients)
        elif self.uncounted.keys().isdisjoint(kernels) or not _any_floats(results):
            node.flops = 0
        if allocates is False:
            return
        seen = {None, *keys}
        for tensor in results:
            key = storage_key(tensor)
            if key not in seen:
                seen.add(key)
                size_bytes = tensor.untyped_storage().nbytes()
                node.allocated_bytes += size_bytes if type(size_bytes) is int else _hint(size_bytes)


def _any_floats(tensors: list[torch.Tensor]) -> bool:
    """Whether a tensor has floats, complex numbers, or quantized floats."""
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype.is_floating_point or dtype.is_complex or tensor.is_quantized:
            return True
    return False


def _hint(count: object) -> int:
    """Return symbolic FLOPs or bytes by their current hint, 0 if they have none."""
    return plain_size(count) or 0


def _held_in(
    keys: tuple[int | None, ...], sizes: dict[int | None, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the positions of inputs in some storages, or none if one storage has no input."""
    if not sizes.keys() >= set(keys):
        return ()
    return tuple([position for key in keys for position in sizes[key]])


class Copies(dict[int | None, int | None]):
    """Storages of copies made inside one operation, each with the storage of its original.

    A product may read a copy of an argument of the operation, in another memory layout.
    """

    def add(self, original: object, copy: torch.Tensor) -> None:
        """Record a copy, unless the original is a number (torch may pass on one element so)."""
        if not isinstance(original, torch.Tensor):
            return
        key = storage_key(original)
        self[storage_key(copy)] = self.get(key, key)

    def forget(self, result: object) -> None:
        """Remove the copies at the storages of new results: torch reuses storages."""
        for tensor in collect_tensors(result, []):
            self.pop(storage_key(tensor), None)

    def trace(self, work: KernelWork) -> KernelWork:
        """Return the work with the storages of the originals in place of their copies."""
        flops, parts = work
        return flops, [(cost, tuple([self.get(key, key) for key in keys])) for cost, keys in parts]


def _formula_of(facts: KernelInfo) -> Formula | None:
    # torch's formulas take the arguments of the kernel, and its result as `out_val`.
    packet = getattr(facts.kernel, "overloadpacket", facts.kernel)
    formula, ours = flop_counter.flop_registry.get(packet), FORMULAS.get(facts.name)
    if ours is not None and getattr(formula, "__module__", None) in (None, flop_counter.__name__):
        return ours
    if formula is None:
        return None
    name = facts.name

    def work(args: _Args, kwargs: _Kwargs, result: object) -> KernelWork:
        # The formula may read tensors of lengths. This is no part of the model, so it is not
        # recorded.
        with without_functions():
            flops = int(formula(*args, **kwargs, out_val=result))
        # The formula does not cover the backward pass of the kernel. Attention recomputes its
        # scores; any other kernel is assumed to do products, with two gradients of the same size.
        if "backward" in name:
            return flops, []
        operands = collect_tensors(args, [])
        if "attention" in name:
            return _attention_work(flops, operands[:3])
        return flops, [(2 * flops, _keys(*operands))]

    return work


# Named without namespace and overload; views, and kernels that return no tensor, need no entry.
_COMPUTES_NOTHING = frozenset(
    {
        *("abs", "arange", "argmax", "argmin", "argsort", "bernoulli", "bucketize", "cat", "ceil"),
        *("clamp", "clamp_max", "clamp_min", "clone", "col2im", "complex", "constant_pad_nd"),
        *("copy", "copysign", "cummax", "cummin", "detach", "diag_embed", "embedding", "empty"),
        *("eq", "exponential", "eye", "fill", "flip", "floor", "full", "gather", "ge", "gt"),
        *("im2col", "index", "index_fill", "index_put", "index_select", "isfinite", "isin"),
        *("isinf", "isnan", "isneginf", "isposinf", "kthvalue", "le", "lift", "log_normal", "lt"),
        *("masked_fill", "masked_select", "max", "maximum", "median", "min", "minimum", "mode"),
        *("multinomial", "nan_to_num", "ne", "neg", "nested_to_padded_tensor", "nonzero"),
        *("nonzero_static", "normal", "one_hot", "ones", "pad_sequence", "pixel_shuffle"),
        *("pixel_unshuffle", "put", "quantize_per_tensor", "rand", "randint", "randn", "random"),
        *("randperm", "record_stream", "relu", "repeat", "repeat_interleave", "resize", "roll"),
        *("rot90", "round", "scalar_tensor", "scatter", "searchsorted", "set", "sign", "signbit"),
        *("sort", "stack", "take", "threshold", "to_padded_tensor", "topk", "tril", "tril_indices"),
        *("triu", "triu_indices", "trunc", "uniform", "unique_consecutive", "unique_dim"),
        *("unsafe_split", "unsafe_split_with_sizes", "vander", "where", "zero", "zeros"),
        *("_copy_from", "_efficientzerotensor", "access_subclass_inner_tensor"),
        *("_nested_from_padded", "_nested_tensor_from_mask", "_nested_tensor_size"),
        *("_nested_tensor_strides", "_pack_padded_sequence", "_pad_packed_sequence", "_pin_memory"),
        *("_pixel_shuffle", "_resize_output", "_sparse_coo_tensor_unsafe", "_unique2"),
        *("_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index"),
    }
)
# Whole families of kernels that compute nothing.
_MOVES = re.compile(
    r".*_(copy|scatter|like)|(bitwise|logical|new|empty|_to)_.*|(reflection|replication)_pad\dd"
    r"|(adaptive_|fractional_)?max_(un)?pool\dd(_with_indices)?|_?upsample_nearest(_exact)?\dd"
)


def _computes(facts: KernelInfo) -> bool:
    """Whether a kernel does arithmetic, and so should have a FLOPs formula."""
    if facts.higher_order:
        # Operations inside are recorded one by one, except those of a Triton kernel.
        return "triton" in facts.name
    if facts.exchange is not None or is_wait(facts.name):
        # The work of other ranks does not count here, and no formula counts a reduction.
        return False
    if torch.Tag.inplace_view in facts.kernel.tags:
        return False
    label = facts.label.removesuffix("_") or facts.label
    moves = label in _COMPUTES_NOTHING or _MOVES.fullmatch(label) is not None
    return facts.makes_tensor and not moves
