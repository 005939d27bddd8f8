"""Figures: numbers of operations and modules, such as times, memory or a user's own.

Info cards show a figure under its name. It feeds one or both of the page's colourings by
numbers. `figure_placement.py` decides at which node each number is shown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import floor, fsum, isclose, log
from typing import TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.scopes import Scope
from tbscope.page.constants import EXACT_INTEGER

Number: TypeAlias = int | float
"""A number of a figure; finite, and not below 0."""

Target: TypeAlias = Node | Scope
"""The owner of a number: a node, or a scope itself."""

# The page's units and the factors between them (tf_graph_common/util.ts).
_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")
_BYTE_STEP, _TIME_STEP = 1024, 1000
# Fractional numbers are scaled so that the largest is just below this number of bytes: bytes are
# integers, and numbers should differ.
_LARGEST = _BYTE_STEP**4
# From a minute on, the page shows minutes, whose factor is 60 and not a thousand.
_MOST_US = 60 * _TIME_STEP**2
# Scales beyond this power of a step do not fit in a float.
_MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Figure:
    """A number for some nodes and scopes of a graph.

    Attributes:
        name: The name on info cards (`duration_us`).
        numbers: The numbers of nodes of any kind, and of scopes themselves; the latter do not
            include the nodes inside.
        as_us: The microseconds under "Compute time" that represent 1; 0 to not colour by time.
        as_bytes: The bytes under "Memory" that represent 1; 0 to not colour by memory.
        unit: The meaning of the page's units, as text; empty if they are meant literally.
        most: Whether figures are joined by their maximum, and not by their sum.
    """

    name: str
    numbers: Mapping[Target, Number]
    as_us: Number = 0
    as_bytes: Number = 0
    unit: str = ""
    most: bool = False

    def join(self, numbers: Iterable[Number]) -> Number:
        """Return the joint figure of several nodes: their sum, or their maximum."""
        return max(numbers, default=0) if self.most else sum_of(numbers)

    def moved(self, targets: Mapping[Target, Target]) -> "Figure":
        """Return the figure for other targets, joined where several become one."""
        numbers: dict[Target, list[Number]] = {}
        for target, number in self.numbers.items():
            numbers.setdefault(targets.get(target, target), []).append(number)
        return replace(self, numbers={each: self.join(of) for each, of in numbers.items()})


def sum_of(numbers: Iterable[Number]) -> Number:
    """Return the sum of numbers: exact for integers, rounded to 12 digits for floats."""
    values = list(numbers)
    if len(values) == 1:
        return values[0]
    if all(type(number) is int for number in values):
        return sum(values)
    return float(f"{fsum(values):.12g}")


def to_figure(name: str, numbers: Mapping[Target, Number]) -> Figure:
    """Return a figure that feeds both colourings.

    With one alone, the page would colour all nodes black under the other. Integers are counted
    as that number of bytes, so that the page's sums are exact, and other numbers are scaled so
    that they differ. Microseconds are scaled so that all of the page's units differ by a factor
    of a thousand.
    """
    values = numbers.values()
    total = sum(values)
    bytes_power = 0
    if total > EXACT_INTEGER or any(type(number) is float for number in values):
        bytes_power = _power(_BYTE_STEP, max(values), _LARGEST)
    time_power = _power(_TIME_STEP, total, _MOST_US)
    # The value that one of the page's memory units represents.
    unit = f"1 {_BYTES[0]} is {_scale(_BYTE_STEP, -bytes_power):g}"
    if 0 <= bytes_power < len(_BYTES):
        unit = f"1 {_BYTES[bytes_power]} is 1"
    return Figure(
        name,
        numbers,
        as_us=_scale(_TIME_STEP, time_power),
        as_bytes=_scale(_BYTE_STEP, bytes_power),
        unit=f"{unit}, 1 ms is {_scale(_TIME_STEP, 1 - time_power):g}",
    )


def _power(step: int, number: Number, limit: int) -> int:
    """Return the power of a step that scales a number, up or down, to just below a limit."""
    if not number:
        return 0
    power = floor((log(limit) - log(number)) / log(step))
    return min(power, _MOST_STEPS)


def _scale(step: int, power: int) -> Number:
    scale: Number = step ** abs(power)
    return scale if power >= 0 else 1 / scale


def by_kernel(
    node: Node, number: Number, of_kernel: Callable[[Node], Number | None]
) -> dict[Target, Number]:
    """Return the numbers of an operation's kernels if they add up to its own, else its own."""
    kernels = node.body.nodes if node.body is not None else None
    numbers: dict[Target, Number] = {kernel: of_kernel(kernel) or 0 for kernel in kernels or ()}
    return numbers if numbers and isclose(fsum(numbers.values()), number) else {node: number}


def profile_figures(graph: Graph) -> tuple[Figure, ...]:
    """Return the measured figures of a graph; none if it has no profile."""
    if graph.profile is None:
        return ()
    times, sizes, peaks = (dict[Target, Number]() for _ in range(3))
    for node in graph.nodes:
        if node.duration_us is not None:
            times[node] = node.duration_us
            sizes[node] = node.allocated_bytes
        if node.peak_bytes is not None:
            peaks[node] = node.peak_bytes
    return (
        Figure("duration_us", times, as_us=1),
        Figure("allocated_bytes", sizes, as_bytes=1),
        Figure("peak_bytes", peaks, most=True),
    )
