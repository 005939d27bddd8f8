"""DOT, read back by Graphviz itself."""

import json
import shutil
import subprocess

import pytest
from build import GraphBuilder
from nasty_models import NASTY
from saved import drawn, nested, net

import tbscope
from tbscope.saving.cut import Cut
from tbscope.saving.dot import dot_of
from tbscope.saving.picture import picture_of

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
    assert dot_of(Cut(picture_of(nested()), 0)).splitlines()[4:] == [
        '  n0 [label="x\\nInput", tooltip="x", shape="ellipse", fillcolor="1"]',
        '  n1 [label="blocks\\nSequential", tooltip="blocks", shape="box3d", fillcolor="3"]',
        '  n2 [label="out\\nOutput", tooltip="out", shape="ellipse", fillcolor="2"]',
        '  n0 -> n1 [label="2&#215;4", penwidth="1.34"]',
        '  n1 -> n2 [label="2&#215;4", penwidth="1.34"]',
        "}",
    ]


def test_a_label_of_color_by_colours_in_place_of_the_class():
    text = dot_of(Cut(picture_of(nested(), color_by={"blocks.0": "early"})))
    coloured = [line for line in text.splitlines() if 'fillcolor="1"' in line]
    assert len(coloured) == 3
    assert all('tooltip="blocks/0/' in line for line in coloured)


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


def test_a_picture_of_many_shapes_is_drawn_less_deep(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for blocks, less in ((119, 0), (120, 1)):
        graph = stack(blocks)
        whole = Cut(picture_of(graph))
        assert (whole.shapes > 600) == bool(less)
        graph.save(tmp_path / "graph.svg")
        drawn_deep = dot_of(Cut(picture_of(graph), whole.depth - less))
        assert (tmp_path / "graph.svg").read_text() == drawn_deep
        graph.save(tmp_path / "deep.svg", depth=whole.depth)
        assert (tmp_path / "deep.svg").read_text() == dot_of(whole)


def stack(blocks):
    """Give so many blocks of four operations in one list."""
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (1,))
    for at in range(blocks):
        scope = build.call(f"Net/ModuleList[parts]/Part[{at}]")
        for op in ("abs", "exp", "neg", "tanh"):
            x = build.op(op, x, scope=scope)
    build.output("out", x)
    return build.graph
