"""What the viewer saves in a real browser: an SVG, a PNG, the whole page, and a link."""

import io
import xml.etree.ElementTree as ET

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import expect
from saved import nested
from tab import Tab, answer, at
from test_html import EVIL, evil

import tbscope
from tests.sweeps import sampled

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    for run, graph in {"blocks": nested(), "evil": evil()}.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(graph)
    return logdir


class Saved:
    """A saved page, with what a test needs of `Tab`."""

    def __init__(self, browser, path, dark=False):
        self.page = self.frame = browser.new_page(dark=dark)
        self.errors = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.goto(f"file://{path}")
        self.page.locator("#world .thing").first.wait_for()
        self._browser = browser

    def put_away(self):
        """Give the page back, for another test."""
        self._browser.take_back(self.page)


@pytest.fixture(params=sampled(["tab", "file"], ["file"]))
def show(request, browser, tmp_path):
    """Open a graph in the tab, and as a saved page; at the end, see that nothing went wrong."""
    opened = []

    def open_viewer(name="blocks"):
        if request.param == "tab":
            opened.append(Tab(browser, request.getfixturevalue("server").url, at(run=name)))
        else:
            path = tmp_path / f"{name}.html"
            {"blocks": nested, "evil": evil}[name]().save(path)
            opened.append(Saved(browser, path))
        return opened[-1]

    yield open_viewer
    for one in opened:
        assert [error for error in one.errors if "Three.js" not in error] == []
        one.put_away()


def save(viewer, entry):
    """Choose an entry of the menu, and return the name and the bytes of what is downloaded."""
    viewer.frame.locator("#save").click()
    with viewer.page.expect_download() as found:
        viewer.frame.locator("#saving").get_by_role("button", name=entry).click()
    download = found.value
    return download.suggested_filename, download.path().read_bytes()


# How each shape is painted, and where.
LOOKS = """(drawing) => {
  // As an SVG has the colours that a browser mixes.
  const rgb = (text) => text.replace(/color\\(srgb (.*)\\)/, (_, parts) =>
    `rgb(${parts.split(' ').map((part) => Math.round(255 * part)).join(', ')})`);
  const shapes = drawing.querySelectorAll('rect, path, text:not(.sign, .turn), circle');
  const paint = ['fill', 'stroke', 'strokeWidth', 'strokeDasharray', 'fillOpacity', 'opacity'];
  const letters = ['fontSize', 'fontWeight', 'fontFamily', 'textAnchor'];
  const place = ['x', 'y', 'width', 'height', 'd', 'cx', 'cy', 'r'];
  return [...shapes].map((one) => {
    const style = getComputedStyle(one), names = one.localName === 'text' ? letters : [];
    return [one.localName, one.textContent, ...place.map((name) => one.getAttribute(name)),
      ...[...paint, ...names].map((name) => rgb(style[name]))].join(' ');
  });
}"""


def texts(svg, tag="text"):
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter(f"{SVG}{tag}")]


def test_the_svg_has_every_label_and_asks_for_nothing(show):
    viewer = show()
    for label in ("blocks", "0", "fc"):
        expect(viewer.frame.locator(".label", has_text=label).first).to_be_visible()
        viewer.frame.locator("#canvas").press("e")
    name, svg = save(viewer, "Picture as SVG")
    drawn = viewer.frame.locator("#world text:not(.sign, .turn)").all_text_contents()
    assert name == "Net.svg"
    assert sorted(texts(svg)) == sorted(drawn)
    assert {"fc", "relu", "add", "2×4"} <= {*drawn}
    root = ET.fromstring(svg)
    assert root.find(f"{SVG}title").text == "Net"
    assert [
        one for one in root.iter() if one.tag.rpartition("}")[2] in ("script", "style", "a")
    ] == []
    names = {name for one in root.iter() for name in one.attrib}
    assert not {name for name in names if "href" in name or name.startswith(("on", "data"))}
    assert "var(" not in svg.decode()


def test_the_svg_looks_by_itself_as_it_looks_in_the_viewer(show, browser, tmp_path):
    viewer = show()
    viewer.frame.locator("#canvas").press("e")
    (tmp_path / "net.svg").write_bytes(save(viewer, "Picture as SVG")[1])
    alone = browser.new_page()
    errors = []
    alone.on("pageerror", lambda error: errors.append(str(error)))
    alone.on("console", lambda message: errors.append(message.text))
    alone.goto(f"file://{tmp_path}/net.svg")
    seen = viewer.frame.locator("#world").evaluate(LOOKS)
    own = alone.locator("svg > g").evaluate(LOOKS)
    assert seen == own
    assert len(seen) > 20
    assert errors == []
    browser.take_back(alone)


def test_the_png_has_twice_the_size_and_shows_the_drawing(show):
    viewer = show()
    _, svg = save(viewer, "Picture as SVG")
    name, png = save(viewer, "Picture as PNG")
    root, image = ET.fromstring(svg), Image.open(io.BytesIO(png)).convert("RGB")
    assert name == "Net.png"
    assert image.size == (2 * int(root.get("width")), 2 * int(root.get("height")))
    assert image.getpixel((0, 0)) == (255, 255, 255)
    blank = Image.new("RGB", image.size, "white")
    left, top, right, bottom = ImageChops.difference(image, blank).getbbox()
    # A margin all around, and nothing cut off.
    assert min(left, top, image.width - right, image.height - bottom) >= 16
    assert len(image.getcolors(1 << 24)) > 50


