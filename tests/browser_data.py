"""What TensorBoard's page made of a graph, read from its own objects.

levels = read_levels(page.show("run"))
levels["net"].aside
"""

from typing import NamedTuple

from browser import GraphPage

_SCRIPT = """
() => {
  const drawn = tbscope.find('tf-graph').renderHierarchy;
  const hierarchy = drawn.hierarchy;
  const ends = (edge) => `${edge.v} > ${edge.w}`;
  const levels = {};
  const waiting = [drawn.root];
  while (waiting.length) {
    const group = waiting.pop();
    const name = group.node.name;
    drawn.buildSubhierarchy(name);
    const meta = group.node.metagraph;
    const core = group.coreGraph;
    const real = (shape) => core.node(shape).node.type !== 3;
    const kinds = ['box', 'op', 'series'];
    const shapes = {};
    for (const shape of meta.nodes()) shapes[shape] = kinds[meta.node(shape).type];
    const links = {};
    for (const edge of meta.edges()) {
      const all = meta.edge(edge);
      links[ends(edge)] = [all.numRegularEdges, all.numControlEdges];
    }
    levels[name === '__root__' ? '' : name] = {
      kind: kinds[group.node.type],
      shapes,
      links,
      library: group.libraryFunctionsExtract.map((info) => info.node.name),
      aside: [...group.isolatedInExtract, ...group.isolatedOutExtract]
        .map((info) => info.node.name),
      core: core.nodes().filter(real),
      lines: core.edges().filter((edge) => real(edge.v) && real(edge.w)).map(ends),
    };
    for (const shape of meta.nodes()) {
      const info = drawn.getRenderNodeByName(shape);
      if (info && info.node.isGroupNode) waiting.push(info);
    }
  }
  return levels;
}
"""


class LevelData(NamedTuple):
    """What the page holds of one box, or of one stack.

    Attributes:
        kind: "box" or "series".
        shapes: "box", "op" or "series", by name.
        links: Data edges and control edges, by `from > to`.
        library: The names of what stands in the panel of functions.
        aside: The names of what was taken out of the flow.
        core: The names of what was not.
        lines: What is drawn as a line, `from > to`; not those to the outside.
    """

    kind: str
    shapes: dict[str, str]
    links: dict[str, list[int]]
    library: list[str]
    aside: list[str]
    core: list[str]
    lines: list[str]


def read_levels(page: GraphPage) -> dict[str, LevelData]:
    """Have the page make ready every box and stack; give each by name, the root as empty."""
    levels = page._page.evaluate(_SCRIPT)
    return {name: LevelData(**facts) for name, facts in levels.items()}


_FIGURES = """
() => {
  const drawn = tbscope.find('tf-graph').graphHierarchy;
  const figures = {};
  const map = drawn.getNodeMap();
  for (const name in map) {
    const node = map[name];
    const held = node.isGroupNode ? node.metagraph.nodes() : [];
    figures[name === '__root__' ? '' : name] = {
      box: Boolean(node.isGroupNode),
      device: node.device || '',
      size: node.stats ? node.stats.totalBytes : null,
      time: node.stats ? node.stats.getTotalMicros() : null,
      children: held,
    };
  }
  return figures;
}
"""


class FigureData(NamedTuple):
    """What the page holds of the figures of one box or node.

    Attributes:
        box: Whether it is a box.
        device: The device of a node.
        size: Its memory, in the page's bytes; None where it has no figures.
        time: Its time, in the page's microseconds; None where it has none.
        children: The names of what stands directly in a box.
    """

    box: bool
    device: str
    size: int | None
    time: int | None
    children: list[str]

    def sum_of(self, figures: dict[str, "FigureData"]) -> tuple[int, int]:
        """Give the memory and the time of all children together."""
        children = [figures[name] for name in self.children]
        return sum(one.size or 0 for one in children), sum(one.time or 0 for one in children)


def read_figures(page: GraphPage) -> dict[str, FigureData]:
    """Give what the page holds of the figures of each box and node, the root as empty."""
    figures = page.evaluate(_FIGURES)
    return {name: FigureData(**facts) for name, facts in figures.items()}
