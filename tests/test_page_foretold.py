"""What `scenes.py` foretells is what TensorBoard's page does."""

import random

import pytest
from browser import TensorBoard, write_runs
from browser_data import read_levels
from gallery import GALLERY
from scenes import read_scenes as foretell
from tensorboard.compat.proto.graph_pb2 import GraphDef
from test_page_models import gpt2, t5, whisper

from tbscope.page.glyphs import Box, Item, is_library
from tbscope.page.hierarchy import Hierarchy
from tbscope.pipeline import to_graph_def
from tbscope.sources.eager.trace import trace
from tests.sweeps import sampled


def message(*nodes):
    """Make a GraphDef of nodes given as `name op input input ...`."""
    graph_def = GraphDef()
    for node in nodes:
        name, op, *inputs = node.split(" ")
        graph_def.node.add(name=name, op=op, input=inputs)
    return graph_def


def stacks():
    """Numbers of every kind: gaps, zeros, none, two op types, digits before, boxes."""
    nodes = ["relu Relu"]
    nodes += [f"relu_{i} Relu {'relu' if i == 1 else f'relu_{i - 1}'}" for i in range(1, 8)]
    nodes += [f"gap{i} Gap relu" for i in (1, 2, 3, 4, 5, 7, 8, 9, 20)]
    nodes += [f"zero_{i:03d} Zero relu_3" for i in range(6)]
    nodes += [f"{'odd' if i % 2 else 'even'}{i} Two gap1" for i in range(12)]
    nodes += [f"net/{i} Bare net/{i - 1}" for i in range(3, 11)]
    nodes += [f"net/l1_relu_{i} Digit net/{i + 3}" for i in range(6)]
    nodes += [f"net/bracket[{i}] Bracket net/{i + 3}" for i in range(6)]
    nodes += [f"list/{i}/op Op list/{i - 1}/op" for i in range(6)]
    nodes += ["star* Star", *(f"star{i} Star relu" for i in range(1, 6))]
    nodes += [*(f"same{i} A" for i in range(5)), *(f"same{i:02d} B same1" for i in range(5))]
    nodes += [f"empty{i}  relu" for i in range(6)]
    return message(*nodes)


def gathered():
    """A node that reads most of a long chain, and an output of it."""
    nodes = ["x In", *(f"n{i}x Op {f'n{i - 1}x' if i else 'x'}" for i in range(20))]
    return message(*nodes, "cat Cat " + " ".join(f"n{i}x" for i in range(3, 20)), "out Out cat")


def dense():
    """Concatenations of all that came before, twenty of them, and an output after the last."""
    nodes = ["x In"]
    for i in range(20):
        parts = " ".join(f"conv{n}x" for n in range(i))
        nodes += [f"cat{i}x Cat x {parts}".strip(), f"conv{i}x Conv cat{i}x w{i}"]
        nodes += [f"w{i} Const"]
    return message(*nodes, "out Out cat19x")


def masked():
    """A mask that all layers read, a node that only waits, and a summary."""
    nodes = ["x In", "mask Mask x", "wait Wait", "l0/a A x mask"]
    nodes += [f"l{i}/a A l{i - 1}/a mask ^wait" for i in range(1, 20)]
    nodes += ["out Out l19/a", "log HistogramSummary l3/a", "apart Op", "logged Op"]
    return message(*nodes, "aside NoOp ^out", "text XSummary logged", "box/a Op", "box NoOp")


def controls():
    """Control edges beside data and without it, more than four and just four."""
    nodes = ["x In", *(f"w{i}x Write x" for i in range(12)), "a A x " + waits(5), "b B a ^w5x"]
    nodes += ["c C b w6x " + waits(9, start=6), "d D ^x", "e E d ^c", "f F " + waits(10, start=6)]
    return message(*nodes)


def waits(stop, start=0):
    return " ".join(f"^w{i}x" for i in range(start, stop))


