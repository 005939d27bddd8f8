"""The panels below the picture: in the tab of a real TensorBoard, and in a saved page."""

import json
import os

import pytest
import torch
from browser import TensorBoard
from log_files import log
from playwright.sync_api import expect
from saved_page import SavedPage
from tab import Tab, answer, at
from test_html import evil
from test_modules_table import Shared, flat
from test_plugin_records import event
from torch import nn

import tbscope

ROWS = ".modules tbody tr[data-at]"
X = torch.ones(2, 8)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    for run, graph in {
        "evil": evil(),
        "flat": tbscope.trace(flat(60), torch.ones(1, 4)),
        "shared": tbscope.trace(Shared(), X),
    }.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(graph)
    with torch.utils.tensorboard.SummaryWriter(logdir / "torchs") as writer:
        writer.add_graph(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2))
    log(logdir / "damaged" / "events.out.tfevents.1", event(b"no record"))
    return logdir


class Panels:
    """The panels, in a frame or a page."""

    def __init__(self, frame):
        self.frame = frame

    def press(self, key):
        """Press a key in the picture."""
        self.frame.locator("#canvas").press(key)

    def choose(self, name):
        """Choose one of the panels."""
        self.frame.get_by_role("tab", name=name).click()

    def filter(self, text):
        """Fill in the filter."""
        self.frame.get_by_label("Filter", exact=True).fill(text)

    def sort(self, title):
        """Click on the head of a column."""
        self.frame.get_by_title(f"Sort by {title}", exact=True).click()

    def column(self, number):
        """The cells of a column."""
        return self.frame.locator(f"{ROWS} td:nth-child({number})").all_text_contents()

    @property
    def count(self):
        """How many rows there are."""
        return self.frame.locator("#panel [role=status]")

    @property
    def marked(self):
        """The first cell of the row that is marked."""
        return self.frame.locator(f"{ROWS}[aria-selected=true] td").first

    @property
    def body(self):
        """What is in the panel."""
        return self.frame.locator("#panel-body")


@pytest.fixture
def tab(browser, server):
    """Open the panels in the tab; at the end, see that nothing went wrong."""
    opened = []

    def open_tab(**place):
        found = Tab(browser, server.url, at(**place))
        opened.append(found)
        panels = Panels(found.frame)
        panels.page = found.page
        panels.press("t")
        return panels

    yield open_tab
    for one in opened:
        # The browser reports an answer with the status 400 that the panel shows as a message.
        known = ("Three.js", "status of 400")
        assert [error for error in one.errors if not any(part in error for part in known)] == []
        one.put_away()


@pytest.fixture
def page(browser, tmp_path):
    """Save a graph and open the panels of its page; at the end, see that nothing went wrong."""
    opened = []

    def open_page(graph, **drawing):
        path = tmp_path / "graph.html"
        graph.save(path, **drawing)
        opened.append(SavedPage(browser, path))
        panels = Panels(opened[-1].page)
        panels.page = opened[-1].page
        panels.press("t")
        return panels

    yield open_page
    for one in opened:
        assert one.errors == []
        assert {asked.partition("#")[0] for asked in one.asked} == {one.address}
        one.put_away()


# -- the table of modules ---------------------------------------------------------------------


def test_the_table_is_asked_for_when_it_opens_and_is_a_tree(tab):
    panels = tab(run="shared")
    expect(panels.count).to_have_text("15 modules")
    assert panels.column(1)[:5] == ["Shared", "layers/0", "fc", "act", "layers/1"]
    assert panels.column(2)[:3] == ["Shared", "Block", "Linear"]
    assert panels.column(3)[1] == "(2×8, scalar)"
    heads = panels.frame.locator(".modules th").all_text_contents()
    assert heads == [
        *("module", "class", "output", "parameters", "trainable", "FLOPs", "parameter memory"),
    ]
    assert panels.column(4)[:3] == ["234", "72", "72"]
    assert panels.column(5)[:3] == ["98", "8", "8"]


def test_nothing_is_asked_for_before_a_panel_opens(browser, server):
    found = Tab(browser, server.url, at(run="shared"))
    asked = []
    found.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    found.press("t")
    expect(Panels(found.frame).count).to_have_text("15 modules")
    found.press("t")
    expect(found.frame.locator("#panel")).to_be_hidden()
    found.press("t")
    found.frame.get_by_role("tab", name="Notes").click()
    found.frame.get_by_role("tab", name="Functions").click()
    expect(Panels(found.frame).count).to_have_text("5 functions")
    assert [one.partition("?")[0] for one in asked] == ["modules", "record"]
    found.put_away()


