"""The library: which boxes stand in the panel of functions, and how they are called there."""

import pytest
from panel_labels import shown_label

from tbscope.page.constants import LIBRARY
from tbscope.page.glyphs import is_library
from tbscope.page.hierarchy import Hierarchy


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (f"{LIBRARY}F/x", [f"{LIBRARY}F"]),
        # Only boxes of the first level, and only those whose names begin so.
        (f"{LIBRARY}F/in/x", [f"{LIBRARY}F"]),
        (f"a/{LIBRARY}F/x", []),
        (f"a{LIBRARY}F/x", []),
        (f"{LIBRARY}F", []),
    ],
)
def test_boxes_of_the_first_level_stand_in_the_panel_by_their_names(name, found):
    hierarchy = Hierarchy([(name, "Op", [])])
    glyphs = [hierarchy.root, *hierarchy.boxes.values(), *hierarchy.items.values()]
    assert [glyph.name for glyph in glyphs if is_library(glyph)] == found


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("F_template", "F"),
        ("F_template_3", "F"),
        # Eight characters are cut off, and no other number of them.
        ("F_templates", "F_templates"),
        ("F_sevenof", "F_sevenof"),
        ("F", "F"),
        ("a.b_template", "a.b_template"),
        ("..b", "..b"),
        ("b ", "b "),
    ],
)
def test_the_panel_cuts_an_ending_off(name, label):
    (box,) = Hierarchy([(f"{LIBRARY}{name}/x", "Op", [])]).boxes.values()
    assert shown_label(box) == label


def test_outside_of_the_panel_labels_are_whole():
    (box,) = Hierarchy([("F_template/x", "Op", [])]).boxes.values()
    assert shown_label(box) == "F_template"
