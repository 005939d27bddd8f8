"""The tab for all eyes and hands: its address, keys, words for readers of screens, and sizes."""

import pytest
import torch
from browser import TensorBoard
from playwright.sync_api import expect
from saved import nested
from tab import THINGS, Tab, at, stand_alone
from torch import nn

import tbscope
from tests.sweeps import sampled

# Other tests may keep the machine busy.
expect.set_options(timeout=30_000)


class Block(nn.Module):
    """Two layers, and a way around them."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.mlp = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        return x + self.mlp(self.fc(x))


class Deep(nn.Module):
    """Many equal blocks, and a head."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(24))
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    for run, graph in {
        "blocks": nested(),
        "deep": tbscope.trace(Deep(), torch.ones(1, 4)),
        "tall": tbscope.trace(nn.Sequential(*map(nn.Softplus, range(1, 16))), torch.ones(1, 4)),
    }.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(graph)
    return logdir


def address_of(tab):
    return tab.page.evaluate("location.hash").removeprefix("#tbscope")


def selected(tab):
    return tab.frame.locator("#world .thing.selected").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label').split(', ')[0].replace('box ', ''))"
    )


# -- the address ------------------------------------------------------------------------------


def test_an_address_opens_the_same_boxes_for_a_colleague(show):
    tab = show(at(run="deep"))
    tab.press("PageDown", "PageDown")
    ways = ["i 0-23", "i 0", "] 0-23", "] 0-23", "i 2", "i fc", "ArrowDown mlp", "Enter mlp"]
    for key, _, heading in (way.partition(" ") for way in ways):
        tab.press(key)
        expect(tab.frame.locator("#card h2")).to_have_text(heading)
    expect(tab.frame.locator("#world .thing.selected")).to_have_attribute("aria-expanded", "true")
    labels, card, chosen = tab.labels, tab.card, selected(tab)
    tab.press("Escape")
    expect(tab.frame.locator("#card h2")).to_have_text("Deep")
    address = address_of(tab)
    assert address == at(run="deep") + "&p.tbscope.open=layers(0-23*3(2(mlp"
    again = show(address)
    expect(again.frame.locator(f"{THINGS} > .label")).to_have_count(len(labels))
    assert again.labels == labels
    assert card == chosen[0]


def test_the_address_says_no_more_of_boxes_than_the_node_does(show):
    tab = show(at(run="deep", node="layers/7/mlp/0"))
    expect(tab.frame.locator("#card h2")).to_have_text("0")
    assert "8 of 24" in tab.frame.locator("#world").text_content()
    tab.press("Backspace", "Backspace")
    expect(tab.frame.locator("#card h2")).to_have_text("7")
    assert "p.tbscope.open=layers(0-23*8(7(mlp&" in address_of(tab)
    tab.press("c")
    assert address_of(tab) == at(run="deep", node="layers")


def test_boxes_that_are_open_at_first_can_be_closed_for_a_colleague(show):
    tab = show(at(run="blocks"))
    tab.press("e")
    address = "#tbscope" + at(run="blocks") + "&p.tbscope.open=blocks"
    tab.page.wait_for_function("address => location.hash === address", arg=address)
    tab.page.evaluate(f"location.hash = '#tbscope{at(run='blocks')}'")
    tab.wait_for("x", "blocks", "out")


def test_too_many_open_boxes_leave_the_path_of_the_selected_one(show):
    tab = show(at(run="deep", node="layers"))
    tab.press("i", "a")
    tab.page.wait_for_timeout(200)
    for _ in range(3):
        tab.press("e")
    expect(tab.frame.locator("#world")).to_contain_text("Sequential")
    assert len(address_of(tab)) < 1700


def test_back_leads_to_the_graph_and_the_node_before(show):
    tab = show(at(run="deep", node="layers/7/mlp/0"))
    expect(tab.frame.locator("#card h2")).to_have_text("0")
    tab.frame.locator("#card .path a", has_text="mlp").click()
    expect(tab.frame.locator("#card h2")).to_have_text("mlp")
    tab.choose("Run", "blocks")
    expect(tab.frame.locator("#card h2")).to_have_text("Net")
    assert address_of(tab) == at(run="blocks")
    tab.page.go_back()
    expect(tab.frame.locator("#card h2")).to_have_text("mlp")
    tab.page.go_back()
    expect(tab.frame.locator("#card h2")).to_have_text("0")
    tab.page.go_forward()
    expect(tab.frame.locator("#card h2")).to_have_text("mlp")


