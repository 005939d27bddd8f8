"""Decodes the rows of tables, and what else of a graph names no node and no value."""

from collections.abc import Sequence
from typing import Any, get_args

from tbscope.formats.fields import FieldError, Fields, at, number_of, row_of, sizes_of
from tbscope.ir.collectives import CollectiveKind
from tbscope.ir.graph import (
    Collective,
    Gradient,
    MeshDimension,
    Parameter,
    Part,
    Profile,
    Shape,
    Sharding,
    Source,
)
from tbscope.ir.runs import Function
from tbscope.words import shown

__all__ = [
    "check_kind",
    "collective_of_row",
    "function_of_row",
    "gradient_of_row",
    "group_of_row",
    "mesh_dimension_of_row",
    "parameter_of_row",
    "part_of_row",
    "profile_of",
    "sharding_of_row",
    "signature_of",
    "source_of_row",
    "texts_of",
    "type_of_row",
]


def check_kind(what: str, told: Any, *kinds: type) -> None:
    """Check that something is of one of some types."""
    if type(told) not in kinds:
        words = " or ".join(_WORDS[kind] for kind in kinds)
        raise FieldError(f"{what} is {shown(told)}, and should be {words}")


_WORDS: dict[type, str] = {
    str: "a text",
    type(None): "null",
    list: "a list",
    int: "a whole number",
    bool: "true or false",
}


def type_of_row(
    row: Any, shardings: Sequence[Sharding]
) -> tuple[Shape | None, str, str, Sharding | None]:
    """Return the shape, the dtype and the device of a type, and what one rank holds of it."""
    sizes, dtype, device, sharding = row_of(row, 3, 4)
    check_kind("dtype", dtype, str)
    check_kind("device", device, str)
    return sizes_of(sizes), dtype, device, _sharding_at(sharding, shardings)


def sharding_of_row(row: Any) -> Sharding:
    """Return what one rank holds of a tensor."""
    sizes, placements, mesh = row_of(row, 3, 3)
    shape = sizes_of(sizes)
    if shape is None:
        raise FieldError("has no sizes")
    for what, words in (("placements", placements), ("mesh", mesh)):
        check_kind(what, words, list)
        for word in words:
            check_kind(what, word, str)
    if len(placements) != len(mesh):
        raise FieldError(f"has {len(placements)} placements along {len(mesh)} dimensions")
    return Sharding(shape, tuple(placements), tuple(mesh))


def group_of_row(row: Any) -> tuple[tuple[int, ...], str, str]:
    """Return the ranks of a group, the dimension of the mesh, and torch's name for it."""
    ranks, mesh, name = row_of(row, 3, 3)
    check_kind("ranks", ranks, list)
    check_kind("mesh", mesh, str)
    check_kind("name", name, str)
    return tuple(at("rank", rank, 0, 2**31) for rank in ranks), mesh, name


def collective_of_row(row: Any, groups: Sequence[tuple[tuple[int, ...], str, str]]) -> Collective:
    """Return what a node does together with other ranks."""
    kind, reduction, group, given, got, peer, sequence, asynchronous, tensors = row_of(row, 9, 9)
    kind = Fields({"kind": kind}, frozenset({"kind"})).word("kind", None, _COLLECTIVES)
    check_kind("reduction", reduction, str, type(None))
    check_kind("asynchronous", asynchronous, bool)
    ranks, mesh, name = groups[at("group", group, 0, len(groups))]
    return Collective(
        kind,
        reduction,
        ranks,
        mesh,
        at("input bytes", number_of(given), 0, 2**63),
        at("output bytes", number_of(got), 0, 2**63),
        None if peer is None else at("peer", peer, 0, 2**31),
        name,
        at("sequence", sequence, 0, 2**63),
        asynchronous,
        at("tensors", tensors, 0, 2**63),
    )


_COLLECTIVES = get_args(CollectiveKind)


