"""`tbscope view`: a real TensorBoard on the graph, which ends with the command."""

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from build import chain
from cli_runs import ROOT, enter, misused, refused

import tbscope as library
from tbscope.cli.commands.view import _lists_graphs, _log_of, ended_by_signals
from tbscope.cli.parameters import GraphPath
from tbscope.options import DRAWING

DEFAULTS = {name: option.default for name, option in DRAWING.items()}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    return enter(tmp_path, monkeypatch)


@contextlib.contextmanager
def viewing(*words, **environment):
    """Run the command; yield its process and the address that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "tbscope", "view", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            # Not killed: it ends TensorBoard, too.
            process.terminate()


def is_answered(url):
    try:
        with urllib.request.urlopen(url):
            return True
    except OSError:
        return False


def graphs_at(url):
    with urllib.request.urlopen(url.replace("#tbscope", "data/plugin/graphs/info")) as answer:
        return json.loads(answer.read())


def test_the_page_answers_when_its_address_is_printed_and_ends_with_the_command(folder):
    (folder / "temporary").mkdir()
    (folder / "browser").write_text('#!/bin/sh\necho "$1" > opened.txt\n')
    (folder / "browser").chmod(0o755)
    words = ["nets.py:Net", "-i", "2x3", "--overlay", "flops"]
    place = {"BROWSER": str(folder / "browser"), "TMPDIR": str(folder / "temporary")}
    with viewing(*words, **place) as (process, url):
        assert url.startswith("http://127.0.0.1:")
        (run,) = graphs_at(url).values()
        assert run["run_graph"]
        assert {tag.strip() for tag in run["tags"]} >= {"flops"}
        assert len(list((folder / "temporary").glob("tbscope-*"))) == 1
        opened = folder / "opened.txt"
        # The address is printed before the browser is asked to open it.
        while process.poll() is None and not (opened.exists() and opened.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
        assert (process.returncode, rest, errors) == (0, "", "a word of the model's own\n")
    assert opened.read_text() == f"{url}\n"
    assert list((folder / "temporary").glob("tbscope-*")) == []
    assert not is_answered(url)


@pytest.mark.parametrize(("answer", "lists"), [(b'{".": {}}', True), (b"{}", False), (b"<", False)])
def test_the_page_is_ready_when_a_graph_is_listed(answer, lists):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert _lists_graphs(address) == lists
        thread.join()
    assert not _lists_graphs(address)


def test_a_port_that_is_taken_is_told_in_one_message(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with viewing("torch.nn:ReLU", "-i", "2x3", "--no-browser", "--port", str(port)) as (
            process,
            url,
        ):
            _, errors = process.communicate()
    assert (process.returncode, url) == (1, "")
    first, why, fix = errors.splitlines()
    assert first == "Error: TensorBoard cannot be started, or has ended"
    assert f"port {port}" in why
    assert fix == "  fix: try it by itself: python -m tensorboard.main --logdir ."


def test_what_cannot_be_drawn_is_told_before_anything_starts():
    assert refused("view", "nest.py:Net").startswith("Error: there is no file 'nest.py'\n")
    assert misused("view", "nets.py:Net", "--style", "round").startswith(
        "Error: Invalid value for '--style': 'round' is not one of"
    )
    assert misused("view", "nets.py:Net", "--port", "70000").startswith(
        "Error: Invalid value for '--port': 70000 is not in the range"
    )


def test_a_whole_log_is_shown_as_it_stands_and_one_of_its_graphs_is_drawn():
    with library.SummaryWriter("runs") as writer:
        writer.add_graph(chain(1))
        writer.add_graph(chain(2), tag="large")
    with _log_of(GraphPath("runs"), DEFAULTS, (), {}) as logdir:
        assert logdir == "runs"
    run = {"inputs": (), "arguments": (), "seed": 0, "mode": None}
    with _log_of(GraphPath("runs", "large"), DEFAULTS, (), run) as logdir:
        assert [str(one.graph) for one in library.read_log(logdir)] == [str(chain(2))]
    assert not Path(logdir).exists()
    asked = {**DEFAULTS, "style": "torch"}
    with _log_of(GraphPath("runs"), asked, (), run) as logdir:
        assert [str(one.graph) for one in library.read_log(logdir)] == [str(chain(1))]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_end_leaves_the_block_and_the_handlers_as_they_were(number):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    done = []
    with ended_by_signals():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            done.append("closed")
    assert done == ["closed"]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before
