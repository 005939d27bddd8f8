"""Rules on what is drawn on one level: how much, how long, and what is folded or put aside."""

from collections.abc import Iterator
from typing import Any

from tbscope.messages import first_of
from tbscope.page.constants import CHAIN_LIMIT, LEVEL_LIMIT, SLOW_LIMIT, STACK_LIMIT
from tbscope.page.edges import Links
from tbscope.page.flow import longest_chain, lost_exits
from tbscope.page.function_library import is_library
from tbscope.page.glyphs import Box, Glyph, Series
from tbscope.page.scenes import Scene
from tbscope.rules.lint_context import Fault, Reading, Rule, quote, shown_place
from tbscope.utils.components import find_cycles

__all__ = ["RULES"]

# Attributes that tell a node from its equals, and make no difference between them.
_OWN = frozenset({"kernels", "module", "name", "scope", "source"})
_SHAPES = "_output_shapes"


def _wide_level(reading: Reading) -> Iterator[Fault]:
    """Find levels with so many shapes that laying them out takes a while.

    Source: measured: 100 shapes take a second, 300 take two or three, 1,000 take ten
    """
    stacks = {stack.name for stack in reading.series()}
    for name, shapes, _ in _drawings(reading):
        if len(shapes) > SLOW_LIMIT:
            yield Fault(
                name,
                f"{shown_place(name)} holds {len(shapes)} shapes, and takes long to open",
                f"group them in boxes of {STACK_LIMIT if name in stacks else LEVEL_LIMIT} or less",
            )


def _long_chain(reading: Reading) -> Iterator[Fault]:
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


def _drawings(reading: Reading) -> Iterator[tuple[str, list[Glyph], Links]]:
    """Yield all that is laid out at once: name, glyphs and lines of each box, and of each stack."""
    for scene in reading.scenes:
        yield (
            scene.box.name,
            [glyph for glyph in scene.glyphs if not is_library(glyph)],
            scene.lines,
        )
        for glyph in scene.glyphs:
            if isinstance(glyph, Series):
                members: set[Glyph] = set(glyph.members)
                within = reading.hierarchy.links(scene.box).items()
                links: Links = {ends: link for ends, link in within if members.issuperset(ends)}
                yield glyph.name, list(glyph.members), links


def _false_series(reading: Reading) -> Iterator[Fault]:
    """Find stacks of siblings that are not alike.

    They are alike where all are calls of one module, or where shapes and attributes are
    equal, but for those that say where each of them comes from.

    Source: tf_graph_common/hierarchy.ts:855-1109, `groupSeries`
    """
    for stack in reading.series():
        nodes = [reading.by_name[member.name] for member in stack.members]
        modules = {_module(node) for node in nodes}
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


def _box_cycle(reading: Reading) -> Iterator[Fault]:
    """Find boxes from which data leads out and, along lines of their level, back in.

    Source: tf_graph_common/layout.ts: lines of a cycle run against all others
    """
    for scene in reading.scenes:
        for cycle in find_cycles(reading.hierarchy.links(scene.box)):
            found = set(cycle)
            boxes = [one for one in scene.glyphs if one in found and isinstance(one, Box)]
            if boxes:
                others = [one for one in scene.box.children.values() if one in found]
                others.remove(boxes[0])
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                yield Fault(
                    boxes[0].name,
                    f"in {shown_place(scene.box.name)}, it and {quote(others[0].name)}{more} "
                    "read each other by turns",
                    "have what runs between its parts stand in it, or its parts beside it",
                )


def _module(node: Any) -> bytes | None:
    """The module that a node is a call of; None where it tells of none."""
    return next((value.s for key, value in node.attr.items() if key.strip() == "module"), None)


def _difference(nodes: list[Any]) -> str:
    """The first attribute in which nodes differ; empty where they are alike."""
    first = _facts(nodes[0])
    for node in nodes[1:]:
        facts = _facts(node)
        if facts != first:
            return next(key for key in (*first, *facts) if first.get(key) != facts.get(key))
    return ""


def _facts(node: Any) -> dict[str, bytes]:
    """The attributes that must be equal, as bytes."""
    return {
        key: node.attr[key].SerializeToString(deterministic=True)
        for key in sorted(node.attr)
        if key == _SHAPES or (key[:1] != "_" and key.strip() not in _OWN)
    }


def _lost_output(reading: Reading) -> Iterator[Fault]:
    """Find ends of the flow that the page cuts off from where it begins.

    Source: tf_graph_common/render.ts:1989-2255, `extractHighDegrees`
    """
    for scene in reading.scenes:
        if scene.aside or len(scene.lines) < len(scene.links):
            joined = {glyph for ends in scene.links for glyph in ends}
            for glyph in lost_exits(reading.hierarchy, scene):
                if glyph in joined:
                    yield Fault(
                        glyph.name,
                        f"in {shown_place(scene.box.name)}, it {_loss(scene, glyph)}, "
                        "and no drawn line leads to it from where data comes in",
                        "put what has many readers or inputs in a box with less around it",
                    )


def _lone_node(reading: Reading) -> Iterator[Fault]:
    """Find operations that hang on circles or icons alone in their box, and are put aside.

    Source: tf_graph_common/render.ts:2221-2255, `extractHighDegrees`
    """
    doors = reading.hierarchy.doors
    for scene in reading.scenes:
        joined = {glyph for ends in scene.links for glyph in ends} if scene.aside else set()
        for glyph, reason in scene.aside.items():
            crosses = glyph in doors.entered or glyph in doors.left
            if reason == "isolated" and glyph not in joined and crosses:
                yield Fault(
                    glyph.name,
                    f"in {shown_place(scene.box.name)}, it has circles and no line to others, "
                    "and is put aside, without lines to the outside",
                    "draw its constants as nodes, or it in the box around",
                )


def _loss(scene: Scene, glyph: Glyph) -> str:
    reason = scene.aside.get(glyph)
    if reason and reason != "isolated":
        return f"is put aside for {reason}"
    names = [quote(other.name) for other, why in scene.aside.items() if why != "isolated"]
    if not names:
        return "is not connected any more"
    verb = "is" if len(names) == 1 else "are"
    return f"is not connected any more since {first_of(names, 3)} {verb} put aside"


RULES = (
    Rule("warning", _wide_level),
    Rule("error", _long_chain),
    Rule("warning", _box_cycle),
    Rule("error", _false_series),
    Rule("error", _lost_output),
    Rule("warning", _lone_node),
)
"""The rules in the order in which they are checked."""
