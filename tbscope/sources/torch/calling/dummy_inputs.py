"""Dummy inputs: random tensors of requested sizes and element types.

tbscope.trace(model, input_size=(1, 3, 224, 224))
tbscope.trace(model, input_size={"ids": (2, 128)}, dtypes="int64")
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.messages import error_text, shown

_MOST_DIMENSIONS = 64
_FORMS = (
    "a size is a tuple of whole numbers; several are a list of them, or a mapping from names of "
    "forward's parameters"
)
_EXAMPLE = "input_size=(1, 3, 224, 224), or {'ids': (2, 128)} with dtypes='int64'"


def made_inputs(
    input_size: object,
    dtypes: object = None,
    *,
    device: torch.device | None = None,
    fake: bool = False,
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Return random inputs of some sizes, with equal contents each time.

    Args:
        input_size: A size, a list of sizes, or a dict from parameter names to sizes.
        dtypes: One element type for all inputs, a list with one per size, or a dict from these
            names; each a `torch.dtype` or its name. None for float32.
        device: The device; None for the CPU.
        fake: Whether the inputs are meta tensors, which take no memory.
    Returns:
        The positional arguments, and the keyword arguments.
    Raises:
        InputError: The sizes or types are invalid, or there is no memory for the inputs.
    """
    sizes = _sizes(input_size)
    types = _types(dtypes, sizes)
    generator = seeded(0)
    inputs = {
        key: make_tensor(size, types[key], generator, device=device, fake=fake)
        for key, size in sizes.items()
    }
    keywords = {key: tensor for key, tensor in inputs.items() if isinstance(key, str)}
    return tuple(tensor for key, tensor in inputs.items() if key not in keywords), keywords


def seeded(seed: int) -> torch.Generator:
    """Return a new random generator with a seed; torch's default generator does not change."""
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

    Floating and complex numbers are drawn from a normal distribution. Integers and booleans are 0
    or 1, which are valid as an index into any embedding, as a label or as a mask.

    Args:
        size: The size of each dimension.
        dtype: The element type.
        generator: The source of the random numbers, on the CPU.
        device: The device; None for the CPU.
        fake: Whether to return an empty meta tensor, with the device in `stands_on`.
    Raises:
        InputError: There is no memory for the tensor, or torch has no tensor of this type.
    """
    device = device or torch.device("cpu")
    try:
        if fake:
            tensor = torch.empty(size, dtype=dtype, device="meta")
            tensor.stands_on = device  # type: ignore[attr-defined]
        elif dtype.is_floating_point or dtype.is_complex:
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


def size_advice(inputs: Any) -> str:
    """Return advice if a caller passed a size, or sizes, as input; empty for other inputs."""
    if _is_filled_size(inputs):
        return f"a size is no input: give {_rand(inputs)}, or input_size={shown(tuple(inputs))}"
    if isinstance(inputs, tuple | list) and inputs and all(map(_is_filled_size, inputs)):
        calls = ", ".join(map(_rand, inputs))
        sizes = list(map(tuple, inputs))
        return f"sizes are no inputs: give ({calls},), or input_size={shown(sizes)}"
    return ""


def _rand(size: Any) -> str:
    return f"torch.rand({', '.join(map(str, size))})"


def _is_size(size: object) -> bool:
    return (
        isinstance(size, tuple | list)
        and len(size) <= _MOST_DIMENSIONS
        and all(type(length) is int and 0 <= length < 2**63 for length in size)
    )


def _is_filled_size(size: Any) -> bool:
    return _is_size(size) and len(size) > 0


def _sizes(input_size: Any) -> dict[int | str, Sequence[int]]:
    """Return each size by its position or name.

    Raises:
        InputError: The value is no size, and no list or dict of sizes.
    """
    sizes: dict[int | str, Sequence[int]] = {}
    is_named = type(input_size) is dict
    if is_named:
        sizes = input_size
    elif _is_filled_size(input_size):
        sizes = {0: input_size}
    elif isinstance(input_size, tuple | list):
        sizes = dict(enumerate(input_size))
    if not sizes or not all(
        _is_size(size) and isinstance(key, str) is is_named for key, size in sizes.items()
    ):
        raise InputError(f"input_size={shown(input_size)} is no size", why=_FORMS, fix=_EXAMPLE)
    return sizes


def _types(dtypes: object, sizes: Mapping[int | str, object]) -> dict[int | str, torch.dtype]:
    """Return the element type of each input, by the keys of `sizes`.

    Raises:
        InputError: A type is invalid, or the types do not match the sizes.
    """
    requested: Mapping[Any, Any]
    if type(dtypes) is dict:
        requested, fits = dtypes, dtypes.keys() <= sizes.keys()
    elif isinstance(dtypes, tuple | list):
        requested, fits = dict(zip(sizes, dtypes, strict=False)), len(dtypes) == len(sizes)
    else:
        requested, fits = dict.fromkeys(sizes, dtypes), True
    types: dict[int | str, torch.dtype] = {}
    for key in sizes:
        dtype = requested.get(key)
        if type(dtype) is str:
            dtype = getattr(torch, dtype.removeprefix("torch."), "")
        types[key] = torch.float32 if dtype is None else dtype
    if not fits or not all(isinstance(dtype, torch.dtype) for dtype in types.values()):
        raise InputError(
            f"dtypes={shown(dtypes)} are no types of the inputs",
            why=f"an element type is torch.int64, or its name 'int64': one for all inputs, or one "
            f"for each of {', '.join(map(str, sizes))}",
            fix="dtypes='int64' for all inputs, or dtypes=['float32', 'int64'] in their order",
        )
    return types
