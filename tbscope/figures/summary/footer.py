"""What stands below the table: the totals of the model, and what is not in them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tbscope.figures.summary.columns import bytes_text, count_text, duration_text, flops_text
from tbscope.figures.summary.counting import parameter_key
from tbscope.figures.summary.part import Part, walk
from tbscope.figures.summary.rows import Row, costs_row
from tbscope.ir.graph import Graph

__all__ = ["footer_lines", "model_totals"]

_MOST_TOLD = 6


def model_totals(graph: Graph, root: Part) -> Row:
    """Return the totals of a graph.

    Args:
        graph: The graph.
        root: Its outermost part.
    Returns:
        Those of the outermost part, under the keys of its row; what no module registers
        (`unregistered_parameters`), how many parameters have no known size where a file tells
        no more (`unsized_parameters`), which names tied parameters have (`tied`), the reasons why
        kernels have no FLOPs (`reasons`), and how times were measured (`profile`).
    """
    holds = root.holds
    parts = list(walk(root))
    return {
        "parameters": holds.parameters,
        "trainable_parameters": holds.trainable,
        "unregistered_parameters": sum(
            part.holds.parameters
            for part in parts
            if part.unregistered and part.parent and not part.parent.unregistered
        ),
        "unsized_parameters": 0,
        "parameter_bytes": holds.parameter_bytes,
        "buffers": holds.buffers,
        "buffer_bytes": holds.buffer_bytes,
        "tied": _tied(parts),
        **costs_row(root.costs),
        "reasons": dict(graph.uncounted),
        "profile": graph.profile,
    }


def _tied(parts: list[Part]) -> list[tuple[str, ...]]:
    """Return the names of each parameter that has several."""
    names: dict[int | str, dict[str, None]] = {}
    for part in parts:
        if part.name is not None:
            for parameter in (*part.held, *part.borrowed):
                if parameter.kind == "parameter":
                    name = f"{part.name}.{parameter.name}".lstrip(".")
                    names.setdefault(parameter_key(part, parameter), {})[name] = None
    return [tuple(several) for several in names.values() if len(several) > 1]


def footer_lines(totals: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the totals as lines, each with a title and a text."""
    return list(_lines(totals))


def _lines(totals: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    held = _held(totals)
    if held:
        yield "Parameters", held
    if totals["tied"]:
        tied = [" = ".join(names) for names in totals["tied"]]
        yield "Tied (=)", f"{_some(tied)}; counted once"
    if totals["unregistered_parameters"]:
        held = count_text(totals["unregistered_parameters"])
        yield "Unregistered", f"{held} more, in modules that no module registers"
    if totals["buffers"]:
        yield "Buffers", f"{totals['buffers']:,}{_bytes(totals['buffer_bytes'])}"
    yield from _costs_lines(totals)


def _held(totals: Mapping[str, Any]) -> str:
    """Tell of the parameters what is known; nothing where nothing is."""
    count, unsized = totals["parameters"], totals["unsized_parameters"]
    open_ = f"{unsized:,} tensor{'s' if unsized > 1 else ''} of unknown size" if unsized else ""
    if count is None:
        return open_
    known = f"{count:,}{_bytes(totals['parameter_bytes'])}{_learnt(totals)}"
    return f"{known}, and {open_}" if open_ else known


def _bytes(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f" ({bytes_text(size_bytes)})"


def _learnt(totals: Mapping[str, Any]) -> str:
    count, trainable = totals["parameters"], totals["trainable_parameters"]
    if trainable is None:
        return ""
    if trainable == count:
        return ", all trainable" if count else ""
    return f", {trainable:,} trainable" if trainable else ", all frozen"


def _costs_lines(totals: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if totals["flops"]:
        backward = totals["backward_flops"]
        text = f"{flops_text(totals['flops'])} forward"
        yield "FLOPs", f"{text}, {flops_text(backward)} backward" if backward else text
    if totals["uncounted"]:
        yield "Not in FLOPs", _uncounted(totals["uncounted"], totals["reasons"])
    if totals["activation_bytes"]:
        yield "Activations", bytes_text(totals["activation_bytes"])
    if totals["duration_us"] is not None:
        yield "Time", _time(totals)


def _uncounted(times: Mapping[str, int], reasons: Mapping[str, str]) -> str:
    """Name the kernels, those first that ran most; those that are missing for another reason."""
    common = Counter(reasons.values()).most_common(1)[0][0] if reasons else ""
    told = []
    for name, count in sorted(times.items(), key=lambda pair: (-pair[1], pair[0])):
        text = f"{name} x{count}" if count > 1 else name
        why = reasons.get(name, "")
        told.append(f"{text} ({why})" if why != common else text)
    return _some(told)


def _time(totals: Mapping[str, Any]) -> str:
    profile = totals["profile"]
    operations = f"{duration_text(totals['duration_us'])} in operations"
    if profile is None:
        return operations
    run = duration_text(profile.forward_us)
    return f"{operations}; an unwatched run took {run} (median of {profile.steps})"


def _some(texts: list[str]) -> str:
    told = ", ".join(texts[:_MOST_TOLD])
    more = len(texts) - _MOST_TOLD
    return f"{told} and {more} more" if more > 0 else told
