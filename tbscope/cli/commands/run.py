"""`tbscope run`: runs a script as Python does, with tbscope in its SummaryWriters."""

import builtins
import runpy
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from tbscope.api.install import install
from tbscope.cli.command_errors import command
from tbscope.cli.parameters import library_options, takes
from tbscope.options import DRAWING

_RUNNERS = (__file__, runpy.run_path.__code__.co_filename)


@command
@takes(
    click.argument("script"),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."),
    click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module."),
    click.option(
        "--on-error",
        type=click.Choice(["warn", "raise"]),
        default="warn",
        show_default=True,
        help="For a graph that cannot be drawn: warn once and go on, or raise.",
    ),
    click.option(
        "--watch/--no-watch",
        default=True,
        show_default=True,
        help="Draw a training step of each model, if the script draws no graph itself.",
    ),
    click.option(
        "--logdir",
        metavar="DIR",
        help="The folder of these steps if the script has no SummaryWriter.  [default: in runs]",
    ),
    *library_options(DRAWING),
)
def run(*, script: str, arguments: tuple[str, ...], as_module: bool, **options: Any) -> None:
    """Run a script, and draw its graphs and a step of its training.

    SCRIPT is a Python file (or, with -m, the name of a module), ARGS are its arguments. It
    runs as `python SCRIPT ARGS` would run it; if it or a library calls the add_graph of
    torch's or tensorboardX's SummaryWriter, tbscope draws the graph; if it never does, a step of
    its training. The exit code is the script's own.

    \b
    tbscope run train.py --epochs 3
    tbscope run --style torch -m package.train --epochs 3
    torchrun --nproc-per-node 2 -m tbscope run train.py
    """  # noqa: D301
    path = Path(script)
    if not (as_module or path.exists()):
        raise click.UsageError(f"There is no file {script!r}. A module is run with -m.")
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        # The first entry of the import path, as Python itself sets it.
        sys.path[0] = str(Path.cwd() if as_module else path.resolve().parent)
    install(**options)
    try:
        if as_module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        elif path.is_file() and path.suffix != ".pyc" and not zipfile.is_zipfile(path):
            _run_file(str(path.absolute()))
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  It ends the script, whatever it is.
        # As Python would print it for the script: without the frames of this command and of runpy.
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in _RUNNERS:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


# Options after the script are arguments of the script.
run.allow_interspersed_args = False


def _run_file(path: str) -> None:
    """Run a file as the module `__main__`, which stays for code that runs at exit.

    `runpy.run_path` would change the script's `sys.argv[0]`.
    """
    loader = SourceFileLoader("__main__", path)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __loader__=loader, __builtins__=builtins)
    sys.modules["__main__"] = main
    code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102
