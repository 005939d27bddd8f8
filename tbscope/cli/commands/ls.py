"""`tbscope ls`: lists every graph of every run in a log."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbscope.analysis.text_tables import Table
from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, give_tables, gives_results, say, table
from tbscope.cli.parameters import parse_folder
from tbscope.errors import ArgumentError
from tbscope.messages import one_line, tag_text

if TYPE_CHECKING:
    from tbscope.sources.logs.messages import LoggedMessage


@command
@click.argument("logdir", type=parse_folder)
@gives_results
def ls(*, logdir: str, as_json: bool, output: Path | None) -> None:
    """List every graph of every run in a log: run, tag, step, nodes, bytes.

    LOGDIR is the log directory of TensorBoard, or an event file, of any origin. Other commands take
    a listed graph as RUN:TAG, or RUN:TAG@STEP, with RUN the directory of the run. Damaged files are
    reported, and make the exit code 1.

    \b
    tbscope ls runs
    tbscope ls runs --json
    """  # noqa: D301
    from tbscope.sources.logs.messages import messages_in_log

    rows: list[dict[str, Any]] = []
    damaged: list[ArgumentError] = []
    for message in messages_in_log(logdir):
        try:
            if isinstance(message, ArgumentError):
                raise message
            rows.append(_row(message, logdir))
        except ArgumentError as error:
            damaged.append(error)
    if as_json:
        errors = [str(error) for error in damaged]
        give_json({"version": 1, "logdir": logdir, "graphs": rows, "damaged": errors}, output)
    elif rows:
        give_tables([_table(rows)], output)
    elif not damaged:
        give("no graphs", output)
    if damaged:
        for earlier in damaged[:-1]:
            say(f"Error: {earlier}", err=True)
        raise damaged[-1]


def _row(message: "LoggedMessage", logdir: str) -> dict[str, object]:
    return {
        "run": message.run,
        "tag": message.content.tag,
        "step": message.content.step,
        "nodes": len(message.graph_def().node),
        "bytes": len(message.content.data),
        "whole": bool(message.content.record),
        "wall_time": message.content.wall_time,
        "file": message.file,
        "target": message.target(logdir),
    }


def _table(graphs: Sequence[Mapping[str, Any]]) -> Table:
    # Times tell graphs of one tag and step apart, of which TensorBoard shows the last.
    repeated = len({graph["target"] for graph in graphs}) < len(graphs)
    rows = [
        (
            one_line(graph["run"]),
            one_line(tag_text(graph["tag"])),
            *([f"{datetime.fromtimestamp(graph['wall_time'])}"[:23]] if repeated else ()),
            f"{graph['step']}",
            f"{graph['nodes']:,}",
            f"{graph['bytes']:,}",
        )
        for graph in graphs
    ]
    written = ("Written",) if repeated else ()
    return table(("Run", "Tag", *written, "Step", "Nodes", "Bytes"), rows, numeric=3)
