"""The command class: `--debug`, and errors as one message."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

import click

from tbscope.cli.parameters import InputSpec
from tbscope.errors import InputError, TbscopeError
from tbscope.messages import error_text

_CAST = re.compile(r"use \.(?:to\(torch\.(\w+)\)|(long|float)\(\))")


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
def with_input_option(inputs: Sequence[InputSpec]) -> Iterator[None]:
    """Make the errors of a run name the option `--input`, not arguments of Python.

    Args:
        inputs: The tensors of `--input`, for hints on their dtypes.
    """
    try:
        yield
    except TbscopeError as error:
        fix = error.fix
        if isinstance(error, InputError) and re.search("input_to_model|kwargs", fix):
            fix = "give each tensor as --input [NAME=]SHAPE[:DTYPE]"
        fix = _with_types(re.sub("input_to_model(?: and kwargs)?", "--input", fix), inputs)
        if fix == error.fix:
            raise
        raise type(error)(error.what, why=error.why, fix=fix) from error


def _with_types(fix: str, inputs: Sequence[InputSpec]) -> str:
    """Replace the cast of an input in a hint by the option with that dtype: `-i 2x16:int64`."""
    match = _CAST.search(fix)
    if not match or not inputs:
        return fix
    dtype = match[1] or {"long": "int64", "float": "float32"}[match[2]]
    if len(inputs) == 1:
        hint = f"give -i {inputs[0]._replace(dtype=dtype)}"
    else:
        hint = f"give it with its type: -i [NAME=]SHAPE:{dtype}"
    return _CAST.sub(hint, fix)
