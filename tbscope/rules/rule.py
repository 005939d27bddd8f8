"""Input and output of rules: a GraphDef with the page's structures for it, and faults.

It uses nothing of torch, and of a GraphDef its fields alone, so any object with them is enough.
"""

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from tbscope.page.constants import LIBRARY
from tbscope.page.glyphs import Box, Series
from tbscope.page.hierarchy import Hierarchy, parse_input
from tbscope.page.series import find_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHOWN = 60
_INDEX = re.compile(r"[^:]+:([0-9]+)")


Severity: TypeAlias = Literal["error", "warning"]
"""An error breaks the page or makes it show something false; a warning makes it less readable."""


class Fault(NamedTuple):
    """One violation of a rule.

    Attributes:
        node: The name of the node, or of the box.
        message: The problem, one sentence, with the values.
        fix: The remedy, one sentence.
    """

    node: str
    message: str
    fix: str


class Rule(NamedTuple):
    """One rule of the page.

    Attributes:
        severity: The severity of its violations.
        check: Yields the violations in a GraphDef.
    """

    severity: Severity
    check: "Callable[[LintContext], Iterator[Fault]]"

    @property
    def name(self) -> str:
        """Its id: `dangling-input` for the function `_dangling_input`."""
        return self.check.__name__.strip("_").replace("_", "-")


class LintContext:
    """A GraphDef with the tree of boxes and the levels that the page makes of it, on demand.

    Attributes:
        nodes: Its nodes; each has a name, an op, inputs, a device and attributes.
        functions: The functions of its library.
    """

    def __init__(self, graph_def: Any) -> None:
        self.nodes: list[Any] = list(graph_def.node)
        library = getattr(graph_def, "library", None)
        self.functions: list[Any] = list(library.function) if library is not None else []

    @cached_property
    def names(self) -> dict[str, None]:
        """The names of all nodes, each once, in order."""
        return dict.fromkeys(node.name for node in self.nodes)

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The tree of boxes."""
        return Hierarchy((node.name, node.op, node.input) for node in self.nodes)

    @cached_property
    def stacks(self) -> dict[Box, list[Series]]:
        """The stacks of folded siblings in each box of the graph; the root comes first."""
        boxes = (self.hierarchy.root, *self.hierarchy.boxes.values())
        return {box: find_series(box) for box in boxes if not box.name.startswith(LIBRARY)}

    @cached_property
    def by_name(self) -> dict[str, Any]:
        """The nodes by their names on the page."""
        strict = self.hierarchy.strict
        return {strict.get(node.name, node.name): node for node in self.nodes}

    @cached_property
    def outputs_read(self) -> dict[str, int]:
        """The highest output index that some node reads, by the name of the node that is read."""
        last: dict[str, int] = {}
        for text in (text for node in self.nodes for text in node.input):
            if text and text[0] != "^":
                match = _INDEX.fullmatch(text)
                name = parse_input(text)[0]
                last[name] = max(last.get(name, 0), int(match[1]) if match else 0)
        return last


def quote(text: str) -> str:
    """Return a text in quotes, in ASCII, on one line, without its middle if it is long."""
    half = _SHOWN // 2 - 2
    return ascii(text if len(text) <= _SHOWN else f"{text[:half]}...{text[-half:]}")


def shown_place(name: str) -> str:
    """Return the name of a box for a sentence."""
    return f"the box {quote(name)}" if name else "the top level"
