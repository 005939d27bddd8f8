"""The page of a graph, opened in a real browser from a file, and used by mouse and keys."""

import re

import pytest
import torch
from build import GraphBuilder
from nasty_models import NASTY
from saved import drawn, nested, net
from saved_page import SavedPage
from test_html import EVIL, evil
from torch import nn

import tbscope
from tbscope.ir.graph import Note
from tbscope.messages import visible
from tbscope.saving.box_tree import Picture, picture_of
from tbscope.saving.depth_limit import Cut
from tbscope.saving.html import page_of
from tests.sweeps import sampled


@pytest.fixture
def show(browser, tmp_path):
    """Save a graph and open its page; at the end, see that nothing went wrong in it."""
    opened = []

    def open_page(graph, *, at="", dark=False, **drawing):
        path = tmp_path / f"graph{len(opened)}.html"
        if isinstance(graph, Picture):
            path.write_text(page_of(graph), encoding="utf-8")
        else:
            graph.save(path, **drawing)
        opened.append(SavedPage(browser, path, at=at, dark=dark))
        return opened[-1]

    yield open_page
    for page in opened:
        assert page.errors == []
        assert [address.partition("#")[0] for address in page.asked] == [page.address]
        page.put_away()


# -- boxes and lines --------------------------------------------------------------------------


def test_boxes_are_closed_at_first_and_open_by_a_double_click(show):
    page = show(nested())
    assert list(page.drawn.things) == ["x", "blocks", "out"]
    page.open("blocks")
    assert set(page.drawn.things) == {"blocks", "blocks/0", "blocks/1", "x", "out"}
    page.open("blocks/1")
    drawn = page.drawn
    assert drawn.things["blocks/1"]["open"]
    assert not drawn.things["blocks/0"]["open"]
    assert {"blocks/1/fc", "blocks/1/relu", "blocks/1/add"} < set(drawn.things)
    page.open("blocks")
    assert set(page.drawn.things) == {"blocks", "x", "out"}


def test_what_was_open_in_a_box_is_open_when_it_opens_again(show):
    page = show(nested())
    for name in ("blocks", "blocks/0", "blocks", "blocks"):
        page.open(name)
    assert page.drawn.things["blocks/0"]["open"]


def test_the_sign_in_its_corner_opens_a_box_by_one_click(show):
    page = show(nested())
    page.page.click(".box .sign")
    assert page.drawn.things["blocks"]["open"]


@pytest.mark.parametrize("name", sampled(NASTY, [*NASTY][::3]))
def test_with_all_open_every_node_of_the_picture_is_drawn(show, name):
    model, given = NASTY[name]
    graph = net(model(), *given)
    page = show(graph)
    page.press("e", "e", "e", "e", "e")
    whole = Cut(picture_of(graph))
    assert set(page.drawn.things) == {glyph.name for glyph in whole.walk()}
    assert page.message == "All boxes are open."


@pytest.mark.parametrize("name", sampled(NASTY, [*NASTY][1::3]))
def test_closed_boxes_have_the_lines_of_what_is_in_them(show, name):
    model, given = NASTY[name]
    graph = net(model(), *given)
    cut = Cut(picture_of(graph), 0)
    drawn = show(graph).drawn
    if any(thing["open"] for thing in drawn.things.values()):
        pytest.skip("a box that is alone is open at first")
    assert sorted(drawn.ends) == sorted((line.start.name, line.end.name) for line in cut.lines)
    assert sorted(drawn.sizes) == sorted(line.text for line in cut.lines if line.text)
    waits = {(line["start"], line["end"]) for line in drawn.lines if line["waits"]}
    assert waits == {(line.start.name, line.end.name) for line in cut.lines if not line.tensors}


def test_a_circle_is_drawn_once_and_no_line_leads_from_a_node_to_itself(show):
    page = show(drawn("a:Op<-a,b b:Op k:Const c:Op<-k,b,k"))
    assert page.drawn.ends == [("b", "a"), ("b", "c")]
    assert page.page.locator("#world circle").count() == 1


