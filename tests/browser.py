"""TensorBoard's own page, read as a user sees it: the real server, and a real browser.

    with TensorBoard(logdir) as server, Browser() as browser:
        page = browser.open(server.url).show("run")
        page.expand_all()
        page.nodes["Net/fc"].op

It needs Debian's chromium (`apt-get install chromium`). Where there is none, opening a
browser fails: a page that nobody saw is no proof.
"""

import asyncio
import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from playwright.sync_api import Error, Page, sync_playwright
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tests.warm import WarmProgram

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE_MS = 240_000

# What the page is made of: custom elements inside of each other's shadow roots.
SCRIPT = """
window.tbscope = (() => {
  const seek = (selector, root) => {
    const hit = root.querySelector(selector);
    if (hit) return hit;
    for (const element of root.querySelectorAll('*')) {
      const below = element.shadowRoot && seek(selector, element.shadowRoot);
      if (below) return below;
    }
    return null;
  };
  const known = {};
  const find = (selector) => {
    if (!known[selector] || !known[selector].isConnected) {
      known[selector] = seek(selector, document);
    }
    return known[selector];
  };
  const text = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.textContent.trim();
    if (node.nodeType === Node.ELEMENT_NODE) {
      if (['STYLE', 'SCRIPT', 'TEMPLATE'].includes(node.tagName)) return '';
      if (getComputedStyle(node).display === 'none') return '';
    }
    const inner = node.tagName === 'SLOT'
      ? node.assignedNodes() : (node.shadowRoot || node).childNodes;
    return [...inner].map(text).filter((line) => line).join(' ');
  };
  const graph = () => find('tf-graph');
  const svg = () => find('tf-graph-scene').shadowRoot.querySelector('#svg');
  let wantsFigures = false;
  const isDrawn = () => {
    const board = find('tf-graph-board');
    return Boolean(board && board.progress && board.progress.value > 99.9 &&
      graph() && graph().graphHierarchy && graph().renderHierarchy &&
      graph().renderHierarchy.hierarchy === graph().graphHierarchy &&
      (!wantsFigures || graph().renderHierarchy.displayingStats));
  };
  const failure = () => {
    const board = find('tf-graph-board');
    return board && board.progress && board.progress.error ? board.progress.msg : null;
  };
  const place = (things, name, word) => {
    const index = things.findIndex((thing) => thing === name);
    if (index < 0) throw Error(`no ${word} ${name} among ${things}`);
    return index;
  };
  const listed = () => Object.fromEntries(find('tf-graph-controls').datasets.map(
    ({name, tags}) => [name, tags.map((tag) => tag.displayName.trim())]));
  const menus = () => find('tf-graph-controls').shadowRoot
    .querySelectorAll('paper-dropdown-menu');
  const chosenTag = () => menus()[1].value;
  const choose = (run, tag, type) => {
    const controls = find('tf-graph-controls');
    const index = place(controls.datasets.map(({name}) => name), run, 'run');
    const tags = controls.datasets[index].tags.map((one) => one.tag && one.tag.trim());
    const chosen = tag === null ? 0 : place(tags, tag, 'tag');
    graph().selectedNode = null;
    graph().highlightedNode = null;
    graph().renderHierarchy = null;
    wantsFigures = type === 'profile';
    controls.set('_selectedRunIndex', -1);
    controls.set('_selectedRunIndex', index);
    controls.set('_selectedTagIndex', chosen);
    controls.set('_selectedGraphType', type);
  };
  const groups = () => [...svg().querySelectorAll('g.node')]
    .map((element) => ({element, drawn: element.__data__}))
    .filter(({drawn}) => drawn.node.type !== 3);
  const section = (element) => {
    const holder = element.parentNode.parentNode.classList;
    return ['in-extract', 'out-extract', 'function-library']
      .find((name) => holder.contains(name)) || 'core';
  };
  const nodes = () => groups().map(({element, drawn}) => ({
    name: drawn.node.name,
    kind: ['box', 'op', 'series', 'bridge', 'ellipsis'][drawn.node.type],
    op: drawn.node.op || '',
    expanded: Boolean(drawn.expanded),
    section: section(element),
    circles: drawn.inAnnotations.list
      .filter((annotation) => annotation.annotationType === 1)
      .map((annotation) => annotation.node.name),
  }));
  const edges = () => [...svg().querySelectorAll('g.edge')].map((element) => {
    const path = element.querySelector('path');
    const label = element.querySelector('textPath');
    return {
      ends: element.getAttribute('data-edge'),
      label: label ? label.textContent : '',
      control: path.classList.contains('control-dep'),
      reference: path.classList.contains('referenceedge'),
      colour: getComputedStyle(path).stroke,
      structural: path.classList.contains('structural'),
    };
  }).filter(({ends, structural}) => ends && !structural);
  const expand = (name) => {
    const drawn = graph().renderHierarchy.getRenderNodeByName(name);
    graph().renderHierarchy.buildSubhierarchy(name);
    drawn.expanded = true;
    find('tf-graph-scene').setNodeExpanded(drawn);
  };
  const held = (group) => [
    ...group.coreGraph.nodes().map((name) => group.coreGraph.node(name)),
    ...group.isolatedInExtract,
    ...group.isolatedOutExtract,
  ].filter((drawn) => drawn.node.isGroupNode);
  const expandAll = () => {
    const hierarchy = graph().renderHierarchy;
    for (let level = [hierarchy.root]; level.length;) {
      level = level.flatMap(held);
      for (const drawn of level) {
        hierarchy.buildSubhierarchy(drawn.node.name);
        drawn.expanded = true;
      }
      // As users do, who open what they see: the page draws the hints of lines beside a box
      // where it has placed them when the box was closed, and at NaN where it never was.
      find('tf-graph-scene').setNodeExpanded(null);
    }
  };
  const expandEach = () => {
    const seconds = {};
    for (let level = [graph().renderHierarchy.root]; level.length;) {
      level = level.flatMap(held);
      for (const drawn of level) {
        const start = performance.now();
        expand(drawn.node.name);
        seconds[drawn.node.name] = (performance.now() - start) / 1000;
      }
    }
    return seconds;
  };
  // What moves has come to its place, and what follows frames later stands there, too.
  const settle = async () => {
    for (let still = 0; still < 10; still += 1) {
      await new Promise((done) => requestAnimationFrame(done));
      if ([...svg().querySelectorAll('*')].some((element) => element.__transition)) still = -1;
    }
  };
  const card = () => text(find('tf-node-info') || document.createElement('p'));
  const select = (name) => graph().set('selectedNode', name);
  const search = (pattern) => {
    find('tf-graph-node-search').set('_rawRegexInput', pattern);
  };
  const found = () => find('tf-graph-node-search')._regexMatches || [];
  const searchAll = async (patterns) => {
    const box = find('tf-graph-node-search');
    // The page waits this long between two searches.
    box._searchTimeoutDelay = 0;
    const all = {};
    for (const pattern of patterns) {
      search(pattern);
      while (box._searchPending) await new Promise((done) => setTimeout(done));
      all[pattern] = found();
    }
    return all;
  };
  const colorBy = (kind) => find('tf-graph-controls').set('colorBy', kind);
  const legend = (kind) => find('tf-graph-controls').colorByParams[kind];
  const fills = () => Object.fromEntries(groups().map(({element, drawn}) => {
    const {fill} = element.querySelector(':scope > .nodeshape .nodecolortarget').style;
    const id = fill.startsWith('url(') && fill.slice(4, -1).replaceAll('"', '').slice(1);
    const gradient = id && [...svg().querySelectorAll('linearGradient')]
      .find((one) => one.id === id);
    const stops = gradient ? [...gradient.children] : [];
    return [drawn.node.name, id
      ? [...new Set(stops.map((stop) => stop.getAttribute('stop-color')))] : [fill]];
  }));
  return {
    find, isDrawn, failure, listed, chosenTag, choose, nodes, edges, expand, expandAll,
    expandEach, settle, card, select, search, searchAll, colorBy, legend, fills,
  };
})();
"""

