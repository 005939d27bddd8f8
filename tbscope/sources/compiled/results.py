"""Graphs that torch.compile captured, with the breaks between them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tbscope.ir.graph import Graph, Source

__all__ = ["CompiledGraphs", "GraphBreak"]


class GraphBreak(NamedTuple):
    """Line at which the compiler leaves the model to Python.

    Attributes:
        reason: The reason in one line.
        details: The whole message of the compiler.
        source: The line that the compiler cannot compile, or None if it is unknown.
        skipped: The function that Python runs from there on, or None if the compiler resumes behind
            the line.
        after: The number of graphs that were captured before the break.
    """

    reason: str
    details: str
    source: Source | None
    skipped: str | None
    after: int

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        left = f"; {self.skipped} is not compiled" if self.skipped else ""
        return f"{self.reason}{where}{left}"


class CompiledGraphs(dict[str, Graph]):
    """The graphs that torch.compile captured of a model, by title, in order (`0 forward`).

    `writer.add_graph(graphs)` draws all of them: the overview under the tag `compiled`, each graph
    under `compiled/` and its title. `print(graphs)` prints one line for each of them.

    Args:
        overview: The graph of all captured graphs.
        graphs: Each captured graph, by title.
        breaks: The breaks between the graphs, in order.
        recompiled: For each graph of a function with an earlier graph, by title, the failed guard
            of the earlier graph.

    Attributes:
        overview: All graphs in one graph: a box for each, with the breaks between them.
        breaks: The breaks between the graphs, in order.
        recompiled: The argument `recompiled`.
    """

    def __init__(
        self,
        overview: Graph,
        graphs: Mapping[str, Graph],
        breaks: Sequence[GraphBreak],
        recompiled: Mapping[str, str],
    ) -> None:
        super().__init__(graphs)
        self.overview = overview
        self.breaks = tuple(breaks)
        self.recompiled = dict(recompiled)

    def __str__(self) -> str:
        lines = [
            f"{self.overview.name}: {_count(len(self), 'graph')}, "
            f"{_count(len(self.breaks), 'graph break')}"
        ]
        shown = 0
        for title, graph in self.items():
            number = int(title.partition(" ")[0])
            while shown < len(self.breaks) and self.breaks[shown].after <= number:
                lines.append(f"  break: {self.breaks[shown]}")
                shown += 1
            operations = sum(node.kind == "op" for node in graph.nodes)
            lines.append(f"  {title}: {_count(operations, 'operation')}")
            if title in self.recompiled:
                lines.append(f"    compiled again: {self.recompiled[title]}")
        lines += [f"  break: {each}" for each in self.breaks[shown:]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<CompiledGraphs {self.overview.name}: {', '.join(self)}>"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
