"""Chunks of a GraphDef, for tests that look at what the page makes of them."""

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.drawing.chunks import find_chunks, rename
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import read_levels, read_root


def chunks_of(hierarchy: Hierarchy, **named: set[str]) -> dict[str, str]:
    """Give the new names of all that must stand in chunks."""
    return find_chunks(hierarchy, read_levels(hierarchy), **named)


def bears_seeds(hierarchy: Hierarchy, count: int) -> bool:
    """Tell whether the flow of the root stays whole with a number of entries of the legend."""
    return read_root(hierarchy).with_boxes(count).folded().keeps_flow()


def chunked(message: GraphDef) -> GraphDef:
    """Give a GraphDef whose levels the page can draw, by names and references alone."""
    mapping = chunks_of(Hierarchy.of(message))
    copy = GraphDef()
    copy.CopyFrom(message)
    names = rename([node.name for node in message.node], mapping)
    for node, name in zip(copy.node, names, strict=True):
        node.name = name
        node.input[:] = [rename_input(text, mapping) for text in node.input]
    return copy


def rename_input(text: str, mapping: dict[str, str]) -> str:
    """Give a reference to what has another name now."""
    control = "^" if text.startswith("^") else ""
    name, colon, index = text.removeprefix("^").partition(":")
    return control + rename([name], mapping)[0] + colon + index
