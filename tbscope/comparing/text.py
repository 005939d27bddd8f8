"""The text of a difference: one line for changes that are the same, and the totals below."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tbscope.comparing.changes import Change, Comparison
from tbscope.comparing.names import folded_names
from tbscope.comparing.pairs import Detail

__all__ = ["TOTALS", "comparison_lines", "total_lines"]

TOTALS: Mapping[str, str] = {
    "parameters": "parameters",
    "trainable_parameters": "trainable parameters",
    "parameter_bytes": "parameter bytes",
    "flops": "FLOPs",
    "activation_bytes": "activation bytes",
    "operations": "operations",
    "calls": "module calls",
}
"""What the totals are called, by their names."""

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_KINDS = ("input", "output", "module", "operation", "parameter")
# Names that each part of a group has of its own.
_OWN = frozenset({"name", "moved"})
_MOST_DETAIL = 60
_WHOLE = "the model"


def comparison_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """Return what differs, a line for each group of changes that are the same.

    Each with the name of the first part of its group; an empty one for what names no part.
    """
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in comparison.changes:
        groups.setdefault(_key(change), []).append(change)
    lines = [(_line(group), group[0].name) for group in sorted(groups.values(), key=_order)]
    if comparison.follows:
        count = comparison.follows
        text = f"  {count} more operation{'s' * (count > 1)} give another type, as they read one"
        lines.append((text, ""))
    return lines


def _order(group: Sequence[Change]) -> tuple[int, bool, int]:
    """Return where a group stands among others: modules come first, the outermost before all."""
    first = group[0]
    depth = sum(not part.isdecimal() for part in first.name.split("."))
    is_module = first.kind == "module"
    return (_KINDS.index(first.kind), first.fate == "changed", depth if is_module else 0)


def _key(change: Change) -> tuple[object, ...]:
    own = tuple(one.what if one.what in _OWN else one for one in change.details)
    return (change.fate, change.kind, change.label, own, change.parameters if _lone(change) else 0)


def _lone(change: Change) -> bool:
    return change.fate != "changed"


def _line(group: Sequence[Change]) -> str:
    first = group[0]
    names = _names(group)
    count = f"{len(group)} x " if len(group) > 1 else ""
    text = f"{_SIGNS[first.fate]} {count}{_label(first)}"
    text += f" in {names}" if first.kind == "operation" else f": {names}"
    told = _details(first, len(group))
    return f"{text}{told}"


def _label(change: Change) -> str:
    if change.kind in ("module", "operation"):
        return change.label
    if change.label in ("input", "output", change.kind):
        return change.kind
    return f"{change.kind} {change.label}" if change.kind == "parameter" else change.label


def _names(group: Sequence[Change]) -> str:
    first = group[0]
    if first.kind == "operation":
        return folded_names(_above(change.name) for change in group)
    if first.fate == "changed" and any(one.what in _OWN for one in first.details):
        before = folded_names(change.before or _WHOLE for change in group)
        after = folded_names(change.after or _WHOLE for change in group)
        return after if before == after else f"{before} -> {after}"
    return folded_names(change.name or _WHOLE for change in group)


def _above(name: str) -> str:
    """Return the module in which an operation stands."""
    return name.rpartition(".")[0] or _WHOLE


def _details(first: Change, count: int) -> str:
    told: list[str] = []
    if _lone(first):
        settings = [
            f"{one.what}={one.after or one.before}"
            for one in first.details
            if one.before or one.after
        ]
        told += [one.what for one in first.details if not one.before and not one.after]
        told += settings if len(settings) <= 4 else []
        if first.parameters:
            told.append(f"{first.parameters:,} parameters{' each' * (count > 1)}")
        elif first.operations > 1:
            told.append(f"{first.operations} operations")
        return f" ({', '.join(told)})" if told else ""
    told = [_detail(one, first, count) for one in first.details]
    return f", {', '.join(told)}" if told else ""


def _detail(detail: Detail, change: Change, count: int) -> str:
    if detail.what == "name":
        return "renamed"
    if detail.what == "moved":
        # Where it went, its names tell, or the place where it stands now.
        return f"moved: {detail.after}" if count == 1 and change.before == change.after else "moved"
    sides = (
        text if len(text) <= _MOST_DETAIL else f"{text[:_MOST_DETAIL]}..." for text in detail[1:]
    )
    return str(Detail(detail.what, *sides))


def total_lines(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[str]:
    """Return the totals that differ: `parameters 66 -> 94 (+42.4 %)`."""
    for name, words in TOTALS.items():
        one, other = before.get(name, 0), after.get(name, 0)
        if one != other:
            share = f" ({(other - one) / one:+.1%})" if one else ""
            yield f"{words}: {one:,} -> {other:,}{share}"


def counted(changes: Iterable[Change]) -> str:
    """Return how many changes there are of each fate."""
    fates = [change.fate for change in changes]
    told = [f"{fates.count(fate)} {fate}" for fate in _SIGNS if fate in fates]
    return ", ".join(told)
