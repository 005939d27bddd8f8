"""docs/ as a site: pages have their places, and pictures their pages."""

import re
from pathlib import Path

import pytest

import tbscope
from tests.test_readme import PAGES

DOCS = Path(__file__).parents[1] / "docs"


def test_every_page_is_listed_once():
    listed = re.findall(r"^([\w-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = [page.stem for page in PAGES if page.parent == DOCS and page.stem != "index"]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("picture", sorted(path.name for path in (DOCS / "img").glob("*.*")))
def test_every_picture_is_shown(picture):
    assert any(f"img/{picture})" in page.read_text() for page in PAGES)


def test_the_citation_names_the_version():
    assert f"version = {{{tbscope.__version__}}}" in (DOCS / "index.md").read_text()


def test_each_part_of_the_tests_has_files():
    files = re.findall(r"tests/test_[\w*]+\.py", (DOCS / "contributing.md").read_text())
    assert [name for name in files if not [*DOCS.parent.glob(name)]] == []
    assert len(files) > 40
