"""Rows: what the table tells of each part, as plain numbers, by name."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from tbscope.figures.costs import Costs
from tbscope.figures.summary.counting import own_parameters
from tbscope.figures.summary.part import Part
from tbscope.ir.graph import Call, Nest, Shape, Value

__all__ = ["Row", "add_rows", "costs_row", "part_row"]

Row: TypeAlias = dict[str, Any]
"""One line of the table; `docs/summary.md` tells its keys."""

# What a row of several parts tells is the sum of these.
_SUMMED = (
    "calls",
    "parameters",
    "own_parameters",
    "trainable_parameters",
    "shared_parameters",
    "share",
    "parameter_bytes",
    "buffers",
    "buffer_bytes",
    "flops",
    "backward_flops",
    "activation_bytes",
    "moved_bytes",
    "saved_bytes",
    "duration_us",
)


def part_row(part: Part, *, depth: int, all_parameters: int) -> Row:
    """Return the row of one part.

    Args:
        part: The part.
        depth: How many parts stand around it.
        all_parameters: Numbers in the parameters of the whole model.
    """
    given = [_shapes_given(call) for call in part.calls]
    gave = [_shapes(call.results, "out") for call in part.calls]
    holds = part.holds
    return {
        "depth": depth,
        "module": part.title,
        "name": part.name,
        "class": "" if part.kind in ("graph", "scope") else part.label,
        "kind": part.kind,
        "scope": part.scopes[0].path if part.scopes else None,
        "calls": len(part.calls),
        "input": given[0] if given else None,
        "output": gave[0] if gave else None,
        "varies": any(one != given[0] for one in given) or any(one != gave[0] for one in gave),
        "parameters": holds.parameters,
        "own_parameters": own_parameters(part),
        "trainable_parameters": holds.trainable,
        "shared_parameters": holds.shared,
        "share": holds.parameters / all_parameters if all_parameters else 0.0,
        "parameter_bytes": holds.parameter_bytes,
        "buffers": holds.buffers,
        "buffer_bytes": holds.buffer_bytes,
        **costs_row(part.costs),
    }


def costs_row(costs: Costs) -> Row:
    """Return costs as entries of a row; None for FLOPs of which none could be counted."""
    known = costs.flops or costs.backward_flops or not costs.uncounted
    return {
        "flops": costs.flops if known else None,
        "backward_flops": costs.backward_flops if known else None,
        "uncounted": dict(costs.uncounted),
        "activation_bytes": costs.activation_bytes,
        "moved_bytes": costs.moved_bytes,
        "saved_bytes": costs.saved_bytes,
        "intensity": costs.intensity if known else None,
        "duration_us": costs.duration_us,
    }


def add_rows(rows: list[Row]) -> Row:
    """Return the row of several equal parts: sums of numbers, else the entries of the first."""
    first = rows[0]
    whole = dict(first)
    shapes = first["input"], first["output"]
    whole["varies"] = any(row["varies"] or (row["input"], row["output"]) != shapes for row in rows)
    for name in _SUMMED:
        told = [row[name] for row in rows if row[name] is not None]
        whole[name] = sum(told) if told else None
    known = whole["flops"] is not None and whole["moved_bytes"]
    whole["intensity"] = whole["flops"] / whole["moved_bytes"] if known else None
    return whole


def _shapes_given(call: Call) -> dict[str, Shape | None]:
    found: dict[str, Shape | None] = {}
    for position, (name, nest) in enumerate(call.arguments):
        found.update(_shapes(nest, name or str(position)))
    return found


def _shapes(nest: Nest, path: str) -> dict[str, Shape | None]:
    """Return the shape of each tensor in a nest by its path: `logits`, `out.0`, `past.0.key`.

    The keys of a mapping that is not within anything stand by themselves, as in the names of a
    graph's outputs.
    """
    if isinstance(nest, Value):
        return {path: nest.shape}
    found: dict[str, Shape | None] = {}
    pending = [("" if path == "out" and isinstance(nest, dict) else path, nest)]
    while pending:
        path, nest = pending.pop()
        if isinstance(nest, Value):
            found[path] = nest.shape
        else:
            inside = [(f"{path}.{key}".lstrip("."), entry) for key, entry in _entries(nest)]
            pending.extend(reversed(inside))
    return found


def _entries(nest: Nest) -> Iterable[tuple[Any, Nest]]:
    if isinstance(nest, dict):
        return nest.items()
    return enumerate(nest) if isinstance(nest, list | tuple) else ()
