"""DOT, read back by Graphviz itself."""

import json
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest
from build import GraphBuilder
from nasty_models import NASTY
from saved import drawn, nested, net
from test_html import evil

import tbscope
from tbscope.saving.box_tree import picture_of
from tbscope.saving.depth_limit import PAGE, Cut, fitting
from tbscope.saving.dot import dot_of, size_of
from tbscope.saving.levels import Levels, Words
from tbscope.saving.palette import LIGHT
from tbscope.saving.repeats import Folds

needs_graphviz = pytest.mark.skipif(
    shutil.which("dot") is None, reason="Graphviz is not installed: apt-get install graphviz"
)


def read_back(text):
    """Give nodes, clusters and lines as Graphviz reads them."""
    told = subprocess.run(
        ["dot", "-Tdot_json"], input=text.encode(), capture_output=True, check=True
    )
    data = json.loads(told.stdout)
    return (
        [thing for thing in data["objects"] if "nodes" not in thing and "subgraphs" not in thing],
        [thing for thing in data["objects"] if "nodes" in thing or "subgraphs" in thing],
        data,
    )


@needs_graphviz
@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("depth", [0, 1, None])
def test_graphviz_reads_back_every_shape_and_every_line(name, depth):
    model, given = NASTY[name]
    cut = Cut(picture_of(net(model(), *given)), depth)
    nodes, clusters, data = read_back(dot_of(cut))
    shapes = [glyph for glyph in cut.walk() if glyph in {line.start for line in cut.lines}]
    assert len(nodes) + len(clusters) == cut.shapes
    names = {thing["_gvid"]: thing["tooltip"] for thing in data["objects"]}
    assert {names[thing["_gvid"]] for thing in nodes} >= {glyph.name for glyph in shapes}
    edges = [(names[edge["tail"]], names[edge["head"]]) for edge in data.get("edges", ())]
    assert sorted(edges) == sorted((line.start.name, line.end.name) for line in cut.lines)


@needs_graphviz
def test_a_cluster_holds_what_stands_in_the_box():
    _, clusters, data = read_back(dot_of(Cut(picture_of(nested()))))
    names = {thing["_gvid"]: thing["tooltip"] for thing in data["objects"]}
    held = {thing["tooltip"]: {names[at] for at in thing["nodes"]} for thing in clusters}
    assert held["blocks/0"] == {"blocks/0/fc", "blocks/0/relu", "blocks/0/add"}
    assert held["blocks"] > held["blocks/0"]


def test_the_text_is_as_it_was_meant():
    (sequential, inputs, outputs) = (LIGHT[place] for place in (2, 0, 1))

    def told(label, second, name, colour, more):
        return (
            f'[label=<{label}<br/><font point-size="9">{second}</font>>, '
            f'tooltip="{name}", fillcolor="{colour[0]}", color="{colour[1]}", {more}]'
        )

    assert dot_of(Cut(picture_of(nested()), 0)).splitlines()[4:] == [
        "  n0 " + told("x", "Input", "x", inputs, 'penwidth="2"'),
        "  n1 " + told("blocks", "Sequential", "blocks", sequential, 'peripheries="2"'),
        "  n2 " + told("out", "Output", "out", outputs, 'penwidth="2"'),
        '  n0 -> n1 [label=" 2&#215;4", penwidth="1.03"]',
        '  n1 -> n2 [label=" 2&#215;4", penwidth="1.03"]',
        "}",
    ]


def test_colours_are_those_of_the_viewers_legend():
    """Classes of the first look have the first colours, whatever of them is drawn."""
    picture = picture_of(nested())
    words = Words()
    numbers = Levels(picture_of(nested())).head(words)["modes"]["class"][::2]
    order = [[*words.number][number] for number in numbers]
    text = dot_of(Cut(picture))
    for place, mark in enumerate(order):
        (line, *_) = (
            line
            for line in re.sub(r"\n +(?=label|tooltip|fillcolor)", " ", text).splitlines()
            if mark in line.partition("tooltip")[0]
        )
        assert LIGHT[place][1] in line


def test_what_has_no_class_is_neutral():
    line = dot_of(Cut(drawn("a/b:Op c:Op<-a/b"), 0)).splitlines()[4]
    assert not any(fill in line for fill, _ in LIGHT)


def test_a_label_of_color_by_colours_in_place_of_the_class():
    text = dot_of(Cut(picture_of(nested(), color_by={"blocks.0": "early"})))
    coloured = [line for line in text.splitlines() if f'fillcolor="{LIGHT[0][0]}"' in line]
    assert len(coloured) == 3
    assert all('tooltip="blocks/0/' in line for line in coloured)


def test_a_long_label_is_shown_without_its_middle_and_is_whole_below_the_mouse():
    name = f"first_{'x' * 60}_last"
    line = dot_of(Cut(drawn(f"{name}:Op"))).splitlines()[4]
    assert f'tooltip="{name}"' in line
    assert "label=<first_xxxxxxxxxxxxxxxx&#8230;xxxxxx_last<br/>" in line


def test_what_only_waits_is_dashed_and_what_is_not_known_is_plain():
    first, second = dot_of(Cut(drawn("a:Op b:Op<-^a c:Op<-a"))).splitlines()[-3:-1]
    assert (first, second) == ('  n0 -> n1 [style="dashed"]', "  n0 -> n2")


def test_every_byte_is_ascii_and_no_name_ends_its_quotes():
    picture = drawn('a"]};evil[x="1:Op b\\n:Op<-a"]};evil[x="1 größe&amp;:Op')
    lines = dot_of(Cut(picture)).encode("ascii").decode().splitlines()
    assert 'tooltip="a\\"]};evil[x=\\"1"' in lines[4]
    assert 'tooltip="b\\\\n"' in lines[5]
    assert 'tooltip="gr&#246;&#223;e&amp;amp;"' in lines[6]