def test_a_line_goes_on_at_the_side_of_an_open_box(show):
    page = show(nested())
    page.open("blocks")
    page.open("blocks/0")
    drawn = page.drawn
    outer = [line for line in drawn.lines if (line["start"], line["end"]) == ("x", "blocks")]
    middle = [line for line in drawn.lines if (line["start"], line["end"]) == ("x", "blocks/0")]
    inner = [
        line for line in drawn.lines if line["start"] == "x" and line["end"].startswith("blocks/0/")
    ]
    assert (len(outer), len(middle)) == (1, 1)
    assert {line["end"] for line in inner} == {"blocks/0/fc", "blocks/0/add"}
    for before, after in ((outer[0], middle[0]), *((middle[0], line) for line in inner)):
        assert before["ends"][1] == pytest.approx(after["ends"][0], abs=1)
        assert not before["arrow"]
    assert all(line["arrow"] for line in inner)
    assert outer[0]["ends"][1][1] == pytest.approx(drawn.things["blocks"]["y"], abs=1)


def test_a_line_leaves_an_open_box_where_it_came_from_inside(show):
    page = show(nested())
    page.open("blocks")
    drawn = page.drawn
    (inner,) = (line for line in drawn.lines if (line["start"], line["end"]) == ("blocks/1", "out"))
    (outer,) = (line for line in drawn.lines if (line["start"], line["end"]) == ("blocks", "out"))
    assert inner["ends"][1] == pytest.approx(outer["ends"][0], abs=1)
    assert outer["arrow"]
    assert not inner["arrow"]


def test_the_flow_can_be_turned(show):
    page = show(nested())
    page.open("blocks")
    assert page.drawn.things["x"]["y"] < page.drawn.things["out"]["y"]
    page.press("u")
    drawn = page.drawn
    assert drawn.things["x"]["y"] > drawn.things["blocks/0"]["y"] > drawn.things["out"]["y"]
    lines = {(line["start"], line["end"]): line["ends"] for line in drawn.lines}
    assert lines["blocks/1", "out"][1] == pytest.approx(lines["blocks", "out"][0], abs=1)
    assert lines["x", "blocks"][1] == pytest.approx(lines["x", "blocks/0"][0], abs=1)


def test_nothing_is_drawn_over_anything_else(show):
    page = show(net(nn.TransformerDecoderLayer(8, 2, 16), torch.ones(3, 1, 8), torch.ones(3, 1, 8)))
    page.press("e", "e", "e")
    drawn = page.drawn
    leaves = [one for one in drawn.things.values() if not one["open"]]
    assert len(leaves) > 20
    for place, one in enumerate(leaves):
        for other in leaves[place + 1 :]:
            apart_x = (
                one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            )
            apart_y = (
                one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
            )
            assert apart_x or apart_y, (one["name"], other["name"])


def test_larger_tensors_have_thicker_lines(show):
    build = GraphBuilder("Net")
    small = build.op("small", build.input("x", (2,)))
    large = build.op("large", build.input("y", (1000, 1000)))
    build.output("out", build.op("both", small, large))
    widths = {line["start"]: line["width"] for line in show(build.graph).drawn.lines}
    assert 1 < widths["x"] < widths["y"] < 9
    assert widths["y"] > 2 * widths["x"]


def test_a_box_that_is_alone_is_open_at_first(show):
    drawn_now = show(drawn("a/b/c/d:Op a/b/e:Op<-a/b/c/d")).drawn
    assert {name: thing["open"] for name, thing in drawn_now.things.items()} == {
        **dict.fromkeys(("a", "a/b"), True),
        **dict.fromkeys(("a/b/c", "a/b/e"), False),
    }


def test_small_circles_are_the_parameters_that_a_node_reads(show):
    page = show(nested(), at="#blocks%2F0%2Ffc")
    assert set(page.drawn.circles) == {"blocks/0/fc/weight", "blocks/0/fc/bias"}
    page.click("blocks/0/fc/bias")
    assert page.selected == ["blocks/0/fc/bias"]
    assert "requires_grad" in page.card


