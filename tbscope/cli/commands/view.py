"""`tbscope view`: draws a graph into a temporary folder, and opens it in TensorBoard."""

import contextlib
import json
import signal
import tempfile
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import click

from tbscope.cli.command_errors import command
from tbscope.cli.log_folder import changed_options, drawing_options, take_drawing, write_log
from tbscope.cli.output import say
from tbscope.cli.parameters import GraphPath, Target, takes
from tbscope.cli.run_target import graph_of_target, refuse_run_options, takes_a_target
from tbscope.errors import TbscopeError

POLL_SECONDS = 0.1
"""The time between two looks at signals and files."""

_MOST_SECONDS = 120

serves = takes(
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=0,
        metavar="NUMBER",
        help="The port of the page.  [default: any free port]",
    ),
    click.option(
        "--browser/--no-browser",
        default=True,
        help="Open the page, or only print its address.  [default: open]",
    ),
)
"""Adds `--port`, and `--browser` with its opposite."""


@command
@takes_a_target
@takes(
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="The address at which TensorBoard listens.",
    ),
    serves,
    *drawing_options(),
)
def view(
    *,
    target: Target,
    host: str,
    port: int,
    browser: bool,
    overlays: tuple[str, ...],
    **options: object,
) -> None:
    """Show the graph of a model in TensorBoard, and open the page.

    TARGET is a model or a graph, as for `tbscope show`. It is drawn into a temporary folder, which
    is removed afterwards; a whole log is shown as it is, unless options of a drawing are set.
    The address is printed once the page answers. Ctrl-C ends the command.

    \b
    tbscope view torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope view model.onnx --no-browser --port 6006
    tbscope view runs/net:Default --style torch
    """  # noqa: D301
    drawing = take_drawing(options)
    with ended_by_signals() as signals, _log_of(target, drawing, overlays, options) as logdir:
        url = _serve(logdir, host=host, port=port)
        open_in_browser(url, browser=browser)
        # Python drops an interrupt that arrives in a finalizer.
        while not signals:
            time.sleep(POLL_SECONDS)


def open_in_browser(url: str, *, browser: bool) -> None:
    """Print an address, and open it in the browser if that is wanted."""
    say(url)
    if browser and not webbrowser.open(url):
        say("note: no browser could be opened", err=True)


@contextlib.contextmanager
def _log_of(
    target: Target, drawing: dict[str, object], overlays: tuple[str, ...], run: dict[str, Any]
) -> Iterator[str]:
    """Yield a log folder: the target itself if it is a whole log, otherwise a temporary one."""
    asked = overlays or changed_options(drawing)
    if isinstance(target, GraphPath) and target.tag is None and not asked:
        from tbscope.sources.file_kind import file_kind

        if file_kind(target.path) == "directory":
            refuse_run_options(target, run)
            yield target.path
            return
    graph = graph_of_target(target, **run, kernels=drawing["level"] == "aten")
    with tempfile.TemporaryDirectory(prefix="tbscope-") as logdir:
        write_log(graph, logdir, drawing, overlays=overlays)
        yield logdir


def _serve(logdir: str, *, host: str, port: int) -> str:
    """Start TensorBoard, and return the address of the tab once the page lists a graph.

    Args:
        logdir: The folder.
        host: The address at which it listens.
        port: The port; 0 for any free port.
    Raises:
        TbscopeError: TensorBoard cannot be started, or takes too long.
    """
    from tensorboard import program

    server = program.TensorBoard()
    # The fast loader is a process of its own, which would outlive a killed command.
    server.configure(logdir=logdir, host=host, port=port, load_fast="false")
    try:
        address: str = server.launch().rstrip("/")
    except program.TensorBoardServerException as error:
        raise TbscopeError(
            "TensorBoard cannot be started, or has ended",
            why=error.msg,
            fix="try it by itself: python -m tensorboard.main --logdir .",
        ) from error
    end = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < end:
        if _lists_graphs(address):
            return f"{address}/#tbscope"
        time.sleep(POLL_SECONDS)
    raise TbscopeError(
        f"TensorBoard did not show the graph within {_MOST_SECONDS} seconds",
        fix=f"look at it by hand: python -m tensorboard.main --logdir {logdir}",
    )


@contextlib.contextmanager
def ended_by_signals() -> Iterator[list[int]]:
    """End a block on SIGINT, SIGTERM and SIGHUP by an interrupt.

    Returns:
        The numbers of the signals that have arrived.
    """
    signals: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signals.append(number)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        # Windows has no SIGHUP.
        names = ("SIGINT", "SIGTERM", "SIGHUP")
        for signal_number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            before[signal_number] = signal.signal(signal_number, interrupt)
    try:
        yield signals
    except KeyboardInterrupt:
        return
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _lists_graphs(address: str) -> bool:
    """Whether TensorBoard answers, and has read a graph."""
    try:
        with urllib.request.urlopen(  # noqa: S310
            f"{address}/data/plugin/graphs/info", timeout=10
        ) as answer:
            return bool(json.loads(answer.read()))
    except (OSError, ValueError):
        return False
