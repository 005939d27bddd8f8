"""Takes operations out of a graph and joins what read them to what they read.

What is left out is told: by the attribute `then` of what gives it, or `via` of what reads it.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Graph, Node, Output, Value
from tbscope.ir.pytree import PLAIN, values_in, walk
from tbscope.messages import cut

__all__ = ["Bypass", "step_text"]

_MOST_STEP = 60
_MOST_STEPS = 4
_MOST_TEXT = 300


class _Way(NamedTuple):
    """What lies between two operations: the value where it begins, and the steps from there.

    Attributes:
        value: Where it begins.
        steps: The first steps, and the last one.
        length: How many steps there are.
    """

    value: Value
    steps: tuple[str, ...] = ()
    length: int = 0

    @property
    def text(self) -> str:
        hidden = self.length - len(self.steps)
        between = (f"({hidden} more)",) if hidden else ()
        return " > ".join((*self.steps[:-1], *between, *self.steps[-1:]))

    def further(self, text: str) -> "_Way":
        """Return the way that goes one step further than this one."""
        return _Way(self.value, (*self.steps[:_MOST_STEPS], text), self.length + 1)


class Bypass:
    """What of a graph is left out.

    Args:
        graph: The graph.
        plumbing: The operations that are asked to be folded or skipped, with one input.
        removed: Those that go besides.
    """

    def __init__(self, graph: Graph, plumbing: Set[Node], removed: Set[Node]) -> None:
        self._ways: dict[Value, _Way] = {}
        self._dropped = plumbing | removed
        # How often each value is read, also as a result or an argument of a call.
        read = [value for node in graph.nodes for value in node.inputs]
        read += [output.value for output in graph.outputs]
        for call in graph.calls:
            for nest in (*[nest for _, nest in call.arguments], call.results):
                # Most are values, or hold none.
                if type(nest) is Value:
                    read.append(nest)
                elif type(nest) not in PLAIN:
                    read += values_in(nest)
        self._reads = Counter(read)
        self._thens: dict[Node, _Way] = {}
        self._signatures = graph.signatures
        self._editor = Editor(graph, reading=self._tell, giving=self._given)

    def fold(self, node: Node, value: Value) -> bool:
        """Make an operation part of the one that gives what it reads, if it alone reads that.

        Args:
            node: The operation.
            value: What it reads.
        Returns:
            Whether it has become part: then the other one gives what this one gave.
        """
        giver = value.producer
        made = giver.kind == "constant" and "operation" in giver.attributes
        if (
            self._reads[value] != 1
            or not (giver.kind == "op" or made)
            or giver.scope is not node.scope
            or len(giver.outputs) != 1
            or value in self._ways
        ):
            return False
        way = self._thens.get(giver) or _Way(value)
        self._thens[giver] = way.further(step_text(node))
        self._editor.give(node.outputs[0], giver, 0)
        return True

    def skip(self, value: Value, source: Value, text: str) -> None:
        """Have what reads a value read another one, and tell what lies between."""
        way = self._ways.get(source) or _Way(source)
        self._ways[value] = way.further(text)

    def apply(self, sources: Set[Node]) -> None:
        """Change the graph.

        Args:
            sources: Parameters and the like that only what goes has read.
        """
        for giver, way in self._thens.items():
            giver.attributes["then"] = _cut(way.text)
        editor = self._editor
        for value, way in self._ways.items():
            editor.read_instead(value, way.value)
        editor.drop(self._dropped | sources)
        editor.apply()

    def _tell(self, node: Node) -> None:
        """Have an operation tell what lies between it and what it reads from now on."""
        names, ways = self._signatures.get(node.op, ()), self._ways
        texts = []
        for place, (name, nest) in enumerate(node.arguments):
            known = names[place] if place < len(names) else None
            for path, value in walk(nest, name or known or f"arg{place}"):
                if type(value) is Value and value in ways:
                    texts.append(f"{path}: {ways[value].text}")
        if len(node.inputs) == 1 or not texts:
            texts = [ways[value].text for value in dict.fromkeys(node.inputs) if value in ways]
        node.attributes["via"] = _cut("; ".join(texts))

    def _given(self, output: Output, _: Value) -> Output:
        """Have an output tell what came out, and what lies between."""
        way = self._ways[output.value]
        return replace(output, given=output.given or output.value, via=_cut(way.text))


def step_text(node: Node) -> str:
    """Return an operation and its constants on one line: `transpose(1, 2)`, `[:, 0]`."""
    constants = []
    for name, nest in node.arguments:
        if type(nest) in PLAIN or next(values_in(nest), None) is None:
            constants.append(repr(nest) if name is None else f"{name}={nest!r}")
    if len(constants) == 1 and constants[0][0] == "(":
        # One tuple is as good as its entries: `view(2, -1)`, `[:, 0]`.
        text = constants[0][1:-1].removesuffix(",")
    else:
        text = ", ".join(constants)
    text = cut(text, _MOST_STEP)
    return f"[{text}]" if node.op == "getitem" else f"{node.op}({text})"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."
