"""What rules look at, a GraphDef read once, and what they tell: faults.

It knows nothing of torch, and asks of a GraphDef only that it has a GraphDef's fields.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from tbscope.page.constants import ASIDE_OP, LIBRARY
from tbscope.page.glyphs import Series
from tbscope.page.hierarchy import Hierarchy, parse_input
from tbscope.page.scenes import Scene, read_scenes

__all__ = ["Fault", "Reading", "quote", "shorten", "shown_place"]

_SHOWN = 60
_INDEX = re.compile(r"[^:]+:([0-9]+)")


class Fault(NamedTuple):
    """One place where a rule is broken.

    Attributes:
        node: The name of the node, or of the box.
        message: What is the matter, one sentence, with the values.
        fix: What to do, one sentence.
    """

    node: str
    message: str
    fix: str


class Reading:
    """A GraphDef, and the tree and the levels that the page makes of it.

    Attributes:
        nodes: Its nodes; each has a name, an op, inputs, a device and attributes.
        functions: The functions of its library.
    """

    def __init__(self, graph_def: Any) -> None:
        self.nodes: list[Any] = list(graph_def.node)
        library = getattr(graph_def, "library", None)
        self.functions: list[Any] = list(library.function) if library is not None else []

    @cached_property
    def names(self) -> set[str]:
        """The names of all nodes."""
        return {node.name for node in self.nodes}

    @cached_property
    def names_in_order(self) -> list[str]:
        """The names of all nodes, each once, in order."""
        return list(dict.fromkeys(node.name for node in self.nodes))

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The tree of boxes."""
        return Hierarchy((node.name, node.op, node.input) for node in self.nodes)

    @cached_property
    def scenes(self) -> list[Scene]:
        """All that is drawn in each box; the root first."""
        return list(read_scenes(self.hierarchy))

    @cached_property
    def library(self) -> set[str]:
        """The names of the functions in the panel, of the boxes that are there by name too."""
        boxes = (name for name in self.hierarchy.boxes if "/" not in name)
        found = {name.removeprefix(LIBRARY) for name in boxes if name.startswith(LIBRARY)}
        return found | {function.signature.name for function in self.functions}

    @cached_property
    def by_name(self) -> dict[str, Any]:
        """The nodes by the names that they have on the page."""
        strict = self.hierarchy.strict
        return {strict.get(node.name, node.name): node for node in self.nodes}

    @cached_property
    def outputs_read(self) -> dict[str, int]:
        """By the name of each node that is read, the last of its outputs that is."""
        last: dict[str, int] = {}
        for node in self.nodes:
            for text in node.input:
                if not text or text[0] == "^":
                    continue
                found = _INDEX.fullmatch(text) if ":" in text else None
                name = parse_input(text)[0]
                last[name] = max(last.get(name, 0), int(found[1]) if found else 0)
        return last

    @cached_property
    def heralds(self) -> set[str]:
        """The nodes that only have the page draw calls of functions in time: no data is lost.

        They read nothing but calls, are put aside, and nobody reads them.
        """
        defined = {function.signature.name for function in self.functions}
        calls = {node.name for node in self.nodes if node.op in defined}
        return {
            node.name
            for node in self.nodes
            if calls
            and node.op == ASIDE_OP
            and node.name not in self.outputs_read
            and calls.issuperset(parse_input(text)[0] for text in node.input if text)
        }

    def series(self) -> Iterator[Series]:
        """Yield every stack of folded siblings."""
        for scene in self.scenes:
            for glyph in scene.glyphs:
                if isinstance(glyph, Series):
                    yield glyph


def quote(text: str) -> str:
    """Put a text in quotes, in ASCII, on one line, shortened where it is long."""
    return ascii(shorten(text))


def shorten(text: str) -> str:
    """Leave out the middle of a text where it is long."""
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2 - 2
    return f"{text[:half]}...{text[-half:]}"


def shown_place(name: str) -> str:
    """Name a box as a sentence names it."""
    return f"the box {quote(name)}" if name else "the top level"
