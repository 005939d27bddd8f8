"""The tab on logs that were written to break it: each gives a picture, or one message."""

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from log_files import log, tagged
from playwright.sync_api import expect
from sweeps import is_sweep, sampled
from tab import THINGS, answer, at, stand_alone
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from test_html import EVIL

from tbscope.plugin.tab import ASSETS

# Other tests may keep the machine busy.
expect.set_options(timeout=30_000)

LONG = "n" * (1_000_000 if is_sweep() else 100_000)
MARKUP = "<img src=x onerror=window.alerted=1>"
NESTED = "/".join(["b"] * 3000)
MANY = 10_000 if is_sweep() else 1_000
TAGS = (MARKUP, "a&b=c#d%", "\u202etag", "t" * 5000, *(f"tag{at}" for at in range(MANY)))


def graph(*nodes):
    """Return the bytes of a GraphDef of nodes: each a name, and the names that it reads."""
    message = GraphDef()
    for name, *inputs in nodes:
        message.node.add(name=name, op="Op").input.extend(inputs)
    return message.SerializeToString()


PICTURES = {
    "markup": graph((MARKUP,), (f"{MARKUP}/{EVIL}", MARKUP), ("javascript:alert(1)",)),
    "control": graph(("a\x1b[31m\x07b",), ("c\x00d", "a\x1b[31m\x07b"), ("e\rf\ng",)),
    "bidi": graph(("\u202eabc",), ("d\u2066e/\u200ff", "\u202eabc")),
    "long": graph((LONG,), (f"box/{LONG}", LONG), ("reader", f"box/{LONG}")),
    "cycle": graph(("a", "b"), ("b", "c"), ("c", "a"), ("self", "self")),
    "twice": graph(("a",), ("a", "a"), ("a/b", "a")),
    "missing": graph(("a", "nowhere", "^never:3", "also/not:1"), ("b", "a:7", "^a")),
    "nameless": graph(("",), ("b", ""), ("/", "b"), ("//x", "/"), ("c/", "b")),
    "crowd": graph(*((f"n{at}", *([f"n{at - 1}"] if at else ())) for at in range(3000))),
}
MESSAGES = {
    "empty": (b"", "The graph has no nodes."),
    "nested": (graph((f"{NESTED}/x",)), "boxes of the graph are nested 3,000 deep"),
    "damaged": (graph(("a",), ("b", "a"))[:-3], "the graph cannot be read"),
    "noise": (bytes(range(256)) * 20, "the graph cannot be read"),
}


def write(directory, data):
    writer = EventFileWriter(str(directory))
    writer.add_event(Event(graph_def=data, wall_time=1.0))
    writer.close()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    for name, data in PICTURES.items():
        write(logdir / name, data)
    for name, (data, _) in MESSAGES.items():
        write(logdir / name, data)
    write(logdir / MARKUP, graph(("a",)))
    write(logdir / "run\u202e&p.tbscope.node=x%zz'", graph(("a",)))
    # TensorBoard's data server itself refuses this one.
    write(logdir / 'quo"te', graph(("a",)))
    data = RunMetadata()
    data.function_graphs.add().pre_optimization_graph.ParseFromString(graph(("a",)))
    events = [tagged(tag, "graph_run_metadata_graph", data.SerializeToString()) for tag in TAGS]
    log(logdir / "tags" / "events.out.tfevents.1.x", *events)
    return logdir


class Shown:
    """The tab with whatever it shows: a picture, or a message."""

    def __init__(self, browser, server, address, whole=False):
        self._browser, self._whole = browser, whole
        self.page = browser.new_page()
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._listen)
        self.page.on("dialog", lambda dialog: self.errors.append("a dialog"))
        self.page.on("request", self._watch)
        self.server = server
        if not whole:
            stand_alone(self.page, server.url)
        self.page.goto(f"{server.url}/#tbscope{address}")
        self.frame = self.page.frame_locator("iframe")

    def _listen(self, message):
        refused = "status of 400" in message.text and "plugin/tbscope/" in message.location["url"]
        if "Three.js" not in message.text and not refused:
            self.errors.append(message.text)

    def _watch(self, request):
        if not request.url.startswith((self.server.url, "data:", "blob:")):
            self.errors.append(request.url)

    def close(self):
        """Close it, and see that nothing went wrong."""
        for frame in self.page.frames:
            assert not frame.evaluate("window.alerted || false")
            assert frame.locator("#world img, #card img, #graphs img").count() == 0
        assert self.errors == []
        if self._whole:
            self.page.close()
        else:
            self._browser.take_back(self.page)


@pytest.fixture
def show(browser, server):
    opened = []

    def open_tab(address, **options):
        opened.append(Shown(browser, server, address, **options))
        return opened[-1]

    yield open_tab
    for one in opened:
        one.close()


