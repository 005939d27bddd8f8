"""The tab "Model" in a real TensorBoard and a real browser, used as its reader does."""

import json
import re
import subprocess
import sys

import pytest
import torch
from browser import TensorBoard
from playwright.sync_api import expect
from saved import nested
from tab import THINGS, Tab, answer, at
from test_html import evil
from torch import nn

import tbscope
from tbscope.plugin.tab import ASSETS


class Flat(nn.Module):
    """Many equal layers in one list."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[one for _ in range(15) for one in (nn.Linear(4, 4), nn.ReLU())])

    def forward(self, x):
        return self.net(x).sum()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("runs")
    for run, graph in {
        "blocks": nested(),
        "evil": evil(),
        "flat": tbscope.trace(Flat(), torch.ones(1, 4)),
    }.items():
        with tbscope.SummaryWriter(logdir / run) as writer:
            writer.add_graph(graph)
    with tbscope.SummaryWriter(logdir / "grown") as writer:
        for step, width in enumerate((2, 3)):
            writer.add_graph(nn.Linear(width, 1), torch.ones(1, width), tag="net", step=step)
        writer.add_graph(nn.ReLU(), torch.ones(1), tag="other")
    with torch.utils.tensorboard.SummaryWriter(logdir / "torchs") as writer:
        writer.add_graph(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2))
    return logdir


def test_the_tab_shows_the_first_graph_and_lists_all(show):
    tab = show()
    tab.wait_for("x", "blocks", "out")
    assert tab.entries("Run") == ["blocks", "evil", "flat", "grown", "torchs"]
    assert tab.entries("Tag") == ["Default"]
    assert not tab.frame.get_by_label("Step", exact=True).is_visible()


def test_runs_are_filtered_by_a_regular_expression(show):
    tab = show()
    field = tab.frame.get_by_label("Filter runs by a regular expression")
    field.fill("^(grown|torchs)$")
    assert tab.entries("Run") == ["grown", "torchs"]
    expect(tab.frame.locator("#graphs [role=status]")).to_have_text("2 of 5 runs")
    field.fill("(")
    assert tab.entries("Run") == ["grown", "torchs"]
    assert field.evaluate("field => field.validity.customError")


def test_a_tag_has_each_of_its_steps_and_shows_the_last(show):
    tab = show(at(run="grown"))
    tab.choose("Tag", "net ")
    expect(tab.frame.locator("#world")).to_contain_text("1×3")
    assert [entry.partition(" ")[0] for entry in tab.entries("Step")] == ["1", "0"]
    tab.choose("Step", "0")
    expect(tab.frame.locator("#world")).to_contain_text("1×2")


def test_the_address_leads_to_what_is_shown(show):
    tab = show(at(run="blocks"))
    tab.frame.locator(f"{THINGS} > .sign").first.click()
    expect(tab.frame.locator("#card h2")).to_have_text("blocks")
    tab.frame.locator("#pattern").fill("blocks/1/fc")
    tab.frame.locator("#pattern").press("Enter")
    expect(tab.frame.locator("#card h2")).to_have_text("fc")
    address = "#tbscope" + at(run="blocks", node="blocks/1/fc")
    tab.page.wait_for_function("address => location.hash === address", arg=address)
    again = show(address.removeprefix("#tbscope"))
    expect(again.frame.locator("#card h2")).to_have_text("fc")
    assert {"fc", "relu", "add"} <= {*again.labels}
    by_hand = show(at(run="blocks", node="blocks.1.fc"))
    expect(by_hand.frame.locator("#card h2")).to_have_text("fc")
    by_hand.page.wait_for_function("address => location.hash === address", arg=address)
    again.page.evaluate(f"location.hash = '#tbscope{at(run='flat')}'")
    expect(again.frame.locator("#card h2")).to_have_text("Flat")


def test_a_search_is_in_the_graph_that_is_shown(show):
    tab = show(at(run="blocks"))
    for run, found in (("blocks", 2), ("flat", 15), ("blocks", 2)):
        tab.choose("Run", run)
        expect(tab.frame.locator("#pattern")).to_have_value("")
        tab.frame.locator("#pattern").fill("relu")
        expect(tab.frame.locator("#hits li:not(.more)")).to_have_count(found)


def test_levels_are_sent_when_they_are_opened(show):
    tab = show(at(run="blocks"))
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    tab.press("e")
    expect(tab.frame.locator(f"{THINGS} > .label")).to_have_count(5)
    tab.press("c", "e")
    assert [one.partition("?")[0] for one in asked] == ["level"]


def test_a_run_of_equal_layers_is_one_box_that_shows_one_or_all(show):
    tab = show(at(run="flat"))
    tab.press("e")
    expect(tab.frame.locator("#world")).to_contain_text("Linear, ReLU × 15")
    tab.press("e")
    expect(tab.frame.locator("#world")).to_contain_text("1 of 15")
    assert {"0", "1"} <= {*tab.labels}
    tab.frame.locator(".turn", has_text="\u203a").click()
    expect(tab.frame.locator("#world")).to_contain_text("2 of 15")
    assert {"2", "3"} <= {*tab.labels}
    assert "0" not in tab.labels
    tab.press("[", "[")
    expect(tab.frame.locator("#world")).to_contain_text("15 of 15")
    tab.press("a")
    expect(tab.frame.locator("#world")).to_contain_text("all 15")
    assert {str(number) for number in range(30)} <= {*tab.labels}


def test_a_layer_that_is_sought_is_the_one_that_its_box_shows(show):
    tab = show(at(run="flat", node="net/17"))
    expect(tab.frame.locator("#card h2")).to_have_text("17")
    assert "9 of 15" in tab.frame.locator("#world").text_content()
    tab.frame.locator("#card a", has_text="net/16").click()
    expect(tab.frame.locator("#card h2")).to_have_text("16")
    tab.frame.locator("#card a", has_text="net/15").click()
    expect(tab.frame.locator("#card h2")).to_have_text("15")
    assert "8 of 15" in tab.frame.locator("#world").text_content()


def test_a_graph_of_torch_is_shown_too(show):
    tab = show(at(run="torchs"))
    assert any("Sequential" in label for label in tab.labels)


def test_what_looks_like_a_script_is_text(show):
    tab = show(at(run="evil"))
    assert not tab.page.evaluate("window.alerted || false")
    assert any("<script>" in label or "script" in label for label in tab.labels)


def test_the_dark_mode_of_tensorboard_is_followed(show):
    tab = show(whole=True)
    theme = "document.documentElement.dataset.theme"
    frame = next(one for one in tab.page.frames if "plugin_entry" in one.url)
    assert frame.evaluate(theme) == "light"
    tab.page.evaluate("document.body.classList.add('dark-mode')")
    frame.wait_for_function(f"{theme} === 'dark'")


def test_a_graph_that_is_not_there_is_said(show):
    tab = show(at(run="blocks", node="blocks/7"))
    expect(tab.frame.locator("#message")).to_have_text("The graph holds nothing named blocks/7.")


def test_a_graph_that_is_written_later_appears(browser, tmp_path):
    with tbscope.SummaryWriter(tmp_path / "first") as writer:
        writer.add_graph(nested())
    with TensorBoard(tmp_path) as server:
        tab = Tab(browser, server.url)
        with tbscope.SummaryWriter(tmp_path / "second") as writer:
            writer.add_graph(nested())
        run = tab.frame.get_by_label("Run", exact=True)
        expect(run.locator("option")).to_have_text(["first", "second"], timeout=60_000)
        tab.put_away()


# -- the server -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "what"),
    [
        ("head", {"run": "none"}, "the log has no graph of the run 'none' under the tag ''"),
        ("head", {"run": "blocks", "step": 7}, "under the tag '' at step 7"),
        ("head", {"run": "blocks", "step": "x"}, "'x' is no number"),
        ("level", {"run": "blocks", "number": 99}, "the picture has no level of the number 99"),
        ("level", {"run": "blocks", "number": 4}, "the picture has no level of the number 4"),
        ("card", {"run": "blocks", "number": -1}, "the picture has no card of the number -1"),
        ("card", {"run": "blocks"}, "None is no number"),
    ],
)
def test_what_is_not_there_is_refused_with_one_message(server, path, query, what):
    status, _, data = answer(server, path, **query)
    assert status == 400
    assert what in json.loads(data)["error"]


def test_answers_are_data_and_never_sniffed(server):
    for path in ("graphs", "head", "index.js", "body.html", "style.css"):
        status, headers, _ = answer(server, path, run="evil")
        assert status == 200
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "text/html" not in headers["Content-Type"]


def test_the_tab_is_one_module_beside_its_entry():
    linked = re.findall(r"^(?:import|export)\b.*", ASSETS["tab.js"](), re.MULTILINE)
    assert linked == ["export {open};"]


def test_tensorboard_loads_the_tab_without_torch():
    code = (
        "import sys, tbscope.plugin.tab, tbscope.plugin.graphs;"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import sys, types; from tbscope.plugin.tab import ModelTab;"
        "tab = ModelTab(types.SimpleNamespace(data_provider=None, logdir='runs'));"
        "assert '/graphs' in tab.get_plugin_apps() and tab.frontend_metadata();"
        "readers = {'tbscope.saving.box_tree', 'tbscope.ir.graph',"
        "           'tbscope.sources.graphdef.paths'};"
        "assert not readers & {*sys.modules}, readers & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_entry_point_is_the_tab():
    from importlib.metadata import entry_points

    (found,) = (one for one in entry_points(group="tensorboard_plugins") if one.name == "tbscope")
    assert found.load().plugin_name == "tbscope"
