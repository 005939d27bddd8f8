"""The command and the table of its commands.

Nothing of a command is imported before it is asked for: `tbscope --help` waits for click alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from tbscope.words import near_names, visible

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
"""What `--help` lists. The command NAME is the function of that name in the file `_NAME.py`."""


@contextmanager
def _visible_errors() -> Iterator[None]:
    """Escape, in the message of an error, what a terminal obeys: names of files are in it."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = visible(error.message)
        raise


class _Commands(click.Group):
    """A group whose commands are imported one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__package__}._{cmd_name}"), cmd_name)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _visible_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _visible_errors():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = near_names(args[0], COMMANDS, most=1, cutoff=0.6)
            if not near:
                raise
            told = f"{error.message} Did you mean {near[0]!r}?"
            raise click.UsageError(told, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tbscope", message="%(prog)s %(version)s")
def main() -> None:
    """Draw PyTorch models in TensorBoard's Graphs dashboard.

    Exits with 0 where all went well, with 1 and one message where it did not, and with 2
    where the command line cannot be read.
    """
