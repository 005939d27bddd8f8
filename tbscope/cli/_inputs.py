"""Makes up the tensors that `--input` describes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tbscope.cli._parameters import DTYPES, InputSpec

if TYPE_CHECKING:
    import torch

__all__ = ["make_inputs"]


def make_inputs(
    specs: Sequence[InputSpec], *, seed: int
) -> "tuple[tuple[torch.Tensor, ...] | None, dict[str, torch.Tensor]]":
    """Return random tensors, the same for the same seed.

    Floating and complex ones are drawn from a normal distribution, whole ones and booleans
    are 0 or 1: few enough to be an index into any embedding, a label or a mask.

    Args:
        specs: What to make, in order.
        seed: Of a generator of its own; torch's is left alone.
    Returns:
        The positional arguments (None where nothing at all is described) and those by name.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    positional, named = [], {}
    for spec in specs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if DTYPES[spec.dtype] == "normal":
            tensor = torch.randn(spec.shape, dtype=dtype, generator=generator)
        else:
            tensor = torch.randint(0, 2, spec.shape, generator=generator).to(dtype)
        if spec.name is None:
            positional.append(tensor)
        else:
            named[spec.name] = tensor
    return (tuple(positional) if specs else None), named
