"""Holdings: sums of what modules hold, their parameters and their buffers."""

import math
from typing import Any

from tbscope.ir.graph import Parameter

__all__ = ["Holdings", "numbers_in"]


class Holdings:
    """What is held in a part, each parameter and buffer once.

    Attributes:
        parameters: Numbers in parameters.
        trainable: Those of parameters that require a gradient.
        shared: Those of parameters that a module outside of the part holds, too.
        parameter_bytes: Bytes of the parameters.
        buffers: Numbers in buffers.
        buffer_bytes: Bytes of the buffers.
        tensors: How many parameters and buffers they are.
    """

    __slots__ = (
        "buffer_bytes",
        "buffers",
        "parameter_bytes",
        "parameters",
        "shared",
        "tensors",
        "trainable",
    )

    def __init__(self) -> None:
        self.parameters = self.trainable = self.shared = self.parameter_bytes = 0
        self.buffers = self.buffer_bytes = self.tensors = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return self.parameter_bytes + self.buffer_bytes

    def add(self, parameter: Parameter) -> None:
        """Count a parameter or buffer; one that is not initialised yet holds no numbers."""
        count = numbers_in(parameter)
        self.tensors += 1
        if parameter.kind == "buffer":
            self.buffers += count
            self.buffer_bytes += parameter.size_bytes
            return
        self.parameters += count
        self.parameter_bytes += parameter.size_bytes
        if parameter.requires_grad:
            self.trainable += count

    def add_all(self, other: "Holdings") -> None:
        """Count what another one has counted; what is shared may be so no longer."""
        self.parameters += other.parameters
        self.trainable += other.trainable
        self.parameter_bytes += other.parameter_bytes
        self.buffers += other.buffers
        self.buffer_bytes += other.buffer_bytes
        self.tensors += other.tensors


def numbers_in(parameter: Parameter) -> int:
    """Return how many numbers a parameter or buffer has; none before it is initialised."""
    shape = parameter.shape
    if shape is None:
        return 0
    sizes: Any = shape
    # Few are unknown; to look at each by itself takes three times as long.
    return math.prod([size for size in shape if size is not None] if None in shape else sizes)