def mesh_dimension_of_row(row: Any) -> MeshDimension:
    """Return one dimension of the device mesh."""
    name, size, coordinate = row_of(row, 3, 3)
    check_kind("name", name, str)
    size = at("size", size, 1, 2**31)
    return MeshDimension(name, size, at("coordinate", coordinate, 0, size))


def part_of_row(row: Any) -> Part:
    """Return the ranks of one part of a merged graph, and what each of them has."""
    ranks, scope, stage, figures = row_of(row, 4, 4)
    check_kind("ranks", ranks, list)
    check_kind("scope", scope, str)
    if stage is not None:
        at("stage", stage, 0, 2**63)
    told = Fields(figures, frozenset(figures if type(figures) is dict else ()))
    return Part(
        tuple(at("rank", rank, 0, 2**31) for rank in ranks),
        scope,
        stage,
        {name: told.whole(name) for name in figures},
    )


def _sharding_at(number: Any, shardings: Sequence[Sharding]) -> Sharding | None:
    if number is None:
        return None
    return shardings[at("sharding", number, 0, len(shardings))]


def source_of_row(row: Any) -> Source:
    """Return a place in the code."""
    file, line, function = row_of(row, 3, 3)
    check_kind("file", file, str)
    check_kind("line", line, int)
    check_kind("function", function, str)
    return Source(file, line, function)


def parameter_of_row(row: Any, shardings: Sequence[Sharding] = ()) -> Parameter:
    """Return a parameter or buffer."""
    name, kind, sizes, dtype, size_bytes, grad, device, number, sharding = row_of(row, 6, 9)
    check_kind("name", name, str)
    if kind not in ("parameter", "buffer"):
        raise FieldError(f"kind is {shown(kind)}, and should be parameter or buffer")
    check_kind("dtype", dtype, str)
    check_kind("requires_grad", grad, bool)
    check_kind("device", device, str, type(None))
    check_kind("number", number, int, type(None))
    return Parameter(
        name,
        kind,
        sizes_of(sizes),
        dtype,
        number_of(size_bytes),
        grad,
        "cpu" if device is None else device,
        -1 if number is None else number,
        _sharding_at(sharding, shardings),
    )


def gradient_of_row(row: Any) -> Gradient:
    """Return what the backward pass computes."""
    flops, inputs = row_of(row, 2, 2)
    check_kind("inputs", inputs, list)
    return Gradient(number_of(flops), tuple(at("input", one, 0, 2**31) for one in inputs))


def function_of_row(row: Any) -> Function:
    """Return a function of the user's."""
    name, nested, loops = row_of(row, 3, 3)
    check_kind("name", name, str)
    check_kind("nested", nested, bool)
    check_kind("loops", loops, list)
    steps = [row_of(loop, 2, 2) for loop in loops]
    return Function(
        name, tuple((number_of(first), number_of(last)) for first, last in steps), nested
    )


def signature_of(op: str, names: Any) -> tuple[str | None, ...]:
    """Return the names of the arguments of an operation."""
    check_kind(f"signatures of {shown(op)}", names, list)
    for name in names:
        check_kind(f"signatures of {shown(op)}: a name", name, str, type(None))
    return tuple(names)


def texts_of(key: str, mapping: dict[str, Any]) -> dict[str, str]:
    """Return a mapping from texts to texts."""
    for name, text in mapping.items():
        check_kind(f"{key} of {shown(name)}", text, str)
    return mapping


def profile_of(data: Any) -> Profile | None:
    """Return how times were measured; None where they were not."""
    if data is None:
        return None
    names = Profile.__dataclass_fields__
    told = Fields(data, frozenset(names))
    given: dict[str, Any] = {}
    for name, field in names.items():
        if field.type is str:
            given[name] = told.text(name)
        else:
            try:
                given[name] = number_of(told.raw(name))
            except FieldError as fault:
                raise FieldError(f"profile.{name} {fault}") from None
    return Profile(**given)