@pytest.mark.parametrize("run", sampled(PICTURES, ["markup", "control", "missing", "nameless"]))
def test_a_hostile_graph_is_drawn_and_each_of_its_parts_can_be_used(show, run):
    tab = show(at(run=run))
    tab.frame.locator(THINGS).first.wait_for()
    for key in ("e", "e", "Home", "ArrowDown", "PageDown", "PageDown", "Enter", "End", "u", "f"):
        tab.frame.locator("#canvas").press(key)
    field = tab.frame.locator("#pattern")
    field.fill("a")
    field.press("Enter")
    tab.page.wait_for_timeout(300)
    message = tab.frame.locator("#message")
    said = message.inner_text() if message.is_visible() else ""
    assert said in ("", "All boxes are open.") or said.startswith("That would draw")
    text = tab.frame.locator("body").inner_text()
    assert not re.search("[\x00-\x08\x1b\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize("run", MESSAGES)
def test_what_cannot_be_drawn_gives_one_message(show, run):
    tab = show(at(run=run))
    expect(tab.frame.locator("#message")).to_contain_text(MESSAGES[run][1])
    tab.frame.get_by_label("Run", exact=True).select_option("cycle")
    tab.frame.locator(THINGS).first.wait_for()
    expect(tab.frame.locator("#message")).to_be_hidden()


def test_what_tensorboard_refuses_is_said_in_its_words(show):
    tab = show(at(run='quo"te'))
    expect(tab.frame.locator("#message")).to_contain_text(
        "TensorBoard answered with status 400: Invalid argument: failed to parse blob key"
    )


def test_a_long_name_is_cut_where_it_is_shown_and_found_all_the_same(show):
    tab = show(at(run="long"))
    tab.frame.locator(THINGS).first.wait_for()
    tab.frame.locator("#pattern").fill("nnnn")
    tab.frame.locator("#hits li").first.wait_for()
    tab.frame.locator("#pattern").press("Enter")
    expect(tab.frame.locator("#card h2")).to_contain_text(f"({len(LONG):,} letters)")
    assert len(tab.page.url) < 10_000
    longest = (
        "Math.max(...[...document.querySelectorAll('*')].flatMap((one) => [one.attributes.length"
    )
    longest += " ? Math.max(...[...one.attributes].map(({value}) => value.length)) : 0]))"
    frame = next(one for one in tab.page.frames if "plugin_entry" in one.url)
    assert frame.evaluate(longest) < 5000


def test_names_of_runs_and_tags_are_text(show):
    tab = show(at(run=MARKUP, tag=MARKUP), whole=True)
    tab.frame.locator(THINGS).first.wait_for()
    for run in ("run\u202e&p.tbscope.node=x%zz'", "tags"):
        tab.frame.get_by_label("Run", exact=True).select_option(run)
        tab.frame.locator(THINGS).first.wait_for()
    tags = tab.frame.get_by_label("Tag", exact=True)
    expect(tags.locator("option")).to_have_count(len(TAGS))
    for tag in TAGS[:4]:
        tags.select_option(tag)
        expect(tab.frame.locator("#card h2")).to_be_visible()
        expect(tab.frame.locator("#message")).to_be_hidden()
    address = tab.page.evaluate("location.hash")
    again = show(address.removeprefix("#tbscope"), whole=True)
    expect(again.frame.get_by_label("Tag", exact=True)).to_have_value(TAGS[3])


@pytest.mark.parametrize("asked", sampled(["run=%25", "=1", "step=x"], ["run=%25"]))
def test_an_address_of_no_sense_shows_the_first_graph(show, asked):
    show(f"&p.tbscope.{asked}").frame.locator(THINGS).first.wait_for()


# -- the server -------------------------------------------------------------------------------


def test_requests_at_once_are_all_answered(server):
    runs = [*PICTURES, *MESSAGES] * 2

    def ask(run):
        kinds = [answer(server, kind, run=run)[0] for kind in ("head", "index")]
        return run, kinds

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(ask, runs))
    for run, (head, index) in found:
        drawn = run in PICTURES or run == "empty"
        assert (head, index) == ((200, 200) if drawn else (400, 400)), run


def test_no_answer_is_sniffed_and_tensorboard_warns_of_none(logdir):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    said, refused = [], []
    try:
        for line in process.stderr:
            if found := re.search(r"at (http://\S+?)/? ", line):
                break
        reading = threading.Thread(target=lambda: said.extend(process.stderr))
        reading.start()
        for path in [
            *ASSETS,
            "graphs",
            "head?run=markup",
            "level?run=bidi&number=0",
            "card?run=markup&number=1",
            "index?run=cycle",
            "head?run=noise",
            "head?run=none",
        ]:
            try:
                with urllib.request.urlopen(f"{found[1]}/data/plugin/tbscope/{path}") as told:
                    headers = told.headers
            except urllib.error.HTTPError as error:
                error.close()
                headers = error.headers
                refused.append(path)
            assert headers["X-Content-Type-Options"] == "nosniff", path
            assert "text/html" not in headers["Content-Type"], path
        with urllib.request.urlopen(f"{found[1]}/data/plugin_entry.html?name=tbscope") as told:
            policy = told.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert refused == ["head?run=noise", "head?run=none"]
    finally:
        process.terminate()
        process.wait(30)
    reading.join()
    process.stderr.close()
    assert [line for line in said if "Warn" in line or "Error" in line or "CSP" in line] == []