# -- the program ------------------------------------------------------------------------------


@needs_graphviz
def test_graphviz_draws_svg_and_png(tmp_path):
    nested().save(tmp_path / "graph.svg")
    nested().save(tmp_path / "graph.png", depth=0)
    svg = (tmp_path / "graph.svg").read_text()
    assert svg.count('class="cluster"') == 3
    assert svg.count('class="node"') == 8
    assert "<title>blocks/0/fc</title>" in svg or 'xlink:title="blocks/0/fc"' in svg
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def refusal(path):
    with pytest.raises(tbscope.ArgumentError) as raised:
        nested().save(path)
    assert not path.exists()
    return str(raised.value)


def test_without_graphviz_the_error_tells_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(tmp_path / "graph.svg") == (
        "cannot draw a picture in the form .svg\n"
        "  why: it is drawn by Graphviz, and its program 'dot' is not on the PATH\n"
        "  fix: install it: apt-get install graphviz, brew install graphviz or conda install "
        "graphviz; or write .dot, .html or .mmd, which need nothing"
    )
    nested().save(tmp_path / "graph.dot")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'out of memory' >&2; exit 1", "why: out of memory"),
        ("exit 3", "why: it ended with 3"),
        ("exit 0", "why: it ended with 0"),
    ],
)
def test_a_graphviz_that_gives_up_is_told(tmp_path, monkeypatch, script, told):
    program = tmp_path / "dot"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/given\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert told in refusal(tmp_path / "graph.png")
    assert "digraph" in (tmp_path / "given").read_text()


@needs_graphviz
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_deepest_figure_that_fits_a_page_is_drawn(tmp_path, suffix):
    width, height = PAGE
    for graph, deepest in ((tower(2), 2), (tower(4), 1)):
        path = tmp_path / f"graph{suffix}"
        graph.save(path)
        fitted = path.read_bytes()
        assert size_of(fitted)[0] <= width
        assert size_of(fitted)[1] <= height
        graph.save(path, depth=deepest)
        assert path.read_bytes() == fitted
        if deepest == 1:
            graph.save(path, depth=2)
            assert size_of(path.read_bytes())[1] > height


def test_a_figure_fits_a_page_in_width_and_in_height():
    (width, height), folds = PAGE, Folds(picture_of(nested()))
    deepest = max(box.depth for box in folds.picture.boxes)
    for wide, high, depth in ((0, 0, deepest), (1, 0, deepest - 1), (0, 1, deepest - 1)):
        sizes = {deepest: (width + wide, height + high)}
        found = fitting(folds, lambda cut: cut.depth, lambda at, sizes=sizes: sizes.get(at, PAGE))
        assert found == depth


@needs_graphviz
def test_where_no_figure_fits_the_shallowest_is_drawn(tmp_path):
    build = GraphBuilder("Net")
    x = build.input("x", (1,))
    for at in range(60):
        y = build.node("exp", x, outputs=((1, at + 1),)).outputs[0]
        x = build.op("add", x, y, shape=(1, at + 2))
    build.output("out", x)
    graph = build.graph
    for path, how in (("fitted.svg", {}), ("shallow.svg", {"depth": 0})):
        graph.save(tmp_path / path, **how)
    assert (tmp_path / "fitted.svg").read_bytes() == (tmp_path / "shallow.svg").read_bytes()


def test_graphviz_runs_once_for_a_figure_much_too_large_at_most_depths(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\ncat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tower(200).save(tmp_path / "graph.svg")
    assert (tmp_path / "runs").read_text() == "run\n"
    # What the program was given is what it would draw here.
    assert (tmp_path / "graph.svg").read_text().count("[label=<") <= 250


def test_dot_has_all_open_however_large_it_is(tmp_path):
    tower(200).save(tmp_path / "graph.dot")
    assert (tmp_path / "graph.dot").read_text().count("[label=<") > 250


@needs_graphviz
def test_the_svg_is_xml_with_a_title_texts_and_nothing_from_elsewhere(tmp_path):
    nested().save(tmp_path / "graph.svg")
    text = (tmp_path / "graph.svg").read_text()
    root = ElementTree.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    assert [one.text for one in root.iter(f"{svg}title")] == ["Net"]
    # What is below the mouse are the names of nodes and boxes.
    titles = {one.get("{http://www.w3.org/1999/xlink}title") for one in root.iter(f"{svg}a")}
    assert titles == {glyph.name for glyph in Cut(picture_of(nested())).walk()}
    assert {"fc", "Linear", "relu", "blocks"} <= {one.text for one in root.iter(f"{svg}text")}
    assert "DOCTYPE" not in text
    assert not {"script", "image", "style"} & {one.tag.rpartition("}")[2] for one in root.iter()}


@needs_graphviz
def test_names_with_markup_are_texts_in_a_figure(tmp_path):
    evil().save(tmp_path / "graph.svg")
    root = ElementTree.parse(tmp_path / "graph.svg").getroot()
    texts = "".join(one.text for one in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "<script>" in texts
    assert "script" not in {one.tag.rpartition("}")[2] for one in root.iter()}


def tower(blocks):
    """Give so many blocks of two different parts, each wider than the one before."""
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1,))
    for at in range(blocks):
        scope = build.call(f"Net/Block[block{at}]")
        for part in ("First", "Second"):
            inner = build.call(f"Net/Block[block{at}]/{part}[{part.lower()}]")
            x = build.node("abs", x, scope=inner, outputs=((1, at + 1),)).outputs[0]
            x = build.op("exp", x, scope=inner)
        x = build.op("neg", x, scope=scope)
    build.output("out", x)
    return build.graph
