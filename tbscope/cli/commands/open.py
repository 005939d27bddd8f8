"""`tbscope open`: shows the page of a graph in the browser, from a server on this machine."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from tbscope.cli.command_errors import command
from tbscope.cli.commands.view import POLL_SECONDS, open_in_browser, serves
from tbscope.cli.log_folder import changed_options, take_drawing
from tbscope.cli.output import say
from tbscope.cli.parameters import Target, library_options, takes
from tbscope.cli.run_target import graph_of_target, takes_a_target
from tbscope.errors import TbscopeError
from tbscope.options import DRAWING

_HOST = "127.0.0.1"


@command
@takes_a_target
@takes(
    click.option(
        "--watch",
        is_flag=True,
        help="Draw the graph again when the file of TARGET changes; the page reloads itself.",
    ),
    serves,
    *library_options(DRAWING),
)
def open(  # noqa: A001  The name of the command.
    *, target: Target, watch: bool, port: int, browser: bool, **options: Any
) -> None:
    """Open the page of a graph in the browser, as tbscope FILE does.

    TARGET is a model or a graph, as for `tbscope show`. A server on 127.0.0.1 has the page that
    `tbscope export TARGET -o graph.html` writes. Its address is printed. Ctrl-C ends the command.

    \b
    tbscope open torch.nn:Linear -a in_features=3 -a out_features=5 -i 1x3
    tbscope open nets.py:make_model -i 2x3 --watch
    tbscope model.onnx
    """  # noqa: D301
    drawing = take_drawing(options)

    def draw() -> tuple[bytes, str]:
        from tbscope.saving.box_tree import picture_of
        from tbscope.saving.html import page_of

        graph = graph_of_target(target, **options, kernels=drawing["level"] == "aten")
        version = f"{time.time_ns()}" if watch else ""
        return page_of(picture_of(graph, **changed_options(drawing)), version).encode(), version

    # A target begins with the path of its file, or with the name of a module.
    path = Path(target[0])
    seen = _time_of(path)
    with _Server(port, draw()) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_in_browser(f"http://{server.address}/", browser=browser)
        while True:
            time.sleep(POLL_SECONDS)
            if watch and (time_now := _time_of(path)) != seen:
                seen = time_now
                _forget(path)
                try:
                    server.page = draw()
                except TbscopeError as error:
                    say(f"Error: {error}", err=True)


def _time_of(path: Path) -> int:
    """Return the time of the last change of a file; 0 if there is none at the moment."""
    return path.stat().st_mtime_ns if path.exists() else 0


def _forget(path: Path) -> None:
    """Forget the module of a file of Python, which is imported again then."""
    # Compiled code is found again by whole seconds.
    sys.dont_write_bytecode = True
    for name, module in [*sys.modules.items()]:
        if getattr(getattr(module, "__spec__", None), "origin", None) == str(path.resolve()):
            del sys.modules[name]


class _Server(ThreadingHTTPServer):
    """The server of one page.

    Attributes:
        page: The page, and its version.
        address: The host with the port.
    """

    daemon_threads = True

    def __init__(self, port: int, page: tuple[bytes, str]) -> None:
        self.page = page
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            raise TbscopeError(
                f"no page can be served at port {port}",
                why=f"{error.strerror}",
                fix="give another --port, or none for any free one",
            ) from error
        self.address = f"{_HOST}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answer with the page or its version."""
        page, version = self.server.page
        # Another name leads here if a foreign page has made its own name lead to this machine.
        if self.headers["Host"] != self.server.address or self.path not in ("/", "/version"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(page if self.path == "/" else version.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  As in the base class.
        """Print nothing."""
