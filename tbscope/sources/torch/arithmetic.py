"""Which kernels do arithmetic: the others only move, make, choose or compare numbers."""

import re

import torch

from tbscope.sources.torch.communication import is_wait
from tbscope.sources.torch.operations import KernelFacts

__all__ = ["computes"]

# Named without namespace and overload; views, and kernels that return no tensor, need no entry.
_COMPUTES_NOTHING = frozenset(
    {
        *("abs", "arange", "argmax", "argmin", "argsort", "bernoulli", "bucketize", "cat", "ceil"),
        *("clamp", "clamp_max", "clamp_min", "clone", "col2im", "complex", "constant_pad_nd"),
        *("copy", "copysign", "cummax", "cummin", "detach", "diag_embed", "embedding", "empty"),
        *("eq", "equal", "exponential", "eye", "fill", "flip", "floor", "full", "gather", "ge"),
        *("gt", "im2col", "index", "index_fill", "index_put", "index_select", "is_same_size"),
        *("isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "kthvalue", "le", "lift"),
        *("lift_fresh", "log_normal", "lt", "masked_fill", "masked_select", "max", "maximum"),
        *("median", "min", "minimum", "mode", "multinomial", "nan_to_num", "ne", "neg"),
        *("nested_to_padded_tensor", "nonzero", "nonzero_static", "normal", "one_hot", "ones"),
        *("pad_sequence", "pixel_shuffle", "pixel_unshuffle", "put", "quantize_per_tensor", "rand"),
        *("randint", "randn", "random", "randperm", "record_stream", "relu", "repeat"),
        *("repeat_interleave", "resize", "roll", "rot90", "round", "scalar_tensor", "scatter"),
        *("searchsorted", "set", "sign", "signbit", "sort", "stack", "take", "threshold"),
        *("to_padded_tensor", "topk", "tril", "tril_indices", "triu", "triu_indices", "trunc"),
        *("uniform", "unique_consecutive", "unique_dim", "unsafe_split", "unsafe_split_with_sizes"),
        *("vander", "where", "zero", "zeros", "_assert_async", "_assert_tensor_metadata"),
        *("_copy_from", "_efficientzerotensor", "_fused_sdp_choice", "_local_scalar_dense"),
        *("access_subclass_inner_tensor", "_nested_from_padded", "_nested_tensor_from_mask"),
        *("_nested_tensor_size", "_nested_tensor_strides", "_nested_view_from_buffer"),
        *("_nested_view_from_jagged", "_pack_padded_sequence", "_pad_packed_sequence"),
        *("_pin_memory", "_pixel_shuffle", "_resize_output", "_sparse_coo_tensor_unsafe"),
        *("_unique2", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_view"),
    }
)
# Whole families of the same kind.
_MOVES = re.compile(
    r".*_(copy|scatter|like)|(bitwise|logical|new|empty|_to)_.*|(reflection|replication)_pad\dd"
    r"|(adaptive_|fractional_)?max_(un)?pool\dd(_with_indices)?|_?upsample_nearest(_exact)?\dd"
)


def computes(facts: KernelFacts) -> bool:
    """Tell whether a kernel does arithmetic, so that it should have a FLOPs formula."""
    if facts.higher_order:
        # What runs inside is recorded by itself, but for a kernel written in Triton.
        return "triton" in facts.name
    if facts.exchange is not None or is_wait(facts.name):
        # What others hand in is no work of this operation, and nobody counts a reduction.
        return False
    if torch.Tag.inplace_view in facts.kernel.tags:
        return False
    label = facts.label.removesuffix("_") or facts.label
    moves = label in _COMPUTES_NOTHING or _MOVES.fullmatch(label) is not None
    return facts.makes_tensor and not moves
