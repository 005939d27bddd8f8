"""Makes up the tensors that `--input` describes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tbscope.cli._parameters import InputSpec

if TYPE_CHECKING:
    import torch

__all__ = ["make_inputs"]


def make_inputs(
    specs: Sequence[InputSpec], *, seed: int, fake: bool = False
) -> "tuple[tuple[torch.Tensor, ...] | None, dict[str, torch.Tensor]]":
    """Return random tensors, the same for the same seed.

    Args:
        specs: What to make, in order.
        seed: Of a generator of its own; torch's is left alone.
        fake: Whether they are stand-ins, which take no memory.
    Returns:
        The positional arguments (None where nothing at all is described) and those by name.
    Raises:
        InputError: There is no memory for one.
    """
    import torch

    from tbscope.sources.torch.sizes import make_tensor, seeded

    generator = seeded(seed)
    positional, named = [], {}
    for spec in specs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        tensor = make_tensor(spec.shape, dtype, generator, fake=fake)
        if spec.name is None:
            positional.append(tensor)
        else:
            named[spec.name] = tensor
    return (tuple(positional) if specs else None), named
