"""The command and the table of its commands.

Nothing of a command is imported before it is asked for: `tbscope --help` waits for click alone.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from tbscope.messages import visible

__all__ = ["COMMANDS", "main"]

COMMANDS: Mapping[str, str] = {
    "export": "Write the graph of a model: for TensorBoard, as a page, a picture or a GraphDef.",
    "view": "Show the graph of a model in TensorBoard, and open the page.",
    "show": "Print the graph of a model, the table of its modules, or their definitions.",
    "ls": "List every graph of every run in a log: run, tag, step, nodes, bytes.",
    "stats": "Count what a graph holds, by operation and by class of module.",
    "find": "Print the nodes of a graph that match: by name, operation, class, source or shape.",
    "lint": "Tell which rules of TensorBoard's page a graph breaks.",
    "diff": "Tell how two models, graphs or logs differ.",
    "check": "Check that a model is what a pin tells, and no larger than it may be.",
    "run": "Run a script whose SummaryWriters draw what tbscope draws.",
    "demo": "Write the graph of a small Transformer.",
}
"""The list of `--help`; the function NAME of `commands/NAME.py` is the command."""


class _Commands(click.Group):
    """A group that knows of its commands the lines of its help, until one of them is asked for."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Names of files are in it.
            vars(error)["message"] = visible(error.message)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None:
            command = getattr(import_module(f"{__package__}.commands.{name}"), name)
        return name, command, rest


@click.group(
    cls=_Commands,
    commands=[click.Command(name, short_help=line) for name, line in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="tbscope", message="%(prog)s %(version)s")
def main() -> None:
    """Draw PyTorch models in TensorBoard's Graphs dashboard.

    Exits with 0 where all went well, with 1 and one message where it did not, and with 2
    where the command line cannot be read.
    """
