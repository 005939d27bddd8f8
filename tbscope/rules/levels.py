"""Rules on the levels of the page: their size, folded stacks, and shapes put aside."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from tbscope.messages import first_of
from tbscope.page.constants import CHAIN_LIMIT, LEVEL_LIMIT, SLOW_LIMIT, STACK_LIMIT
from tbscope.page.glyphs import Box, is_library
from tbscope.page.level_graph import read_levels
from tbscope.page.op_types import is_circle
from tbscope.rules.rule import Fault, LintContext, Rule, quote, shown_place
from tbscope.utils.components import find_cycles

# Attributes that identify a node; nodes that differ in them alone are alike.
_OWN = frozenset({"kernels", "module", "name", "scope", "source"})
_SHAPES = "_output_shapes"


def _wide_level(reading: LintContext) -> Iterator[Fault]:
    """Find levels with so many shapes that their layout is slow, or fails.

    Source: measured: 100 shapes take a second, 300 take two or three, 1,000 take ten; dagre's
    `rank/util.js`, `longestPath`, fails on a chain of 2,000
    """
    for box, stacks in reading.stacks.items():
        shapes = [glyph for glyph in box.children.values() if not is_library(glyph)]
        folded = sum(len(stack.members) - 1 for stack in stacks)
        levels = [(box.name, len(shapes) - folded, LEVEL_LIMIT)]
        levels += [(stack.name, len(stack.members), STACK_LIMIT) for stack in stacks]
        for name, count, most in levels:
            if count > SLOW_LIMIT:
                loss = "takes long to open" if count <= CHAIN_LIMIT else "may stay blank"
                yield Fault(
                    name,
                    f"{shown_place(name)} contains {count} shapes, and {loss}",
                    f"group them in boxes of {most} or less",
                )


def _false_series(reading: LintContext) -> Iterator[Fault]:
    """Find stacks of siblings that are not alike.

    Siblings are alike if all are calls of one module, or if their shapes and attributes are
    equal, except the attributes that identify each of them.

    Source: tf_graph_common/hierarchy.ts:855-1109, `groupSeries`
    """
    for stack in chain(*reading.stacks.values()):
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


def _box_cycle(reading: LintContext) -> Iterator[Fault]:
    """Find boxes whose data leaves them and, along lines of their level, enters them again.

    Source: tf_graph_common/layout.ts: some lines of a cycle run against all others
    """
    for around in reading.stacks:
        for cycle in find_cycles(reading.hierarchy.links(around)):
            members = set(cycle)
            others = [glyph for glyph in around.children.values() if glyph in members]
            box = next((glyph for glyph in others if isinstance(glyph, Box)), None)
            if box is not None:
                others.remove(box)
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                yield Fault(
                    box.name,
                    f"in {shown_place(around.name)}, it and {quote(others[0].name)}{more} "
                    "read each other by turns",
                    "have what runs between its parts stand in it, or its parts beside it",
                )


def _module(node: Any) -> bytes | None:
    """The attribute `module` of a node, the module that it calls, or None if it has none."""
    return next((value.s for key, value in node.attr.items() if key.strip() == "module"), None)


def _difference(nodes: list[Any]) -> str:
    """The first attribute in which nodes differ, or an empty text if they are alike."""
    first = _facts(nodes[0])
    for node in nodes[1:]:
        facts = _facts(node)
        if facts != first:
            return next(key for key in (*first, *facts) if first.get(key) != facts.get(key))
    return ""


def _facts(node: Any) -> dict[str, bytes]:
    """The attributes of a node that must be equal in a stack, serialised."""
    return {
        key: node.attr[key].SerializeToString(deterministic=True)
        for key in sorted(node.attr)
        if key == _SHAPES or (key[:1] != "_" and key.strip() not in _OWN)
    }


def _lost_output(reading: LintContext) -> Iterator[Fault]:
    """Find last operations of the data flow to which no drawn line leads from its beginning.

    Source: tf_graph_common/render.ts:1989-2255, `extractHighDegrees`
    """
    for box, level in read_levels(reading.hierarchy).items():
        drawn = level.folded()
        lost = drawn.lost_ends()
        if not lost or box not in reading.stacks:
            continue
        # A folded level begins with its stacks.
        stacks = reading.stacks[box]
        members = set(chain(*(stack.members for stack in stacks)))
        glyphs = [*stacks, *(glyph for glyph in box.children.values() if glyph not in members)]
        aside = drawn.put_aside()
        names = [quote(glyphs[index].name) for index in sorted(aside)]
        verb = "is" if len(names) == 1 else "are"
        for index in sorted(lost):
            loss = "is put aside for its many lines"
            if index not in aside:
                loss = f"is not connected any more since {first_of(names, 3)} {verb} put aside"
            yield Fault(
                glyphs[index].name,
                f"in {shown_place(box.name)}, it {loss}, "
                "and no drawn line leads to it from where data comes in",
                "put what has many readers or inputs in a box with less around it",
            )


def _lone_node(reading: LintContext) -> Iterator[Fault]:
    """Find operations that the page puts aside: in their box, only circles or icons are linked.

    Source: tf_graph_common/render.ts:2221-2255, `extractHighDegrees`
    """
    doors = reading.hierarchy.doors
    crossed = doors.entered | doors.left
    embedded = [item for item in reading.hierarchy.items.values() if item.embedded]
    icons = [item for item in embedded if not is_circle(item.op)]
    with_icon = {source for icon in icons for source in (*icon.sources, *icon.controls)}
    circles = set(embedded).difference(icons)
    for box, stacks in reading.stacks.items():
        kept = {glyph for ends in reading.hierarchy.links(box) for glyph in ends}
        kept.update(chain(*(stack.members for stack in stacks)))
        for glyph in box.children.values():
            if isinstance(glyph, Box) or glyph in kept or glyph not in crossed:
                continue
            has_circle = not circles.isdisjoint((*glyph.sources, *glyph.controls))
            if has_circle != (glyph in with_icon):
                yield Fault(
                    glyph.name,
                    f"in {shown_place(box.name)}, it has circles and no line to others, "
                    "and is put aside, without lines to the outside",
                    "draw its constants as nodes, or it in the box around",
                )


RULES = (
    Rule("warning", _wide_level),
    Rule("warning", _box_cycle),
    Rule("error", _false_series),
    Rule("error", _lost_output),
    Rule("warning", _lone_node),
)
"""The rules in the order in which they are checked."""