# -- the card ---------------------------------------------------------------------------------


def test_the_card_tells_what_the_page_of_tensorboard_tells_in_its_order(show):
    page = show(nested(), at="#blocks%2F0%2Ffc")
    picture = picture_of(nested())
    facts = picture.facts(picture.hierarchy.items["blocks/0/fc"])
    rows = page.page.eval_on_selector_all(
        "#card section",
        "all => all.filter((one) => one.querySelector('h3').textContent === 'Attributes')"
        ".flatMap((one) => [...one.querySelectorAll('tr')].map((row) => [...row.children]"
        ".map((cell) => cell.textContent)))",
    )
    assert rows == [list(fact) for fact in facts.items()]
    assert re.search(r"OUTPUT\s+2×4\s+float32", page.card)
    assert re.search(r"INPUTS \(1\)\s+x\s+2×4", page.card)
    assert re.search(r"PARAMETERS AND CONSTANTS \(2\)", page.card)
    assert re.search(r"READ BY \(1\)\s+blocks/0/relu\s+2×4", page.card)


def test_the_card_of_a_box_tells_what_crosses_its_sides_and_its_equals(show):
    page = show(nested())
    page.open("blocks")
    page.click("blocks/0")
    assert re.search(r"INPUTS \(1\)\s+x", page.card)
    assert re.search(r"READ BY \(2\)\s+blocks/1/fc\s+2×4\s+blocks/1/add", page.card)
    assert re.search(r"BOXES WITH THE SAME INSIDE \(1\)\s+blocks/1", page.card)
    page.click("blocks")
    assert "SAME INSIDE" not in page.card


def test_a_link_of_the_card_leads_there(show):
    page = show(nested(), at="#blocks%2F0%2Frelu")
    page.page.click("#card .links a >> text=blocks/0/add")
    assert page.selected == ["blocks/0/add"]
    page.page.click("#card .path a >> text=blocks")
    assert page.selected == ["blocks"]


def test_the_button_of_the_card_opens_a_box(show):
    page = show(nested())
    page.click("blocks")
    page.page.click("#card button >> text=Open")
    assert page.drawn.things["blocks"]["open"]
    page.page.click("#card button >> text=Close")
    assert not page.drawn.things["blocks"]["open"]


def test_at_first_the_card_tells_of_the_model(show):
    graph = nested()
    graph.notes.append(Note("it was a dream"))
    page = show(graph)
    assert re.match(r"Net\s+THE WHOLE\s+nodes\s+8\s+boxes\s+3\s+parameters\s+40", page.card)
    assert "it was a dream" in page.card
    assert "models.Net" in page.card
    page.click("x")
    assert "it was a dream" not in page.card
    page.press("Escape")
    assert "it was a dream" in page.card


# -- search and addresses ---------------------------------------------------------------------


def test_the_search_finds_names_classes_shapes_and_what_cards_tell(show):
    page = show(nested())

    def found(pattern):
        page.page.fill("#pattern", pattern)
        return page.page.eval_on_selector_all(
            "#hits li:not(.more) span", "all => all.map((one) => one.textContent)"
        )

    assert found("relu") == ["blocks/0/relu", "blocks/1/relu"]
    assert found("RELU blocks/1") == ["blocks/1/relu"]
    assert found("nets.Block") == ["blocks/0", "blocks/1"]
    assert found("blocks/1")[0] == "blocks/1"
    assert found("2×4 float32")[0] == "x"
    assert found("no such thing") == []
    assert "nothing found" in page.page.inner_text("#hits")


def test_the_label_itself_is_found_before_what_begins_with_it_and_what_only_tells_of_it(show):
    page = show(drawn("a:relu my_relu:Op relux:Op box/b:Op relu:Op"))
    page.page.fill("#pattern", "relu")
    assert page.page.inner_text("#hits").split()[::2] == ["relu", "relux", "my_relu", "a"]