def test_what_is_dark_is_saved_dark(show):
    viewer = show()
    viewer.frame.locator("#dark").click()
    _, png = save(viewer, "Picture as PNG")
    assert sum(Image.open(io.BytesIO(png)).convert("RGB").getpixel((0, 0))) < 100


def test_a_selected_node_is_saved_as_the_others(show):
    viewer = show()
    _, plain = save(viewer, "Picture as SVG")
    viewer.frame.locator("#world .thing").first.click()
    assert viewer.frame.locator("#world .selected").count() == 1
    assert save(viewer, "Picture as SVG")[1] == plain
    assert viewer.frame.locator("#world .selected").count() == 1


def test_texts_that_look_like_markup_are_saved_as_text(show):
    _, svg = save(show("evil"), "Picture as SVG")
    root = ET.fromstring(svg)
    assert [one for one in root.iter() if "script" in one.tag] == []
    assert any("alert(1)" in text for text in texts(svg, "title"))
    assert b"<script>" not in svg


def test_the_menu_is_operated_by_the_keyboard(show):
    viewer = show()
    viewer.frame.locator("#save").focus()
    viewer.page.keyboard.press("Enter")
    expect(viewer.frame.locator("#saving button").first).to_be_focused()
    viewer.page.keyboard.press("Tab")
    with viewer.page.expect_download() as found:
        viewer.page.keyboard.press("Enter")
    assert found.value.suggested_filename == "Net.png"
    viewer.frame.locator("#saving").wait_for(state="hidden")
    viewer.frame.locator("#save").press("Enter")
    viewer.page.keyboard.press("Escape")
    viewer.frame.locator("#saving").wait_for(state="hidden")


# -- the page and the link -----------------------------------------------------------------------


def test_the_tab_saves_the_whole_page(browser, server, tmp_path):
    tab = Tab(browser, server.url, at(run="blocks"))
    tab.press("e")
    name, data = save(tab, "Whole page")
    assert name == "Net.html"
    (tmp_path / name).write_bytes(data)
    saved = Saved(browser, tmp_path / name)
    assert saved.page.locator("#title").inner_text() == "Net"
    saved.page.locator("#canvas").press("e")
    saved.page.locator("#canvas").press("e")
    assert {"fc", "relu", "add"} <= {*saved.page.locator("#world .label").all_text_contents()}
    saved.page.locator("#save").click()
    assert not saved.page.get_by_role("button", name="Whole page").is_visible()
    assert saved.errors == []
    saved.put_away()
    tab.put_away()


def test_the_page_comes_as_text_and_a_graph_that_is_gone_is_said(server, browser):
    status, headers, data = answer(server, "page", run="evil")
    assert (status, headers["X-Content-Type-Options"]) == (200, "nosniff")
    assert headers["Content-Type"].startswith("text/plain")
    assert EVIL not in data.decode()
    status, _, data = answer(server, "page", run="none")
    assert status == 400
    tab = Tab(browser, server.url, at(run="blocks"))
    tab.page.route("**/page?*", lambda route: route.fulfill(status=400, body='{"error": "gone"}'))
    tab.frame.locator("#save").click()
    tab.frame.get_by_role("button", name="Whole page").click()
    tab.frame.locator("#message", has_text="gone").wait_for()
    tab.put_away()


def test_the_link_is_copied_or_shown(show, browser):
    viewer = show()
    canvas = viewer.frame.locator("#canvas")
    # As in a page that came by http from another machine.
    canvas.evaluate("() => Object.defineProperty(navigator, 'clipboard', {configurable: true})")
    viewer.frame.locator("#save").click()
    viewer.frame.get_by_role("button", name="Copy the link").click()
    field = viewer.frame.get_by_label("The link")
    assert field.input_value() == viewer.page.url
    assert field.evaluate("(one) => one.selectionEnd - one.selectionStart") == len(viewer.page.url)
    viewer.page.keyboard.press("Escape")
    canvas.evaluate(
        """() => Object.defineProperty(navigator, 'clipboard', {configurable: true,
        value: {writeText: async (text) => { window.copied = text; }}})"""
    )
    viewer.frame.locator("#save").click()
    viewer.frame.get_by_role("button", name="Copy the link").click()
    viewer.frame.locator("#message", has_text="The link is copied.").wait_for()
    assert canvas.evaluate("() => window.copied") == viewer.page.url


def test_a_page_in_a_notebook_has_no_link(browser, tmp_path):
    (tmp_path / "book.html").write_text(nested()._repr_html_())
    page = browser.new_page()
    page.goto(f"file://{tmp_path}/book.html")
    frame = page.frame_locator("iframe")
    frame.locator("#world .thing").first.wait_for()
    frame.locator("#save").click()
    assert not frame.get_by_role("button", name="Copy the link").is_visible()
    with page.expect_download() as found:
        frame.get_by_role("button", name="Picture as PNG").click()
    assert found.value.path().read_bytes().startswith(b"\x89PNG")
    page.close()
