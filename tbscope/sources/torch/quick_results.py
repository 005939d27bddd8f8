"""What frequent kernels give on stand-ins, where torch takes long to tell it.

A tensor on "meta" has no content, and torch learns what a kernel gives of such ones by Python of
its own: a layer norm takes a millisecond. What is told here is told the same, for the plain case
alone: floats of one type, each tensor laid out row by row. Anything else is left to torch.

Source: torch/_refs/__init__.py, torch/_meta_registrations.py, torch/_decomp/decompositions.py
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tbscope.sources.torch.internals import operator_name

__all__ = ["quick_result"]

_FLOATS = frozenset({torch.float32, torch.float64})


def quick_result(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a kernel gives for tensors on "meta"; None for what torch has to be asked.

    Args:
        kernel: The kernel.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    rule = _rule_of(kernel)
    return None if rule is None or kwargs else rule(*args)


@functools.lru_cache(maxsize=4096)
def _rule_of(kernel: Any) -> Callable[..., Any] | None:
    return _RULES.get(operator_name(kernel) or "")


def _plain(*tensors: Any) -> bool:
    """Tell whether all are floats of one type on "meta", and laid out row by row."""
    first = tensors[0]
    dtype = first.dtype if type(first) is torch.Tensor else None
    if dtype not in _FLOATS:
        return False
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or tensor.dtype is not dtype or not tensor.is_meta:
            return False
        if not _by_rows(tensor):
            return False
    return True


def _by_rows(tensor: torch.Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step or size == 0:
            return False
        step *= size
    return True


def _empty(shape: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")


def _same(x: Any, *rest: Any) -> Any:
    """Give the result of what goes element by element, and takes no other tensor."""
    return _empty(x.shape, x) if _plain(x) else None


def _both(x: Any, y: Any, *rest: Any) -> Any:
    """Give the result of what goes element by element over two tensors, or one and a number."""
    if rest:
        return None
    if type(y) in (int, float):
        return _same(x)
    shape = _joined(x.shape, y.shape) if _plain(x, y) else None
    return None if shape is None else _empty(shape, x)


def _joined(one: Any, other: Any) -> Any:
    """Return the shape of two, where each size is that of both, or 1 in one; None where not."""
    if one == other:
        return one
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    sizes = [*longer]
    for place, size in zip(range(-len(shorter), 0), shorter, strict=True):
        if sizes[place] == 1:
            sizes[place] = size
        elif size not in (1, sizes[place]):
            return None
    return sizes


def _filled(x: Any, mask: Any, *rest: Any) -> Any:
    """Give the result of a fill where a mask tells so, which is no larger than what it fills."""
    if type(mask) is not torch.Tensor or mask.dtype is not torch.bool or not mask.is_meta:
        return None
    fits = _plain(x) and _joined(x.shape, mask.shape) in (x.shape, [*x.shape])
    return _empty(x.shape, x) if fits else None


def _softmax(x: Any, over: Any, widens: Any) -> Any:
    return None if widens else _same(x)


def _product(bias: Any, rows: Any, columns: Any, *rest: Any) -> Any:
    """Give the result of a matrix product with a bias for each column."""
    # The second one is mostly a transposed weight.
    if rest or not _plain(bias, rows) or type(columns) is not torch.Tensor:
        return None
    if columns.dtype is not rows.dtype or not columns.is_meta:
        return None
    if bias.dim() != 1 or rows.dim() != 2 or columns.dim() != 2:
        return None
    if rows.shape[1] != columns.shape[0] or columns.shape[1] != bias.shape[0]:
        return None
    return _empty((rows.shape[0], columns.shape[1]), rows)


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, *rest: Any) -> Any:
    own = [each for each in (weight, bias) if each is not None]
    sizes = list(shape)
    if not sizes or not _plain(x, *own) or list(x.shape[-len(sizes) :]) != sizes:
        return None
    if any(list(each.shape) != sizes for each in own):
        return None
    kept = [*x.shape[: -len(sizes)], *[1] * len(sizes)]
    return _empty(x.shape, x), _empty(kept, x), _empty(kept, x)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: Any, *rest: Any
) -> Any:
    own = [each for each in (weight, bias, mean, variance) if each is not None]
    if not _plain(x, *own) or x.dim() < 2 or (not training and (mean is None or variance is None)):
        return None
    if any(tuple(each.shape) != (x.shape[1],) for each in own):
        return None
    saved = (x.shape[1],)
    return _empty(x.shape, x), _empty(saved, x), _empty(saved, x)


_RULES: dict[str, Callable[..., Any]] = {
    **{
        f"aten::{name}": _same
        for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "cos", "sin", "neg", "rsqrt")
    },
    **{f"aten::{name}.Tensor": _both for name in ("add", "sub", "mul", "div")},
    "aten::roll": _same,
    "aten::masked_fill.Scalar": _filled,
    "aten::_softmax": _softmax,
    "aten::addmm": _product,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_batch_norm": _batch_norm,
}