def test_enter_goes_from_hit_to_hit_and_opens_what_is_around(show):
    page = show(nested())
    page.press("/")
    page.page.keyboard.type("relu")
    assert page.drawn.things["blocks"]["hit"]
    page.press("Enter")
    assert page.selected == ["blocks/0/relu"]
    page.press("Enter")
    assert page.selected == ["blocks/1/relu"]
    page.press("Shift+Enter")
    assert page.selected == ["blocks/0/relu"]
    hits = {name for name, thing in page.drawn.things.items() if thing["hit"]}
    assert hits == {"blocks/0/relu", "blocks/1/relu"}
    page.press("Escape")
    assert not any(thing["hit"] for thing in page.drawn.things.values())


def test_a_hit_is_chosen_by_a_click(show):
    page = show(nested())
    page.page.fill("#pattern", "relu")
    page.page.click("#hits li >> nth=1")
    assert page.selected == ["blocks/1/relu"]


def test_the_address_names_what_is_selected(show):
    page = show(nested())
    page.open("blocks")
    page.click("blocks/1")
    assert page.page.evaluate("() => location.hash") == "#blocks/1"
    page.press("Escape")
    assert page.page.evaluate("() => location.hash") == "#&open=blocks"
    page.press("c")
    assert page.page.evaluate("() => location.href") == page.address


def test_an_address_leads_to_a_node_however_deep_it_is(show):
    page = show(nested(), at="#blocks/1/relu")
    assert page.selected == ["blocks/1/relu"]
    thing = page.drawn.things["blocks/1/relu"]
    assert 0 < thing["x"] < 1070
    assert 0 < thing["y"] < 900
    page.page.evaluate("() => { location.hash = '#blocks%2F0%2Ffc%2Fweight' }")
    page.page.wait_for_function(
        "() => document.getElementById('card').textContent.includes('weight')"
    )
    assert page.selected == ["blocks/0/fc/weight"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("blocks%2F1%2Ffc", "blocks/1/fc"),
        ("blocks.1.fc", "blocks/1/fc"),
        ("1.fc", "blocks/1/fc"),
        ("blocks.0.fc.weight", "blocks/0/fc/weight"),
    ],
)
def test_a_text_about_the_code_leads_to_the_box_of_a_module(show, text, name):
    page = show(nested(), at=f"#{text}")
    assert page.selected == [name]
    assert page.page.evaluate("() => location.hash") == f"#{name}"


@pytest.mark.parametrize("name", ["nowhere", "100%", "__proto__"])
def test_an_address_that_names_nothing_is_told(show, name):
    page = show(nested(), at=f"#{name}")
    assert page.message == f"The graph holds nothing named {name}."
    assert page.selected == []


def test_names_like_those_of_javascript_are_names_like_others(show):
    model, given = NASTY["reserved"]
    graph = net(model(), *given)
    picture = picture_of(graph)
    page = show(graph)
    for box in picture.boxes:
        page.page.fill("#pattern", box.name)
        page.press("Enter")
        assert page.selected == [box.name]


# -- colours ----------------------------------------------------------------------------------


def fills(page):
    return {name: thing["fill"] for name, thing in page.drawn.things.items()}


def legend(page):
    return [line for line in page.page.inner_text("#legend").splitlines() if line.strip()]


def test_nodes_are_coloured_by_class_at_first_with_a_legend(show):
    page = show(nested())
    page.press("e", "e")
    found = fills(page)
    assert found["blocks/0/fc"] == found["blocks/1/fc"] != found["blocks/0/relu"]
    assert found["blocks/0"] == found["blocks/1"]
    assert legend(page)[:3] == ["CLASS", "Input", "1"]
    assert "Sequential" in legend(page)


def test_labels_that_were_asked_for_come_first(show):
    page = show(nested(), color_by={"blocks.0": "early", "blocks.1": "late"})
    page.press("e", "e")
    assert legend(page)[:5] == ["COLOR_BY", "early", "3", "late", "3"]
    found = fills(page)
    assert found["blocks/0/fc"] == found["blocks/0/add"] != found["blocks/1/add"]


