"""The command class: `--debug`, and errors as one message."""

import contextlib
import re
from collections.abc import Callable, Iterator

import click

from tbscope.errors import InputError, TbscopeError
from tbscope.messages import error_text


class _Command(click.Command):
    """A command that ends with exit code 1 and one message on any failure."""

    def invoke(self, ctx: click.Context) -> object:
        debug = ctx.params.pop("debug")
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            # BrokenPipeError: the reader of the output has closed it, which click handles.
            raise
        except Exception as error:
            if debug:
                raise
            failure = error
            if not isinstance(error, TbscopeError):
                fix = "report it, with what --debug shows"
                failure = TbscopeError("tbscope itself failed", why=error_text(error), fix=fix)
            raise click.ClickException(str(failure)) from error


def command(function: Callable[..., None]) -> click.Command:
    """Decorator that makes a function a command; its docstring is the help.

    `--debug` is added after its own options, and is no argument of the function.
    """
    made = click.command(cls=_Command)(function)
    made.params.append(
        click.Option(
            ["--debug", "--traceback"], is_flag=True, help="On an error, show where it was raised."
        )
    )
    return made


@contextlib.contextmanager
def with_input_option() -> Iterator[None]:
    """Make the errors of a run name the option `--input`, not arguments of Python."""
    try:
        yield
    except TbscopeError as error:
        fix = error.fix
        if isinstance(error, InputError) and re.search("input_to_model|kwargs", fix):
            fix = "give each tensor as --input [NAME=]SHAPE[:DTYPE]"
        fix = re.sub("input_to_model(?: and kwargs)?", "--input", fix)
        if fix == error.fix:
            raise
        raise type(error)(error.what, why=error.why, fix=fix) from error
