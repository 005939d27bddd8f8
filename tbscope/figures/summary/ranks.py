"""The ranks of a merged graph in its summary: what each holds and does, and all together."""

from collections.abc import Iterator
from typing import Any

from tbscope.figures.summary.columns import bytes_text, count_text, flops_text
from tbscope.figures.summary.rows import Row
from tbscope.ir.graph import Graph
from tbscope.ir.ranks import Part

__all__ = ["rank_lines", "rank_rows"]

_SUMMED = ("parameters", "parameter_bytes", "flops", "activation_bytes", "communication_bytes")
# Of a pipeline, each stage has one.
_MOST_LINES = 16


def rank_rows(graph: Graph) -> list[Row]:
    """Return a row for each rank that a merged graph shows, in the order of the ranks."""
    rows: list[Row] = [
        {"rank": rank, "stage": part.stage, "box": part.scope, **_figures(part)}
        for part in graph.parts
        for rank in part.ranks
    ]
    return sorted(rows, key=lambda row: row["rank"])


def rank_lines(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the ranks that are alike, and all ranks, each with what it holds and does."""
    if not graph.parts:
        return
    for part in graph.parts[:_MOST_LINES]:
        each = "each " if len(part.ranks) > 1 else ""
        yield _title(str(part)), f"{each}{_told(_figures(part))}"
    more = len(graph.parts) - _MOST_LINES
    if more > 0:
        yield "More", f"{more:,} groups of ranks that hold or do something else"
    total: dict[str, int] = dict.fromkeys(_SUMMED, 0)
    for part in graph.parts:
        for name in _SUMMED:
            total[name] += len(part.ranks) * _figures(part)[name]
    yield "All ranks", _told(total)
    model = graph.parts[0].figures.get("model_parameters", 0)
    if model:
        yield "Whole model", f"{model:,} parameters, {_held(total['parameters'], model)}"


def _held(held: int, model: int) -> str:
    """Tell how often ranks hold a model: "once" is exact, and what rounds to that is counted."""
    if held == model:
        return "held once"
    times = f"{held / model:.3g}"
    if times != "1":
        return f"held {times} times"
    more = count_text(abs(held - model))
    return f"held once, and {more} of them again" if held > model else f"held once but for {more}"


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]


def _figures(part: Part) -> dict[str, int]:
    return {name: part.figures.get(name, 0) for name in _SUMMED}


def _told(figures: dict[str, Any]) -> str:
    told = [
        f"{count_text(figures['parameters'])} parameters ({bytes_text(figures['parameter_bytes'])})"
    ]
    if figures["flops"]:
        told.append(f"{flops_text(figures['flops'])} FLOPs")
    told.append(f"{bytes_text(figures['activation_bytes'])} activations")
    if figures["communication_bytes"]:
        told.append(f"{bytes_text(figures['communication_bytes'])} between ranks")
    return ", ".join(told)