def test_equal_boxes_have_one_colour_and_others_none(show):
    page = show(nested())
    page.press("e")
    page.page.select_option("#mode", "definition")
    found = fills(page)
    assert found["blocks/0"] == found["blocks/1"] != found["blocks"]
    assert found["blocks"] == found["x"]
    assert legend(page) == ["EQUAL BOXES", "Block", "2"]


def test_a_closed_box_is_striped_by_the_shares_of_what_is_in_it(show):
    page = show(nested())
    page.press("e", "e")
    page.page.select_option("#mode", "kind")
    nodes = [fills(page)[f"blocks/0/{name}"] for name in ("relu", "add", "fc")]
    page.open("blocks/0")
    assert fills(page)["blocks/0"].startswith("url(")
    stops = page.page.eval_on_selector_all(
        "#world stop",
        "all => all.map((one) => [one.getAttribute('offset'), getComputedStyle(one).stopColor])",
    )
    offsets = ["0.0000", "0.3333", "0.3333", "0.6667", "0.6667", "1.0000"]
    assert [offset for offset, _ in stops] == offsets
    assert [colour for _, colour in stops] == [each for each in nodes for _ in range(2)]
    page.page.select_option("#mode", "class")
    assert not fills(page)["blocks/0"].startswith("url(")


def test_below_a_label_stand_the_class_and_the_sizes(show):
    page = show(nested(), at="#blocks/0/fc")
    below = page.page.eval_on_selector_all(
        "#world .node > .second", "all => all.map((one) => one.textContent)"
    )
    assert sorted(below) == ["Input", "Linear", "Output"]
    boxes = page.page.eval_on_selector_all(
        "#world .box > .second", "all => all.map((one) => one.textContent)"
    )
    assert boxes == ["Block · 3 nodes"]


def test_every_way_to_colour_that_has_something_to_tell_is_offered(show):
    page = show(
        tbscope.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4), profile=1)
    )
    modes = page.page.eval_on_selector_all("#mode option", "all => all.map((one) => one.value)")
    assert modes == [
        *("class", "kind", "dtype", "device", "trainable", "flops", "parameter_count", "bytes"),
        *("duration_us", "allocated_bytes", "peak_bytes", "activation_bytes", "none"),
    ]
    for mode in modes:
        page.page.select_option("#mode", mode)
    assert len(set(fills(page).values())) == 1


def test_figures_colour_the_more_the_larger_they_are(show):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 400), nn.ReLU())
    page = show(net(model, torch.ones(2, 4)))
    page.page.select_option("#mode", "parameter_count")
    numbers = [
        [int(part) for part in re.findall(r"\d+", fill)[:3]] for fill in fills(page).values()
    ]
    assert len({tuple(each) for each in numbers}) >= 3
    assert legend(page) == ["PARAMETERS", "0", "220", "890", "2.00 k", "square root scale"]


def test_a_click_in_the_legend_picks_out_what_has_that_colour(show):
    page = show(nested())
    page.press("e")
    page.page.click("#legend button >> text=relu")
    picked = {name for name, thing in page.drawn.things.items() if thing["picked"]}
    assert picked == {"blocks", "blocks/0", "blocks/1"}
    page.page.click("#legend button >> text=relu")
    assert not any(thing["picked"] for thing in page.drawn.things.values())


# -- light and dark ---------------------------------------------------------------------------


def brightness(page):
    colour = page.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_dark_where_the_system_is_and_a_key_and_a_button_change_that(show, dark):
    page = show(nested(), dark=dark)
    before = fills(page)["x"]
    assert (brightness(page) < 60) == dark
    page.press("d")
    assert (brightness(page) < 60) != dark
    assert fills(page)["x"] != before
    page.page.click("#dark")
    assert (brightness(page) < 60) == dark


