"""Figures: numbers that stand at the operations and modules of a graph.

A figure has a name, under which the cards of the page show it, and feeds the page's two
colourings by numbers, or one of them. Where a number is drawn is decided in `places.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import floor, fsum, isclose, log
from typing import TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.scopes import Scope
from tbscope.page.constants import EXACT_INTEGER

__all__ = ["Figure", "Number", "Target", "by_kernel", "profile_figures", "sum_of", "to_figure"]

Number: TypeAlias = int | float
"""What one figure may be: finite, and not below 0."""

Target: TypeAlias = Node | Scope
"""What a number is the number of: a node, or a scope itself."""

# The page's units, each so many of the one before (tf_graph_common/util.ts).
_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")
_BYTE_STEP, _TIME_STEP = 1024, 1000
# The largest number with a fraction takes so many bytes, so that others differ from it.
_LARGEST = _BYTE_STEP**4
# Above it, the page tells minutes, and 60 is no step of a thousand.
_MOST_US = 60 * _TIME_STEP**2
# More of them are no float.
_MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Figure:
    """One number for each of some nodes and scopes of a graph.

    Attributes:
        name: What cards call it (`duration_us`).
        numbers: The numbers of nodes of any kind, and of scopes themselves, beside those of
            the nodes inside.
        as_us: As how many microseconds a 1 is coloured under "Compute time"; 0 for not.
        as_bytes: As how many bytes a 1 is coloured under "Memory"; 0 for not.
        unit: What these stand for, as text; empty where that is plain.
        most: Whether the figure of several is the largest one, and not the sum.
    """

    name: str
    numbers: Mapping[Target, Number]
    as_us: Number = 0
    as_bytes: Number = 0
    unit: str = ""
    most: bool = False

    def join(self, numbers: Iterable[Number]) -> Number:
        """Return the figure of several nodes together."""
        return max(numbers, default=0) if self.most else sum_of(numbers)


def sum_of(numbers: Iterable[Number]) -> Number:
    """Return the sum of numbers: whole ones exactly, others without the noise of binary."""
    found = list(numbers)
    if len(found) == 1:
        return found[0]
    if all(type(number) is int for number in found):
        return sum(found)
    return float(f"{fsum(found):.12g}")


def to_figure(name: str, numbers: Mapping[Target, Number]) -> Figure:
    """Return a figure that feeds both colourings.

    If it fed one alone, the page would colour all black under the other. Whole numbers are
    as many bytes, so that the page's sums are exact; others so many that they differ. The
    microseconds are so many that the page tells all of them in steps of a thousand.
    """
    given = numbers.values()
    total = sum(given)
    bytes_power = 0
    if total > EXACT_INTEGER or any(type(number) is float for number in given):
        bytes_power = _power(_BYTE_STEP, max(given), _LARGEST)
    time_power = _power(_TIME_STEP, total, _MOST_US)
    # How much one unit of the page's memory stands for.
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
    """Return the power of a step by which a number grows to just below a limit, or shrinks."""
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
    """Return an operation's number, or the numbers of its kernels where they add up to it."""
    kernels = node.body.nodes if node.body is not None else None
    numbers: dict[Target, Number] = {kernel: of_kernel(kernel) or 0 for kernel in kernels or ()}
    return numbers if numbers and isclose(fsum(numbers.values()), number) else {node: number}


def profile_figures(graph: Graph) -> tuple[Figure, ...]:
    """Return the figures of a graph that were measured; none where nothing was."""
    if graph.profile is None:
        return ()
    times: dict[Target, Number] = {}
    sizes: dict[Target, Number] = {}
    peaks: dict[Target, Number] = {}
    for node in graph.nodes:
        if node.duration_us is not None:
            times.update(by_kernel(node, node.duration_us, lambda kernel: kernel.duration_us))
            sizes[node] = node.allocated_bytes
        if node.peak_bytes is not None:
            peaks[node] = node.peak_bytes
    return (
        Figure("duration_us", times, as_us=1),
        Figure("allocated_bytes", sizes, as_bytes=1),
        Figure("peak_bytes", peaks, most=True),
    )
