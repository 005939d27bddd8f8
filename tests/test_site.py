"""The site that Sphinx makes of docs/: no warning, no link that leads nowhere, no network."""

import fcntl
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo")
pytest.importorskip("myst_parser")

DOCS = Path(__file__).parents[1] / "docs"
_LINK = re.compile(r'<a\b[^>]*\bhref="([^"]*)"')
_SHOWN = re.compile(r'<(?:img|script|link|source)\b[^>]*\b(?:src|href)="([^"]*)"')
_ID = re.compile(r'\bid="([^"]+)"')


@pytest.fixture(scope="module")
def site():
    """Give the pages of the site, by path."""
    folder = DOCS.parent / "build"
    folder.mkdir(exist_ok=True)
    # The line of README's section "Development": sphinx reads anew what has changed since.
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "docs", "build/site"]
    with (folder / "site.lock").open("w") as lock:
        # Tests of this file may run in several processes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return {path: path.read_text() for path in (folder / "site").rglob("*.html")}


def astray(page, target, ids):
    """Tell whether a link of a page leads nowhere: to no file, or to no place in a page."""
    path, _, anchor = html.unescape(target).partition("#")
    aim = (page.parent / path).resolve() if path else page
    return not aim.exists() or bool(anchor and aim in ids and anchor not in ids[aim])


def test_every_link_leads_to_a_page_a_place_in_it_or_a_file(site):
    ids = {path: set(_ID.findall(text)) for path, text in site.items()}
    links = [(path, link) for path, text in site.items() for link in _LINK.findall(text)]
    own = [(path, link) for path, link in links if not re.match(r"\w+:", link)]
    assert len(own) > 1000
    assert [(path.name, link) for path, link in own if astray(path, link, ids)] == []


def test_nothing_that_a_page_shows_is_asked_of_the_network(site):
    shown = [link for text in site.values() for link in _SHOWN.findall(text)]
    assert len(shown) > 100
    assert [link for link in shown if re.match(r"(https?:)?//", link)] == []
    styles = [path.read_text() for path in (DOCS.parent / "build" / "site").rglob("*.css")]
    assert styles
    assert [style for style in styles if re.search(r"(@import|url\()[^;)]*//", style)] == []


def test_the_first_page_is_readme_and_the_reference_tells_docstrings(site):
    pages = {path.parent.name + "/" + path.name: text for path, text in site.items()}
    assert "so the picture shows the code that ran" in pages["site/index.html"]
    assert "Draw a model in TensorBoard" in pages["reference/drawing.html"]
    assert "Keep a Changelog" in pages["site/changelog.html"]


def test_a_signature_names_options_once_and_public_names_are_links(site):
    pages = {path.name: text for path, text in site.items() if path.parent.name == "reference"}
    signature = pages["drawing.html"].partition('id="tbscope.add_graph"')[2].partition("</dt>")[0]
    names = re.findall(r'<span class="n"><span class="pre">(\w+)', signature)
    assert names[-2:] == ["on_error", "options"]
    assert len(names) == 7
    described = pages["drawing.html"].partition('id="tbscope.add_graph"')[2].partition("<dt")[2]
    for target in ("options.html#tbscope.Drawing", "graph.html#tbscope.Graph"):
        assert f'href="{target}"' in described
    (listed,) = [text for path, text in site.items() if path.name == "reference.html"]
    assert 'href="reference/graph.html#tbscope.ir.graph.Node"' in listed


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("x")
    ids = {page: {"here"}}
    assert [astray(page, link, ids) for link in ("#here", "page.html#here", "page.html")] == [
        *(False, False, False)
    ]
    assert [astray(page, link, ids) for link in ("#there", "page.html#there", "none.html")] == [
        *(True, True, True)
    ]
