"""Graphs that torch.compile captured, and the breaks between them: reason and line."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tbscope.ir.graph import Graph, Source
from tbscope.messages import cut
from tbscope.sources.torch.source_location import own_line

__all__ = [
    "CompiledGraphs",
    "GraphBreak",
    "function_name",
    "guard_text",
    "plain_name",
    "reason_text",
    "source_in",
]


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


_MOST_REASON = 300
_RESUMED = re.compile(r"(?:torch_dynamo_resume_in_|__resume_at_\d+_)(.*?)(?:_at_(\d+))?")
_NUMBERED = re.compile(r"^\d+/\d+(?:_\d+)?: ")
_ANOTHER = re.compile(r"^\*\*\* While handling.*$", re.MULTILINE)
_EXPLAINED = re.compile(r"^\s*Explanation:\s*(.+)$", re.MULTILINE)


def function_name(name: str) -> str:
    """Return the name of a function; behind a break, the original name and the line.

    >>> function_name("forward"), function_name("torch_dynamo_resume_in_forward_at_12")
    ('forward', 'forward, from line 12')
    """
    resumed = _RESUMED.fullmatch(name)
    if resumed is None:
        return "lambda" if name == "<lambda>" else name
    line = f" from line {resumed[2]}" if resumed[2] else " behind a break"
    return f"{function_name(resumed[1])},{line}"


def reason_text(text: str) -> str:
    r"""Return the compiler's reason for a break in one line: the construct and the explanation.

    >>> reason_text("Failed to trace x\n  Explanation: it is odd.\n  Hint: none")
    'Failed to trace x: it is odd'
    """
    reasons = [_one_reason(part) for part in _ANOTHER.split(text)]
    return cut("; then ".join(filter(None, reasons)) or "no reason is told", _MOST_REASON)


def _one_reason(text: str) -> str:
    first = text.strip().partition("\n")[0].strip()
    if first.startswith("generic_jump"):
        # The compiler's term for `if`, `while` and `assert`.
        return "Data-dependent branching: Python decides by the value of a tensor"
    explained = _EXPLAINED.search(text)
    text_of_reason = first if explained is None else f"{first}: {explained[1]}"
    return " ".join(text_of_reason.split()).rstrip(".")


def guard_text(text: str) -> str:
    """Return the compiler's message of a guard that failed, without the line that set the guard.

    >>> guard_text("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5")
    "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    >>> guard_text("0/1: 2 <= x.size()[0] <= 9  # if x.shape[0] > 9:  # net.py:3 in forward")
    '2 <= x.size()[0] <= 9'
    """
    first = text.strip().partition("\n")[0].strip()
    guard = _NUMBERED.sub("", first).partition("  # ")[0]
    return cut(" ".join(guard.split()), _MOST_REASON)


def source_in(stack: Iterable[Any]) -> Source | None:
    """Return the innermost line of the user's code in a stack, whose innermost frame is last."""
    return own_line(
        (frame.filename, frame.lineno or 0, plain_name(frame.name))
        for frame in reversed(list(stack))
    )


def plain_name(name: str) -> str:
    """Return the name of a function, without the compiler's additions behind a break."""
    resumed = _RESUMED.fullmatch(name)
    return name if resumed is None else resumed[1]