@pytest.mark.parametrize("where", ["tab", "page"])
def test_a_click_on_a_head_sorts_and_the_third_gives_the_tree_again(where, tab, page):
    panels = tab(run="shared") if where == "tab" else page(tbscope.trace(Shared(), X))
    expect(panels.count).to_have_text("15 modules")
    tree = panels.column(1)
    panels.sort("FLOPs")
    assert panels.column(6)[:4] == ["1.15 k", "256", "256", "256"]
    assert panels.column(6)[-5:] == ["64", "", "", "", ""]
    assert panels.column(1)[1] == "layers/0"
    head = panels.frame.locator(".modules th", has_text="FLOPs")
    assert head.get_attribute("aria-sort") == "descending"
    panels.sort("FLOPs")
    assert panels.column(6)[:2] == ["64", "64"]
    assert panels.column(6)[-4:] == ["", "", "", ""]
    assert head.get_attribute("aria-sort") == "ascending"
    panels.sort("FLOPs")
    assert head.get_attribute("aria-sort") == "none"
    assert panels.column(1) == tree
    panels.sort("class")
    assert panels.column(2) == sorted(panels.column(2))


def test_the_filter_finds_by_every_word_and_names_are_whole(page):
    panels = page(tbscope.trace(Shared(), X))
    panels.filter("layers linear")
    assert panels.column(1) == [f"layers/{number}/fc" for number in ("0", "1", "2", "0.2nd")]
    expect(panels.count).to_have_text("4 of 15 modules")
    panels.filter("nothing")
    expect(panels.count).to_have_text("0 of 15 modules")
    assert panels.column(1) == []


@pytest.mark.parametrize("where", ["tab", "page"])
def test_a_row_selects_its_box_and_a_box_marks_its_row(where, tab, page):
    panels = tab(run="shared") if where == "tab" else page(tbscope.trace(Shared(), X))
    expect(panels.marked).to_have_text("Shared")
    panels.frame.locator(ROWS, has_text="fc").nth(2).click()
    expect(panels.frame.locator("#card .path")).to_have_text("layers / 2 / ")
    expect(panels.marked).to_have_text("fc")
    assert panels.frame.locator("#world .selected > .label").text_content() == "fc"
    panels.frame.locator("#canvas").press("Backspace")
    expect(panels.marked).to_have_text("layers/2")
    # An operation is in its module; a box that is none, in the module around it.
    panels.frame.locator("#pattern").fill("layers/1/add")
    panels.frame.locator("#pattern").press("Enter")
    expect(panels.marked).to_have_text("layers/1")
    panels.frame.locator("#card a", has_text="layers").first.click()
    expect(panels.marked).to_have_text("Shared")


def test_the_table_is_used_by_keys(page):
    panels = page(tbscope.trace(Shared(), X))
    table = panels.frame.get_by_role("grid")
    table.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "End", "ArrowUp", "Enter"):
        table.press(key)
    expect(panels.marked).to_have_text("head")
    expect(panels.frame.locator("#card h2")).to_have_text("head")
    active = table.get_attribute("aria-activedescendant")
    assert panels.frame.locator(f"#{active} td").first.text_content() == "head"
    panels.frame.get_by_title("Sort by class", exact=True).press("Enter")
    assert panels.column(2) == sorted(panels.column(2))
    table.press("Escape")
    assert panels.frame.evaluate("document.activeElement.id") == "canvas"
    panels.press("t")
    expect(panels.body).to_be_hidden()


def test_only_the_rows_in_sight_are_drawn(tab):
    panels = tab(run="flat")
    expect(panels.count).to_have_text("121 modules")
    assert len(panels.column(1)) < 50
    assert panels.column(1)[:3] == ["Sequential", "0", "1"]
    assert panels.body.evaluate("body => body.scrollHeight") >= 121 * 24
    panels.body.evaluate("body => { body.scrollTop = body.scrollHeight; }")
    expect(panels.frame.locator(ROWS).last).to_contain_text("119")
    assert len(panels.column(1)) < 50
    # Boxes of equal blocks have no rows; a row opens theirs, and shows the block.
    panels.frame.locator(ROWS, has_text="118").first.click()
    expect(panels.frame.locator("#card h2")).to_have_text("118")
    expect(panels.marked).to_have_text("118")
    expect(panels.frame.locator("#world")).to_contain_text("60 of 60")


