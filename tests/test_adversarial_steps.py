"""Steps of several players, recorded without scopes by hand, as the page draws them."""

import pytest
import torch
from scenes import read_scene
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import tbscope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.templates import Structures

REAL = torch.linspace(-1, 1, 4 * 16 * 16).reshape(4, 1, 16, 16)


def generator():
    return nn.Sequential(
        nn.Sequential(nn.ConvTranspose2d(3, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True)),
        nn.Sequential(nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.BatchNorm2d(4), nn.ReLU(True)),
        nn.ConvTranspose2d(4, 1, 4, 2, 1),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.LeakyReLU(0.2)),
        nn.Sequential(nn.Conv2d(4, 8, 4, 2, 1), nn.LeakyReLU(0.2)),
        nn.Conv2d(8, 1, 4),
        nn.Flatten(0),
    )


def noise():
    return torch.randn(4, 3, 1, 1)


def by_labels(maker, judge, of_maker, of_judge):
    """Make a step of DCGAN's tutorial."""
    judge.zero_grad()
    labels = torch.ones(4)
    cross_entropy(judge(REAL), labels).backward()
    fakes = maker(noise())
    labels.fill_(0)
    cross_entropy(judge(fakes.detach()), labels).backward()
    of_judge.step()
    maker.zero_grad()
    labels.fill_(1)
    cross_entropy(judge(fakes), labels).backward()
    of_maker.step()


def by_distance(maker, judge, of_maker, of_judge):
    """Make two steps of the judge, and one of the maker, of a WGAN with gradient penalty."""
    for _ in range(2):
        of_judge.zero_grad()
        fakes = maker(noise()).detach()
        share = torch.rand(4, 1, 1, 1)
        mixed = (share * REAL + (1 - share) * fakes).requires_grad_()
        (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        (judge(fakes).mean() - judge(REAL).mean() + 10 * penalty).backward()
        of_judge.step()
    of_maker.zero_grad()
    (-judge(maker(noise())).mean()).backward()
    of_maker.step()


PLAYERS = {
    "GAN": (by_labels, ["step.0", "step.1"]),
    "WGAN-GP": (by_distance, ["step.0", "step.1", "step.2"]),
}


@pytest.fixture(scope="module", params=PLAYERS)
def drawn(request):
    step, steps = PLAYERS[request.param]
    torch.manual_seed(0)
    maker, judge = generator(), discriminator()
    optimizers = [torch.optim.Adam(model.parameters()) for model in (maker, judge)]
    with tbscope.record(maker=maker, judge=judge) as recording:
        step(maker, judge, *optimizers)
    return recording.graph, tbscope.to_graph_def(recording.graph), steps


def test_each_player_has_a_box_of_its_step_with_loss_gradients_and_optimizer(drawn):
    _, graph_def, steps = drawn
    hierarchy = Hierarchy.of(graph_def)
    top = [box for box in hierarchy.boxes.values() if box.depth == 1]
    assert [box.label for box in top if not box.label.startswith("__function")] == steps
    for step in steps:
        inside = hierarchy.boxes[step].children
        assert {"gradients", "optimizer", "judge"} <= inside.keys()


def test_no_box_is_put_aside(drawn):
    hierarchy = Hierarchy.of(drawn[1])
    for box in (hierarchy.root, *hierarchy.boxes.values()):
        aside = [glyph.name for glyph in read_scene(hierarchy, box).aside if isinstance(glyph, Box)]
        assert aside == [name for name in aside if name.startswith("__function")]
    assert tbscope.lint(drawn[1]) == []


def test_all_calls_of_a_model_have_one_colour(drawn):
    hierarchy = Hierarchy.of(drawn[1])
    structures = Structures(hierarchy).of
    for model in ("judge", "maker"):
        calls = [
            box
            for box in hierarchy.boxes.values()
            if box.label.partition(".")[0] == model
            and "gradients" not in box.name
            and "optimizer" not in box.name
        ]
        assert len(calls) >= (model == "judge") * 3
        assert len({structures[box] for box in calls}) == 1


def test_the_legend_names_classes_alone(drawn):
    graph, graph_def, _ = drawn
    entries = {node.name.split("/")[0] for node in graph_def.node if "_template/" in node.name}
    titles = {entry.removeprefix("__function_library__") for entry in entries}
    titles = {title.removesuffix("_template").strip() for title in titles}
    assert "Sequential" in titles
    assert titles <= {"Others", *(call.scope.part.label for call in graph.calls)}
