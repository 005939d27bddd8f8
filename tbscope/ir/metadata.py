"""Facts: the plain parts of a graph, which refer to no node and no value."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "Collective",
    "CollectiveKind",
    "Constant",
    "Function",
    "Gradient",
    "Measured",
    "MeshDimension",
    "Module",
    "Parameter",
    "Part",
    "Profile",
    "Run",
    "Shape",
    "Sharding",
    "Source",
    "device_on",
    "dimensions_at",
    "item_size_bytes",
    "ranks_text",
    "split_device",
]

CollectiveKind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
]
"""What ranks do together; `send` and `recv` join two of them, any other all of a group."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What a node does together with other ranks.

    Equal collectives of several ranks have the same `kind`, `ranks`, `group` and `sequence`. A
    `send` to rank 3 is met by the `recv` from this rank that has the same `ranks`, `group` and
    `sequence`.

    Attributes:
        kind: What they do.
        reduction: How what they hand in becomes one (`sum`, `avg`, `max`); None where nothing is
            reduced, `unknown` where torch does not tell.
        ranks: The ranks of the group, as the whole run counts them, in the order of the group.
        mesh: The dimension of the device mesh whose group it is (`dp`, `tp`); empty where the
            group is that of none.
        input_bytes: Bytes of what this rank hands in; 0 where it only takes (`recv`, and
            `broadcast` or `scatter` of another one).
        output_bytes: Bytes of what this rank has of it; 0 where it only gives (`send`, and
            `gather` or `reduce` to another one).
        peer: The rank that it sends to or receives from, or where a broadcast, a reduce, a gather
            or a scatter begins or ends, as the whole run counts; None for any other.
        group: torch's name for the group: the same on all of its ranks, and another one for
            another group of the same ranks.
        sequence: How many collectives ran in this group before it, on this rank and in this run;
            for `send` and `recv` how many of the same kind with the same peer.
        asynchronous: Whether the rank goes on at once, and waits for the result later.
        tensors: How many tensors it moves: above 1 for what is coalesced.
    """

    kind: CollectiveKind
    reduction: str | None = None
    ranks: tuple[int, ...] = (0,)
    mesh: str = ""
    input_bytes: int = 0
    output_bytes: int = 0
    peer: int | None = None
    group: str = ""
    sequence: int = 0
    asynchronous: bool = False
    tensors: int = 1

    @property
    def moved_bytes(self) -> int:
        """Bytes of what this rank hands in, or of what it has of it, whichever are more."""
        return max(self.input_bytes, self.output_bytes)

    def __str__(self) -> str:
        told = self.kind if self.reduction is None else f"{self.kind} {self.reduction}"
        where = f"{self.mesh} " if self.mesh else ""
        text = f"{told} over {where}({', '.join(map(str, self.ranks))})"
        return text if self.peer is None else f"{text}, with {self.peer}"


@dataclass(frozen=True, slots=True)
class Sharding:
    """What one rank holds of a tensor that is spread over several.

    The shape of a value or a parameter that has one is that of the whole tensor.

    Attributes:
        shape: Sizes of what this rank holds.
        placements: For each dimension of the device mesh how the tensor lies along it:
            `Shard(0)`, `Replicate()`, `Partial(sum)`.
        mesh: The names of these dimensions of the mesh; `0`, `1` where they have none.
    """

    shape: tuple[int | None, ...]
    placements: tuple[str, ...]
    mesh: tuple[str, ...]

    def __str__(self) -> str:
        pairs = zip(self.mesh, self.placements, strict=True)
        lies = ", ".join(f"{name}: {placement}" for name, placement in pairs)
        return f"({', '.join('?' if n is None else str(n) for n in self.shape)}) by {lies}"


@dataclass(frozen=True, slots=True)
class MeshDimension:
    """One dimension of the device mesh of a run.

    Attributes:
        name: What it is called (`dp`); its number where it has no name.
        size: How many ranks lie along it.
        coordinate: Where along it this rank lies, counted from 0.
    """

    name: str
    size: int
    coordinate: int


def dimensions_at(rank: int, sizes: Mapping[str, int]) -> tuple[MeshDimension, ...]:
    """Return the dimensions of a device mesh over all ranks of a run, as one rank lies in it.

    Args:
        rank: The rank, as the whole run counts them.
        sizes: The sizes of the dimensions by their names, outermost first.

    >>> [one.coordinate for one in dimensions_at(13, {"pp": 2, "dp": 2, "tp": 4})]
    [1, 1, 1]
    """
    found = []
    for name, size in reversed([*sizes.items()]):
        rank, coordinate = divmod(rank, size)
        found.append(MeshDimension(name, size, coordinate))
    return tuple(reversed(found))


# Fewer are no longer row than a list of them.
_LEAST_ROW = 3
_BITS = re.compile(r"[0-9]+")
_ON_RANK = re.compile(r"(ranks? [0-9][-0-9,a-z ]*) ([^ ]+)")


class Part(NamedTuple):
    """Ranks of a distributed run that one part of a merged graph shows.

    Attributes:
        ranks: Their numbers, in order.
        scope: The path of the box that holds what they ran; empty where that is all the graph.
            What they ran of a backward pass and of an optimizer stands in boxes of this name in
            `gradients` and `optimizer`.
        stage: Which stage of a pipeline they run; None where there is no pipeline.
        figures: What one of them holds and does, by the names of the summary's columns.
    """

    ranks: tuple[int, ...]
    scope: str = ""
    stage: int | None = None
    figures: Mapping[str, int] = {}

    def __str__(self) -> str:
        """Print as `rank 3`, `ranks 0-7` or `stage 1 ranks 8-15`."""
        text = ranks_text(self.ranks)
        return text if self.stage is None else f"stage {self.stage} {text}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks in words, rows of them by their ends.

    >>> ranks_text([3]), ranks_text([0, 1, 2, 3, 8]), ranks_text([0, 2, 4, 6])
    ('rank 3', 'ranks 0-3,8', 'ranks 0-6 step 2')
    """
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {','.join(_rows(ordered))}"


