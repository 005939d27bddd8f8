"""Removal of operations from a graph: readers of a removed operation read its input instead.

Removed operations are listed as text: in the attribute `then` of the producer they were folded
into, or in the attribute `via` of the node that reads across them.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Graph, Node, Output, Value
from tbscope.ir.pytree import PLAIN, values_in, walk
from tbscope.messages import cut

_MOST_STEP = 60
_MOST_STEPS = 4
_MOST_TEXT = 300


class _RemovedPath(NamedTuple):
    """The removed operations between two nodes that remain, as text.

    Attributes:
        value: The value that the first of them reads.
        steps: The texts of the first `_MOST_STEPS` operations at most, and of the last.
        length: The number of all operations, those without a text included.
    """

    value: Value
    steps: tuple[str, ...] = ()
    length: int = 0

    @property
    def text(self) -> str:
        hidden = self.length - len(self.steps)
        between = (f"({hidden} more)",) if hidden else ()
        return " > ".join((*self.steps[:-1], *between, *self.steps[-1:]))

    def further(self, text: str) -> "_RemovedPath":
        """Return this path with one more operation at its end."""
        return _RemovedPath(self.value, (*self.steps[:_MOST_STEPS], text), self.length + 1)


class Bypass:
    """Collects the operations to remove from a graph, then removes them together.

    Args:
        graph: Changed in place, once `apply` is called.
        plumbing: The operations with one input that the caller folds or skips.
        removed: Further operations that are removed.
    """

    def __init__(self, graph: Graph, plumbing: Set[Node], removed: Set[Node]) -> None:
        self._ways: dict[Value, _RemovedPath] = {}
        self._dropped = plumbing | removed
        # The number of uses of each value, those as argument or result of a call included.
        uses = [value for node in graph.nodes for value in node.inputs]
        uses += [output.value for output in graph.outputs]
        for call in graph.calls:
            uses += call.values()
        self._reads = Counter(uses)
        self._thens: dict[Node, _RemovedPath] = {}
        self._signatures = graph.signatures
        self._editor = Editor(graph, reading=self._tell, giving=self._given)

    def fold(self, node: Node, value: Value) -> bool:
        """Merge an operation into the producer of its input, if no other node uses that input.

        The producer must be an operation (or a constant made from a maker) of the same scope,
        with one output.

        Args:
            node: The operation.
            value: Its input.
        Returns:
            Whether it was merged: its output is now the output of the producer.
        """
        producer = value.producer
        was_maker = producer.kind == "constant" and "operation" in producer.attributes
        if (
            self._reads[value] != 1
            or not (producer.kind == "op" or was_maker)
            or producer.scope is not node.scope
            or len(producer.outputs) != 1
            or value in self._ways
        ):
            return False
        path = self._thens.get(producer) or _RemovedPath(value)
        self._thens[producer] = path.further(step_text(node))
        self._editor.give(node.outputs[0], producer, 0)
        return True

    def skip(self, value: Value, source: Value, text: str) -> None:
        """Redirect the readers of a value to another value.

        Args:
            value: The value that goes.
            source: The value that its readers read instead.
            text: The operation or module between the two, for the attribute `via`.
        """
        path = self._ways.get(source) or _RemovedPath(source)
        self._ways[value] = path.further(text)

    def apply(self, sources: Set[Node]) -> None:
        """Remove the operations, and write the attributes `then` and `via`.

        Args:
            sources: Parameters, buffers and constants to remove: only removed operations read
                them.
        """
        for producer, path in self._thens.items():
            producer.attributes["then"] = _cut(path.text)
        editor = self._editor
        for value, path in self._ways.items():
            editor.read_instead(value, path.value)
        editor.drop(self._dropped | sources)
        editor.apply()

    def _tell(self, node: Node) -> None:
        """Record in the attribute `via` of a reader the removed operations before its inputs.

        Each text is prefixed by the name of the argument, unless there is only one input.
        """
        names, ways = self._signatures.get(node.op, ()), self._ways
        texts = []
        for index, (name, nest) in enumerate(node.arguments):
            parameter = names[index] if index < len(names) else None
            if type(nest) in PLAIN:
                continue
            for path, value in walk(nest, name or parameter or f"arg{index}"):
                if type(value) is Value and value in ways:
                    texts.append(f"{path}: {ways[value].text}")
        if len(node.inputs) == 1 or not texts:
            texts = [ways[value].text for value in dict.fromkeys(node.inputs) if value in ways]
        node.attributes["via"] = _cut("; ".join(texts))

    def _given(self, output: Output, _: Value) -> Output:
        """Return an output that records its original value and the removed operations."""
        given, text = output.given or output.value, self._ways[output.value].text
        return replace(output, given=given, via=_cut(text))


def step_text(node: Node) -> str:
    """Return an operation and its constants on one line: `transpose(1, 2)`, `[:, 0]`."""
    constants = []
    for name, nest in node.arguments:
        if type(nest) in PLAIN or not values_in(nest):
            constants.append(repr(nest) if name is None else f"{name}={nest!r}")
    if len(constants) == 1 and constants[0][0] == "(":
        # A single tuple is shortened to its entries: `view(2, -1)`, `[:, 0]`.
        text = constants[0][1:-1].removesuffix(",")
    else:
        text = ", ".join(constants)
    text = cut(text, _MOST_STEP)
    return f"[{text}]" if node.op == "getitem" else f"{node.op}({text})"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."
