"""`tbscope check`: fails if a model differs from its lock file, or exceeds a limit."""

from pathlib import Path
from typing import Any

import click

from tbscope.cli.command_errors import command
from tbscope.cli.output import give, give_json, gives_results
from tbscope.cli.run_target import graph_of_target, takes_a_target

_LIMITS = ("max_parameters", "max_flops", "max_activation_bytes")


@command
@takes_a_target
@gives_results
@click.option(
    "--pin",
    metavar="FILE",
    help="The lock file with the structure of the model, as --update wrote it.",
)
@click.option("--update", is_flag=True, help="Write the lock file, if it is missing or differs.")
@click.option(
    "--any-batch-size", is_flag=True, help="Pass with another batch size than the lock file's."
)
@click.option(
    "--max-params",
    "max_parameters",
    metavar="COUNT",
    help="The largest count of parameters: 25M, 7B, 1_000_000.",
)
@click.option("--max-flops", metavar="COUNT", help="The largest FLOPs of a forward pass: 4G.")
@click.option(
    "--max-activation-bytes",
    metavar="BYTES",
    help="The largest bytes of activations: 1.5GiB.",
)
@click.option(
    "--no-op",
    multiple=True,
    metavar="PATTERN",
    help="Operations and classes of modules that it must not contain: view, '*Norm*'.  "
    "[repeatable]",
)
def check(
    *,
    pin: str | None,
    update: bool,
    any_batch_size: bool,
    no_op: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    **run: Any,
) -> None:
    """Check that a model matches its lock file, and stays within limits.

    TARGET is a model, a file or a log, as for `tbscope show`. The exit code is 0 if all checks
    pass, and 1 otherwise; the failures are printed.

    \b
    tbscope check nets.py:make_model -i 2x3 --pin net.json --update
    tbscope check nets.py:make_model -i 2x3 --pin net.json
    tbscope check nets.py:make_model -i 2x3 --max-params 25M --max-flops 4G --no-op view
    """  # noqa: D301
    limits = {name: run.pop(name) for name in _LIMITS}
    if update and pin is None:
        raise click.UsageError("--update writes a pin: add --pin FILE.")
    if pin is None and not no_op and not any(limits.values()):
        raise click.UsageError("There is nothing to check: add --pin FILE, a --max- or --no-op.")
    graph = graph_of_target(**run)
    from tbscope.comparison.api import check as check_graph

    checked = check_graph(
        graph, pin=pin, update=update, any_batch_size=any_batch_size, no_op=no_op, **limits
    )
    if as_json:
        give_json(checked.to_dict(), output)
    else:
        give(str(checked), output)
    if not checked:
        raise click.exceptions.Exit(1)
