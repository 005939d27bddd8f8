"""The tab and the saved page in Firefox.

TBSCOPE_FIREFOX=1 python -m pytest tests/test_tab_firefox.py
"""

import os

import pytest
import torch
from browser import TensorBoard
from firefox import Firefox, find_firefox
from saved import nested
from tab import at
from test_tab import Flat

import tbscope

pytestmark = [
    pytest.mark.skipif("TBSCOPE_FIREFOX" not in os.environ, reason="TBSCOPE_FIREFOX is not set"),
    pytest.mark.skipif(
        find_firefox() is None, reason="there is no Firefox: apt-get install firefox-esr"
    ),
]
LABELS = (
    "return [...document.querySelectorAll('#world > g .thing:not(circle) > .label')]"
    ".map((one) => one.textContent)"
)
HEADING = (
    "const found = document.querySelector('#card h2');"
    "return found && found.textContent === arguments[0]"
)
DRAWN = "return document.querySelector('#world > g .thing') && document.querySelector('#card h2')"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    flat = tbscope.trace(Flat(), torch.ones(1, 4))
    for run, graph in {"blocks": nested(), "flat": flat}.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(graph)
    with TensorBoard(logdir) as server:
        yield server


@pytest.fixture(scope="module")
def firefox():
    with Firefox() as browser:
        yield browser


@pytest.fixture
def show(firefox, server):
    """Open the tab, or another page; at the end, see that nothing went wrong in it."""
    before = len(firefox.said.read_text())

    def open_page(address="", url=None):
        firefox.open("about:blank")
        firefox.open(url or f"{server.url}/#tbscope{address}")
        if url is None:
            firefox.enter_frame()
        firefox.wait(DRAWN)
        return firefox

    yield open_page
    said = firefox.said.read_text()[before:].splitlines()
    # Firefox reports what goes wrong in parts of its own, too, and TensorBoard lacks WebGL here.
    of_pages = ("http://127.0.0.1", "file:///", "Content-Security-Policy")
    found = [line for line in said if any(part in line for part in of_pages)]
    assert [line for line in found if "WebGL" not in line] == []


def place_of(page, label):
    """Return the place on the page of the head of what has a label."""
    return page.run(
        "const found = [...document.querySelectorAll('#world .thing')]"
        ".find((one) => (one.querySelector(':scope > .label') || {}).textContent === arguments[0]);"
        "const {x, y, width} = found.querySelector(':scope > .body').getBoundingClientRect();"
        "return [x + width / 2, y + 8]",
        label,
    )


def test_the_tab_draws_opens_and_names_what_it_shows(show):
    page = show(at(run="blocks"))
    assert page.run(LABELS) == ["x", "blocks", "out"]
    page.click(*place_of(page, "blocks"), times=2)
    page.wait("return document.querySelectorAll('#world .thing.open').length === 1")
    page.wait(HEADING, "blocks")
    assert page.run("return parent.location.hash") == "#tbscope" + at(
        run="blocks", node="blocks"
    ).replace("&p.tbscope.node", "&p.tbscope.open=blocks&p.tbscope.node")


def test_an_address_leads_to_a_node_in_a_run_of_equal_layers(show):
    page = show(at(run="flat", node="net/17"))
    page.wait(HEADING, "17")
    assert "9 of 15" in page.run("return document.querySelector('#world').textContent")
    page.run("document.getElementById('canvas').focus()")
    page.press("]")
    page.wait("return document.querySelector('#world').textContent.includes('10 of 15')")


def test_the_tab_is_used_by_keys(show):
    page = show(at(run="blocks"))
    page.run("document.getElementById('canvas').focus()")
    page.press("Home", "ArrowDown", "Enter")
    page.wait("return document.querySelectorAll('#world .thing.open').length === 1")
    page.press("i")
    page.wait(HEADING, "0")
    page.press("/")
    page.press(*"relu")
    page.wait("return document.querySelectorAll('#hits li:not(.more)').length === 2")
    page.press("Enter", "Enter")
    page.wait(HEADING, "relu")
    assert page.run("return document.querySelector('#card .path').textContent").endswith("1 / ")
    assert (
        page.run("return document.querySelector('#spoken').textContent") == "relu, relu, output 2×4"
    )


def test_no_label_is_wider_than_its_box(show):
    page = show(at(run="blocks"))
    page.run("document.getElementById('canvas').focus()")
    page.press("e")
    page.wait("return document.querySelectorAll('#world .thing.open').length === 1")
    page.press("e")
    page.wait("return document.querySelectorAll('#world .thing.open').length === 3")
    outside = page.run(
        "return [...document.querySelectorAll('#world .thing > .label, #world .thing > .second')]"
        ".filter((one) => { const own = one.getBoundingClientRect(),"
        " body = one.parentElement.querySelector(':scope > .body').getBoundingClientRect();"
        " return own.left < body.left - 1 || own.right > body.right + 1; })"
        ".map((one) => one.textContent)"
    )
    assert outside == []


def test_a_frame_that_loads_hidden_fits_itself_when_it_appears(show):
    page = show(at(run="blocks"))
    page.leave_frame()
    page.run("document.querySelector('iframe').style.display = 'none'")
    page.enter_frame()
    page.run("document.getElementById('canvas').focus()")
    page.leave_frame()
    page.run("document.querySelector('iframe').style.display = ''")
    page.enter_frame()
    page.wait("return document.querySelector('#world').getBoundingClientRect().height > 150")


def test_the_dark_mode_of_tensorboard_is_followed(show):
    page = show()
    page.run("parent.document.body.classList.add('dark-mode')")
    page.wait("return document.documentElement.dataset.theme === 'dark'")
    page.run("parent.document.body.classList.remove('dark-mode')")


@pytest.mark.parametrize("kind", ["class", "kind", "dtype", "none"])
def test_the_saved_page_colours_and_opens(show, tmp_path, kind):
    path = tmp_path / "graph.html"
    nested().save(path)
    page = show(url=path.as_uri() + "#blocks%2F1%2Frelu")
    page.wait(HEADING, "relu")
    page.run(
        "const mode = document.getElementById('mode'); mode.value = arguments[0];"
        "mode.dispatchEvent(new Event('change'))",
        kind,
    )
    fills = page.run(
        "return [...document.querySelectorAll('#world .node > .body')]"
        ".map((one) => getComputedStyle(one).fill)"
    )
    assert (len(set(fills)) == 1) == (kind in ("none", "dtype"))
    assert {"fc", "relu", "add"} <= {*page.run(LABELS)}