def circles():
    """Boxes with one operation that reads circles, tied ones, ones that read, and unread ones."""
    nodes = ["x In", "a/w Const", "a/op Op x a/w", "b/op Op a/op c/w", "c/w Const ^x"]
    nodes += ["c/op Op b/op c/w c/v", "c/v Const", "d Linear c/op d/w", "d/w ParameterConst"]
    nodes += ["d2 ListConstruct d x", "e Op d2 d2:1", "unread Const", "s OneSummary e"]
    return message(*nodes, "f Op s ^unread", "g/h/i Op f", "g/h Op g/h/i", "g Op g/h")


def seeded():
    """Boxes in the panel of functions, which count as shapes when the crowd is counted."""
    nodes = []
    for i in range(12):
        nodes += [
            f"__function_library__F{i}_template/a A",
            f"__function_library__F{i}_template/b B",
        ]
    nodes += [
        "x In",
        *(f"m{i}x M x" for i in range(6)),
        "y Y " + " ".join(f"m{i}x" for i in range(6)),
    ]
    return message(*nodes, "__function_library__x/y/z Z", "in/__function_library__/a A y")


def random_graph(seed):
    """Names, op types and inputs drawn at random, many of them alike."""
    chance = random.Random(seed)
    names = ["x"]
    nodes = ["x In"]
    ops = ["Add", "Mul", "Const", "Relu", "NoOp", "Add", "Add", "LogSummary", "Mul"]
    while len(nodes) < 120:
        depth = chance.choice([0, 0, 1, 1, 2, 3])
        parts = [f"{chance.choice('ab')}{chance.randrange(2)}x" for _ in range(depth)]
        name = "/".join([*parts, chance.choice(["n", "n_", "m"]) + str(chance.randrange(25))])
        if name in names:
            continue
        inputs = [
            chance.choice(["", "^", ""]) + chance.choice(names) for _ in range(chance.randrange(4))
        ]
        inputs += [""] * (not inputs) + [f"{chance.choice(names[:3])}:1"]
        nodes.append(f"{name} {chance.choice(ops)} {' '.join(inputs)}")
        names.append(name)
    return message(*nodes)


def traced(made):
    model, given = made()
    return to_graph_def(trace(model.eval(), kwargs=given))


GRAPHS = {
    "stacks": stacks(),
    "gathered": gathered(),
    "dense": dense(),
    "masked": masked(),
    "controls": controls(),
    "circles": circles(),
    "seeded": seeded(),
    **{f"random{seed}": random_graph(seed) for seed in range(8)},
    **{name: to_graph_def(made()) for name, made in GALLERY.items()},
    **{made.__name__: traced(made) for made in (gpt2, t5, whisper)},
}


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    write_runs(logdir, GRAPHS)
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


def kind(glyph):
    return "box" if isinstance(glyph, Box) else "op" if isinstance(glyph, Item) else "series"


def ends(links):
    return {f"{start.name} > {end.name}": [*link] for (start, end), link in links.items()}


@pytest.mark.parametrize("name", sampled(GRAPHS, [*GRAPHS][::2]))
def test_the_page_does_what_is_foretold(page, name):
    seen = read_levels(page.show(name))
    foretold = {scene.box.name: scene for scene in foretell(Hierarchy.of(GRAPHS[name]))}
    in_graph = {
        name for name, data in seen.items() if data.kind == "box" and not name.startswith("__f")
    }
    assert foretold.keys() == in_graph
    for box, scene in foretold.items():
        data = seen[box]
        assert {glyph.name: kind(glyph) for glyph in scene.glyphs} == data.shapes
        assert ends(scene.links) == data.links
        assert {glyph.name for glyph in scene.aside} == set(data.aside)
        assert set(ends(scene.lines)) == set(data.lines)
        assert {glyph.name for glyph in scene.glyphs if is_library(glyph)} == set(data.library)
    for series, data in seen.items():
        if data.kind == "series":
            above = foretold[series.rpartition("/")[0]]
            (stack,) = (glyph for glyph in above.glyphs if glyph.name == series)
            assert {member.name for member in stack.members} == data.shapes.keys()
    assert page.errors == []
