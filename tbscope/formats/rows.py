"""Decodes the rows of tables, and what else of a graph names no node and no value."""

from typing import Any

from tbscope.formats.fields import FieldError, Fields, at, number_of, row_of, sizes_of
from tbscope.ir.graph import Gradient, Parameter, Profile, Shape, Source
from tbscope.ir.runs import Function
from tbscope.words import shown

__all__ = [
    "check_kind",
    "function_of_row",
    "gradient_of_row",
    "parameter_of_row",
    "profile_of",
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


def type_of_row(row: Any) -> tuple[Shape | None, str, str]:
    """Return the shape, the dtype and the device of a type."""
    sizes, dtype, device = row_of(row, 3, 3)
    check_kind("dtype", dtype, str)
    check_kind("device", device, str)
    return sizes_of(sizes), dtype, device


def source_of_row(row: Any) -> Source:
    """Return a place in the code."""
    file, line, function = row_of(row, 3, 3)
    check_kind("file", file, str)
    check_kind("line", line, int)
    check_kind("function", function, str)
    return Source(file, line, function)


def parameter_of_row(row: Any) -> Parameter:
    """Return a parameter or buffer."""
    name, kind, sizes, dtype, size_bytes, requires_grad, device, number = row_of(row, 6, 8)
    check_kind("name", name, str)
    if kind not in ("parameter", "buffer"):
        raise FieldError(f"kind is {shown(kind)}, and should be parameter or buffer")
    check_kind("dtype", dtype, str)
    check_kind("requires_grad", requires_grad, bool)
    check_kind("device", device, str, type(None))
    check_kind("number", number, int, type(None))
    return Parameter(
        name,
        kind,
        sizes_of(sizes),
        dtype,
        number_of(size_bytes),
        requires_grad,
        "cpu" if device is None else device,
        -1 if number is None else number,
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
