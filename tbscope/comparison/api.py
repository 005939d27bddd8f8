"""`tbscope.diff` compares two models; `tbscope.check` compares a model with its lock file.

A check passes if the model has the architecture in its lock file (`pin`) and exceeds no limit.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from tbscope.comparison.build_structure import outlined
from tbscope.comparison.difference import Difference
from tbscope.comparison.lock_file import outline_to_pin, pin_to_outline
from tbscope.comparison.structure import Outline
from tbscope.comparison.text import TOTALS, folded_names
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.ir.module_tree import has_parameter_lists
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
"""A count, or a text with a count and a unit: `25_000_000`, `"25M"`, `"1.5GiB"`."""

_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?) ?([A-Za-z]*)")
_MOST_DIGITS = 40
_UNITS = {
    "": 1,
    "k": 1000,
    **{prefix: 1000**power for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTP", 1)},
}

# Limits by name: the argument as passed by the caller, and its count.
_Limits: TypeAlias = Mapping[str, tuple[Limit, int]]


@shows_options
def diff(
    before: object,
    after: object,
    input_to_model: object = None,
    *,
    any_batch_size: bool = False,
    **run: Unpack[Tracing],
) -> Difference:
    """Compare two models: parts that were added, removed and changed between them.

    Module calls and operations are matched by name and by structure, so a renamed or inserted block
    does not make everything else differ.

    >>> import torch, tbscope
    >>> before = torch.nn.Sequential(torch.nn.Linear(3, 5))
    >>> after = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU())
    >>> difference = tbscope.diff(before, after, torch.rand(1, 3))
    >>> bool(difference), [(change.label, change.name) for change in difference.added]
    (True, [('ReLU', '1')])

    Args:
        before: A model, a `Graph`, the path of a file or of a log directory, or anything else
            that `tbscope.load` accepts.
        after: The second model, in any of these forms.
        input_to_model: Inputs of the models that have to run, as for `tbscope.trace`.
        any_batch_size: Whether the first size of an input may differ, with all that follows.
        run: Options of the run, as for `tbscope.trace`.
    Returns:
        The difference, true if the models differ. `str()` describes it; `changes`, `added`,
        `removed`, `changed` and `same` list it; `graph` is the union of both graphs, for drawing.
    Raises:
        ArgumentError: A model contains no graph, or several; or inputs were passed although
            neither model runs.
        InputError: The inputs do not fit forward.
        TraceError: A model raised.
    """
    check_truth("any_batch_size", any_batch_size)
    options = run_options(run)
    with collecting_rarely():
        sources = [
            graph_of(model, input_to_model, options) if runs(model) else model
            for model in (before, after)
        ]
        if not any(map(runs, (before, after))):
            # `graph_of` refuses inputs and run options for a graph that is only loaded.
            graph_of(load(before), input_to_model, options)
        graphs = [outlined(load(model)) for model in sources]
        return Difference(graphs[0], graphs[1], any_batch_size=any_batch_size)


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check. It is true if the check passed.

    Attributes:
        failures: Descriptions of the failures, one text each.
        difference: Difference between the lock file and the model, or None if there was no file.
        written: Whether the lock file was written.
        pin: Path of the lock file, or None if the check has none.
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
        """Return plain data, ready for JSON (docs/diff.md)."""
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
    pin: object = None,
    update: bool = False,
    any_batch_size: bool = False,
    max_parameters: Limit | None = None,
    max_flops: Limit | None = None,
    max_activation_bytes: Limit | None = None,
    no_op: str | Sequence[str] = (),
    **run: Unpack[Tracing],
) -> Checked:
    """Check that a model has the architecture in its lock file, and exceeds no limit.

    >>> import torch, tbscope
    >>> checked = tbscope.check(torch.nn.Linear(3, 5), torch.rand(1, 3), max_parameters=10)
    >>> bool(checked), checked.failures
    (False, ('too large: 20 parameters are more than 10',))

    Args:
        model: A model, a `Graph`, or the path of a file or a log, as for `tbscope.load`.
        input_to_model: Inputs of the model, as for `tbscope.trace`; None if it does not have to
            run.
        pin: Path of the lock file, which describes the expected architecture; None for no file.
        update: Whether the lock file is written if it is missing or differs from the model.
        any_batch_size: Whether the first size of an input may differ from the lock file, with all
            that follows from it.
        max_parameters: Largest number of elements in all parameters, tied ones counted once: a
            count, or a text like `"25M"` or `"7B"`.
        max_flops: Largest number of FLOPs of a forward pass: `"4G"`.
        max_activation_bytes: Largest size of all results in bytes: `"1.5GiB"`.
        no_op: Patterns of forbidden operations and module classes: `"view"`, `"*Norm*"`.
        run: Options of the run, as for `tbscope.trace`.
    Returns:
        The result, true if the check passed. `str()` lists the failures.
    Raises:
        ArgumentError: Nothing is to be checked; the lock file is missing, invalid, or cannot be
            written; or a limit is no number.
        InputError: The inputs do not fit forward.
        TraceError: The model raised.
    """
    check_truth("update", update)
    check_truth("any_batch_size", any_batch_size)
    limits = {
        name: (limit, parse_limit(limit, name))
        for name, limit in (
            ("max_parameters", max_parameters),
            ("max_flops", max_flops),
            ("max_activation_bytes", max_activation_bytes),
        )
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
    # The lock file is read before the model runs, so a bad file costs no run.
    before = None if path is None else _read_pin(path, pin, update=update)
    with collecting_rarely():
        graph = graph_of(model if runs(model) else load(model), input_to_model, run_options(run))
        if "max_parameters" in limits:
            _require_parameters(graph)
        reading = outlined(graph)
        outline = reading.outline
        failures = [*_too_large(outline, limits), *_unwanted(graph, patterns)]
        options = {"any_batch_size": any_batch_size}
        difference = None if before is None else Difference(before, reading, **options)
        if difference and not update:
            failures.insert(0, f"the architecture is no longer that of {path}\n{difference}")
        # A pin of another batch size stays as it is.
        update = update and bool(difference or before is None or not any_batch_size)
        written = path is not None and update and _write_pin(path, outline)
    return Checked(tuple(failures), difference, written, path, outline.totals)


def _require_parameters(graph: Graph) -> None:
    """Refuse to count the parameters of a drawing, which contains at most their shapes."""
    if not has_parameter_lists(graph) and any(node.kind == "parameter" for node in graph.nodes):
        raise ArgumentError(
            f"the parameters of {shown(graph.name)} cannot be counted",
            why="it was read from a drawing, which does not contain the parameters of modules",
            fix="check the model itself, or a file that graph.save('net.json') wrote",
        )


def _too_large(outline: Outline, limits: _Limits) -> Iterator[str]:
    for name, (limit, most) in limits.items():
        total = name.removeprefix("max_")
        count = outline.totals[total]
        if count > most:
            limit_text = f"{most:,}" if type(limit) is int else f"{limit} ({most:,})"
            yield f"too large: {count:,} {TOTALS[total]} are more than {limit_text}"


def _unwanted(graph: Graph, patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        matches = [
            f"{node.scope.qualified_name}.{node.op}()"
            if node.scope and node.scope.qualified_name
            else f"{node.op}()"
            for node in graph.nodes
            if node.kind in OPERATIONS and fnmatchcase(node.op, pattern)
        ]
        matches += [
            call.qualified_name or call.scope.path
            for call in graph.calls
            if fnmatchcase(call.scope.part.label, pattern)
        ]
        if matches:
            times = f" {len(matches)} times" if len(matches) > 1 else ""
            yield f"not allowed: {pattern!r} is in it{times}: {folded_names(matches)}"


def _patterns(no_op: object) -> list[str]:
    patterns = [no_op] if isinstance(no_op, str) else no_op
    if not isinstance(patterns, list | tuple) or not all(
        isinstance(pattern, str) and pattern for pattern in patterns
    ):
        raise ArgumentError(
            f"no_op cannot be {shown(no_op)}",
            why="it is a pattern of names of operations or classes, or a list of such, none empty",
            fix="no_op=['view', '*Norm*']",
        )
    return [str.__str__(pattern) for pattern in patterns]


def parse_limit(limit: Limit, name: str) -> int:
    """Return the count of a limit, rounded down.

    >>> parse_limit("25M", "max_parameters"), parse_limit("1.5GiB", "max_activation_bytes")
    (25000000, 1610612736)

    Args:
        limit: A whole number, or a text. `k`, `M`, `G`, `T` and `P` are powers of 1000; `Ki`,
            `Mi`, `Gi`, `Ti` and `Pi` of 1024. A limit of bytes may end in `B`; elsewhere `B` is
            10**9, as in a model of 7B parameters.
        name: Name of the limit, for the message; a name that ends in `bytes` limits bytes.
    Raises:
        ArgumentError: The limit is invalid.
    """
    of_bytes = name.endswith("bytes")
    if type(limit) is int and limit >= 0:
        return limit
    if isinstance(limit, str) and len(limit) <= _MOST_DIGITS:
        match = _NUMBER.fullmatch(str.__str__(limit).strip())
        if match:
            number, unit = match.groups()
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


def _no_path(path: object) -> ArgumentError:
    return ArgumentError(
        f"{shown(path)} is no path of a pin", why="a path is a text", fix="pin='net.json'"
    )


def _read_pin(path: str, pin: object, *, update: bool) -> Outline | None:
    """Return the outline in a lock file, or None if the file is missing and `update` is set."""
    try:
        return pin_to_outline(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if update:
            return None
        raise ArgumentError(
            f"there is no pin {shown(pin)}",
            why="a pin is written once, and each later graph is compared with it",
            fix="write it with update=True, or with --update",
        ) from error
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the pin {shown(pin)} cannot be read",
            why=error_text(error),
            fix="take the file from version control, or remove it and write it with update=True",
        ) from error


def _write_pin(path: str, outline: Outline) -> bool:
    """Write a lock file atomically if its content changes; return whether it was written."""
    data = outline_to_pin(outline).encode("ascii")
    try:
        with suppress(FileNotFoundError):
            if Path(path).read_bytes() == data:
                return False
        write_whole(path, data)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the pin {shown(path)} cannot be written",
            why=error_text(error),
            fix="give a path in a folder that may be written to",
        ) from error
    return True
