"""Errors as the command tells them: one message, with its own options in place of Python's."""

import ast
import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from tbscope.cli._options import flag_of
from tbscope.cli._parameters import InputSpec
from tbscope.errors import ArgumentError, InputError, TbscopeError
from tbscope.options import DRAWING, PLACING
from tbscope.running import RUNNING
from tbscope.words import error_text

__all__ = ["command_text", "errors_as_messages", "in_command_words"]

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


@contextlib.contextmanager
def errors_as_messages(*, debug: bool) -> Iterator[None]:
    """End with exit code 1 and one message; Python's traceback only where it is asked for."""
    try:
        yield
    except TbscopeError as error:
        if debug:
            raise
        raise click.ClickException(str(error)) from error
    except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
        # The last: whoever reads has seen enough, which click knows.
        raise
    except Exception as error:
        if debug:
            raise
        told = TbscopeError(
            "tbscope itself failed",
            why=error_text(error),
            fix="report it, with what --debug shows",
        )
        raise click.ClickException(str(told)) from error


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
        told = f"give -i {replace(inputs[0], dtype=dtype)}"
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
