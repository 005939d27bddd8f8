"""Which kernels do arithmetic: the others only move, make, choose or compare numbers."""

import torch

from tbscope.sources.torch.communication import is_wait
from tbscope.sources.torch.operations import KernelFacts

__all__ = ["computes"]

# Named without namespace and overload; views, and kernels that return no tensor, need no entry.
_COMPUTES_NOTHING = frozenset(
    {
        *("abs", "adaptive_max_pool2d", "adaptive_max_pool3d", "alias_copy", "arange"),
        *("argmax", "argmin", "argsort", "as_strided_scatter", "bernoulli", "bitwise_and"),
        *("bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift"),
        *("bitwise_xor", "bucketize", "cat", "ceil", "clamp", "clamp_max", "clamp_min"),
        *("clone", "col2im", "complex", "constant_pad_nd", "copy", "copysign", "cummax"),
        *("cummin", "detach", "diag_embed", "diagonal_copy", "diagonal_scatter", "embedding"),
        *("empty", "empty_like", "empty_permuted", "empty_strided", "eq", "equal"),
        *("expand_copy", "exponential", "eye", "fill", "flip", "floor"),
        *("fractional_max_pool2d", "full", "full_like", "gather", "ge", "gt", "im2col"),
        *("index", "index_copy", "index_fill", "index_put", "index_select", "is_same_size"),
        *("isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "kthvalue", "le"),
        *("lift", "lift_fresh", "lift_fresh_copy", "log_normal", "logical_and", "logical_not"),
        *("logical_or", "logical_xor", "lt", "masked_fill", "masked_scatter", "masked_select"),
        *("max", "max_pool1d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("max_unpool2d", "max_unpool3d", "maximum", "median", "min", "minimum", "mode"),
        *("multinomial", "nan_to_num", "narrow_copy", "ne", "neg", "nested_to_padded_tensor"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero"),
        *("nonzero_static", "normal", "one_hot", "ones", "ones_like", "pad_sequence"),
        *("permute_copy", "pixel_shuffle", "pixel_unshuffle", "put", "quantize_per_tensor"),
        *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random"),
        *("randperm", "record_stream", "reflection_pad1d", "reflection_pad2d"),
        *("reflection_pad3d", "relu", "repeat", "repeat_interleave", "replication_pad1d"),
        *("replication_pad2d", "replication_pad3d", "resize", "roll", "rot90", "round"),
        *("scalar_tensor", "scatter", "searchsorted", "select_copy", "select_scatter", "set"),
        *("sign", "signbit", "slice_copy", "slice_scatter", "sort", "split_copy"),
        *("split_with_sizes_copy", "squeeze_copy", "stack", "t_copy", "take", "threshold"),
        *("to_padded_tensor", "topk", "transpose_copy", "tril", "tril_indices", "triu"),
        *("triu_indices", "trunc", "unbind_copy", "unfold_copy", "uniform"),
        *("unique_consecutive", "unique_dim", "unsafe_split", "unsafe_split_with_sizes"),
        *("unsqueeze_copy", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
        *("vander", "view_as_complex_copy", "view_as_real_copy", "view_copy", "where", "zero"),
        *("zeros", "zeros_like", "_assert_async", "_assert_tensor_metadata", "_copy_from"),
        *("_efficientzerotensor", "_fused_sdp_choice", "_local_scalar_dense"),
        "access_subclass_inner_tensor",
        *("_nested_from_padded", "_nested_tensor_from_mask", "_nested_tensor_size"),
        *("_nested_tensor_strides", "_nested_view_from_buffer", "_nested_view_from_jagged"),
        *("_pack_padded_sequence", "_pad_packed_sequence", "_pin_memory", "_pixel_shuffle"),
        *("_resize_output", "_sparse_coo_tensor_unsafe", "_to_copy", "_to_cpu", "_to_dense"),
        *("_to_sparse", "_unique2", "_unsafe_index", "_unsafe_index_put"),
        *("_unsafe_masked_index", "_unsafe_view", "_upsample_nearest_exact1d"),
        *("_upsample_nearest_exact2d"),
    }
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
    return facts.makes_tensor and label not in _COMPUTES_NOTHING
