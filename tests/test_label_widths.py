"""Widths of labels: what the page shows whole is known before, by four widths of letters."""

import random

import pytest
from browser import TensorBoard, write_runs
from label_truth import box_is_whole, node_is_whole
from roboto import WIDTHS
from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.page.label_widths import fits_box, fits_node

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
KNOWN = ["attention_mask", "attention_mask.in", "last_hidden_state", "EncoderLayer", "AVATAR_Type"]


def some_labels():
    """Labels about as wide as there is room, half of them of words and half of any letters."""
    chance = random.Random(5)
    words = ["hidden", "state", "Layer", "Vision", "key", "Type", "LT", "fi", "wWw", "ill", "rt"]
    for _ in range(60):
        yield "_".join(chance.sample(words, 2)) + chance.choice(["", "s", ".in", "V2"])
        yield "a" + "".join(chance.choices(LETTERS, k=chance.randrange(6, 20)))


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory):
    """The texts of all labels, of boxes and of nodes, as the page shows them."""
    labels = sorted({*KNOWN, *some_labels()})
    message = GraphDef()
    for at, label in enumerate(labels):
        # Ten on a level, so that none is put aside.
        message.node.add(name=f"n{at // 10}/{label}", op="Op")
        message.node.add(name=f"b{at // 10}/{label}/x", op="Op")
    logdir = tmp_path_factory.mktemp("logs")
    write_runs(logdir, {"labels": message})
    with TensorBoard(logdir) as server:
        page = browser.open(server.url).show("labels")
        for at in range((len(labels) + 9) // 10):
            page.expand(f"n{at}")
            page.expand(f"b{at}")
        texts = page.evaluate(
            """() => {
              const svg = tbscope.find('tf-graph-scene').shadowRoot.querySelector('#svg');
              return Object.fromEntries([...svg.querySelectorAll('g.node')].map((one) =>
                [one.__data__.node.name, one.querySelector(':scope > text').firstChild.data]));
            }"""
        )
    return labels, texts


def test_the_page_shows_whole_what_is_told_to_fit(shown):
    labels, texts = shown
    nodes = {label: texts[f"n{at // 10}/{label}"] == label for at, label in enumerate(labels)}
    boxes = {label: texts[f"b{at // 10}/{label}"] == label for at, label in enumerate(labels)}
    for seen in (nodes, boxes):
        assert len(labels) / 5 < sum(seen.values()) < len(labels) * 4 / 5
    assert {label: node_is_whole(label) for label in labels} == nodes
    assert {label: box_is_whole(label) for label in labels} == boxes


@pytest.mark.parametrize(("guess", "truth"), [(fits_node, node_is_whole), (fits_box, box_is_whole)])
def test_four_widths_of_letters_are_right_for_most_labels_that_are_about_as_wide(guess, truth):
    labels = list(some_labels())
    wrong = [label for label in labels if guess(label) != truth(label)]
    assert len(wrong) < len(labels) / 8
    assert [label for label in wrong if not truth(label)] == []


def test_what_the_table_does_not_have_counts_as_the_widest():
    widest = WIDTHS[max(WIDTHS)]
    for fits in (fits_node, node_is_whole):
        assert [fits("日" * count) for count in (5, 6)] == [
            fits(widest * count) for count in (5, 6)
        ]
