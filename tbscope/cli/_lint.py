"""`tbscope lint`: tells which rules of TensorBoard's page a graph breaks, and mends it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tbscope.cli._command import command
from tbscope.cli._logged import tag_text
from tbscope.cli._parameters import GraphPath, Target
from tbscope.cli._results import give, give_json, gives_results, say
from tbscope.cli._running import graph_of_target, refuse_run_options, takes_a_target
from tbscope.cli._tables import plain_cell
from tbscope.errors import ArgumentError

if TYPE_CHECKING:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    from tbscope.rules.linter import Finding
    from tbscope.rules.repair import Repaired
    from tbscope.sources.logs.messages import LoggedMessage

__all__ = ["lint"]

_MOST_OF_A_RULE = 5


class _Linted(NamedTuple):
    """One GraphDef with what is found in it.

    Attributes:
        target: How it is named on the command line.
        graph_def: The GraphDef.
        findings: What is found.
        message: Where it was logged; None for what is no log.
        is_graph_def: Whether it was read from a file of that kind.
    """

    target: str
    graph_def: "GraphDef"
    findings: "list[Finding]"
    message: "LoggedMessage | None" = None
    is_graph_def: bool = False


@command
@takes_a_target
@click.option(
    "--fix",
    is_flag=True,
    help="Write a repaired log, or GraphDef, beside it: legal names, shapes where they can be "
    "told, no input that names nothing. What is left is told.",
)
@click.option(
    "--into",
    metavar="PATH",
    help="With --fix: where it is written.  [default: TARGET-fixed]",
)
@gives_results
def lint(
    *,
    target: Target,
    fix: bool,
    into: str | None,
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
    tbscope lint runs/old --fix --into runs/new
    """  # noqa: D301
    if into is not None and not fix:
        raise click.UsageError("--into is for what is repaired: give --fix, too.")
    linted = list(_linted(target, run))
    if fix:
        linted, written = _fixed(target, linted, into)
    if as_json:
        told = {"version": 1, "graphs": [*map(_plain, linted)]}
        give_json({**told, "written": written} if fix else told, output)
    else:
        lines = [line for one in linted for line in _lines(one, several=len(linted) > 1)]
        give("\n".join([*lines, _count(linted)]), output)
        if fix:
            give(f"written: {written}", output=None)
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
            graph_def = message.graph_def()
            run_dir = target.path.rstrip("/")
            run_dir += "" if message.run == "." else f"/{message.run}"
            named = f"{run_dir}:{tag_text(message.found.tag)}@{message.found.step}"
            yield _Linted(named, graph_def, found_in(graph_def), message)
    elif isinstance(target, GraphPath) and kind in ("graph_def", "graph_def_text"):
        from tbscope.sources.graphdef.loading import load_graph_def

        refuse_run_options(target, run)
        graph_def = load_graph_def(target.path)
        yield _Linted(target.path, graph_def, found_in(graph_def), is_graph_def=True)
    else:
        from tbscope.pipeline import to_graph_def

        graph = graph_of_target(target, **run)
        graph_def = to_graph_def(graph)
        yield _Linted(graph.name, graph_def, found_in(graph_def))


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


def _fixed(target: Target, linted: list[_Linted], into: str | None) -> tuple[list[_Linted], str]:
    """Write what is repaired, and return what is left to be found, and where it stands."""
    from tbscope.rules.repair import repair

    is_written = linted[0].message is not None or linted[0].is_graph_def
    if not isinstance(target, GraphPath) or "://" in target.path or not is_written:
        raise ArgumentError(
            "--fix repairs what is written, and there is nothing to repair here",
            why="TARGET is no log and no GraphDef on this machine",
            fix="write it first: tbscope export TARGET --logdir runs/x",
        )
    mended = [(one, repair(one.graph_def)) for one in linted if not _is_keras(one)]
    to = into or _beside(target.path)
    if linted[0].message is not None:
        _write_log(target.path, to, mended)
    else:
        _write_graph_def(target.path, to, mended[0][1].graph_def)
    left = {id(one): repaired.left for one, repaired in mended}
    return [one._replace(findings=left.get(id(one), one.findings)) for one in linted], to


def _is_keras(one: _Linted) -> bool:
    return one.message is not None and one.message.found.kind == "keras"


def _beside(path: str) -> str:
    """Return where something repaired stands: `runs/x-fixed`, `graph-fixed.pbtxt`."""
    plain = Path(path)
    if plain.is_dir() or "tfevents" in plain.name:
        return f"{path.rstrip('/')}-fixed"
    return str(plain.with_name(f"{plain.stem}-fixed{plain.suffix}"))


def _write_log(path: str, to: str, mended: "list[tuple[_Linted, Repaired]]") -> None:
    from tbscope.sources.logs.event_files import event_files
    from tbscope.writing.rewriting import Replacement, copy_file, copy_log

    replacements = {
        one.message.found.data: Replacement(
            repaired.graph_def.SerializeToString(deterministic=True), repaired.renamed
        )
        for one, repaired in mended
        if one.message is not None and repaired.before
    }
    if Path(path).is_dir():
        copy_log(event_files(path), to, replacements)
    else:
        copy_file(path, to, replacements)


def _write_graph_def(path: str, to: str, graph_def: "GraphDef") -> None:
    from google.protobuf import text_format

    from tbscope.cli._files import check_folder, put_in_file
    from tbscope.sources.files import file_kind

    check_folder(Path(to))
    if Path(to).exists():
        raise ArgumentError(
            f"nothing is written to {to!r}",
            why="it is there already",
            fix="remove it, or give another path: --into PATH",
        )
    if file_kind(path) == "graph_def_text":
        put_in_file(Path(to), text_format.MessageToString(graph_def).encode())
    else:
        put_in_file(Path(to), graph_def.SerializeToString(deterministic=True))


def _lines(one: _Linted, *, several: bool) -> Iterator[str]:
    """Yield what is found in one graph: of each rule the first few."""
    if several and one.findings:
        yield f"{plain_cell(one.target)}"
    counts: Counter[str] = Counter()
    total = Counter(finding.rule for finding in one.findings)
    for finding in one.findings:
        counts[finding.rule] += 1
        if counts[finding.rule] > _MOST_OF_A_RULE:
            continue
        yield plain_cell(f"{finding.severity} {finding}")
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
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "node": finding.node,
                "message": finding.message,
                "fix": finding.fix,
            }
            for finding in one.findings
        ],
    }
