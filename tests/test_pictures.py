"""docs/gallery.md shows pictures that exist, of models that the page draws without an error."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

import tbscope
from tests.browser import TensorBoard, write_runs
from tests.gallery_models import SIGHTS
from tests.pictures import Attempt, _place, gallery_lines
from tests.sweeps import sampled

DOCS = Path(__file__).parents[1] / "docs"
FEW = ("gpt2", "mixture")


@pytest.fixture(scope="module")
def drawings():
    drawn = {}
    for sight in SIGHTS:
        torch.manual_seed(0)
        model, given, _ = sight.make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn[sight.name] = tbscope.to_graph_def(tbscope.trace(model, given))
    return drawn


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory, drawings):
    logdir = tmp_path_factory.mktemp("gallery")
    write_runs(logdir, drawings)
    with TensorBoard(logdir) as server:
        yield browser.open(server.url, minimap=True)


def test_every_picture_is_shown_and_every_one_shown_exists():
    shown = re.findall(r"\]\((\S+\.png)\)", (DOCS / "gallery.md").read_text())
    kept = {str(path.relative_to(DOCS)) for path in (DOCS / "img" / "gallery").iterdir()}
    assert set(shown) == kept
    assert sum(path.stat().st_size for path in (DOCS / "img").rglob("*.png")) < 4_000_000


def test_the_gallery_shows_every_model_light_and_dark():
    text = (DOCS / "gallery.md").read_text()
    for sight in SIGHTS:
        for kind in ("", "-dark", "-inside", "-inside-dark"):
            assert f"(img/gallery/{sight.name}{kind}.png)" in text


def test_the_gallery_says_of_each_model_what_its_sight_says():
    # But for the pictures, beside which stands what came of torch's own drawing.
    attempts = {sight.name: Attempt(True, "") for sight in SIGHTS}
    texts = ("\n".join(gallery_lines(attempts)), (DOCS / "gallery.md").read_text())
    made, kept = (
        [line for line in text.splitlines() if not line.startswith("| ![")] for text in texts
    )
    assert kept == made


@pytest.mark.parametrize("sight", SIGHTS, ids=lambda sight: sight.name)
def test_a_model_of_the_gallery_breaks_no_rule_and_has_the_box_that_is_shown_open(drawings, sight):
    assert tbscope.lint(drawings[sight.name]) == []
    assert any(node.name.startswith(f"{sight.opened}/") for node in drawings[sight.name].node)


@pytest.mark.parametrize(
    "sight",
    sampled(SIGHTS, [sight for sight in SIGHTS if sight.name in FEW]),
    ids=lambda sight: sight.name,
)
def test_a_model_of_the_gallery_is_drawn(page, sight):
    # As the picture is taken, and then all of it.
    page.show(sight.name)
    for end in [*(place.start() for place in re.finditer("/", sight.opened)), None]:
        if sight.opened[:end] in page.boxes:
            page.expand(sight.opened[:end])
    assert sight.opened in page.boxes
    page.expand_all()
    assert page.errors == []


def test_a_picture_shows_the_whole_graph_also_where_something_was_just_selected(page, tmp_path):
    page.show("resnet")
    for box in ("resnet", "resnet/encoder", "resnet/encoder/stages"):
        page.expand(box)
    page.info_card("resnet/encoder/stages/1")
    page.take_picture(tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        width, height = picture.size
    left, top, right, bottom = _place(page, "resnet")
    assert 0 < left < right <= width
    assert 0 < top < bottom <= height
