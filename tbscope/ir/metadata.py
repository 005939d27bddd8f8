"""Metadata: the plain records of a graph, which refer to neither nodes nor values."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "CallFrame",
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
"""Kinds of communication; `send` and `recv` join two ranks, any other kind all ranks of a group."""


@dataclass(frozen=True, slots=True)
class Collective:
    """The communication of a node with other ranks.

    Matching collectives on several ranks have equal `kind`, `ranks`, `group` and `sequence`. A
    `send` to rank 3 matches the `recv` from this rank that has equal `ranks`, `group` and
    `sequence`.

    Attributes:
        kind: The operation.
        reduction: The reduction of the ranks' inputs (`sum`, `avg`, `max`); None if nothing is
            reduced, `unknown` if torch does not report it.
        ranks: The global ranks of the group, in the order of the group.
        mesh: The dimension of the device mesh whose group it is (`dp`, `tp`); empty for a group
            of no dimension.
        input_bytes: Bytes that this rank contributes; 0 if it only receives (`recv`, and
            `broadcast` or `scatter` from another rank).
        output_bytes: Bytes of the result on this rank; 0 if it only sends (`send`, and
            `gather` or `reduce` to another rank).
        peer: The global rank of the partner of a send or recv, or the root of a broadcast,
            reduce, gather or scatter; None for any other kind.
        group: torch's name for the group: equal on all of its ranks, and different for another
            group of the same ranks.
        sequence: The number of earlier collectives of this group on this rank in this run;
            for `send` and `recv` the number of earlier ones of this kind with this peer.
        asynchronous: Whether the rank continues at once, and waits for the result later.
        tensors: The number of tensors that it moves: above 1 for a coalesced collective.
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
    def is_message(self) -> bool:
        """Whether it moves a tensor from one rank to one other."""
        return self.kind in ("send", "recv")

    @property
    def moved_bytes(self) -> int:
        """The larger of `input_bytes` and `output_bytes`."""
        return max(self.input_bytes, self.output_bytes)

    def __str__(self) -> str:
        operation = self.kind if self.reduction is None else f"{self.kind} {self.reduction}"
        mesh = f"{self.mesh} " if self.mesh else ""
        text = f"{operation} over {mesh}({', '.join(map(str, self.ranks))})"
        return text if self.peer is None else f"{text}, with {self.peer}"


@dataclass(frozen=True, slots=True)
class Sharding:
    """The local shard of a distributed tensor.

    The shape of a value or a parameter with a sharding is the global shape.

    Attributes:
        shape: Sizes of the shard on this rank.
        placements: The DTensor placement along each dimension of the device mesh: `Shard(0)`,
            `Replicate()`, `Partial(sum)`.
        mesh: The names of these dimensions of the mesh; `0`, `1` for unnamed dimensions.
    """

    shape: tuple[int | None, ...]
    placements: tuple[str, ...]
    mesh: tuple[str, ...]

    def __str__(self) -> str:
        pairs = zip(self.mesh, self.placements, strict=True)
        placed = ", ".join(f"{name}: {placement}" for name, placement in pairs)
        return f"({', '.join('?' if n is None else str(n) for n in self.shape)}) by {placed}"


@dataclass(frozen=True, slots=True)
class MeshDimension:
    """One dimension of the device mesh of a run.

    Attributes:
        name: The name (`dp`), or the number of an unnamed dimension.
        size: The number of ranks along the dimension.
        coordinate: The position of this rank along the dimension, counted from 0.
    """

    name: str
    size: int
    coordinate: int


def dimensions_at(rank: int, sizes: Mapping[str, int]) -> tuple[MeshDimension, ...]:
    """Return the dimensions of a device mesh over all ranks of a run, with one rank's coordinates.

    Args:
        rank: The global rank.
        sizes: The sizes of the dimensions by their names, outermost first.

    >>> [one.coordinate for one in dimensions_at(13, {"pp": 2, "dp": 2, "tp": 4})]
    [1, 1, 1]
    """
    dimensions = []
    for name, size in reversed([*sizes.items()]):
        rank, coordinate = divmod(rank, size)
        dimensions.append(MeshDimension(name, size, coordinate))
    return tuple(reversed(dimensions))


# Fewer ranks with a step between them are as short as a list.
_LEAST_ROW = 3
_BITS = re.compile(r"[0-9]+")
_ON_RANK = re.compile(r"(ranks? [0-9][-0-9,a-z ]*) ([^ ]+)")