# After each change the page paints the whole graph once more, three times as large.
_NO_MINIMAP = """
customElements.whenDefined('tf-graph-minimap').then(({prototype}) => {
  prototype.init = () => ({update() {}, zoom() {}});
});
"""


def write_runs(logdir: Path, messages: Mapping[str, GraphDef]) -> None:
    """Write graphs as the run graphs of runs of these names, with TensorBoard's own writer."""
    for run, message in messages.items():
        writer = EventFileWriter(str(logdir / run))
        writer.add_event(Event(graph_def=message.SerializeToString(deterministic=True)))
        writer.close()


class DrawnNode(NamedTuple):
    """One shape of the drawing.

    Attributes:
        name: Its full name.
        kind: "box", "op", or "series" for a stack of folded siblings.
        op: The op type; empty for a box.
        expanded: Whether a box is open.
        section: "core", or where the page put it aside.
        circles: The names of the small circles beside it.
    """

    name: str
    kind: str
    op: str
    expanded: bool
    section: str
    circles: list[str]


class DrawnEdge(NamedTuple):
    """One line of the drawing.

    Attributes:
        start: The name of the node or box that it leaves.
        end: The name of the node or box that it enters.
        label: What stands at it: a shape (`1×2`), or `2 tensors`.
        control: Whether it is dashed.
    """

    start: str
    end: str
    label: str
    control: bool


