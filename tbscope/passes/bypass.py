"""Takes operations out of a graph and joins what read them to what they read.

What is left out is told: by the attribute `then` of what gives it, or `via` of what reads it.
"""

from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Graph, Node, Output, Value
from tbscope.ir.nests import PLAIN, values_in, walk

__all__ = ["Bypass", "step_text"]

_MOST_STEP = 60
_MOST_STEPS = 4
_MOST_TEXT = 300


class _Way(NamedTuple):
    """What lies between two operations: the value where it begins, and the steps from there.

    Attributes:
        value: Where it begins.
        head: The first steps.
        last: The last step; empty where the head has them all.
        hidden: How many steps between them are not told.
    """

    value: Value
    head: str
    last: str = ""
    hidden: int = 0

    @property
    def text(self) -> str:
        if not self.last:
            return self.head
        between = f" > ({self.hidden} more)" if self.hidden else ""
        return f"{self.head}{between} > {self.last}"

    def step(self, text: str, steps: int) -> "_Way":
        """Return the way that goes one step further than this one, which has `steps`."""
        if steps < _MOST_STEPS:
            return _Way(self.value, f"{self.head} > {text}" if self.head else text)
        return _Way(self.value, self.head, text, steps - _MOST_STEPS)


class Bypass:
    """What of a graph is left out.

    Args:
        graph: The graph.
        plumbing: The operations that are asked to be folded or skipped, with one input.
        removed: Those that go besides.
    """

    def __init__(self, graph: Graph, plumbing: Set[Node], removed: Set[Node]) -> None:
        self._ways: dict[Value, _Way] = {}
        self._lengths: dict[Value, int] = {}
        self._dropped: set[Node] = set(plumbing)
        self._dropped |= removed
        self._reads = _count_reads(graph, {node.inputs[0] for node in plumbing})
        self._thens: dict[Node, tuple[_Way, int]] = {}
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
        if (
            self._reads.get(value) != 1
            or not _may_take(giver)
            or giver.scope is not node.scope
            or len(giver.outputs) != 1
            or value in self._ways
        ):
            return False
        way, steps = self._thens.get(giver) or (_Way(value, ""), 0)
        self._thens[giver] = way.step(step_text(node), steps), steps + 1
        self._editor.give(node.outputs[0], giver, 0)
        return True

    def skip(self, value: Value, source: Value, text: str) -> None:
        """Have what reads a value read another one, and tell what lies between."""
        steps = self._lengths.get(source, 0)
        way = self._ways.get(source) or _Way(source, "")
        self._ways[value] = way.step(text, steps)
        self._lengths[value] = steps + 1

    def apply(self, sources: Set[Node] = frozenset()) -> None:
        """Change the graph.

        Args:
            sources: Parameters and the like that only what goes has read.
        """
        for giver, (way, _) in self._thens.items():
            giver.attributes["then"] = _cut(way.text)
        editor = self._editor
        for value, way in self._ways.items():
            editor.read_instead(value, way.value)
        editor.drop(self._dropped)
        editor.drop(sources)
        editor.apply()

    def _tell(self, node: Node) -> None:
        """Have an operation tell what lies between it and what it reads from now on."""
        node.attributes["via"] = _cut(self._told(node, self._signatures.get(node.op, ())))

    def _told(self, node: Node, names: tuple[str | None, ...]) -> str:
        ways = self._ways
        if len(node.inputs) == 1:
            return ways[node.inputs[0]].text
        texts = []
        for place, (name, nest) in enumerate(node.arguments):
            if type(nest) in PLAIN:
                continue
            known = names[place] if place < len(names) else None
            for path, value in walk(nest, name or known or f"arg{place}"):
                if type(value) is Value and value in ways:
                    texts.append(f"{path}: {ways[value].text}")
        if not texts:
            texts = [ways[value].text for value in dict.fromkeys(node.inputs) if value in ways]
        return "; ".join(texts)

    def _given(self, output: Output, _: Value) -> Output:
        """Have an output tell what came out, and what lies between."""
        way = self._ways[output.value]
        return replace(output, given=output.given or output.value, via=_cut(way.text))


def _count_reads(graph: Graph, values: Set[Value]) -> dict[Value, int]:
    """Count how often each of some values is read, also as a result or an argument of a call."""
    if not values:
        return {}
    reads = dict.fromkeys(values, 0)
    for node in graph.nodes:
        for value in node.inputs:
            if value in reads:
                reads[value] += 1
    ends: list[Value] = [output.value for output in graph.outputs]
    for call in graph.calls:
        for nest in (*[nest for _, nest in call.arguments], call.results):
            # Most are values, or hold none.
            if type(nest) is Value:
                ends.append(nest)
            elif type(nest) not in PLAIN:
                ends += values_in(nest)
    for value in ends:
        if value in reads:
            reads[value] += 1
    return reads


def step_text(node: Node) -> str:
    """Return an operation and its constants on one line: `transpose(1, 2)`, `[:, 0]`."""
    constants = []
    for name, nest in node.arguments:
        kind = type(nest)
        if kind is not Value and (kind in PLAIN or not any(True for _ in values_in(nest))):
            constants.append(repr(nest) if name is None else f"{name}={nest!r}")
    if len(constants) == 1 and constants[0][0] == "(":
        # One tuple is as good as its entries: `view(2, -1)`, `[:, 0]`.
        text = constants[0][1:-1].removesuffix(",")
    else:
        text = ", ".join(constants)
    if len(text) > _MOST_STEP:
        text = f"{text[:_MOST_STEP]}..."
    return f"[{text}]" if node.op == "getitem" else f"{node.op}({text})"


def _may_take(giver: Node) -> bool:
    """Tell whether what an operation gives may be told as given by what follows it."""
    return giver.kind == "op" or (giver.kind == "constant" and "operation" in giver.attributes)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."