@pytest.mark.parametrize("dark", [False, True])
def test_labels_can_be_read_on_every_colour(show, dark):
    model, given = NASTY["classes"]
    page = show(net(model(), *given), dark=dark)
    page.press("e", "e")
    ink = page.page.evaluate("() => getComputedStyle(document.querySelector('.label')).fill")
    for fill in {thing["fill"] for thing in page.drawn.things.values()}:
        assert contrast(ink, fill) > 4.5, fill


def contrast(one, other):
    """Give the ratio of WCAG 2.2 between two colours."""
    lights = []
    for colour in (one, other):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        ]
        lights.append(
            sum(
                weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
            )
        )
    return (max(lights) + 0.05) / (min(lights) + 0.05)


# -- keys and the mouse -----------------------------------------------------------------------


def test_all_can_be_done_by_keys(show):
    page = show(nested())
    page.click("x")
    page.press("ArrowDown")
    assert page.selected == ["blocks"]
    page.press("Enter", "Tab", "Shift+Tab")
    assert page.drawn.things["blocks"]["open"]
    page.page.focus("#canvas")
    page.press("ArrowDown")
    assert page.selected == ["out"]
    page.press("ArrowUp", "ArrowUp")
    assert page.selected == ["x"]
    page.press("ArrowDown", " ")
    assert not page.drawn.things["blocks"]["open"]
    page.press("e")
    assert page.drawn.things["blocks"]["open"]
    page.press("c")
    assert not page.drawn.things["blocks"]["open"]


def test_backspace_leads_to_the_box_around(show):
    page = show(nested(), at="#blocks/1/relu")
    page.press("Backspace")
    assert page.selected == ["blocks/1"]
    page.press("Backspace", "Backspace")
    assert page.selected == []
    assert "THE WHOLE" in page.card


def test_arrows_lead_to_what_is_drawn_beside(show):
    build = GraphBuilder("Net")
    x = build.input("x", (2,))
    left, right = build.op("left", x), build.op("right", x)
    build.output("out", build.op("both", left, right))
    page = show(build.graph)
    things = page.drawn.things
    first, second = sorted(("left", "right"), key=lambda name: things[name]["x"])
    page.click(first)
    page.press("ArrowRight")
    assert page.selected == [second]
    page.press("ArrowLeft")
    assert page.selected == [first]


def test_keys_zoom_and_fit(show):
    page = show(nested())
    fitted = page.zoom
    page.press("+")
    assert page.zoom == pytest.approx(fitted * 1.25)
    page.press("-", "-")
    assert page.zoom == pytest.approx(fitted * 0.8)
    page.press("f")
    assert page.zoom == pytest.approx(fitted)


def test_the_wheel_zooms_at_the_pointer_and_dragging_moves(show):
    page = show(nested())
    before = page.drawn.things["x"]
    middle = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    page.page.mouse.move(*middle)
    page.page.mouse.wheel(0, -300)
    after = page.drawn.things["x"]
    assert after["width"] > before["width"]
    assert after["x"] + after["width"] / 2 == pytest.approx(middle[0], abs=2)
    page.page.mouse.down()
    page.page.mouse.move(middle[0] + 40, middle[1] + 50, steps=3)
    page.page.mouse.up()
    moved = page.drawn.things["x"]
    assert (moved["x"] - after["x"], moved["y"] - after["y"]) == pytest.approx((40, 50), abs=1)
    assert page.selected == []


def test_a_box_stays_where_it_is_on_the_screen_when_it_opens(show):
    page = show(nested())
    page.open("blocks")
    before = page.drawn.things["blocks/1"]
    page.open("blocks/1")
    after = page.drawn.things["blocks/1"]
    middle = [one["x"] + one["width"] / 2 for one in (before, after)]
    assert middle[0] == pytest.approx(middle[1], abs=1)
    assert before["y"] == pytest.approx(after["y"], abs=1)


def test_a_list_of_keys_is_shown_and_left(show):
    page = show(nested())
    page.press("?")
    assert "Backspace" in page.page.inner_text("#keys")
    page.press("Escape")
    assert not page.page.is_visible("#keys")