class TensorBoard:
    """The real server on a log directory, at a port of its own.

    `test_tab_hostile.py` starts one that has loaded nothing before.
    """

    def __init__(self, logdir: Path, *options: str) -> None:
        words = ("-m", "tensorboard.main", "--logdir", logdir, *options)
        self._program = WarmProgram(*words, "--host", "127.0.0.1", "--port", "0")
        self.url = self._read_url()

    def _read_url(self) -> str:
        said = []
        for line in self._program.stderr:
            said.append(line)
            found = re.search(r"at (http://\S+?)/? ", line)
            if found:
                return found[1]
        raise RuntimeError(f"TensorBoard did not start:\n{''.join(said)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._program.end()


class Browser:
    """A headless chromium, which takes two seconds of a core to start and open a page."""

    def __init__(self) -> None:
        program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
        if program is None:
            raise RuntimeError(
                "no chromium was found, and without it nothing proves that the page draws\n"
                "  fix: apt-get install chromium"
            )
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=program, args=_FLAGS)
        self._free: list[Page] = []
        self._loop = asyncio._get_running_loop()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Self]:
        """Give the browser to some tests, and close at their end the pages that they leave.

        Playwright has a loop of asyncio run in this thread, where others then have none.
        """
        asyncio._set_running_loop(self._loop)
        yield self
        for context in self._browser.contexts:
            if not any(page.context is context for page in self._free):
                context.close()
        asyncio._set_running_loop(None)

    def new_page(self, *, size: tuple[int, int] = (1400, 900), dark: bool = False) -> Page:
        """Give an empty page, for a reader whose system is dark or light."""
        width, height = size
        page = self._free.pop() if self._free else self._browser.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        return page

    def take_back(self, page: Page) -> None:
        """Empty a page, to give it again: a new one has a process of its own, which must start.

        What stands in the storage of its origin and scripts that it begins with would stay.
        """
        page.unroute_all()
        page.context.clear_permissions()
        page.goto("about:blank")
        # As in a new page, the mouse is over nothing.
        page.mouse.move(0, 0)
        self._free.append(page)

    def open(
        self, url: str, *, size: tuple[int, int] = (600, 400), minimap: bool = False
    ) -> "GraphPage":
        """Open the Graphs dashboard and wait until a graph is drawn.

        A small page draws the same in less time.
        """
        width, height = size
        page = self._browser.new_page(viewport={"width": width, "height": height})
        page.add_init_script(SCRIPT)
        if not minimap:
            page.add_init_script(_NO_MINIMAP)
        return GraphPage(page, url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio._set_running_loop(self._loop)
        self._browser.close()
        self._playwright.stop()


class GraphPage:
    """The Graphs dashboard with one graph.

    Attributes:
        errors: What the page threw or reported as an error since this graph is shown.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.errors: list[str] = []
        self._page = page
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._listen)
        page.goto(f"{url}/#graphs")
        self._wait_until_drawn()

    def show(self, run: str, tag: str | None = None, *, profile: bool = False) -> Self:
        """Show another graph, or the same one anew; give the page.

        Args:
            run: The run.
            tag: The tag; None for the first, which is the graph of the run if it has one.
            profile: Whether its figures are asked for (the graph type "Profile").
        """
        self.errors.clear()
        self._call("choose", run, tag, "profile" if profile else "op_graph")
        self._wait_until_drawn()
        return self

    @property
    def listed(self) -> dict[str, list[str]]:
        """The tags of each run, in the order of the page's lists."""
        listed: dict[str, list[str]] = self._call("listed")
        return listed

    @property
    def chosen_tag(self) -> str:
        """The tag that is shown, as the page's menu writes it."""
        chosen: str = self._call("chosenTag")
        return chosen

    def _listen(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _wait_until_drawn(self) -> None:
        try:
            self._page.wait_for_function(
                "tbscope.isDrawn() || tbscope.failure()", timeout=_PATIENCE_MS, polling=50
            )
        except Error as error:
            raise RuntimeError(f"no graph was drawn; the page said {self.errors}") from error
        failure = self._call("failure")
        if failure:
            raise RuntimeError(f"the page gave up: {failure}; it said {self.errors}")

    def _call(self, function: str, *arguments: object) -> Any:
        return self._page.evaluate(
            "([name, given]) => tbscope[name](...given)", [function, list(arguments)]
        )

    @property
    def nodes(self) -> dict[str, DrawnNode]:
        """Every shape that is drawn now, by its name."""
        drawn = [DrawnNode(**facts) for facts in self._call("nodes")]
        return {node.name: node for node in drawn}

    @property
    def boxes(self) -> set[str]:
        """The names of the boxes that are drawn now."""
        return {node.name for node in self.nodes.values() if node.kind == "box"}

    @property
    def edges(self) -> list[DrawnEdge]:
        """Every line that is drawn now."""
        edges = []
        for facts in self._call("edges"):
            start, _, end = facts["ends"].partition("--")
            edges.append(DrawnEdge(start, end, facts["label"], facts["control"]))
        return edges

    @property
    def references(self) -> dict[tuple[str, str], str]:
        """The lines that the page takes for references: their ends, and their colours."""
        return {
            tuple(facts["ends"].split("--")): facts["colour"]
            for facts in self._call("edges")
            if facts["reference"]
        }

    def expand(self, name: str) -> None:
        """Open one box, whose holders are open, and wait until all has moved to its place."""
        self._call("expand", name)
        self._call("settle")

    def expand_all(self) -> None:
        """Open every box and every stack, level by level."""
        self._call("expandAll")

    def expand_each(self) -> dict[str, float]:
        """Open every box and every stack one by one, outer ones first; give the seconds of each."""
        seconds: dict[str, float] = self._call("expandEach")
        return seconds

    def double_click(self, name: str) -> None:
        """Double-click on a shape, as a user does who opens a box."""
        self._page.evaluate("tbscope.find('tf-graph').fit()")
        self._page.wait_for_timeout(800)
        shape = self._page.locator(f'g.node[data-name="{name}"] > .nodeshape')
        shape.dblclick(force=True)
        self._page.wait_for_timeout(800)
        # A shape under the pointer stays highlighted, also when its graph is gone.
        self._page.mouse.move(0, 0)

    def info_card(self, name: str) -> str:
        """Select a node and give the text of its card."""
        self._call("select", name)
        self._call("settle")
        text: str = self._call("card")
        return text

    def take_picture(self, path: Path) -> None:
        """Write a picture of the page as it is now, the graph fitted to it."""
        # The page goes on moving to what was selected, and would do so after it was fitted.
        self._page.wait_for_timeout(1500)
        self._page.evaluate("tbscope.find('tf-graph').fit()")
        self._page.wait_for_timeout(1500)
        self._page.screenshot(path=path)

    def search(self, pattern: str) -> list[str]:
        """Type in the search box; give the names that it finds."""
        return self.search_all([pattern])[pattern]

    def search_all(self, patterns: Iterable[str]) -> dict[str, list[str]]:
        """Type one after the other in the search box; give the names that each finds."""
        found: dict[str, list[str]] = self._call("searchAll", list(patterns))
        return found

    def color_by(self, kind: str) -> list[dict[str, str]]:
        """Choose a colouring ("xla_cluster", "device"); give its legend."""
        self._call("colorBy", kind)
        self._call("settle")
        legend: list[dict[str, str]] = self._call("legend", kind)
        return legend

    @property
    def fills(self) -> dict[str, list[str]]:
        """The colours of every shape that is drawn now, by its name; stripes are several."""
        fills: dict[str, list[str]] = self._call("fills")
        return fills

    def evaluate(self, script: str, argument: object = None) -> Any:
        """Run a function in the page; it can use what the script above gives (`tbscope.find`)."""
        return self._page.evaluate(script, argument)