DAMAGED = ["(((", ")))!!", "nowhere(a!b", "layers*99", "%", "layers(%(*x", "a*"]


@pytest.mark.parametrize("text", sampled(DAMAGED, DAMAGED[2::3]))
def test_an_address_that_was_damaged_shows_the_graph(show, text):
    tab = show(at(run="deep", open=text))
    expect(tab.frame.locator("#card h2")).to_have_text("Deep")


# -- the keyboard -----------------------------------------------------------------------------


def test_tab_leads_through_all_that_can_be_used_and_out_again(show):
    tab = show(at(run="deep"))
    tab.frame.get_by_label("Filter runs by a regular expression").focus()
    frame = next(one for one in tab.page.frames if "plugin_entry" in one.url)
    names = (
        "const {id, ariaLabel, tagName} = document.activeElement; return id || ariaLabel || tagName"
    )
    names = f"() => {{ {names} }}"
    found = []
    for _ in range(80):
        found.append(frame.evaluate(names))
        tab.page.keyboard.press("Tab")
        if not frame.evaluate("document.hasFocus()") or frame.evaluate(
            "document.activeElement === document.body"
        ):
            break
    order = ["pattern", "mode", "open", "close", "fit", "help", "canvas", "SUMMARY", "card"]
    places = [found.index(name) for name in order]
    assert places == sorted(places)
    reachable = frame.evaluate(
        "[...document.querySelectorAll('button, input, select, a[href], summary')]"
        ".filter((one) => one.checkVisibility()).length"
    )
    # The canvas and the card beside them; each once, and then the focus is outside of the frame.
    assert len(found) == reachable + 2


def test_all_that_is_drawn_is_reached_by_keys(show):
    tab = show(at(run="deep", node="layers/0/mlp"))
    expect(tab.frame.locator("#card h2")).to_have_text("mlp")
    drawn = tab.frame.locator("#world .thing[id]").count()
    tab.press("e")
    expect(tab.frame.locator("#world .thing[id]")).not_to_have_count(drawn)
    tab.press("Escape")
    count = tab.frame.locator("#world .thing[id]").count()
    assert count > 10
    found = set()
    canvas = tab.frame.locator("#canvas")
    for _ in range(count):
        tab.press("PageDown")
        found.add(canvas.get_attribute("aria-activedescendant"))
    assert len(found - {None}) == count
    tab.press("PageDown", "PageUp")
    tab.press("Home")
    first = selected(tab)
    tab.press("End", "Home")
    assert selected(tab) == first


def test_home_and_end_lead_to_the_ends_of_a_level(show):
    tab = show(at(run="deep"))
    tab.press("Home")
    assert selected(tab) == ["x"]
    tab.press("End")
    assert selected(tab) == ["out"]
    tab.press("Home", "ArrowDown", "i")
    expect(tab.frame.locator("#card h2")).to_have_text("0-23")
    tab.press("i")
    expect(tab.frame.locator("#card h2")).to_have_text("0")
    tab.press("Backspace", "Backspace")
    assert selected(tab) == ["layers"]


def test_the_focus_comes_back_from_the_dialog(show):
    tab = show(at(run="blocks"))
    for opener in ("#canvas", "#help"):
        tab.frame.locator(opener).focus()
        tab.page.keyboard.press("?" if opener == "#canvas" else "Enter")
        expect(tab.frame.locator("#keys")).to_be_visible()
        tab.page.keyboard.press("Escape")
        expect(tab.frame.locator("#keys")).to_be_hidden()
        expect(tab.frame.locator(opener)).to_be_focused()


def test_the_focus_is_seen(show):
    tab = show(at(run="blocks"))
    tab.frame.locator("#pattern").focus()
    for _ in range(14):
        tab.page.keyboard.press("Tab")
        style = tab.frame.locator(":focus").evaluate_all(
            "all => all.map((one) => getComputedStyle(one).outlineStyle)"
        )
        assert style in (["solid"], [])


