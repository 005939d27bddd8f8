"""`tbscope.diff` and `tbscope.check`: two models beside each other, and one beside its pin.

A check tells whether a model is still what its pin tells, and no larger than it may be.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, Unpack

from tbscope.comparison.build_structure import reading_of
from tbscope.comparison.difference import Difference
from tbscope.comparison.lock_file import outline_to_pin, pin_to_outline
from tbscope.comparison.structure import Outline
from tbscope.comparison.text import TOTALS, folded_names
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.ir.module_tree import lists_parameters
from tbscope.ir.nodes import OPERATIONS
from tbscope.messages import error_text, shown
from tbscope.run_options import Tracing, run_options
from tbscope.sources.registry import graph_of, load, runs
from tbscope.utils.files import path_text, write_whole
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.option import shows_options
from tbscope.utils.validation import check_truth

__all__ = ["Checked", "Limit", "check", "diff", "parse_limit"]

Limit: TypeAlias = int | str
"""A count, or a text that tells one with a unit: `25_000_000`, `"25M"`, `"1.5GiB"`."""

_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?) ?([A-Za-z]*)")
_MOST_DIGITS = 40
_UNITS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}

# The limits by name: each as it was given, and as a count.
_Limits: TypeAlias = Mapping[str, tuple[Limit, int]]


@shows_options
def diff(before: Any, after: Any, input_to_model: Any = None, **run: Unpack[Tracing]) -> Difference:
    """Tell how two models differ: what was added, removed and changed from one to the other.

    Module calls and operations are matched by name and by structure, so that a renamed or an
    inserted block does not make everything differ.

    Args:
        before: A model; a `Graph`; the path of a file or of a log directory, or anything else
            that `tbscope.load` takes.
        after: The other one, in any of these forms.
        input_to_model: The inputs with which those run that are models, as for `tbscope.trace`.
        run: How they run, as for `tbscope.trace`.
    Returns:
        The difference: true where there is one. Its text tells it; `changes`, `added`, `removed`,
        `changed` and `same` list it; `graph` is the union of both, to be drawn.
    Raises:
        ArgumentError: One of them holds no graph, or several; or inputs are given, and none of
            them runs.
        InputError: The inputs do not fit forward.
        TraceError: A model raised.
    """
    how = run_options(run)
    with collecting_rarely():
        both = [graph_of(one, input_to_model, how) if runs(one) else one for one in (before, after)]
        if not any(map(runs, (before, after))):
            # What tells how nothing runs is refused.
            graph_of(load(before), input_to_model, how)
        return Difference(*(reading_of(load(one)) for one in both))


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has found. It is true where all is as it should be.

    Attributes:
        failures: What is not as it should be, a text each.
        difference: How the model differs from its pin; None where there was none before.
        written: Whether the pin was written.
        pin: The path of the pin; None where none was asked for.
        totals: Parameters, FLOPs, bytes and counts of the model.
    """

    failures: tuple[str, ...]
    difference: Difference | None
    written: bool
    pin: str | None
    totals: Mapping[str, int]

    def __bool__(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        lines = list(self.failures)
        if self.written:
            lines.append(f"wrote {self.pin}")
            if self.difference:
                lines.append(str(self.difference))
        if not lines:
            lines.append(f"as in {self.pin}" if self.pin is not None else "within all limits")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, ready for JSON (docs/diff.md)."""
        return {
            "format": "tbscope check",
            "version": 1,
            "passed": bool(self),
            "failures": list(self.failures),
            "difference": None if self.difference is None else self.difference.to_dict(),
            "written": self.written,
            "totals": dict(self.totals),
        }


@shows_options
def check(
    model: Any,
    input_to_model: Any = None,
    *,
    pin: Any = None,
    update: bool = False,
    max_parameters: Limit | None = None,
    max_flops: Limit | None = None,
    max_activation_bytes: Limit | None = None,
    no_op: str | Sequence[str] = (),
    **run: Unpack[Tracing],
) -> Checked:
    """Check that a model is what a pin tells, and no larger than it may be.

    Args:
        model: A model; a `Graph`; or the path of a file or a log, as for `tbscope.load`.
        input_to_model: Its inputs, as for `tbscope.trace`; None for what has run already.
        pin: The path of the file that tells what the model is to be; None for no such file.
        update: Whether the pin is written, where it is missing or tells something else.
        max_parameters: The most numbers in parameters, tied ones once: a count, or a text as
            `"25M"` or `"7B"`.
        max_flops: The most FLOPs of a forward pass: `"4G"`.
        max_activation_bytes: The most bytes of results: `"1.5GiB"`.
        no_op: Patterns of operations and of classes of modules that are not to be in it: `"view"`,
            `"*Norm*"`.
        run: How it runs, as for `tbscope.trace`.
    Returns:
        What was found: true where all is well. Its text tells what is not.
    Raises:
        ArgumentError: There is nothing to check, the pin is missing, none, or cannot be written,
            or a limit is no number.
        InputError: The inputs do not fit forward.
        TraceError: The model raised.
    """
    check_truth("update", update)
    given = {
        "max_parameters": max_parameters,
        "max_flops": max_flops,
        "max_activation_bytes": max_activation_bytes,
    }
    limits = {
        name: (limit, parse_limit(limit, name))
        for name, limit in given.items()
        if limit is not None
    }
    patterns = _patterns(no_op)
    path = None if pin is None else path_text(pin, refused=_no_path)
    if path is None and update:
        raise ArgumentError(
            "update=True was given without a pin",
            why="a pin is the file that is updated",
            fix="pin='net.json'",
        )
    if path is None and not limits and not patterns:
        raise ArgumentError(
            "check was given nothing to check",
            why="it compares a model with a pin, or with limits",
            fix="pin='net.json', max_parameters='25M', max_flops='4G', or no_op=['view']",
        )
    # Before a model runs for nothing.
    before = None if path is None else _read_pin(path, pin, update=update)
    with collecting_rarely():
        graph = graph_of(model if runs(model) else load(model), input_to_model, run_options(run))
        if "max_parameters" in limits:
            _require_parameters(graph)
        reading = reading_of(graph)
        outline = reading.outline
        failures = [*_too_large(outline, limits), *_unwanted(graph, patterns)]
        difference = None if before is None else Difference(before, reading)
        if difference and not update:
            failures.insert(0, f"the architecture is no longer that of {path}\n{difference}")
        written = path is not None and update and _write_pin(path, outline)
    return Checked(tuple(failures), difference, written, path, outline.totals)


def _require_parameters(graph: Graph) -> None:
    """Refuse to count the parameters of a drawing, which tells of each at most its shape."""
    if not lists_parameters(graph) and any(node.kind == "parameter" for node in graph.nodes):
        raise ArgumentError(
            f"the parameters of {shown(graph.name)} cannot be counted",
            why="it was read from a drawing, which does not tell what its modules hold",
            fix="check the model itself, or what graph.save('net.json') has kept of it",
        )


def _too_large(outline: Outline, limits: _Limits) -> Iterator[str]:
    for name, (limit, most) in limits.items():
        total = name.removeprefix("max_")
        count = outline.totals[total]
        if count > most:
            told = f"{most:,}" if type(limit) is int else f"{limit} ({most:,})"
            yield f"too large: {count:,} {TOTALS[total]} are more than {told}"


def _unwanted(graph: Graph, patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        found = [
            f"{node.scope.qualified_name}.{node.op}()"
            if node.scope and node.scope.qualified_name
            else f"{node.op}()"
            for node in graph.nodes
            if node.kind in OPERATIONS and fnmatchcase(node.op, pattern)
        ]
        found += [
            call.qualified_name or call.scope.path
            for call in graph.calls
            if fnmatchcase(call.scope.part.label, pattern)
        ]
        if found:
            times = f" {len(found)} times" if len(found) > 1 else ""
            yield f"not allowed: {pattern!r} is in it{times}: {folded_names(found)}"


def _patterns(no_op: Any) -> list[str]:
    given = [no_op] if isinstance(no_op, str) else no_op
    if not isinstance(given, list | tuple) or not all(
        isinstance(one, str) and one for one in given
    ):
        raise ArgumentError(
            f"no_op cannot be {shown(no_op)}",
            why="it is a pattern of names of operations or classes, or a list of such, none empty",
            fix="no_op=['view', '*Norm*']",
        )
    return [str.__str__(one) for one in given]


def parse_limit(limit: Limit, name: str) -> int:
    """Return the count that a limit tells; the part of one that is left over is dropped.

    >>> parse_limit("25M", "max_parameters"), parse_limit("1.5GiB", "max_activation_bytes")
    (25000000, 1610612736)

    Args:
        limit: A whole number, or a text. `k`, `M`, `G`, `T` and `P` are powers of 1000; `Ki`,
            `Mi`, `Gi`, `Ti` and `Pi` of 1024. Of bytes, `B` may stand behind; of anything
            else, `B` is 10**9, as in a model of 7B parameters.
        name: What it limits, for the message: one that ends in `bytes` is of bytes.
    Raises:
        ArgumentError: It is none.
    """
    of_bytes = name.endswith("bytes")
    if type(limit) is int and limit >= 0:
        return limit
    if isinstance(limit, str) and len(limit) <= _MOST_DIGITS:
        found = _NUMBER.fullmatch(str.__str__(limit).strip())
        if found:
            number, unit = found.groups()
            factor = _UNITS.get(unit.removesuffix("B") if of_bytes else unit)
            if unit == "B" and not of_bytes:
                factor = 10**9
            if factor is not None:
                return int(Decimal(re.sub("[_,]", "", number)) * factor)
    example = "1.5GiB" if of_bytes else "25M"
    units = "k, M, G, T, P, Ki, Mi, Gi, Ti, Pi" + (
        ", each with B or without" if of_bytes else ", B"
    )
    raise ArgumentError(
        f"{name} cannot be {shown(limit)}",
        why=f"it is a number from 0 up with or without a unit, one of {units}",
        fix=f'{name}="{example}"',
    )


# -- files ----------------------------------------------------------------------------------


def _no_path(path: Any) -> ArgumentError:
    return ArgumentError(
        f"{shown(path)} is no path of a pin", why="a path is a text", fix="pin='net.json'"
    )


def _read_pin(path: str, given: Any, *, update: bool) -> Outline | None:
    """Return the outline that a pin tells; None for one that is missing and will be written."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError as error:
        if update:
            return None
        raise ArgumentError(
            f"there is no pin {shown(given)}",
            why="it is written once, kept with the code, and compared with from then on",
            fix="check(..., update=True) writes it",
        ) from error
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the pin {shown(given)} cannot be read",
            why=error_text(error),
            fix="check the path, or write it anew with update=True",
        ) from error
    try:
        return pin_to_outline(text)
    except ArgumentError as error:
        raise ArgumentError(
            f"the pin {shown(given)} cannot be read",
            why=f"{error.what}: {error.why}",
            fix="take the file from version control, or remove it and write it with update=True",
        ) from error


def _write_pin(path: str, outline: Outline) -> bool:
    """Write a pin whole or not at all, where it would tell something else; tell whether."""
    data = outline_to_pin(outline).encode("ascii")
    try:
        with suppress(FileNotFoundError), open(path, "rb") as file:
            if file.read() == data:
                return False
        write_whole(path, data)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the pin {shown(path)} cannot be written",
            why=error_text(error),
            fix="give a path in a folder that may be written to",
        ) from error
    return True
