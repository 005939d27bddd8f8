"""What every command has: `--debug`, and errors as one message in the words of the command."""

import ast
import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from tbscope.cli.parameters import InputSpec, flag_of
from tbscope.errors import ArgumentError, InputError, TbscopeError
from tbscope.messages import error_text
from tbscope.options import DRAWING, PLACING
from tbscope.run_options import RUNNING

__all__ = ["command", "command_text", "in_command_words"]

# Inputs are described in another form, and factories have arguments of these names.
_OPTION = "|".join(
    ({**RUNNING, **DRAWING, **PLACING}.keys() - {"input_size", "dtypes"}) | {"depth"}
)
_SETTING = re.compile(rf"""\b({_OPTION})=('[^']*'|"[^"]*"|\[[^\]]*\]|\w+)""")
_LEFT_OUT = re.compile(rf"\bleave ({_OPTION}) out\b")
_TRACED = re.compile(r"(?:(?:graph = |trace it with )tbscope\.)?trace\(model, input, ([^()]*)\)")
_CAST = re.compile(r"use \.(?:to\(torch\.(\w+)\)|(long|float)\(\))")
# What Python tells of a graph, and which command does.
_PHRASES = {
    "add_graph(model, x, backward=True, loss=lambda out: out.pow(2).mean())": (
        "give --loss path/to/file.py:make_loss, a function of the result that returns a scalar"
    ),
    "loss=lambda out: torch.nn.functional.cross_entropy(out, target)": (
        "--loss path/to/file.py:make_loss"
    ),
    "input_to_model and kwargs": "--input",
    "input_to_model": "--input",
    "print(graph) shows the operations, graph.calls the modules": (
        "tbscope show TARGET prints the operations with their modules"
    ),
    "see graph.calls and graph.nodes for what was recorded": (
        "tbscope show TARGET prints what was recorded"
    ),
    "load was given": "tbscope was given",
    "for one in tbscope.read_log(path): one.run, one.tag, one.step, one.graph": (
        "tbscope ls lists them; name one as LOGDIR:TAG, with the directory of its run"
    ),
    "a model is run to learn its graph: tbscope.trace(model, input)": (
        "a model is named in its file, or in its module: path/to/file.py:NAME"
    ),
    "check(..., update=True) writes it": "--update writes it",
    "with update=True": "with --update",
    "graph.summary() tells": "tbscope show TARGET --summary tells",
    "log to another directory: writer = tbscope.SummaryWriter(log_dir)": "give another --logdir",
    "a shorter log_dir, run_name or filename_suffix": "a shorter --logdir or --run-name",
}


class _Command(click.Command):
    """A command that ends with exit code 1 and one message where anything fails."""

    def invoke(self, ctx: click.Context) -> Any:
        debug = ctx.params.pop("debug")
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            # The last: whoever reads has seen enough, which click knows.
            raise
        except Exception as error:
            if debug:
                raise
            if not isinstance(error, TbscopeError):
                fix = "report it, with what --debug shows"
                told = TbscopeError("tbscope itself failed", why=error_text(error), fix=fix)
                raise click.ClickException(str(told)) from error
            raise click.ClickException(str(error)) from error


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


@contextlib.contextmanager
def in_command_words(inputs: Sequence[InputSpec] = ()) -> Iterator[None]:
    """Make the library's errors name the options: `--run-name eval`, not `run_name='eval'`.

    Args:
        inputs: The tensors that the command was told to make up.
    """
    try:
        yield
    except TbscopeError as error:
        fix, what = command_text(error.fix), error.what
        if isinstance(error, ArgumentError):
            what = command_text(what)
        if isinstance(error, InputError) and re.search("input_to_model|kwargs", error.fix):
            fix = "give each tensor as --input [NAME=]SHAPE[:DTYPE]"
        fix = _with_types(fix, inputs)
        if (what, fix) == (error.what, error.fix):
            raise
        raise type(error)(what, why=error.why, fix=fix) from error


def _with_types(fix: str, inputs: Sequence[InputSpec]) -> str:
    """Turn a cast of an input into the option that makes it so: `-i 2x16:int64`."""
    found = _CAST.search(fix)
    if not found or not inputs:
        return fix
    dtype = found[1] or {"long": "int64", "float": "float32"}[found[2]]
    if len(inputs) == 1:
        told = f"give -i {inputs[0]._replace(dtype=dtype)}"
    else:
        told = f"give it with its type: -i [NAME=]SHAPE:{dtype}"
    return _CAST.sub(told, fix)


def command_text(text: str) -> str:
    """Turn a text about Python's options into one about those of the command.

    >>> command_text("run_name='eval', or 'eval/large'")
    "--run-name eval, or 'eval/large'"
    >>> command_text("graph = tbscope.trace(model, input, profile=True)")
    'give --profile'

    What a module got stays: its parameters may be called like options.
    """
    told, got, rest = text.partition(" got ")
    for phrase, words in _PHRASES.items():
        told = told.replace(phrase, words)
    told = _TRACED.sub(r"give \1", told)
    told = _SETTING.sub(_flag_text, told)
    told = _LEFT_OUT.sub(lambda found: f"leave {flag_of(found[1])} out", told)
    return told + got + rest


def _flag_text(found: re.Match[str]) -> str:
    name, text = found.groups()
    flag = flag_of(name)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # A word that stands for something else than itself, or begins an expression.
        return f"{flag} {text}"
    if value is None:
        return f"no {flag}"
    if isinstance(value, bool):
        return flag if value else flag_of(f"no_{name}")
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{flag} {shlex.quote(str(each))}" for each in values)