class Part(NamedTuple):
    """The ranks that one part of a merged graph represents.

    Attributes:
        ranks: The global ranks, in order.
        scope: The path of the box around the operations of these ranks; empty if the part is the
            whole graph. Their backward pass and optimizer step are in boxes of this name in
            `gradients` and `optimizer`.
        stage: The pipeline stage of the ranks, or None without a pipeline.
        figures: The memory and work of one of these ranks, by the names of the summary's columns.
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
    """Return a text for some ranks, with ranges for consecutive or evenly spaced ranks.

    >>> ranks_text([3]), ranks_text([0, 1, 2, 3, 8]), ranks_text([0, 2, 4, 6])
    ('rank 3', 'ranks 0-3,8', 'ranks 0-6 step 2')
    """
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {','.join(_rows(ordered))}"


def _rows(ordered: Sequence[int]) -> Iterator[str]:
    index = 0
    while index < len(ordered):
        first, end = ordered[index], index + 1
        step = ordered[end] - first if end < len(ordered) else 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        if end - index < _LEAST_ROW and step > 1:
            end = index + 1
        last = ordered[end - 1]
        if last == first:
            yield str(first)
        else:
            yield f"{first}-{last}" if step == 1 else f"{first}-{last} step {step}"
        index = end


def device_on(ranks: str, device: str) -> str:
    """Return a device of ranks as one text: `rank 3 cpu`, `ranks 0-7 cuda:0`.

    Args:
        ranks: The text of the ranks.
        device: The device as each of these ranks names it.
    """
    return f"{ranks} {device}"


def split_device(device: str) -> tuple[str, str]:
    """Return the text of the ranks of a device, and the device as each rank names it.

    >>> split_device("ranks 0-7 cuda:0"), split_device("cpu")
    (('ranks 0-7', 'cuda:0'), ('', 'cpu'))
    """
    match = _ON_RANK.fullmatch(device)
    return (match[1], match[2]) if match else ("", device)


# -- nodes, parameters and modules -----------------------------------------------------------


Shape: TypeAlias = tuple[int | None, ...]
"""Sizes per dimension; None for an unknown size (the ragged dimension of a nested tensor)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code.

    Attributes:
        file: The path of the file, relative to the import path that contains it.
        line: The line number, counted from 1.
        function: The name of the enclosing function.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant argument without a literal in the graph, as its text (`torch.float32`)."""

    text: str

    def __repr__(self) -> str:
        return self.text


class Gradient(NamedTuple):
    """The cost of an operation's backward pass for some of its inputs.

    Attributes:
        flops: Floating-point operations.
        inputs: Positions among the node's inputs: the operations run if at least one of these
            inputs needs a gradient.
    """

    flops: int
    inputs: tuple[int, ...]


class Parameter(NamedTuple):
    """A parameter or buffer that a module owns.

    Attributes:
        name: The attribute in the module (`weight`).
        kind: "parameter" or "buffer".
        shape: Sizes per dimension; None for an uninitialized (lazy) parameter.
        dtype: The element type (`float32`).
        device: The device (`cpu`, `cuda:0`).
        size_bytes: Elements times element size, in bytes.
        requires_grad: Whether autograd computes a gradient for it.
        number: Number among all parameters and buffers in the run, equal for tied parameters.
            Negative if unknown.
        sharding: This rank's shard, or None if the tensor is not distributed.
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
        name: The name in `named_modules()`; empty for the model itself.
        class_name: The full name of the class.
        parameters: The module's own parameters and buffers, without those of its children.
        borrowed: Parameters and buffers of children that are registered under another module,
            each by its path from this module (`conv.weight`).
    """

    name: str
    class_name: str
    parameters: tuple[Parameter, ...]
    borrowed: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one operation.

    Attributes:
        duration_us: Duration in microseconds; None if it was not measured.
        peak_bytes: Peak bytes of live results while the operation ran; None if not measured.
        at_peak_bytes: Bytes allocated by the operation and live at the moment of the run's peak;
            None if not measured.
    """

    duration_us: float | None = None
    peak_bytes: int | None = None
    at_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """The method and totals of a measurement of times and memory.

    Attributes:
        steps: The number of measured runs; a node's time is the median over these runs.
        warmup: The number of runs before these.
        forward_us: The median time of a complete unobserved run, in microseconds.
        watched_us: The median time of a complete run while its operations were timed.
        operations_us: The sum of the times of all nodes. The rest of `forward_us` is spent
            between operations, in Python.
        clock: The source of the times: "perf_counter", or "events" on the device; with several
            kinds of devices all clocks, joined by " and ".
        peak_bytes: The peak bytes of live results. Parameters, buffers and inputs do not count.
        spread_us: The noise: the width of the middle half of the times whose median is
            `forward_us`. 0 for a single run.
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
    """Return the bytes of one element (`float32` has 4); None for an unknown or sub-byte dtype."""
    if dtype == "bool":
        return 1
    bits = _BITS.search(dtype)
    return int(bits[0]) // 8 if bits and int(bits[0]) % 8 == 0 else None


# -- runs of functions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the user or of a library that ran.

    Attributes:
        name: The function's name; empty for code without a name of its own, such as a list
            comprehension in an older Python.
        loops: The loops in its code: the first and the last step of each.
        nested: Whether it was defined inside another function: a closure, or a decorator's
            wrapper.
    """

    name: str
    loops: tuple[tuple[int, int], ...] = ()
    nested: bool = False


@dataclass(slots=True, eq=False)
class CallFrame:
    """One call frame of a function; compared by identity.

    Attributes:
        function: The function.
        around: The caller's run within the same module call; None for the outermost run, which
            mostly is the module's own forward.
        step: Position of the call in the caller's bytecode (see `Node.step`).
    """

    function: Function
    around: "CallFrame | None" = None
    step: int = 0

    def chain(self) -> list["CallFrame"]:
        """Return this run and its callers, the outermost first."""
        runs = [self]
        while (around := runs[-1].around) is not None:
            runs.append(around)
        return runs[::-1]

    def outermost(self) -> "CallFrame":
        """Return the outermost caller of this run, or the run itself."""
        return self.chain()[0]
