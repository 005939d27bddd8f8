"""What every command has: `-h`, `--debug`, and errors that end it with one message."""

from collections.abc import Callable
from typing import Any

import click

from tbscope.cli._words import errors_as_messages

__all__ = ["command"]


class _Command(click.Command):
    """A command that ends with exit code 1 and one message where anything fails."""

    def invoke(self, ctx: click.Context) -> Any:
        debug = ctx.params.pop("debug")
        with errors_as_messages(debug=debug):
            return super().invoke(ctx)


def command(function: Callable[..., None]) -> click.Command:
    """Make a command of a function: its first line is what the list of commands tells of it.

    `--debug` is added behind its own options, and is no argument of the function.
    """
    made = click.command(cls=_Command)(function)
    made.params.append(
        click.Option(
            ["--debug", "--traceback"], is_flag=True, help="On an error, show where it was raised."
        )
    )
    return made
