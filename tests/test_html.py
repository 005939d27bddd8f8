"""The page of a graph as a text: what it holds, and that it reaches for nothing."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from build import GraphBuilder
from saved import nested

from tbscope.ir.graph import Note
from tbscope.messages import visible
from tbscope.saving import html as html_form
from tbscope.saving import html as pages
from tbscope.saving.box_tree import picture_of
from tbscope.saving.html import page_of
from tbscope.saving.viewer_files import SCRIPTS, TAB

VIEWER = Path(html_form.__file__).parent / "viewer"
EVIL = "</script><script>alert(1)</script><!--<b>&amp;\u2028"


class Elements(HTMLParser):
    """Notes the elements of a page, and what stands in its scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts, self.comments, self.inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data

    def handle_comment(self, data):
        self.comments.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def evil():
    """Give a graph whose every text is one that ends a script."""
    build = GraphBuilder(EVIL)
    build.call(EVIL.replace("/", "|"), class_name=f"models.{EVIL}")
    x = build.input(EVIL, (1,))
    build.output(EVIL, build.op(EVIL, x, EVIL, options={EVIL: EVIL}))
    build.graph.notes.append(Note(EVIL))
    return build.graph


def test_the_page_loads_nothing_and_lets_only_its_own_scripts_run():
    page = Elements(page_of(picture_of(nested())))
    assert page.all("link") == page.all("img") == page.all("iframe") == []
    assert all("src" not in attributes for attributes in page.all("script"))
    (policy,) = (meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    sums = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in page.scripts[1:]
    ]
    allowed = " ".join(f"'sha256-{each}'" for each in sums)
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src blob:; script-src {allowed}"
    )
    assert len(sums) == 2


def test_no_text_of_a_user_becomes_a_part_of_the_page():
    plain, found = (Elements(page_of(picture_of(graph))) for graph in (nested(), evil()))
    assert [tag for tag, _ in found.found] == [tag for tag, _ in plain.found]
    assert found.scripts[1:] == plain.scripts[1:]
    data = json.loads(found.scripts[0])
    assert data["head"]["title"] == EVIL
    assert data["head"]["notes"] == [EVIL]
    assert not re.search("[<>&\u2028\u2029]", found.scripts[0])
    assert html.escape(visible(EVIL)) in page_of(picture_of(evil()))


def test_text_that_looks_like_a_place_of_the_template_stays_text():
    build = GraphBuilder("@@DATA@@")
    build.output("out", build.op("@@SCRIPT@@", build.input("x", (1,))))
    page = page_of(picture_of(build.graph))
    assert page.count("<title>@@DATA@@</title>") == 1
    assert page.count('"@@DATA@@"') == 1


def test_a_number_that_is_none_is_no_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        html_form._json(float("nan"))


# -- the library ------------------------------------------------------------------------------


def test_the_library_is_the_file_whose_origin_is_told():
    origin = (VIEWER / "dagre" / "ORIGIN.md").read_text()
    total = hashlib.sha256((VIEWER / "dagre" / "dagre.min.js").read_bytes()).hexdigest()
    assert total in origin
    assert "Permission is hereby granted" in (VIEWER / "dagre" / "LICENSE").read_text()


def test_the_licence_goes_with_the_library():
    (comment,) = (one for one in Elements(page_of(picture_of(nested()))).comments if "dagre" in one)
    assert (VIEWER / "dagre" / "LICENSE").read_text().strip() in comment


def test_every_script_of_the_viewer_is_in_the_page():
    assert {path.stem for path in VIEWER.glob("*.js")} == {*SCRIPTS, *TAB, "index"}
    page = page_of(picture_of(nested()))
    for name in SCRIPTS:
        last = (VIEWER / f"{name}.js").read_text().rpartition("\n\n")[2]
        code = [
            line for line in last.splitlines() if not line.lstrip().startswith(("//", "/*", "*"))
        ]
        assert "\n".join(code).replace("export ", "") in page


# -- notebooks --------------------------------------------------------------------------------


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing():
    (frame,) = Elements(nested()._repr_html_()).all("iframe")
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    assert frame["srcdoc"] == page_of(picture_of(nested()))


def test_a_name_cannot_leave_the_frame():
    page = Elements(evil()._repr_html_())
    assert [tag for tag, _ in page.found] == ["iframe"]
    assert EVIL in json.loads(Elements(page.all("iframe")[0]["srcdoc"]).scripts[0])["head"]["notes"]


def test_a_page_that_is_too_large_for_a_notebook_shows_equal_blocks_as_one(monkeypatch):
    blocks = stack(40)
    overview = page_of(picture_of(blocks, level="overview"))
    whole, small = len(page_of(picture_of(blocks))), len(overview)
    assert small < whole
    for most, told in ((whole, False), (whole - 1, True), (small, True)):
        monkeypatch.setattr(pages, "MOST_BYTES", most)
        text = blocks._repr_html_()
        assert ("Equal blocks stand for each other here. All of it is in the page" in text) == told
        assert (html.escape(overview) in text) == told
    monkeypatch.setattr(pages, "MOST_BYTES", small - 1)
    assert blocks._repr_html_() == (
        "<p>&lt;Graph Net: 121 nodes, 41 calls&gt; All of it is in the page that "
        "<code>graph.save('graph.html')</code> writes.</p>"
    )


def stack(blocks):
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1,))
    for at in range(blocks):
        scope = build.call(f"Net/ModuleList[parts]/Part[{at}]")
        for op in ("abs", "exp", "neg"):
            x = build.op(op, x, scope=scope)
    build.output("out", x)
    return build.graph
