"""Mermaid flowcharts, read back by a reader of their own, and within what GitHub draws."""

import html
import re

import pytest
from nasty_models import NASTY
from saved import drawn, nested, net

import tbscope
from tbscope.saving.box_tree import picture_of
from tbscope.saving.depth_limit import Cut
from tbscope.saving.mermaid import MOST_CHARACTERS, MOST_LINES, mermaid_of

_NODE = re.compile(r'(n\d+)(?:\(\["(.*)"\]\)|\[\["(.*)"\]\])')
_OPEN = re.compile(r'subgraph (s\d+)\["(.*)"\]')
_EDGE = re.compile(r'(n\d+) (-\.->|-->)(?:\|"(.*)"\|)? (n\d+)')


def parse(text):
    """Read a flowchart: the titles of shapes, in which boxes they are, and the lines."""
    head, *lines = (line.strip() for line in text.splitlines() if not line.startswith("%%"))
    assert head == "flowchart TB"
    around, shapes, edges = [], {}, []
    for line in lines:
        if found := _OPEN.fullmatch(line):
            shapes[found[1]] = (plain(found[2]), tuple(around))
            around.append(found[1])
        elif line == "end":
            around.pop()
        elif found := _NODE.fullmatch(line):
            shapes[found[1]] = (plain(found[2] or found[3]), tuple(around))
        else:
            found = _EDGE.fullmatch(line)
            edges.append((found[1], found[4], found[2] == "-->", plain(found[3] or "")))
    assert not around
    return shapes, edges


def plain(text):
    assert '"' not in text
    return html.unescape(re.sub(r"#(\d+);", r"&#\1;", text))


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("depth", [0, 1, None])
def test_every_shape_and_line_is_read_back(name, depth):
    model, given = NASTY[name]
    picture = picture_of(net(model(), *given))
    cut = Cut(picture, depth)
    shapes, edges = parse(mermaid_of(picture, depth))
    titles = [shapes[key][0].partition(" · ")[0] for key in shapes]
    assert titles == [glyph.label for glyph in cut.walk()]
    assert [len(shapes[key][1]) for key in shapes] == [
        (glyph if hasattr(glyph, "depth") else glyph.box).depth - hasattr(glyph, "depth")
        for glyph in cut.walk()
    ]
    assert [(data, text) for *_, data, text in edges] == [
        (bool(line.tensors), line.text) for line in cut.lines
    ]
    names = {key: glyph.name for key, glyph in zip(shapes, cut.walk(), strict=True)}
    assert [(names[start], names[end]) for start, end, *_ in edges] == [
        (line.start.name, line.end.name) for line in cut.lines
    ]


def test_the_text_is_as_it_was_meant():
    assert mermaid_of(picture_of(nested()), 1) == (
        "flowchart TB\n"
        '  n0(["x · Input"])\n'
        '  subgraph s1["blocks · Sequential"]\n'
        '    n2[["0 · Block"]]\n'
        '    n3[["1 · Block"]]\n'
        "  end\n"
        '  n4(["out · Output"])\n'
        '  n0 -->|"2×4"| n2\n'
        '  n2 -->|"2×4"| n3\n'
        '  n3 -->|"2×4"| n4\n'
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ('"]);click', "#34;])#59;click"),
        ("<b>", "#60;b#62;"),
        ("a#9829;", "a#35;9829#59;"),
        ("-item", "#45;item"),
        ("a-b", "a-b"),
        ("1.~one", "1#46; one"),
        ("1.one", "1.one"),
        ("`md`", "#96;md#96;"),
        ("größe", "gr#246;#223;e"),
        ("end", "end"),
    ],
)
def test_nothing_in_a_name_means_something_to_mermaid(name, text):
    line = mermaid_of(drawn(f"{name}:Op")).splitlines()[1]
    assert line == f'  n0(["{text} · Op"])'


# -- what GitHub draws ------------------------------------------------------------------------


def fan(count, name="n"):
    """Give a picture with so many lines, all in one box."""
    readers = " ".join(f"box/{name}{at}:Op<-a" for at in range(count))
    return drawn(f"a:Op {readers}")


def test_a_chart_has_as_many_lines_as_github_draws():
    assert mermaid_of(fan(MOST_LINES)).count("-->") == MOST_LINES
    text = mermaid_of(fan(MOST_LINES + 1))
    assert text.startswith(
        "%% drawn to depth 0: depth 1 would have 501 lines, and GitHub draws at most 500\n"
        "flowchart TB\n"
    )
    assert text.count("-->") == 1


def test_a_chart_is_as_long_as_github_reads():
    fits = fan(100)
    spare = MOST_CHARACTERS - len(mermaid_of(fits))
    padded = fan(100, "n" + "x" * (spare // 100))
    assert len(mermaid_of(padded)) <= MOST_CHARACTERS
    assert mermaid_of(padded).count("-->") == 100
    long = mermaid_of(fan(100, "n" + "x" * (spare // 100 + 1)))
    assert "characters, and GitHub reads at most 50,000" in long.splitlines()[0]


def test_a_depth_that_is_too_deep_is_refused_with_one_that_is_not():
    with pytest.raises(tbscope.ArgumentError) as raised:
        mermaid_of(fan(MOST_LINES + 1), 1)
    assert str(raised.value) == (
        "the flowchart is larger than GitHub draws\n"
        "  why: it has 501 lines, and GitHub draws at most 500\n"
        "  fix: depth=0, or leave depth out for the deepest that is drawn"
    )
    assert mermaid_of(fan(MOST_LINES), 1)


def test_a_graph_that_no_depth_makes_small_is_refused():
    flat = drawn("a:Op " + " ".join(f"r{at}:Op<-a" for at in range(MOST_LINES + 1)))
    for depth in (None, 0):
        with pytest.raises(
            tbscope.ArgumentError, match=r"write an \.html page, or draw with level"
        ):
            mermaid_of(flat, depth)
