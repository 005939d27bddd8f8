"""`tbscope lint`: lists the rules of TensorBoard's page that a graph breaks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, gives_results, say
from tbscope.cli.parameters import GraphPath, Target
from tbscope.cli.run_target import graph_of_target, refuse_run_options, takes_a_target
from tbscope.errors import ArgumentError
from tbscope.messages import one_line, tag_text

if TYPE_CHECKING:
    from tbscope.rules.linter import Finding
    from tbscope.sources.logs.messages import LoggedMessage


_MOST_OF_A_RULE = 5


@command
@takes_a_target
@gives_results
def lint(
    *,
    target: Target,
    as_json: bool,
    output: Path | None,
    **run: object,
) -> None:
    """List the rules of TensorBoard's page that a graph breaks.

    TARGET is a model or a graph, as for `tbscope show`. All graphs of a log, of any origin, and a
    GraphDef are checked as they are; any other target is drawn first. docs/lint.md lists the
    rules. The exit code is 1 if a rule is broken.

    \b
    tbscope lint torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope lint runs/old
    """  # noqa: D301
    linted = list(_linted(target, run))
    if as_json:
        graphs = [
            {"target": name, "findings": [*map(asdict, findings)]} for name, findings in linted
        ]
        give_json({"version": 1, "graphs": graphs}, output)
    else:
        lines = [line for result in linted for line in _lines(*result, several=len(linted) > 1)]
        give("\n".join([*lines, _count(linted)]), output)
    if any(findings for _, findings in linted):
        raise click.exceptions.Exit(1)


def _linted(target: Target, run: dict[str, Any]) -> "Iterator[tuple[str, list[Finding]]]":
    """Yield the name of each GraphDef, as a target, with the rules that it breaks."""
    from tbscope.rules.linter import lint as found_in

    if isinstance(target, GraphPath):
        from tbscope.sources.file_kind import file_kind

        kind = file_kind(target.path)
        refuse_run_options(target, run)
        if kind in ("directory", "events"):
            for message in _messages(target):
                yield message.target(target.path), found_in(message.graph_def())
            return
        if kind in ("graph_def", "graph_def_text"):
            yield target.path, found_in(target.path)
            return
    graph = graph_of_target(target, **run)
    yield graph.name, found_in(graph)


def _messages(target: GraphPath) -> "Iterator[LoggedMessage]":
    """Yield the graphs of a log that a target names, or all graphs."""
    from tbscope.sources.logs.messages import messages_in_log

    count = 0
    for message in messages_in_log(target.path):
        if isinstance(message, ArgumentError):
            say(f"note: {message.what}: {message.why}", err=True)
            continue
        tag = tag_text(message.content.tag)
        if target.tag in (None, tag, f"{tag}@{message.content.step}"):
            count += 1
            yield message
    if not count:
        what = "it contains no graph" if target.tag is None else f"none is tagged {target.tag!r}"
        raise ArgumentError(
            f"nothing can be checked in {target.path!r}", why=what, fix=f"tbscope ls {target.path}"
        )


def _lines(name: str, findings: "list[Finding]", *, several: bool) -> Iterator[str]:
    """Yield the lines of one graph: the first few findings of each rule."""
    if several and findings:
        yield one_line(name)
    for _, of_rule in groupby(findings, key=lambda finding: finding.rule):
        entries = list(of_rule)
        first, more = entries[:_MOST_OF_A_RULE], len(entries) - _MOST_OF_A_RULE
        yield from (one_line(f"{finding.severity} {finding}") for finding in first)
        if more > 0:
            yield f"  and {more:,} more: --json tells all"
        yield f"  fix: {first[-1].fix}"


def _count(linted: "list[tuple[str, list[Finding]]]") -> str:
    severities = Counter(finding.severity for _, findings in linted for finding in findings)
    counts = {"error": severities["error"], "warning": severities["warning"], "graph": len(linted)}
    parts = [f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()]
    return f"{', '.join(parts[:2])} in {parts[2]}"