def test_the_wheel_zooms_in_the_tab(show):
    tab = show(at(run="blocks"))
    before = tab.frame.locator("#world").get_attribute("transform")
    tab.page.mouse.move(500, 500)
    tab.page.mouse.wheel(0, -300)
    expect(tab.frame.locator("#world")).not_to_have_attribute("transform", before)


# -- readers of screens -----------------------------------------------------------------------


def accessible(tab):
    """Return what readers of screens get of the frame: role, name and the rest of each node."""
    frame = next(one for one in tab.page.frames if "plugin_entry" in one.url)
    session = tab.page.context.new_cdp_session(tab.page)
    trees = session.send("Page.getFrameTree")["frameTree"]["childFrames"]
    (own,) = (one["frame"]["id"] for one in trees if one["frame"]["url"] == frame.url)
    nodes = session.send("Accessibility.getFullAXTree", {"frameId": own})["nodes"]
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "description": node.get("description", {}).get("value", ""),
            **{one["name"]: one["value"].get("value") for one in node.get("properties", ())},
        }
        for node in nodes
        if not node["ignored"]
    ]


def test_each_box_and_node_has_a_name_and_a_state(show):
    tab = show(at(run="deep", node="layers/1/mlp"))
    expect(tab.frame.locator("#card h2")).to_have_text("mlp")
    nodes = accessible(tab)
    items = [node for node in nodes if node["role"] == "treeitem"]
    assert len(items) == tab.frame.locator("#world .thing").count()
    assert all(item["name"] for item in items)
    by_name = {item["name"]: item for item in items}
    block = by_name["box 1, Block, open, 4 nodes inside, output 1×4"]
    assert (block["expanded"], block["level"]) == (True, 3)
    assert "box head, Sequential, closed, 2 nodes inside, output 1×4" in by_name
    name = "box 0-23, Block × 24, open, 96 nodes inside, block 2 of 24, output 1×4"
    assert by_name[name]["expanded"]


def test_the_picture_has_a_role_a_name_and_a_description_of_its_keys(show):
    tab = show(at(run="deep"))
    (tree,) = (node for node in accessible(tab) if node["role"] == "tree")
    assert tree["name"] == "The graph"
    assert "Enter opens a box" in tree["description"]
    nameless = [
        node
        for node in accessible(tab)
        if node["role"] in ("button", "combobox", "textbox", "searchbox", "link", "dialog")
        and not node["name"]
    ]
    assert nameless == []


def test_what_the_keys_select_is_the_active_descendant(show):
    tab = show(at(run="deep"))
    canvas = tab.frame.locator("#canvas")
    tab.press("Home", "ArrowDown")
    here = tab.frame.locator(f"#{canvas.get_attribute('aria-activedescendant')}")
    assert here.get_attribute("aria-label").startswith("box layers, Block, closed, 96")
    assert here.get_attribute("aria-selected") == "true"
    tab.press("Enter")
    expect(tab.frame.locator("#spoken")).to_contain_text(
        "box layers, open, 96 nodes inside, output 1×4"
    )
    tab.press("Escape")
    assert canvas.get_attribute("aria-activedescendant") is None


def test_what_a_search_selects_is_said(show):
    tab = show(at(run="blocks"))
    field = tab.frame.locator("#pattern")
    field.fill("relu")
    expect(field).to_have_attribute("aria-expanded", "true")
    field.press("Enter")
    expect(tab.frame.locator("#spoken")).to_have_text("relu, relu, output 2×4")
    hit = field.get_attribute("aria-activedescendant")
    expect(tab.frame.locator(f"#{hit}")).to_contain_text("blocks/0/relu")


# -- sizes ------------------------------------------------------------------------------------


def test_a_frame_that_loads_hidden_fits_itself_when_it_appears(browser, server):
    page = browser.new_page(size=(1280, 800))
    stand_alone(page, server.url)
    page.goto(f"{server.url}/#tbscope{at(run='tall')}")
    tab = page.frame_locator("iframe")
    tab.locator(THINGS).first.wait_for()
    page.wait_for_timeout(300)
    shown = tab.locator("#world").get_attribute("transform")
    browser.take_back(page)
    page = browser.new_page(size=(1280, 800))
    stand_alone(page, server.url)
    page.add_init_script(
        "if (window === window.top) document.addEventListener('DOMContentLoaded', () => {"
        " const style = document.createElement('style'); style.id = 'hiding';"
        " style.textContent = 'iframe { display: none !important; }';"
        " document.head.append(style); });"
    )
    page.goto(f"{server.url}/#tbscope{at(run='tall')}")
    tab = page.frame_locator("iframe")
    tab.locator(THINGS).first.wait_for(state="attached")
    page.evaluate("document.getElementById('hiding').remove()")
    expect(tab.locator("#world")).to_have_attribute("transform", shown)
    page.close()


