"""Distributed runs as plain data: what ranks tell each other, and what each holds of a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Collective", "CollectiveKind", "MeshDimension", "Sharding", "dimensions_at"]

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
