"""`tbscope lint`: which rules of TensorBoard's page a graph breaks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tbscope.cli._command import command
from tbscope.cli._logged import tag_text
from tbscope.cli._parameters import GraphPath, Target
from tbscope.cli._results import give, give_json, gives_results, say
from tbscope.cli._running import graph_of_target, refuse_run_options, takes_a_target
from tbscope.errors import ArgumentError
from tbscope.words import one_line

if TYPE_CHECKING:
    from tbscope.rules.linter import Finding
    from tbscope.sources.logs.messages import LoggedMessage

__all__ = ["lint"]

_MOST_OF_A_RULE = 5


class _Linted(NamedTuple):
    """One GraphDef with what is found in it.

    Attributes:
        target: How it is named on the command line.
        findings: The broken rules.
    """

    target: str
    findings: "list[Finding]"


@command
@takes_a_target
@gives_results
def lint(
    *,
    target: Target,
    as_json: bool,
    output: Path | None,
    **run: Any,
) -> None:
    """Tell which rules of TensorBoard's page a graph breaks.

    TARGET is a model or a graph, as for `tbscope show`. A log, whoever wrote it, and a GraphDef are
    looked at as they stand there, all graphs of a log; anything else is drawn first. docs/lint.md
    lists the rules. Exits with 1 where one is broken.

    \b
    tbscope lint torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope lint runs/old
    """  # noqa: D301
    linted = list(_linted(target, run))
    if as_json:
        give_json({"version": 1, "graphs": [*map(_plain, linted)]}, output)
    else:
        lines = [line for one in linted for line in _lines(one, several=len(linted) > 1)]
        give("\n".join([*lines, _count(linted)]), output)
    if any(one.findings for one in linted):
        click.get_current_context().exit(1)


def _linted(target: Target, run: dict[str, Any]) -> Iterator[_Linted]:
    from tbscope.rules.linter import lint as found_in

    kind = None
    if isinstance(target, GraphPath):
        from tbscope.sources.files import file_kind

        kind = file_kind(target.path)
    if isinstance(target, GraphPath) and kind in ("directory", "events"):
        refuse_run_options(target, run)
        for message in _messages(target):
            run_dir = target.path.rstrip("/")
            run_dir += "" if message.run == "." else f"/{message.run}"
            named = f"{run_dir}:{tag_text(message.found.tag)}@{message.found.step}"
            yield _Linted(named, found_in(message.graph_def()))
    elif isinstance(target, GraphPath) and kind in ("graph_def", "graph_def_text"):
        from tbscope.sources.graphdef.loading import load_graph_def

        refuse_run_options(target, run)
        yield _Linted(target.path, found_in(load_graph_def(target.path)))
    else:
        from tbscope.pipeline import to_graph_def

        graph = graph_of_target(target, **run)
        yield _Linted(graph.name, found_in(to_graph_def(graph)))


def _messages(target: GraphPath) -> "Iterator[LoggedMessage]":
    """Yield the graphs of a log that a target names, or all of them."""
    from tbscope.sources.logs.messages import messages_in_log

    found = 0
    for one in messages_in_log(target.path):
        if isinstance(one, ArgumentError):
            say(f"note: {one.what}: {one.why}", err=True)
            continue
        tag = tag_text(one.found.tag)
        if target.tag in (None, tag, f"{tag}@{one.found.step}"):
            found += 1
            yield one
    if not found:
        what = "it holds no graph" if target.tag is None else f"none is tagged {target.tag!r}"
        raise ArgumentError(
            f"nothing can be checked in {target.path!r}", why=what, fix=f"tbscope ls {target.path}"
        )


def _lines(one: _Linted, *, several: bool) -> Iterator[str]:
    """Yield what is found in one graph: of each rule the first few."""
    if several and one.findings:
        yield one_line(one.target)
    counts: Counter[str] = Counter()
    total = Counter(finding.rule for finding in one.findings)
    for finding in one.findings:
        counts[finding.rule] += 1
        if counts[finding.rule] > _MOST_OF_A_RULE:
            continue
        yield one_line(f"{finding.severity} {finding}")
        if counts[finding.rule] == min(total[finding.rule], _MOST_OF_A_RULE):
            more = total[finding.rule] - _MOST_OF_A_RULE
            if more > 0:
                yield f"  and {more:,} more: --json tells all"
            yield f"  fix: {finding.fix}"


def _count(linted: list[_Linted]) -> str:
    severities = Counter(finding.severity for one in linted for finding in one.findings)
    told = [
        f"{severities[severity]:,} {severity}{'' if severities[severity] == 1 else 's'}"
        for severity in ("error", "warning")
    ]
    graphs = f"{len(linted):,} graph{'' if len(linted) == 1 else 's'}"
    return f"{', '.join(told)} in {graphs}"


def _plain(one: _Linted) -> dict[str, Any]:
    return {
        "target": one.target,
        "findings": list(map(asdict, one.findings)),
    }
