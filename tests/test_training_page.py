"""The proof: the page shows a training step as three boxes in a row, each with the same modules."""

import pytest
import torch
from browser import TensorBoard
from torch import nn
from training_steps import IMAGES, TARGETS

import tbscope


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    """A small ResNet."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)
        self.stage = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.head(self.stage(self.stem(x)).mean((2, 3)))


def record_step():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with tbscope.record(model) as recording:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(IMAGES), TARGETS).backward()
        optimizer.step()
    return recording.graph


@pytest.fixture(scope="module")
def browsed(browser, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    with tbscope.SummaryWriter(logdir / "step") as writer:
        writer.add_graph(record_step(), color_by="class")
    with tbscope.SummaryWriter(logdir / "kinds") as writer:
        writer.add_graph(record_step())
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


@pytest.fixture
def page(browsed):
    return browsed.show("step")


ROOTS = "Net", "gradients/Net", "optimizer/AdamW/Net"


def opened(page, *names):
    for name in names:
        for end in range(1, name.count("/") + 2):
            part = "/".join(name.split("/")[:end])
            if not page.nodes[part].expanded:
                page.expand(part)
    return page.nodes


def children(nodes, box):
    return {name.removeprefix(f"{box}/") for name in nodes if name.rpartition("/")[0] == box}


def test_a_step_is_three_boxes_in_a_row(page):
    core = {node.name for node in page.nodes.values() if node.section == "core"}
    assert core & page.boxes == {"Net", "gradients", "optimizer"}
    ends = {(edge.start, edge.end) for edge in page.edges}
    assert {("Net", "gradients"), ("gradients", "optimizer")} <= ends
    assert ("gradients", "Net") not in ends
    assert ("optimizer", "gradients") not in ends
    assert page.errors == []


def test_each_opens_to_the_same_modules(page):
    nodes = opened(page, *ROOTS)
    modules = {"stem", "stage", "head"}
    assert modules <= children(nodes, "Net")
    assert modules <= children(nodes, "gradients/Net")
    assert children(nodes, "optimizer/AdamW/Net") == modules
    nodes = opened(page, *(f"{root}/stage" for root in ROOTS))
    for root in ROOTS:
        assert children(nodes, f"{root}/stage") >= {"0", "1"}
    assert page.errors == []


def test_the_same_modules_have_the_same_colours(page):
    page.color_by("xla_cluster")
    opened(page, *(f"{root}/stage/1" for root in ROOTS))
    fills = page.fills
    for module in ("stem", "head", "stage/1/conv", "stage/1/norm"):
        (colour,) = {tuple(fills[f"{root}/{module}"]) for root in ROOTS}
        assert len(colour) == 1
    assert fills["Net/stem"] != fills["Net/head"] != fills["Net/stage/1/norm"]


def test_without_an_option_modules_have_the_colours_of_the_model_in_gradients(browsed):
    page = browsed.show("kinds")
    page.color_by("xla_cluster")
    opened(page, *(f"{root}/stage/1" for root in ROOTS[:2]))
    fills = page.fills
    modules = ("stem", "head", "stage/1/conv", "stage/1/norm")
    for module in modules:
        assert fills[f"Net/{module}"] == fills[f"gradients/Net/{module}"]
    assert len({tuple(fills[f"Net/{module}"]) for module in modules}) == 3
