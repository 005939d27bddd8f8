"""docs/architecture.md shows the house as it is."""

import re
from pathlib import Path

from tests.house import PICTURE, ROOT, first_sentence, floors, picture

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_picture_is_that_of_the_floors_that_are_held():
    assert picture() == PICTURE.read_text(encoding="utf-8"), "draw it anew: python -m tests.house"


def test_every_room_is_on_a_floor_and_says_what_it_is_for():
    rooms = {room for floor in floors() for room in floor}
    there = {path.stem for path in (ROOT / "tbscope").iterdir() if not path.name.startswith("__")}
    assert rooms - {"__main__"} == there - {"py"}
    assert all(len(first_sentence(room)) > 20 for room in rooms)


def test_every_folder_is_named_on_the_page():
    folders = [path for path in (ROOT / "tbscope").iterdir() if (path / "__init__.py").exists()]
    assert [path.name for path in folders if f"tbscope/{path.name}/" not in PAGE] == []


def test_a_change_of_each_kind_has_one_file_that_is_named_and_exists():
    named = re.findall(r"\]\(\.\./((?:tbscope|tests)/[^)]+)\)", PAGE)
    assert len(set(named)) > 25
    assert [name for name in named if not (Path(ROOT) / name).exists()] == []
