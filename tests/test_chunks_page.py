"""The proof that the page draws what is too wide: in TensorBoard's page, its own data read."""

import time
from collections import defaultdict
from functools import partial

import pytest
from browser import TensorBoard, write_runs
from chunked import chunked
from sweeps import sampled
from wide_models import MODELS, synthetic

import tbscope
from tbscope.page.constants import CHAIN_LIMIT, SLOW_LIMIT

# Modules that all read one tensor, or all before them: only a box around some of them would have
# the page draw the lines of the others, and modules stand in no such box.
HUBS = ("flat dense",)

# By their numbers of nodes, with their stages.
HUGE = {"10000 nodes": 20, "100000 nodes": 200}
HUGE_ONES = sampled(HUGE, ["10000 nodes"])

# What the page knows of some levels, in order, parents first: shapes, links as the data
# tells, lines as they are drawn, and who reads from outside or is read there.
LEVELS = """
(names) => names.map((name) => {
  const render = tbscope.find('tf-graph').renderHierarchy;
  render.buildSubhierarchy(name);
  const group = render.getRenderNodeByName(name);
  const {metagraph} = group.node;
  const kinds = ['box', 'op', 'series'];
  const ends = (graph) => graph.edges()
    .filter((edge) => {
      const metaedge = graph.edge(edge).metaedge || graph.edge(edge);
      return metaedge && metaedge.numRegularEdges;
    })
    .map(({v, w}) => [v, w]);
  const bridges = render.hierarchy.getBridgegraph(name);
  const here = new Set(metagraph.nodes());
  return {
    name,
    shapes: metagraph.nodes().map((child) => [
      child, kinds[metagraph.node(child).type], metagraph.node(child).op || ''
    ]),
    links: ends(metagraph),
    lines: ends(group.coreGraph).filter(([v, w]) => here.has(v) && here.has(w)),
    aside: [...group.isolatedInExtract, ...group.isolatedOutExtract].map(({node}) => node.name),
    entered: bridges ? ends(bridges).map(([, w]) => w).filter((child) => here.has(child)) : [],
    left: bridges ? ends(bridges).map(([v]) => v).filter((child) => here.has(child)) : [],
  };
})
"""


@pytest.fixture(scope="module")
def graphs():
    made = {}
    for name, (make, inputs) in MODELS.items():
        made[name] = chunked(tbscope.to_graph_def(tbscope.trace(make(), inputs)))
    made |= {name: chunked(synthetic(HUGE[name])) for name in HUGE_ONES}
    return made


@pytest.fixture(scope="module")
def page(browser, graphs, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logs")
    # The page opens with the first run.
    write_runs(logdir, {"0": graphs["unet"], **graphs})
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


def read_levels(page, names):
    return page._page.evaluate(LEVELS, names)


def all_levels(page):
    """Give every level, the root first."""
    levels, names = [], ["__root__"]
    while names:
        found = read_levels(page, names)
        levels += found
        names = [name for level in found for name, kind, _ in level["shapes"] if kind != "op"]
    return levels


def reached(starts, lines):
    """Give all that can be reached along lines."""
    readers = defaultdict(list)
    for start, end in lines:
        readers[start].append(end)
    found, pending = set(starts), list(starts)
    while pending:
        new = [end for end in readers[pending.pop()] if end not in found]
        found.update(new)
        pending += new
    return found


def lost(level):
    """Give what leads out of a level and is cut off from what leads into it."""
    shapes = {name for name, _, _ in level["shapes"]} - set(level["aside"])
    reads = {end for _, end in level["links"]}
    read = {start for start, _ in level["links"]}
    entered, left = set(level["entered"]), set(level["left"])
    ways = reached(
        {name for name in shapes if name not in reads or name in entered}, level["lines"]
    )
    # What has no neighbour on its level is put aside for its circles, whatever the level is.
    ends = {name for name in reads | read & entered if name not in read or name in left}
    return ends - ways


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def open_down(page, box):
    """Open a box, one of the boxes in it, and so on; give the seconds of each."""
    opened, inner = {}, [box]
    while inner:
        box = inner[len(inner) // 2]
        opened[box] = timed(partial(page._call, "expand", box))
        (level,) = read_levels(page, [box])
        inner = [shape for shape, kind, _ in level["shapes"] if kind != "op"]
    return opened


def cut_off(root, message):
    """Give the outputs that no line joins to an input at first look, boxes for what they hold."""
    ends = {"Input": set(), "Output": set()}
    for node in message.node:
        if node.op in ends:
            ends[node.op].add(node.name.partition("/")[0])
    aside = set(root["aside"])
    return ends["Output"] & aside | ends["Output"] - reached(ends["Input"] - aside, root["lines"])


@pytest.mark.parametrize("name", [*MODELS, *HUGE_ONES])
def test_it_opens_with_every_output_on_an_input_and_its_boxes_open_too(page, graphs, name):
    seconds = timed(partial(page.show, name))
    (root,) = read_levels(page, ["__root__"])
    assert cut_off(root, graphs[name]) == set()
    boxes = [shape for shape, kind, _ in root["shapes"] if kind != "op"]
    opened = {}
    for box in dict.fromkeys((boxes[0], boxes[len(boxes) // 2], boxes[-1])) if boxes else ():
        page.show(name)
        opened |= open_down(page, box)
    slowest = max(opened, key=opened.get, default="")
    print(f"{name}: {len(graphs[name].node)} nodes, drawn in {seconds:.1f} s", end="; ")
    print(f"{len(opened)} boxes opened, {slowest!r} in {opened.get(slowest, 0):.2f} s")
    assert page.errors == []


@pytest.mark.parametrize("name", MODELS)
def test_no_level_is_too_wide_and_no_flow_is_cut(page, name):
    page.show(name)
    for level in all_levels(page):
        assert len(level["shapes"]) <= (CHAIN_LIMIT if "[" in level["name"] else SLOW_LIMIT)
        assert name in HUBS or lost(level) == set(), level["name"]
    assert page.errors == []