def test_the_middle_stays_in_the_middle_when_the_window_changes(show):
    tab = show(at(run="blocks", node="blocks"))
    expect(tab.frame.locator("#card h2")).to_have_text("blocks")

    def off():
        box = tab.frame.locator("#world .thing.selected").bounding_box()
        canvas = tab.frame.locator("#canvas").bounding_box()
        return box["x"] + box["width"] / 2 - canvas["x"] - canvas["width"] / 2

    before = off()
    tab.page.set_viewport_size({"width": 1100, "height": 720})
    tab.page.wait_for_timeout(300)
    assert off() == pytest.approx(before, abs=2)


@pytest.mark.parametrize("run", ["blocks", "deep", "tall"])
def test_all_can_be_used_in_a_small_window(show, run):
    tab = show(at(run=run), size=(1024, 700))
    places = {
        name: tab.frame.locator(name).bounding_box()
        for name in (
            "#graphs",
            "header",
            "#canvas",
            "#card",
            "#legends",
            "#pattern",
            "#mode",
            "nav",
        )
    }
    for box in places.values():
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1024
        assert box["y"] + box["height"] <= 700
    assert not overlap(places["#pattern"], places["nav"])
    assert not overlap(places["#pattern"], places["#mode"])
    assert not overlap(places["#canvas"], places["#card"])
    assert not overlap(places["header"], places["#canvas"])
    assert places["#canvas"]["width"] * places["#canvas"]["height"] > 0.4 * 1024 * 700
    for thing in tab.frame.locator(THINGS).all():
        assert not overlap(thing.bounding_box(), places["#legends"])


def overlap(one, other):
    across = one["x"] < other["x"] + other["width"] and other["x"] < one["x"] + one["width"]
    down = one["y"] < other["y"] + other["height"] and other["y"] < one["y"] + one["height"]
    return across and down


def test_a_tall_graph_begins_at_its_inputs_and_can_be_read(show):
    tab = show(at(run="tall"), size=(1280, 800))
    first = tab.frame.locator(THINGS).first.bounding_box()
    canvas = tab.frame.locator("#canvas").bounding_box()
    assert 0 < first["y"] - canvas["y"] < 60
    assert tab.frame.locator(".label").first.bounding_box()["height"] >= 10


# -- live reload ------------------------------------------------------------------------------


def test_a_newer_step_is_said_and_nothing_jumps(browser, tmp_path):
    def write(step, width):
        with tbscope.SummaryWriter(tmp_path / "run") as writer:
            model = nn.Sequential(nn.Sequential(nn.Linear(width, 1), nn.ReLU()), nn.ReLU())
            writer.add_graph(model, torch.ones(1, width), tag="net", step=step)

    write(0, 2)
    with TensorBoard(tmp_path, "--reload_interval", "1") as server:
        tab = Tab(browser, server.url, whole=True)
        tab.press("Home", "ArrowDown", "Enter", "i")
        expect(tab.frame.locator("#card h2")).to_have_text("0")
        address = address_of(tab)
        write(1, 3)
        # TensorBoard's own button is the one to reload by.
        tab.page.wait_for_timeout(3000)
        tab.page.locator("app-header-reload button, .reload-button").first.click()
        news = tab.frame.get_by_role("button", name="Step 1 is newer: show it")
        news.wait_for(timeout=9_000)
        assert tab.entries("Step")[0].startswith("1 ")
        assert address_of(tab) == address
        assert "1×2" in tab.frame.locator("#world").text_content()
        tab.press("ArrowDown", "Backspace", "Enter", "Enter", "i")
        news.click()
        expect(tab.frame.locator("#world")).to_contain_text("1×3")
        expect(tab.frame.locator("#card h2")).to_have_text("0")
        expect(tab.frame.locator("#world .box.open")).to_have_count(1)
        expect(news).to_be_hidden()
        assert address_of(tab) == address
        tab.page.close()
