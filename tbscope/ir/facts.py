"""Facts: the plain parts of a graph, which refer to no node and no value."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tbscope.ir.collectives import Sharding

__all__ = [
    "Constant",
    "Gradient",
    "Measured",
    "Module",
    "Parameter",
    "Profile",
    "Shape",
    "Source",
    "item_size_bytes",
]

Shape: TypeAlias = tuple[int | None, ...]
"""Sizes per dimension; None where a size is not known (the ragged one of a nested tensor)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the user's code.

    Attributes:
        file: The path of the file, relative to the import path that holds it.
        line: The line, counted from 1.
        function: The name of the function around it.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant argument that has no literal form in the graph, as its text (`torch.float32`)."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Gradient(NamedTuple):
    """What the backward pass of an operation computes where a gradient is asked for.

    Attributes:
        flops: Floating-point operations.
        inputs: Positions among the node's inputs: the work is done if one of these needs a
            gradient.
    """

    flops: int
    inputs: tuple[int, ...]


class Parameter(NamedTuple):
    """A parameter or buffer that a module owns.

    Attributes:
        name: Its attribute in the module (`weight`).
        kind: "parameter" or "buffer".
        shape: Sizes per dimension; None for one that is not initialised yet.
        dtype: The element type (`float32`).
        device: Where it is (`cpu`, `cuda:0`).
        size_bytes: Elements times element size, in bytes.
        requires_grad: Whether a gradient is kept for it.
        number: Which of all parameters and buffers in the run it is; tied ones have one
            number. Negative where that is not known.
        sharding: What this rank holds of it; None where it is not spread over ranks.
    """

    name: str
    kind: Literal["parameter", "buffer"]
    shape: Shape | None
    dtype: str
    size_bytes: int
    requires_grad: bool
    device: str = "cpu"
    number: int = -1
    sharding: Sharding | None = None


class Module(NamedTuple):
    """A module of the model, whether it was called or not.

    Attributes:
        name: Its name in `named_modules()`; empty for the model itself.
        class_name: The full name of its class.
        parameters: Its own parameters and buffers, not those of its children.
        borrowed: Parameters and buffers of children that have their name in another module,
            each by its path from here (`conv.weight`).
    """

    name: str
    class_name: str
    parameters: tuple[Parameter, ...]
    borrowed: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """The facts of one operation that were measured.

    Attributes:
        duration_us: How long it ran, in microseconds; None where that was not measured.
        peak_bytes: The most bytes of results that were alive at one moment while it ran;
            None where that was not measured.
        at_peak_bytes: Of what it allocated, the bytes that were alive at the moment when in
            all the run most were; None where that was not measured.
    """

    duration_us: float | None = None
    peak_bytes: int | None = None
    at_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """How the times and the memory of a graph's nodes were measured.

    Attributes:
        steps: Runs that were measured; a node's time is the median of its times in them.
        warmup: Runs before these.
        forward_us: The median time of a whole run that nobody watched, in microseconds.
        watched_us: The median time of a whole run while its operations were timed.
        operations_us: The sum of the times of all nodes. What `forward_us` is more is spent
            between operations, in Python.
        clock: What told the time: "perf_counter", or "events" on the device; where devices
            differ, all of them, joined by " and ".
        peak_bytes: The most bytes of results that were alive at one moment. Parameters,
            buffers and inputs do not count.
        spread_us: How far the middle half of the times lies apart of which `forward_us` is
            the median: the noise. 0 for a single run.
    """

    steps: int
    warmup: int
    forward_us: float
    watched_us: float
    operations_us: float
    clock: str
    peak_bytes: int
    spread_us: float = 0.0


def item_size_bytes(dtype: str) -> int | None:
    """Return the bytes of one element (`float32` has 4); None where the name does not tell."""
    if dtype == "bool":
        return 1
    bits = _BITS.search(dtype)
    return int(bits[0]) // 8 if bits and int(bits[0]) % 8 == 0 else None


_BITS = re.compile(r"[0-9]+")