def test_the_table_is_copied_for_a_spreadsheet(page):
    formula = type("=<b>1</b>+1", (nn.Linear,), {"__module__": "nets"})
    panels = page(tbscope.trace(nn.Sequential(formula(8, 2)), X))
    panels.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panels.frame.get_by_role("button", name="Copy").last.click()
    expect(panels.frame.locator("#panel .bar button", has_text="Copied")).to_be_visible()
    lines = panels.page.evaluate("navigator.clipboard.readText()").split("\n")
    assert lines == [
        "module\tclass\toutput\tparameters\ttrainable\tFLOPs\tparameter memory",
        "Sequential\tSequential\t2×2\t18\t18\t64\t72",
        "0\t'=<b>1</b>+1\t2×2\t18\t18\t64\t72",
    ]
    assert panels.column(2)[1] == "=<b>1</b>+1"


def test_a_log_of_another_library_has_its_boxes_and_says_so(tab):
    panels = tab(run="torchs")
    expect(panels.count).to_contain_text("boxes; the graph has no classes of modules")
    heads = panels.frame.locator(".modules th").all_text_contents()
    assert heads[0] == "box"
    assert "nodes" in heads
    assert any("Linear" in name for name in panels.column(1))


def test_the_table_is_that_of_the_graph_that_is_shown(tab):
    panels = tab(run="shared")
    expect(panels.count).to_have_text("15 modules")
    panels.frame.get_by_label("Run", exact=True).select_option("flat")
    expect(panels.count).to_have_text("121 modules")


def test_picture_and_table_have_room_on_a_small_screen(tab):
    panels = tab(run="shared")
    panels.press("t")
    panels.page.set_viewport_size({"width": 1024, "height": 700})
    panels.press("f")
    panels.press("t")
    expect(panels.count).to_have_text("15 modules")
    height = "element => element.getBoundingClientRect().height"
    assert panels.frame.locator("#canvas").evaluate(height) > 200
    assert panels.body.evaluate(height) > 150
    # All of the picture was in sight, and is.
    bottom = "element => element.getBoundingClientRect().bottom"
    edge = panels.frame.locator("#canvas").evaluate(bottom)
    assert panels.frame.locator("#world").evaluate(bottom) <= edge
    wide = panels.body.evaluate("body => body.scrollWidth - body.clientWidth")
    assert wide <= 0


# -- functions and notes ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["tab", "page"])
def test_a_function_has_its_body_and_its_uses(where, tab, page):
    graph = tbscope.trace(Shared(), X)
    panels = tab(run="shared") if where == "tab" else page(graph)
    panels.choose("Functions")
    expect(panels.count).to_have_text("5 functions")
    block = graph.functions().find("Block")
    line = panels.frame.locator(".functions li", has_text="Block(%x)")
    expect(line.locator("summary")).to_contain_text("Block(%x) -> (%out.0, %out.1)")
    expect(line.locator("summary small")).to_have_text("4 uses")
    line.locator("summary").click()
    head, _, body = str(block).partition("\n")
    assert line.locator("pre").text_content() == body
    assert head.startswith(line.locator("summary code").text_content())
    line.locator("summary").press("Enter")
    expect(line.locator("pre")).to_be_hidden()
    line.locator("summary").press(" ")
    expect(line.locator("pre")).to_be_visible()
    names = line.locator(".uses button").all_text_contents()
    assert names == ["layers/0", "layers/1", "layers/2", "layers/0.2nd"]
    line.locator(".uses button").nth(1).click()
    expect(panels.frame.locator("#card .path")).to_have_text("layers / ")
    expect(panels.frame.locator("#card h2")).to_have_text("1")
    panels.filter("relu")
    expect(panels.count).to_have_text("1 of 5 functions")


def test_many_uses_are_shown_when_they_are_asked_for(tab):
    panels = tab(run="flat")
    panels.choose("Functions")
    line = panels.frame.locator(".functions li", has_text="ReLU(")
    line.locator("summary").click()
    expect(line.locator(".uses button")).to_have_count(25)
    line.get_by_text("Show 36 more").click()
    expect(line.locator(".uses button")).to_have_count(60)


