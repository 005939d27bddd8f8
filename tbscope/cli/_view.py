"""`tbscope view`: draws a graph into a temporary folder, and opens it in TensorBoard."""

import contextlib
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from typing import Any

import click

from tbscope.cli._command import command
from tbscope.cli._log import drawing_options, write_log
from tbscope.cli._options import Command, decorate
from tbscope.cli._parameters import GraphPath, Target
from tbscope.cli._results import say
from tbscope.cli._running import graph_of_target, refuse_run_options, takes_a_target
from tbscope.cli._server import ended_by_signals, serve
from tbscope.cli._words import in_command_words
from tbscope.options import DRAWING, check_options

__all__ = ["view"]


def _takes_a_server(command: Command) -> Command:
    return decorate(
        command,
        [
            click.option(
                "--host", default="127.0.0.1", show_default=True, help="Where TensorBoard listens."
            ),
            click.option(
                "--port",
                type=click.IntRange(0, 65535),
                default=0,
                metavar="NUMBER",
                help="The port of TensorBoard.  [default: any that is free]",
            ),
            click.option(
                "--browser/--no-browser",
                default=True,
                help="Open the page, or only print its address.  [default: open]",
            ),
            *drawing_options(),
        ],
    )


@command
@takes_a_target
@_takes_a_server
def view(
    *,
    target: Target,
    host: str,
    port: int,
    browser: bool,
    overlays: tuple[str, ...],
    **options: Any,
) -> None:
    """Show the graph of a model in TensorBoard, and open the page.

    TARGET is a model or a graph, as for `tbscope show`. It is drawn into a temporary folder, which
    is gone afterwards; a whole log is shown as it stands, unless options of a drawing are given.
    The address is printed once the page answers. Ctrl-C ends it.

    \b
    tbscope view torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope view model.onnx --no-browser --port 6006
    tbscope view runs/net:Default --style torch
    """  # noqa: D301
    drawing: Any = {name: options.pop(name) for name in DRAWING}
    with in_command_words():
        check_options(**drawing)
    with ended_by_signals(), _log_of(target, drawing, overlays, options) as logdir:
        url = serve(logdir, host=host, port=port)
        say(url)
        if browser and not webbrowser.open(url):
            say("note: no browser could be opened", err=True)
        threading.Event().wait()


@contextlib.contextmanager
def _log_of(
    target: Target, drawing: dict[str, Any], overlays: tuple[str, ...], run: dict[str, Any]
) -> Iterator[str]:
    """Yield the folder of a log: a temporary one, or that of a whole log itself."""
    asked = overlays or any(
        value not in (None, (), DRAWING[name].default) for name, value in drawing.items()
    )
    if isinstance(target, GraphPath) and not asked and _is_log(target):
        refuse_run_options(target, run)
        yield target.path
        return
    graph = graph_of_target(target, **run, kernels=drawing["level"] == "aten")
    with tempfile.TemporaryDirectory(prefix="tbscope-") as logdir:
        write_log(graph, logdir, drawing, overlays=dict.fromkeys(overlays))
        yield logdir


def _is_log(target: GraphPath) -> bool:
    from tbscope.sources.files import file_kind

    return target.tag is None and file_kind(target.path) == "directory"
