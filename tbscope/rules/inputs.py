"""Rules on inputs and the shapes at edges."""

from collections.abc import Iterator

from tbscope.page.constants import LIBRARY
from tbscope.page.hierarchy import parse_input
from tbscope.page.ops import is_embedded
from tbscope.rules.reading import Fault, Reading, quote

__all__ = ["collapsed_edges", "dangling_input", "missing_shape", "scope_input", "self_input"]


def dangling_input(reading: Reading) -> Iterator[Fault]:
    """Find inputs that name nothing; an empty one only stands between two others.

    Source: tf_graph_common/hierarchy.ts:790, `addEdges`
    """
    boxes, items = reading.hierarchy.boxes, reading.hierarchy.items
    for node in reading.nodes:
        for text in node.input:
            if not text or text in reading.names:
                continue
            name = parse_input(text)[0]
            if name not in reading.names and name not in boxes and name not in items:
                yield Fault(
                    node.name,
                    f"the input {quote(text)} names no node, and its edge is not drawn",
                    "name a node, or leave the input out",
                )


def scope_input(reading: Reading) -> Iterator[Fault]:
    """Find inputs that name a box.

    Source: tf_graph_common/hierarchy.ts:790, `addEdges`; render.ts, `traceInputs`, throws
    """
    boxes, items = reading.hierarchy.boxes, reading.hierarchy.items
    for node in reading.nodes:
        for text in node.input:
            name = parse_input(text)[0]
            if name in boxes and name not in reading.names and name not in items:
                yield Fault(
                    node.name,
                    f"the input {quote(text)} names a box, its edge is not drawn, and tracing "
                    "inputs fails",
                    f"name a node in {quote(name)}",
                )


def self_input(reading: Reading) -> Iterator[Fault]:
    """Find nodes that read themselves.

    Source: tf_graph_common/graph.ts:981, `addEdgeToGraph`
    """
    for node in reading.nodes:
        for text in node.input:
            if text and parse_input(text)[0] == node.name:
                yield Fault(
                    node.name,
                    f"the input {quote(text)} names the node itself, and its edge is not drawn",
                    "leave the input out, or name another node",
                )


def collapsed_edges(reading: Reading) -> Iterator[Fault]:
    """Find inputs of which the page keeps one, since the one before names the same node.

    Source: tf_graph_common/graph.ts:961, `normalizeInputs`
    """
    for node in reading.nodes:
        if len(node.input) < 2:
            continue
        before = ""
        lost: list[str] = []
        for text in node.input:
            name = parse_input(text)[0]
            if name and name == before:
                lost.append(text)
            before = name
        if lost:
            yield Fault(
                node.name,
                f"{_count(lost)} after one of the same node, as {quote(lost[0])}, "
                "and the page draws no edge for it",
                "put an empty input '' between them",
            )


def _count(lost: list[str]) -> str:
    return "an input comes" if len(lost) == 1 else f"{len(lost)} inputs come"


def missing_shape(reading: Reading) -> Iterator[Fault]:
    """Find outputs that are read and have no shape.

    Circles and icons need none, and what is in the panel of functions is only a pattern.

    Source: tf_graph_common/graph.ts:844-897, `extractOutputShapes`
    """
    for node in reading.nodes:
        last = reading.outputs_read.get(node.name)
        if last is None or is_embedded(node.op) or node.name.startswith(LIBRARY):
            continue
        known = len(node.attr["_output_shapes"].list.shape) if "_output_shapes" in node.attr else 0
        if last >= known:
            among = f" among the {known} in '_output_shapes'" if known else ""
            yield Fault(
                node.name,
                f"output {last} is read and has no shape{among}, and its edges have neither label "
                "nor width",
                "list a shape for each output in the attribute '_output_shapes'",
            )
