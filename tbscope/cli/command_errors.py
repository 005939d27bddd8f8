"""The command class: `--debug`, and errors as one message that names options of the command."""

import ast
import contextlib
import re
import shlex
from collections.abc import Callable, Iterator

import click

from tbscope.cli.parameters import flag_of
from tbscope.errors import ArgumentError, InputError, TbscopeError
from tbscope.messages import error_text
from tbscope.options import DRAWING, PLACING
from tbscope.run_options import RUNNING

# Not input_size and dtypes: `--input` replaces both, and factories have arguments of these names.
_OPTION = "|".join(
    ({**RUNNING, **DRAWING, **PLACING}.keys() - {"input_size", "dtypes"}) | {"depth"}
)
_SETTING = re.compile(rf"""\b({_OPTION})=('[^']*'|"[^"]*"|\[[^\]]*\]|\w+)""")
_LEFT_OUT = re.compile(rf"\bleave ({_OPTION}) out\b")
_TRACED = re.compile(r"(?:(?:graph = |trace it with )tbscope\.)?trace\(model, input, ([^()]*)\)")
# Advice in Python, and the same advice for the command line.
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
    "or the model itself": ("or a model as package.module:NAME or path/to/file.py:NAME"),
    "a model is run to learn its graph: tbscope.trace(model, input)": (
        "a model is named in its file, or in its module: path/to/file.py:NAME"
    ),
    "check(..., update=True) writes it": "--update writes it",
    "with update=True": "with --update",
    "graph.summary() prints": "tbscope show TARGET --summary prints",
    "log to another directory: writer = tbscope.SummaryWriter(log_dir)": "give another --logdir",
    "a shorter log_dir, run_name or filename_suffix": "a shorter --logdir or --run-name",
}


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
def in_command_words() -> Iterator[None]:
    """Make the library's errors name the options: `--run-name eval`, not `run_name='eval'`."""
    try:
        yield
    except TbscopeError as error:
        fix, what = command_text(error.fix), error.what
        if isinstance(error, ArgumentError):
            what = command_text(what)
        if isinstance(error, InputError) and re.search("input_to_model|kwargs", error.fix):
            fix = "give each tensor as --input [NAME=]SHAPE[:DTYPE]"
        if (what, fix) == (error.what, error.fix):
            raise
        raise type(error)(what, why=error.why, fix=fix) from error


def command_text(text: str) -> str:
    """Replace options of the library in a text by options of the command.

    >>> command_text("run_name='eval', or 'eval/large'")
    "--run-name eval, or 'eval/large'"
    >>> command_text("graph = tbscope.trace(model, input, profile=True)")
    'give --profile'

    The text after " got ", the arguments of a module, stays: they may have names of options.
    """
    advice, got, rest = text.partition(" got ")
    for phrase, words in _PHRASES.items():
        advice = advice.replace(phrase, words)
    advice = _TRACED.sub(r"give \1", advice)
    advice = _SETTING.sub(_flag_text, advice)
    advice = _LEFT_OUT.sub(lambda match: f"leave {flag_of(match[1])} out", advice)
    return advice + got + rest


def _flag_text(match: re.Match[str]) -> str:
    name, text = match.groups()
    flag = flag_of(name)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        # No literal: a name, or the beginning of an expression.
        return f"{flag} {text}"
    if value is None:
        return f"no {flag}"
    if isinstance(value, bool):
        return flag if value else flag_of(f"no_{name}")
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{flag} {shlex.quote(str(entry))}" for entry in values)
