"""The command `tbscope` and the table of its commands.

A command is imported only when it runs or prints its help: `tbscope --help` imports click alone.
"""

import os
import sys
from collections.abc import Mapping
from importlib import import_module

import click

from tbscope.messages import visible

COMMANDS: Mapping[str, str] = {
    "export": "Write the graph of a model: for TensorBoard, as a page, a picture or a GraphDef.",
    "open": "Open the page of a graph in the browser, as tbscope FILE does.",
    "view": "Show the graph of a model in TensorBoard, and open the page.",
    "show": "Print the graph of a model, the table of its modules, or their definitions.",
    "ls": "List every graph of every run in a log: run, tag, step, nodes, bytes.",
    "stats": "Count the contents of a graph, by operation and by class of module.",
    "find": "Print the nodes of a graph that match: by name, operation, class, source or shape.",
    "lint": "List the rules of TensorBoard's page that a graph breaks.",
    "diff": "Show how two models, graphs or logs differ.",
    "check": "Check that a model matches its lock file, and stays within limits.",
    "run": "Run a script, and draw its graphs and a step of its training.",
    "demo": "Write the graph of a small Transformer.",
}
"""The list of `--help`; the function NAME of `commands/NAME.py` is the command."""


class _Commands(click.Group):
    """A group that has only the help lines of its commands, and imports the command that runs."""

    def invoke(self, ctx: click.Context) -> object:
        if hasattr(sys.stdout, "reconfigure"):
            # Names in a model may have characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # The message may contain names of files, and so characters that a terminal obeys.
            vars(error)["message"] = visible(error.message)
            raise
        except KeyboardInterrupt:
            # The exit code of a program that SIGINT ends.
            raise click.exceptions.Exit(130) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and (set("-./:") & {*args[0]} or os.path.exists(args[0])):
            args = ["open", *args]
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = getattr(import_module(f"{__package__}.commands.{name}"), name)
        return name, command, rest


def _print_versions(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        from tbscope.cli.output import say

        # The package root that runs; that of an installed tbscope may be another.
        say(
            f"tbscope {import_module('tbscope').__version__}\n"
            f"torch {version('torch')}\ntensorboard {version('tensorboard')}"
        )
        ctx.exit()


@click.group(
    cls=_Commands,
    commands=[click.Command(name, short_help=line) for name, line in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_versions,
    help="Show the versions of tbscope, torch and TensorBoard, and exit.",
)
def main() -> None:
    """Draw PyTorch models in TensorBoard's Graphs dashboard.

    Without a command, tbscope FILE opens the page of a graph in the browser.

    The exit code is 0 for success, 1 for a failure, with one message, 2 for a command line that
    cannot be parsed, and 130 after Ctrl-C.
    """
