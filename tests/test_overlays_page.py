"""The proof: TensorBoard's page shows any number on a graph, each as a tag of its own."""

import pytest
import torch
from browser import TensorBoard
from browser_data import read_figures
from torch import nn

import tbscope
from tests.sweeps import sampled


class Net(nn.Module):
    """Two blocks of two layers, and a layer on another device."""

    def __init__(self):
        super().__init__()
        # The page folds the last five.
        folded = [nn.Tanh() for _ in range(5)]
        self.encoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), *folded)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
        self.shape_only = nn.Linear(4, 2, device="meta")

    def forward(self, x):
        code = self.encoder(x)
        self.shape_only(code.to("meta"))
        return self.decoder(code)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def norms(model):
    (model.encoder(torch.rand(16, 8)).square().mean() * 1e-3).backward()
    return {name: one.grad.norm() for name, one in model.named_parameters() if one.grad is not None}


@pytest.fixture(scope="module")
def graph(model):
    return tbscope.trace(model, torch.rand(16, 8))


@pytest.fixture(scope="module")
def page(browser, graph, norms, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    with tbscope.SummaryWriter(logdir) as writer:
        writer.add_graph(graph)
        writer.add_overlay("gradient norm", graph, norms)
        writer.add_overlay("flops", graph)
        writer.add_overlay("parameters", graph)
        writer.add_overlay("modules", graph, "parameters", level="module")
        writer.add_overlay("boxed", graph, {"encoder": 7, "encoder.0": 5, "decoder": 1})
        writer.add_overlay("one", graph, {"encoder.0": 5})
        writer.add_overlay("10 inputs", graph, lambda node: len(node.inputs))
        writer.add_overlay("9 inputs", graph, lambda node: len(node.inputs), style="torch")
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


TAGS = ["gradient norm", "flops", "parameters", "modules", "boxed", "10 inputs", "9 inputs", "one"]


def test_tags_stand_in_the_list_in_natural_order(page):
    assert page.listed == {
        ".": [
            "Default",
            *(
                "9 inputs",
                "10 inputs",
                "boxed",
                "flops",
                "gradient norm",
                "modules",
                "one",
                "parameters",
            ),
        ]
    }


@pytest.mark.parametrize("tag", sampled(TAGS, TAGS[::3]))
def test_each_tag_has_its_graph_with_and_without_numbers(page, tag):
    page.show(".", tag).expand_all()
    nodes = set(page.nodes)
    page.show(".", tag, profile=True).expand_all()
    assert set(page.nodes) == nodes
    assert {"encoder", "decoder"} <= nodes or "Sequential[encoder]" in nodes
    assert page.errors == []


@pytest.mark.parametrize("tag", sampled(TAGS, TAGS[1::3]))
def test_a_box_has_the_sum_of_what_stands_in_it_in_both_colourings(page, tag):
    figures = read_figures(page.show(".", tag, profile=True))
    boxes = {name: one for name, one in figures.items() if one.box and one.size is not None}
    assert len(boxes) >= 2
    for name, box in boxes.items():
        size, time = box.sum_of(figures)
        # What is empty has a microsecond that its neighbour has, too.
        empty = [one for one in box.children if (figures[one].size, figures[one].time) == (0, 1)]
        shared = 0 if box.time == 1 else len(empty)
        assert (box.size, box.time or 0) == (size, time - shared), name
    top = [figures[name] for name in figures[""].children]
    for kind, largest in (
        ("memory", max(one.size or 0 for one in top)),
        ("compute_time", max(one.time or 0 for one in top)),
    ):
        assert page.color_by(kind)["maxValue"] == largest > 0
        assert ["rgb(0, 0, 0)"] not in page.fills.values()
    assert page.errors == []


def test_whole_numbers_are_the_very_bytes_of_the_page(page, model):
    figures = read_figures(page.show(".", "parameters", profile=True))
    assert figures["encoder"].size == sum(one.numel() for one in model.encoder.parameters())
    assert figures["encoder/0"].size == 8 * 32 + 32
    figures = read_figures(page.show(".", "flops", profile=True))
    assert figures["encoder/0"].size == 2 * 16 * 8 * 32
    assert figures["encoder"].size == 2 * 16 * (8 * 32 + 32 * 4)


def test_small_numbers_differ_on_the_page_and_stand_exactly_on_the_cards(page, norms):
    page.show(".", "gradient norm", profile=True).expand_all()
    figures = read_figures(page)
    weight, bias = (norms[f"encoder.0.{name}"].item() for name in ("weight", "bias"))
    assert 0 < weight < 1e-2
    scale = 1024**5
    assert figures["encoder/0"].size == round(float(f"{weight + bias:.12g}") * scale)
    assert abs(figures["encoder"].size / scale - sum(map(float, norms.values()))) < 1e-12
    assert 'gradient norm.unit {"s":"1 PB is 1, 1 ms is 1e-06"}' in page.info_card("encoder/0")
    assert f'gradient norm {{"s":"{weight!r}"}}' in page.info_card("encoder/0/weight")


def test_a_number_for_a_box_stands_on_its_card(page):
    page.show(".", "boxed", profile=True).expand_all()
    figures = read_figures(page)
    assert figures["encoder/Sequential"].size == 7
    assert figures["encoder/0"].size == 5
    assert figures["encoder"].size == 12
    assert 'boxed {"i":12}' in page.info_card("encoder/Sequential")
    assert 'boxed {"i":13}' in page.info_card("Net")


def no_hatches(page):
    """Tell whether the page takes nothing for unused, and so hatches it and hides its name."""
    return not page.evaluate(
        "() => Object.entries(tbscope.find('tf-graph').renderHierarchy.index)"
        ".filter(([name, drawn]) => drawn.isFadedOut).map(([name]) => name)"
    )


@pytest.mark.parametrize("tag", ["boxed", "one"])
def test_nodes_without_a_number_keep_their_names_and_have_no_hatches(page, tag):
    page.show(".", tag, profile=True)
    assert no_hatches(page)
    page.expand_all()
    for kind in ("memory", "compute_time"):
        page.color_by(kind)
        fills = {name: fill for name, (fill,) in page.fills.items()}
        assert {"x", "out", "encoder/1", "decoder/0"} <= fills.keys()
        assert {fill[:4] for fill in fills.values()} == {"rgb("}
    assert no_hatches(page)


def test_each_node_is_on_its_device_and_the_legends_list_them(page):
    figures = read_figures(page.show(".", "parameters", profile=True))
    assert figures["shape_only"].device == "/device:META:0"
    assert figures["encoder/0"].device == "/device:CPU:0"
    assert {entry["device"] for entry in page.color_by("device")} == {
        "/device:CPU:0",
        "/device:META:0",
    }
    listed = page.evaluate("() => tbscope.find('tf-graph-controls')._currentDevices")
    assert [(one["device"], one["used"]) for one in listed] == [
        ("/device:CPU:0", True),
        ("/device:META:0", True),
    ]
