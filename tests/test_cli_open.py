"""`tbscope FILE`: a server with the page of a graph, which ends with the command."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from browser import Browser
from build import chain
from cli_runs import ROOT, enter, misused, refused, tbscope
from playwright.sync_api import expect

import tbscope as library

MOST_SECONDS = 60


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    chain(2).save(tmp_path / "graph.json")
    return enter(tmp_path, monkeypatch)


@contextlib.contextmanager
def opening(*words):
    """Run the command; yield its process and the address that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "tbscope", *words, "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def content(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def changed(url, before):
    """Wait until there is another version of the page."""
    end = time.monotonic() + MOST_SECONDS
    while content(f"{url}version") == before:
        assert time.monotonic() < end
        time.sleep(0.05)
    return content(f"{url}version")


@pytest.mark.parametrize("words", [(), ("open",)])
def test_a_file_alone_is_served_as_its_page(words):
    with opening(*words, "graph.json") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        chain(2).save("page.html")
        assert content(url) == Path("page.html").read_text()
        for path, host in (("/graph.json", None), ("/", "evil.example")):
            there = http.client.HTTPConnection(url.split("/")[2])
            there.request("GET", path, headers={"Host": host} if host else {})
            assert there.getresponse().status == 404
            there.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(MOST_SECONDS) == 130
        assert process.stderr.read() == ""


def test_a_page_that_is_watched_follows_the_file(tmp_path):
    with opening("nets.py:Net", "-i", "2x3", "--watch", "--style", "torch") as (process, url):
        before = content(f"{url}version")
        first = content(url)
        code = (tmp_path / "nets.py").read_text()
        (tmp_path / "nets.py").write_text("broken(")
        assert process.stderr.readline().startswith("a word of the model's own")
        assert process.stderr.readline().startswith("Error: cannot import 'nets.py'")
        assert content(url) == first, "the page stays where there is no other one"
        (tmp_path / "nets.py").write_text(code.replace("self.drop", "self.dropped"))
        changed(url, before)
        assert "Dropout[dropped]" in content(url)
        assert "Dropout[dropped]" not in first


def test_the_page_reloads_itself_and_keeps_what_is_selected(tmp_path):
    with (
        opening("graph.json", "--watch") as (_, url),
        Browser() as browser,
        contextlib.closing(browser.new_page()) as page,
    ):
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{url}#1")
        expect(page.locator("#card h2")).to_have_text("1")
        assert page.locator("#world .thing").count() == 8
        chain(9).save(tmp_path / "graph.json")
        page.wait_for_function("() => document.querySelectorAll('#world .thing').length > 8")
        expect(page.locator("#card h2")).to_have_text("1")
        assert page.evaluate("location.hash") == "#1"
        assert errors == []


def test_what_is_no_command_and_no_file_is_told():
    assert "No such command 'shwo'." in misused("shwo")
    assert "there is no such file" in refused("nofile.json")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("graph.json", "--no-browser", "--port", str(port))
    assert told.startswith(f"Error: no page can be served at port {port}\n  why: Address already")
    assert tbscope("--help").stdout.count("tbscope FILE") == 2
    assert library.load("graph.json")