@pytest.mark.parametrize("where", ["tab", "page"])
def test_notes_are_those_of_the_graph(where, tab, page):
    graph = tbscope.trace(Shared(), X)
    panels = tab(run="shared") if where == "tab" else page(graph)
    panels.choose("Notes")
    expect(panels.body.locator("li")).to_have_text(
        [*dict.fromkeys(str(note) for note in graph.notes)]
    )


def test_the_card_of_the_graph_leads_to_its_notes(tab):
    panels = tab(run="shared")
    panels.press("t")
    panels.frame.get_by_role("button", name="Show notes").click()
    expect(panels.body.locator("li").first).to_be_visible()
    expect(panels.frame.get_by_role("tab", name="Notes")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("torchs", "why: the log has its drawing alone"),
        ("damaged", "the record of a graph is damaged"),
    ],
)
def test_a_log_without_a_record_says_so(tab, run, why):
    panels = tab(run=run)
    for name in ("Functions", "Notes"):
        panels.choose(name)
        expect(panels.body.locator(".why")).to_contain_text(why)
    panels.choose("Modules")
    expect(panels.body.locator(".why")).to_have_count(0)


def test_tensorboard_without_a_log_directory_says_so(browser, logdir):
    with TensorBoard("", "--logdir_spec", f"a:{logdir / 'shared'}") as server:
        found = Tab(browser, server.url)
        panels = Panels(found.frame)
        panels.press("t")
        expect(panels.count).to_have_text("15 modules")
        panels.choose("Notes")
        expect(panels.body.locator(".why")).to_contain_text(
            "TensorBoard was started without --logdir"
        )
        found.put_away()


def test_what_looks_like_a_script_is_text_in_each_panel(tab):
    panels = tab(run="evil")
    for name, text in {
        "Functions": "script>alert(1)",
        "Notes": "script>alert(1)",
        "Modules": "script_alert",
    }.items():
        panels.choose(name)
        expect(panels.body).to_contain_text(text)
    assert panels.body.locator("script, b").count() == 0


# -- the card ---------------------------------------------------------------------------------


def test_a_card_begins_with_the_lines_of_the_source(page):
    panels = page(tbscope.trace(Shared(), X))
    panels.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panels.frame.locator(ROWS, has_text="fc").first.click()
    lines = panels.frame.locator("#card .source code")
    file = os.path.basename(__file__).replace("tab_panels", "modules_table")
    expect(lines.nth(0)).to_contain_text(file)
    assert lines.nth(0).text_content().endswith(" in forward")
    expect(lines.nth(1)).to_contain_text("torch/nn/modules/linear.py:")
    place = lines.nth(0).text_content().removesuffix(" in forward")
    panels.frame.get_by_title(f"Copy {place}", exact=True).click()
    expect(panels.frame.locator("#card .source button").first).to_have_text("Copied")
    assert panels.page.evaluate("navigator.clipboard.readText()") == place
    assert panels.frame.locator("#card th", has_text="source").count() == 0


def test_long_names_in_a_card_break_at_underscores(page):
    panels = page(tbscope.trace(Shared(), X))
    panels.frame.locator(ROWS, has_text="fc").first.click()
    name = panels.frame.locator("#card th", has_text="trainable_parameter_count")
    parts = name.evaluate("cell => [...cell.childNodes].map((node) => node.data || node.tagName)")
    assert parts == ["trainable_", "WBR", "parameter_", "WBR", "count"]
    lines = name.evaluate(
        """cell => [...cell.childNodes].filter((node) => node.data).map((node) => {
          const range = document.createRange();
          range.selectNodeContents(node);
          return range.getClientRects().length;
        })"""
    )
    assert lines == [1, 1, 1]


# -- the server -------------------------------------------------------------------------------


def test_a_record_that_cannot_be_read_ends_nothing(server):
    for run in ("damaged", "torchs", "none", "../shared", "shared/../shared"):
        status, _, data = answer(server, "record", run=run)
        assert status == 400
        assert json.loads(data)["error"]
    status, _, data = answer(server, "record", run="shared")
    assert status == 200
    assert len(json.loads(data)["record"]["heads"]) == 5
