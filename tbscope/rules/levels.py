"""Rules on what is drawn on one level: how much, how long, and what is folded or put aside."""

from collections.abc import Iterator
from typing import Any

from tbscope.page.flow import CHAIN_LIMIT, longest_chain, lost_exits
from tbscope.page.preparation import LEVEL_LIMIT, Level, Links, Series, Shape, is_library
from tbscope.rules.reading import Fault, Reading, quote, shown_place

__all__ = ["false_series", "lone_node", "long_chain", "lost_output", "wide_level"]

# What tells a node from its equals, and no difference between them.
_OWN = frozenset({"kernels", "module", "name", "scope", "source"})
_SHAPES = "_output_shapes"


def wide_level(reading: Reading) -> Iterator[Fault]:
    """Find levels with so many shapes that laying them out takes a while.

    Source: measured: 100 shapes take half a second, 1,000 take four
    """
    for name, shapes, _ in _drawings(reading):
        if len(shapes) > LEVEL_LIMIT:
            yield Fault(
                name,
                f"{shown_place(name)} holds {len(shapes)} shapes, and takes long to open",
                f"group them in boxes of {LEVEL_LIMIT} or less",
            )


def long_chain(reading: Reading) -> Iterator[Fault]:
    """Find chains that are too long for the page's layout.

    Source: dagre's `rank/util.js`, `longestPath`; measured: 2,000 in a chain fail
    """
    for name, shapes, links in _drawings(reading):
        # A chain is at most as long as there are shapes.
        if len(shapes) > CHAIN_LIMIT:
            length = longest_chain(shapes, links)
            if length > CHAIN_LIMIT:
                yield Fault(
                    name,
                    f"{shown_place(name)} holds a chain of {length} shapes, "
                    "and the page may stay blank",
                    f"group them in boxes of {LEVEL_LIMIT} or less",
                )


def _drawings(reading: Reading) -> Iterator[tuple[str, list[Shape], Links]]:
    """Give what is laid out at once: the insides of boxes, and of stacks."""
    for level in reading.levels:
        yield level.box.name, [s for s in level.shapes if not is_library(s)], level.lines
        for shape in level.shapes:
            if isinstance(shape, Series):
                members: set[Shape] = set(shape.members)
                within = reading.hierarchy.links(level.box).items()
                links: Links = {ends: link for ends, link in within if members.issuperset(ends)}
                yield shape.name, list(shape.members), links


def false_series(reading: Reading) -> Iterator[Fault]:
    """Find stacks of siblings that are not alike.

    They are alike where all are calls of one module, or where shapes and attributes are
    equal, but for those that say where each of them comes from.

    Source: tf_graph_common/hierarchy.ts:855-1109, `groupSeries`
    """
    for stack in reading.series():
        nodes = [reading.by_name[member.name] for member in stack.members]
        modules = {_text(node, "module") for node in nodes}
        if len(modules) == 1 and modules != {None}:
            continue
        differs = _difference(nodes)
        if differs:
            yield Fault(
                stack.name,
                f"{len(nodes)} siblings of op {quote(nodes[0].op)} are folded into a stack, "
                f"and they differ in {quote(differs)}",
                "end their names with something else than a number",
            )


def _text(node: Any, key: str) -> bytes | None:
    return node.attr[key].s if key in node.attr else None


def _difference(nodes: list[Any]) -> str:
    """Give the first attribute in which nodes differ; empty where they are alike."""
    first = _facts(nodes[0])
    for node in nodes[1:]:
        facts = _facts(node)
        if facts != first:
            return next(key for key in (*first, *facts) if first.get(key) != facts.get(key))
    return ""


def _facts(node: Any) -> dict[str, bytes]:
    """Give what must be equal, as bytes."""
    return {
        key: node.attr[key].SerializeToString(deterministic=True)
        for key in sorted(node.attr)
        if key == _SHAPES or (key[:1] != "_" and key not in _OWN)
    }


def lost_output(reading: Reading) -> Iterator[Fault]:
    """Find ends of the flow that the page cuts off from where it begins.

    Source: tf_graph_common/render.ts:1989-2255, `extractHighDegrees`
    """
    for level in reading.levels:
        if level.aside or len(level.lines) < len(level.links):
            joined = {shape for ends in level.links for shape in ends}
            for shape in lost_exits(level, reading.doors):
                if shape in joined:
                    yield Fault(
                        shape.name,
                        f"in {shown_place(level.box.name)}, it {_loss(level, shape)}, "
                        "and no drawn line leads to it from where data comes in",
                        "put what has many readers or inputs in a box with less around it",
                    )


def lone_node(reading: Reading) -> Iterator[Fault]:
    """Find operations that hang on circles or icons alone in their box, and are put aside.

    Source: tf_graph_common/render.ts:2221-2255, `extractHighDegrees`
    """
    doors = reading.doors
    for level in reading.levels:
        if level.aside:
            joined = {shape for ends in level.links for shape in ends}
            for shape, reason in level.aside.items():
                crosses = shape in doors.entered or shape in doors.left
                if reason == "isolated" and shape not in joined and crosses:
                    yield Fault(
                        shape.name,
                        f"in {shown_place(level.box.name)}, it has circles and no line to others, "
                        "and is put aside, without lines to the outside",
                        "draw its constants as nodes, or it in the box around",
                    )


def _loss(level: Level, shape: Shape) -> str:
    reason = level.aside.get(shape)
    if reason and reason != "isolated":
        return f"is put aside for {reason}"
    names = [quote(other.name) for other, why in level.aside.items() if why != "isolated"]
    if not names:
        return "is not connected any more"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    verb = "is" if len(names) == 1 else "are"
    return f"is not connected any more since {', '.join(names[:3])}{more} {verb} put aside"
