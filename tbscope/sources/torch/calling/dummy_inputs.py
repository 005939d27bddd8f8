"""Sizes: inputs made up from their sizes, for whoever has none at hand.

tbscope.trace(model, input_size=(1, 3, 224, 224))
tbscope.trace(model, input_size={"ids": (2, 128)}, dtypes="int64")
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.messages import error_text, shown

__all__ = ["made_inputs", "make_tensor", "seeded", "size_advice"]

_NORMAL = ("float", "bfloat", "complex")
_MOST_DIMENSIONS = 64
_FORMS = (
    "a size is a tuple of whole numbers; several are a list of them, or a mapping from names of "
    "forward's parameters"
)
_EXAMPLE = "input_size=(1, 3, 224, 224), or {'ids': (2, 128)} with dtypes='int64'"


def made_inputs(
    input_size: Any, dtypes: Any = None, *, device: torch.device | None = None, fake: bool = False
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Return random inputs of some sizes, the same each time.

    Args:
        input_size: A size, a list of sizes, or a mapping from names to sizes.
        dtypes: An element type, one for each size in their order, or a mapping from the same
            names; as torch has it or by its name. None for float32.
        device: Where they are; None for the CPU.
        fake: Whether they are stand-ins on the device meta, which take no memory.
    Returns:
        The positional arguments, and those by name.
    Raises:
        InputError: These are no sizes or types, or there is no memory for them.
    """
    sizes = _sizes(input_size)
    types = _types(dtypes, sizes)
    generator = seeded(0)
    made: dict[int | str, torch.Tensor] = {}
    for place, size in sizes.items():
        made[place] = make_tensor(size, types[place], generator, device=device, fake=fake)
    named = {place: tensor for place, tensor in made.items() if isinstance(place, str)}
    return tuple(tensor for place, tensor in made.items() if place not in named), named


def seeded(seed: int) -> torch.Generator:
    """Return a random generator of its own; torch's is left alone."""
    return torch.Generator().manual_seed(seed)


def make_tensor(
    size: Sequence[int],
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    device: torch.device | None = None,
    fake: bool = False,
) -> torch.Tensor:
    """Return a random tensor.

    Floating and complex ones are drawn from a normal distribution, whole ones and booleans
    are 0 or 1: few enough to be an index into any embedding, a label or a mask.

    Raises:
        InputError: There is no memory for it, or no such tensor.
    """
    device = device or torch.device("cpu")
    try:
        if fake:
            tensor = torch.empty(size, dtype=dtype, device="meta")
            tensor.stands_on = device  # type: ignore[attr-defined]
        elif str(dtype).removeprefix("torch.").startswith(_NORMAL):
            tensor = torch.randn(size, dtype=dtype, generator=generator).to(device)
        else:
            tensor = torch.randint(0, 2, size, generator=generator).to(dtype).to(device)
    except (RuntimeError, TypeError, MemoryError) as error:
        raise InputError(
            f"no input of the size {shown(tuple(size))} and the type {dtype} can be made",
            why=error_text(error),
            fix="give smaller sizes"
            if fake
            else "give smaller sizes, or fake=True, which takes no memory",
        ) from error
    return tensor


def size_advice(given: Any) -> str:
    """Say what to write instead of a size that was given as an input; empty where none was."""
    if _is_filled_size(given):
        return f"a size is no input: give {_rand(given)}, or input_size={shown(tuple(given))}"
    if isinstance(given, tuple | list) and given and all(map(_is_filled_size, given)):
        made = ", ".join(map(_rand, given))
        sizes = list(map(tuple, given))
        return f"sizes are no inputs: give ({made},), or input_size={shown(sizes)}"
    return ""


def _rand(size: Any) -> str:
    return f"torch.rand({', '.join(map(str, size))})"


def _is_size(given: object) -> bool:
    return (
        isinstance(given, tuple | list)
        and len(given) <= _MOST_DIMENSIONS
        and all(type(length) is int and 0 <= length < 2**63 for length in given)
    )


def _is_filled_size(given: Any) -> bool:
    return _is_size(given) and len(given) > 0


def _sizes(input_size: Any) -> dict[int | str, Sequence[int]]:
    """Return each size by its place or its name."""
    found: dict[int | str, Sequence[int]] = {}
    named = type(input_size) is dict
    if named:
        found = input_size
    elif _is_filled_size(input_size):
        found = {0: input_size}
    elif isinstance(input_size, tuple | list):
        found = dict(enumerate(input_size))
    if not found or not all(
        _is_size(size) and isinstance(place, str) is named for place, size in found.items()
    ):
        raise InputError(f"input_size={shown(input_size)} is no size", why=_FORMS, fix=_EXAMPLE)
    return found


def _types(dtypes: Any, sizes: Mapping[int | str, Any]) -> dict[int | str, torch.dtype]:
    """Return the element type of each input."""
    why = ""
    if type(dtypes) is dict:
        told: dict[Any, Any] = dtypes
        if not dtypes.keys() <= sizes.keys():
            why = f"its keys are names in input_size: {', '.join(map(str, sizes))}"
    elif isinstance(dtypes, tuple | list):
        told = dict(zip(sizes, dtypes, strict=False))
        if len(dtypes) != len(sizes):
            why = f"there are {len(sizes)} sizes, and {len(dtypes)} types"
    else:
        told = dict.fromkeys(sizes, dtypes)
    found: dict[int | str, torch.dtype] = {}
    for place in sizes:
        given = told.get(place)
        if type(given) is str:
            given = getattr(torch, given.removeprefix("torch."), "")
        found[place] = torch.float32 if given is None else given
        if not isinstance(found[place], torch.dtype):
            why = why or "an element type is torch.int64, or its name 'int64'"
    if why:
        raise InputError(
            f"dtypes={shown(dtypes)} are no types of the inputs",
            why=why,
            fix="dtypes='int64' for all inputs, or dtypes=['float32', 'int64'] in their order",
        )
    return found