def _rows(ordered: Sequence[int]) -> Iterator[str]:
    place = 0
    while place < len(ordered):
        first, end = ordered[place], place + 1
        step = ordered[end] - first if end < len(ordered) else 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        if end - place < _LEAST_ROW and step > 1:
            end = place + 1
        last = ordered[end - 1]
        if last == first:
            yield str(first)
        else:
            yield f"{first}-{last}" if step == 1 else f"{first}-{last} step {step}"
        place = end


def device_on(ranks: str, device: str) -> str:
    """Return a device of ranks as one text: `rank 3 cpu`, `ranks 0-7 cuda:0`.

    Args:
        ranks: The ranks in words.
        device: The device as each of them names it.
    """
    return f"{ranks} {device}"


def split_device(device: str) -> tuple[str, str]:
    """Return the ranks of a device in words, and the device as each of them names it.

    >>> split_device("ranks 0-7 cuda:0"), split_device("cpu")
    (('ranks 0-7', 'cuda:0'), ('', 'cpu'))
    """
    found = _ON_RANK.fullmatch(device)
    return (found[1], found[2]) if found else ("", device)


# -- nodes, parameters and modules -----------------------------------------------------------


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


# -- runs of functions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the user's or of a library's that ran.

    Attributes:
        name: What it is called; empty for what has no name of its own, such as a list
            comprehension in an older Python.
        loops: The loops in its code: the first and the last step of each.
        nested: Whether it was made while another one ran: a closure, or what a decorator puts
            around others.
    """

    name: str
    loops: tuple[tuple[int, int], ...] = ()
    nested: bool = False


@dataclass(slots=True, eq=False)
class Run:
    """One run of a function; compared by identity.

    Attributes:
        function: The function.
        around: The run that called it, of the same module call; None for the outermost, which
            mostly is the module's own forward.
        step: Where in the code of that run it was called (see `Node.step`).
    """

    function: Function
    around: "Run | None" = None
    step: int = 0

    def chain(self) -> list["Run"]:
        """Return this run and those around it, the outermost first."""
        found = [self]
        while (around := found[-1].around) is not None:
            found.append(around)
        return found[::-1]

    def outermost(self) -> "Run":
        """Return the outermost of the runs around this one, or itself."""
        return self.chain()[0]