def test_a_reader_of_screens_is_told_what_is_there(show):
    page = show(nested())
    assert page.drawn.things["blocks"]["spoken"] == (
        "box blocks, Sequential, closed, 6 nodes inside, output 2×4"
    )
    page.open("blocks")
    assert page.drawn.things["blocks"]["spoken"].startswith("box blocks, Sequential, open")
    assert page.drawn.things["x"]["spoken"] == "x, Input, output 2×4"


# -- names of users, and notebooks ------------------------------------------------------------


def test_what_looks_like_a_script_is_shown_and_does_not_run(show):
    page = show(evil())
    page.page.on("dialog", lambda dialog: page.errors.append("an alert"))
    assert page.page.text_content("#title") == visible(EVIL)
    page.press("e")
    for name in list(page.drawn.things):
        page.click(name)
    assert page.page.locator("body script").count() == 3
    assert page.page.locator("#card b, #world b").count() == 0


def test_a_notebook_shows_the_page_and_is_out_of_its_reach(browser, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<title>notebook</title>{nested()._repr_html_()}<p style='height:3000px'>")
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(path.as_uri())
    (frame,) = page.frames[1:]
    frame.wait_for_selector(".box")
    frame.dblclick(".box .body")
    assert frame.locator(".box.open").count() == 1
    assert (
        frame.evaluate("() => { try { return parent.document.title } catch { return '' } }") == ""
    )
    before, zoomed = page.evaluate("() => scrollY"), frame.get_attribute("#world", "transform")
    page.mouse.move(300, 300)
    page.mouse.wheel(0, 200)
    page.wait_for_function("(before) => scrollY > before", arg=before)
    assert frame.get_attribute("#world", "transform") == zoomed
    assert errors == []
    assert page.evaluate("() => location.href") == path.as_uri()


# -- large graphs -----------------------------------------------------------------------------


def large(stages, blocks):
    """Give stages of blocks of ten operations in one graph, of which no two are equal."""
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1, 4))
    for stage in range(stages):
        build.call(f"Net/Stage[s{stage}]")
        for block in range(blocks):
            scope = build.call(f"Net/Stage[s{stage}]/Block[b{block}]")
            for at in range(10):
                x = build.op(f"op{at}", x, scope=scope)
            x = build.op(f"s{stage}_b{block}", x, scope=scope)
    build.output("out", x)
    return build.graph


def test_ten_thousand_nodes_are_opened_box_by_box_and_searched(show):
    page = show(large(20, 50))
    assert len(page.drawn.things) <= 100
    page.page.fill("#pattern", "s17/b42/op7")
    page.press("Enter")
    assert page.selected == ["s17/b42/op7"]
    drawn = page.drawn
    assert len(drawn.things) < 300
    assert drawn.things["s17/b42"]["open"]
    page.press("Escape", "c")
    assert not any(thing["open"] for thing in page.drawn.things.values())


def test_no_more_is_opened_at_once_than_can_be_seen(show):
    page = show(large(20, 10))
    page.press("e")
    shown = len(page.drawn.things)
    page.press("e")
    assert len(page.drawn.things) == shown
    assert page.message == ("That would draw 2,422 things at once: open the boxes that you need.")


def test_only_what_is_open_is_laid_out_and_that_once(show):
    page = show(large(3, 4))
    page.page.evaluate(
        "() => { const {Graph, layout} = dagre; window.laid = 0;"
        " window.dagre = {Graph, layout: (graph) => { window.laid += 1; layout(graph); }}; }"
    )
    laid = []
    for action in (
        lambda: page.open("s0"),
        lambda: page.open("s1"),
        lambda: page.open("s0/b1"),
        lambda: page.page.select_option("#mode", "none"),
        lambda: page.click("x"),
        lambda: page.press("f"),
        lambda: page.open("s1"),
    ):
        action()
        laid.append(page.page.evaluate("() => window.laid"))
    # The box and those around it; nothing for colours and clicks.
    assert laid == [2, 4, 7, 7, 7, 7, 8]
