"""`tbscope diff`: shows how two models, graphs or logs differ."""

from pathlib import Path

import click

from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, gives_results, say
from tbscope.cli.parameters import GraphPath, ModelSpec, parse_folder
from tbscope.cli.run_target import graphs_of_targets, takes_targets


@command
@takes_targets("before", "after")
@gives_results
@click.option(
    "--any-batch-size", is_flag=True, help="Leave out differences of the batch size of inputs."
)
@click.option(
    "--logdir",
    type=parse_folder,
    metavar="FOLDER",
    help="Write the union of both for TensorBoard, too, coloured by added, removed and changed.",
)
def diff(
    *,
    before: ModelSpec | GraphPath,
    after: ModelSpec | GraphPath,
    as_json: bool,
    output: Path | None,
    logdir: str | None,
    any_batch_size: bool,
    **run: object,
) -> None:
    """Show how two models, graphs or logs differ.

    It lists the modules, operations, shapes, parameters and settings that were added, removed and
    changed. BEFORE and AFTER are models, files or logs, as for `tbscope show`; models run with
    the same inputs. The exit code is 0 if they are equal, and 1 if they differ.

    \b
    tbscope diff nets.py:Small nets.py:Large -i 2x3
    tbscope diff before.json nets.py:make_model -i 2x3 --json
    tbscope diff runs/monday runs/friday
    """  # noqa: D301
    graph_before, graph_after = graphs_of_targets([before, after], **run)
    # Not from the API of differences, which imports torch to run models.
    from tbscope.comparison.build_structure import outlined
    from tbscope.comparison.difference import Difference

    difference = Difference(
        outlined(graph_before), outlined(graph_after), any_batch_size=any_batch_size
    )
    if as_json:
        give_json(difference.to_dict(), output)
    else:
        give(str(difference), output)
    if logdir is not None:
        from tbscope.cli.log_folder import opening_line, write_log

        write_log(difference.graph, logdir, {"color_by": "difference"})
        say(f"look at it: {opening_line(logdir)}", err=True)
    if difference:
        raise click.exceptions.Exit(1)
