"""What parts hold: parameters and buffers, each counted once in all that hold it."""

import math
from typing import TYPE_CHECKING

from tbscope.ir.graph import Parameter

if TYPE_CHECKING:
    from tbscope.figures.summary.parts import Part

__all__ = ["Holdings", "count_parameters", "parameter_key"]


class Holdings:
    """What is held in a part, each parameter and buffer once.

    Attributes:
        parameters: Numbers in parameters.
        trainable: Those of parameters that require a gradient.
        shared: Those of parameters that a module outside of the part holds, too.
        parameter_bytes: Bytes of the parameters.
        buffers: Numbers in buffers.
        buffer_bytes: Bytes of the buffers.
    """

    __slots__ = (
        "buffer_bytes",
        "buffers",
        "parameter_bytes",
        "parameters",
        "shared",
        "trainable",
    )

    def __init__(self) -> None:
        self.parameters = self.trainable = self.shared = self.parameter_bytes = 0
        self.buffers = self.buffer_bytes = 0

    def add(self, parameter: Parameter) -> None:
        """Count a parameter or buffer; one that is not initialised yet holds no numbers."""
        count = _numbers_in(parameter)
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


def _numbers_in(parameter: Parameter) -> int:
    if parameter.shape is None:
        return 0
    return math.prod(length for length in parameter.shape if length is not None)


def parameter_key(part: "Part", parameter: Parameter) -> int | str:
    """Give what tells a parameter from all others: tied ones have one key."""
    if parameter.number >= 0:
        return parameter.number
    return f"{part.label if part.name is None else part.name}.{parameter.name}"


def count_parameters(parts: "list[Part]") -> None:
    """Count what each part holds, and what stands below it, each parameter once.

    What no module registers is counted in its own part and not above: neither does a model.
    """
    holders: dict[int | str, list[tuple[Part, Parameter]]] = {}
    for part in parts:
        own = {parameter_key(part, parameter): parameter for parameter in part.held}
        for key, parameter in own.items():
            holders.setdefault(key, []).append((part, parameter))
        part.own_parameters = sum(
            _numbers_in(parameter) for parameter in own.values() if parameter.kind == "parameter"
        )
    several = []
    for held in holders.values():
        if len(held) == 1:
            held[0][0].holds.add(held[0][1])
        else:
            several.append(held)
    for part in reversed(parts):
        if _hands_up(part):
            assert part.parent is not None
            part.parent.holds.add_all(part.holds)
    for held in several:
        _add_shared(held)


def _hands_up(part: "Part") -> bool:
    """Tell whether what a part holds counts in the one around it."""
    above = part.parent
    return above is not None and (not part.unregistered or above.unregistered)


def _add_shared(held: "list[tuple[Part, Parameter]]") -> None:
    """Count a parameter that several parts hold, once in all that hold one of them."""
    parameter = held[0][1]
    modules: dict[Part, set[int]] = {}
    for part, _ in held:
        above: Part | None = part
        while above is not None:
            modules.setdefault(above, set()).add(_module_of(part))
            above = above.parent if _hands_up(above) else None
    # What a module holds that no module registers is not of the model.
    registered = {_module_of(part) for part, _ in held if part.name is not None}
    everyone = registered or {_module_of(part) for part, _ in held}
    for part, inside in modules.items():
        part.holds.add(parameter)
        if parameter.kind == "parameter" and not inside >= everyone:
            part.holds.shared += _numbers_in(parameter)


def _module_of(part: "Part") -> int:
    """Give what parts for calls of one module have in common."""
    return id(part.held)
