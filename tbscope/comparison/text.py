"""Text of a difference: one line for each group of similar changes, and the totals below."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from tbscope.comparison.block_diff import Detail
from tbscope.comparison.changes import Change, Comparison
from tbscope.comparison.structure import Outline
from tbscope.messages import cut

TOTALS: Mapping[str, str] = {
    "parameters": "parameters",
    "trainable_parameters": "trainable parameters",
    "parameter_bytes": "parameter bytes",
    "flops": "FLOPs",
    "activation_bytes": "activation bytes",
    "operations": "operations",
    "calls": "module calls",
}
"""Descriptions of the totals, by name."""

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_KINDS = ("input", "output", "module", "operation", "parameter")
# Details whose values may differ between the changes of one group.
_OWN = frozenset({"name", "moved"})
# Details that modules of any class may have.
_OF_ANY_CLASS = frozenset({"dtype", "trainable", "training"})
_MOST_DETAIL = 60
_MOST_SETTINGS = 4
_MOST_NAMES = 4
_WHOLE = "the model"

_Parts: TypeAlias = tuple[tuple[str, ...], ...]


def comparison_lines(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the lines of the changes, one for each group of similar changes.

    Each line comes with the name of the first part in its group, or "" if it names no part.
    """
    groups: dict[tuple[object, ...], list[Change]] = {}
    for change in comparison.changes:
        own = tuple(detail.what if detail.what in _OWN else detail for detail in change.details)
        size = change.parameters if change.fate != "changed" else 0
        label = change.label
        whats = {detail.what for detail in change.details}
        if change.fate == "changed" and whats <= _OF_ANY_CLASS:
            label = ""
        key = (change.fate, change.kind, label, own, size)
        groups.setdefault(key, []).append(change)
    outputs = len(comparison.left.outputs), len(comparison.right.outputs)
    lines = [
        (_line(group, second=outputs == (1, 2)), group[0].name)
        for group in sorted(groups.values(), key=_order)
    ]
    if count := comparison.follows:
        words = ("", "s", "it reads") if count == 1 else ("s", "", "they read")
        line = "  {} more operation{} give{} another type, as {} one".format(count, *words)
        lines.append((line, ""))
    return lines


def _order(group: Sequence[Change]) -> tuple[int, bool, int]:
    """Return the sort key of a group: kind, then changed parts last, then outer modules first."""
    first = group[0]
    depth = sum(not part.isdecimal() for part in first.name.split("."))
    is_module = first.kind == "module"
    return (_KINDS.index(first.kind), first.fate == "changed", depth if is_module else 0)


def _line(group: Sequence[Change], *, second: bool) -> str:
    first = group[0]
    label = first.label if len({change.label for change in group}) == 1 else first.kind
    if first.kind == "parameter":
        label = f"{first.kind} {label}"
    elif second and (first.kind, first.fate) == ("output", "added"):
        label = "a second result"
    count = f"{len(group)} x " if len(group) > 1 else ""
    where = " in" if first.kind == "operation" else ":"
    suffix = _settings(first, len(group)) if first.fate != "changed" else _differing(group)
    return f"{_SIGNS[first.fate]} {count}{label}{where} {_names(group)}{suffix}"


def _names(group: Sequence[Change]) -> str:
    first = group[0]
    if first.kind == "operation":
        # An operation is listed by its module.
        return folded_names(change.name.rpartition(".")[0] or _WHOLE for change in group)
    if first.fate == "changed" and any(detail.what in _OWN for detail in first.details):
        before = folded_names(change.before or _WHOLE for change in group)
        after = folded_names(change.after or _WHOLE for change in group)
        return after if before == after else f"{before} -> {after}"
    return folded_names(change.name or _WHOLE for change in group)


def _settings(first: Change, count: int) -> str:
    """Return the settings and the size of an added or removed part."""
    texts = []
    if len(first.details) <= _MOST_SETTINGS:
        for what, before, after in first.details:
            texts.append(f"{what}={after or before}" if after or before else what)
    if first.parameters:
        texts.append(f"{first.parameters:,} parameters{' each' * (count > 1)}")
    elif first.operations > 1:
        texts.append(f"{first.operations} operations")
    return f" ({', '.join(texts)})" if texts else ""


def _differing(group: Sequence[Change]) -> str:
    first = group[0]
    text = ""
    for what, *sides in first.details:
        if what == "name":
            text += ", renamed"
        elif what == "moved":
            # Differing names already show the move; otherwise the detail contains the new
            # predecessor.
            same_name = len(group) == 1 and first.before == first.after
            text += f", moved: {sides[1]}" if same_name else ", moved"
        else:
            text += f", {Detail(what, *(cut(side, _MOST_DETAIL) for side in sides))}"
    return text


def total_lines(before: Outline, after: Outline) -> Iterator[str]:
    """Yield the totals that differ: `parameters: 66 -> 94 (+42.4%)`."""
    # Quantized modules keep their parameters in objects that cannot be read.
    packed = any(
        "ParamsBase>" in str(block.steps) for side in (before, after) for block in side.blocks()
    )
    for name, words in TOTALS.items():
        old, new = before.totals.get(name, 0), after.totals.get(name, 0)
        if old != new:
            share = f" ({(new - old) / old:+.1%})" if old else ""
            if packed and ("parameter" in name or name == "flops"):
                share = ", packed parameters not counted"
            yield f"{words}: {old:,} -> {new:,}{share}"


def counted(changes: Iterable[Change]) -> str:
    """Return the number of changes of each fate."""
    fates = [change.fate for change in changes]
    counts = [f"{fates.count(fate)} {fate}" for fate in _SIGNS if fate in fates]
    return ", ".join(counts)


# -- names ----------------------------------------------------------------------------------


def folded_names(names: Iterable[str]) -> str:
    """Return names as a few patterns that cover all of them.

    >>> folded_names(["layers.0.fc", "layers.1.fc", "layers.2.fc", "head"])
    'layers.0-2.fc, head'
    >>> folded_names(["0.q", "0.v", "1.q", "1.v"])
    '0-1.{q,v}'

    Args:
        names: Names with dots between their parts. Of many patterns, the rest is only counted.
    """
    # Each group has, for each part of its names, the alternatives.
    groups: list[_Parts] = [tuple((part,) for part in name.split(".")) for name in names]
    groups = list(dict.fromkeys(groups))
    for index in range(max(map(len, groups), default=0)):
        # Groups that differ in this part only are merged.
        merged: dict[tuple[_Parts, _Parts, bool], list[str]] = {}
        for group in groups:
            own = group[index : index + 1]
            key = (group[:index], group[index + 1 :], bool(own))
            merged.setdefault(key, []).extend(part for parts in own for part in parts)
        groups = [
            (*head, *([tuple(dict.fromkeys(parts))] if parts else []), *tail)
            for (head, tail, _), parts in merged.items()
        ]
    texts = [".".join(map(_part_text, group)) for group in groups]
    if len(texts) > _MOST_NAMES:
        texts = [*texts[: _MOST_NAMES - 1], f"and {len(texts) - _MOST_NAMES + 1} more"]
    return ", ".join(texts)


def _part_text(parts: tuple[str, ...]) -> str:
    if len(parts) == 1:
        return parts[0]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return f"{{{','.join(parts)}}}"
    texts = []
    for _, row in groupby(enumerate(sorted(map(int, parts))), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in row]
        texts.append("-".join(map(str, dict.fromkeys([numbers[0], numbers[-1]]))))
    return texts[0] if len(texts) == 1 else f"{{{','.join(texts)}}}"
