"""Rows: how each row of a table is read, and of other lists without keys."""

from collections.abc import Callable, Iterable
from typing import Any, get_args

from tbscope.formats.fields import (
    FieldError,
    Reader,
    Tables,
    at,
    entry_of,
    integer,
    mapping,
    number,
    optional,
    optional_text,
    several,
    sizes,
    text,
    truth,
    whole,
    word,
)
from tbscope.ir.facts import CollectiveKind, Function, Run
from tbscope.ir.graph import (
    Collective,
    Gradient,
    Measured,
    MeshDimension,
    Module,
    Parameter,
    Part,
    Shape,
    Sharding,
    Source,
)
from tbscope.ir.scopes import Phase, Scope, ScopeKind, ScopePart
from tbscope.words import shown

__all__ = ["GRADIENT", "MEASURED", "MESH", "MODULE", "PART", "STRAY", "TABLES"]


class Row:
    """One kind of row.

    Args:
        make: Makes of its entries what it describes.
        rest: What its last entries are if they are missing.
        entries: The reader of each entry, by its name.
    """

    def __init__(
        self, make: Callable[..., Any], rest: tuple[Any, ...] = (), /, **entries: Reader
    ) -> None:
        self._make = make
        self._rest = rest
        self._entries = entries
        self._least = len(entries) - len(rest)

    def __call__(self, what: str, told: Any, tables: Tables) -> Any:
        """Return what a row describes."""
        least, most = self._least, len(self._entries)
        if type(told) is not list or not least <= len(told) <= most:
            many = str(most) if least == most else f"{least} to {most}"
            raise FieldError(f"{what} is {shown(told)}, and should be a list of {many}".lstrip())
        found = [
            read(name, entry, tables)
            for (name, read), entry in zip(self._entries.items(), told, strict=False)
        ]
        return self._make(*found, *self._rest[len(found) - least :])


def _entries(*entries: Any) -> tuple[Any, ...]:
    return entries


def _sharding(shape: Shape | None, placements: tuple[str, ...], mesh: tuple[str, ...]) -> Sharding:
    if shape is None:
        raise FieldError("has no sizes")
    return Sharding(shape, placements, mesh)


def _scope(
    parent: Scope | None, label: str, attribute: str | None, index: int, *rest: Any
) -> Scope:
    kind, name, phase = rest
    part = ScopePart(label, attribute, index)
    return Scope(part, parent=parent, kind=kind, qualified_name=name, phase=phase)


def _collective(
    kind: CollectiveKind, reduction: str | None, group: tuple[Any, ...], *rest: Any
) -> Collective:
    ranks, mesh, name = group
    given, got, peer, sequence, asynchronous, tensors = rest
    moved = given, got, peer
    return Collective(kind, reduction, ranks, mesh, *moved, name, sequence, asynchronous, tensors)


def _function(name: str, nested: bool, loops: tuple[tuple[int, int], ...]) -> Function:
    return Function(name, loops, nested)


def _dimension(name: str, size: int, coordinate: int) -> MeshDimension:
    return MeshDimension(name, size, at("coordinate", coordinate, 0, size))


def _figures(_: str, told: Any, tables: Tables) -> dict[str, int]:
    entries: Iterable[tuple[str, Any]] = mapping("figures", told, tables).items()
    return {name: whole(name, count, tables) for name, count in entries}


TABLES: dict[str, Row] = {
    "shardings": Row(_sharding, shape=sizes, placements=several(text), mesh=several(text)),
    "types": Row(
        *(_entries, (None,)),
        shape=sizes,
        dtype=text,
        device=text,
        sharding=optional(entry_of("shardings")),
    ),
    "groups": Row(_entries, ranks=several(whole), mesh=text, name=text),
    "collectives": Row(
        _collective,
        kind=word(*get_args(CollectiveKind)),
        reduction=optional_text,
        group=entry_of("groups"),
        input_bytes=whole,
        output_bytes=whole,
        peer=optional(whole),
        sequence=whole,
        asynchronous=truth,
        tensors=whole,
    ),
    "scopes": Row(
        *(_scope, ("forward",)),
        parent=optional(entry_of("scopes")),
        label=text,
        attribute=optional_text,
        index=whole,
        kind=word(*get_args(ScopeKind)),
        qualified_name=optional_text,
        phase=word(*get_args(Phase)),
    ),
    "sources": Row(Source, file=text, line=integer, function=text),
    "parameters": Row(
        *(Parameter, ("cpu", -1, None)),
        name=text,
        kind=word("parameter", "buffer"),
        shape=sizes,
        dtype=text,
        size_bytes=number,
        requires_grad=truth,
        device=text,
        number=integer,
        sharding=optional(entry_of("shardings")),
    ),
    "functions": Row(
        _function, name=text, nested=truth, loops=several(Row(_entries, first=number, last=number))
    ),
    "runs": Row(
        Run, function=entry_of("functions"), around=optional(entry_of("runs")), step=number
    ),
}
"""The rows of all tables, in an order in which none names a later one."""

MESH = Row(_dimension, name=text, size=whole, coordinate=integer)
PART = Row(Part, ranks=several(whole), scope=text, stage=optional(whole), figures=_figures)
MODULE = Row(
    *(Module, ((),)),
    name=text,
    class_name=text,
    parameters=several(entry_of("parameters")),
    borrowed=several(entry_of("parameters")),
)
GRADIENT = Row(Gradient, flops=number, inputs=several(whole))
MEASURED = Row(
    *(Measured, (None,)),
    duration_us=optional(number),
    peak_bytes=optional(number),
    at_peak_bytes=optional(number),
)
STRAY = Row(_entries, producer=integer, index=whole, type=entry_of("types"))
"""A value that something names and no node of the graph gives, with the number of its node."""
