"""Rules on the levels of the page: their size and chains, folded stacks, and shapes put aside."""

from collections.abc import Iterator
from typing import Any

from tbscope.messages import first_of
from tbscope.page.constants import CHAIN_LIMIT, LEVEL_LIMIT, SLOW_LIMIT, STACK_LIMIT
from tbscope.page.glyphs import Box, Glyph, Series, is_library
from tbscope.page.hierarchy import Links
from tbscope.page.scenes import Scene, longest_chain, lost_exits
from tbscope.rules.rule import Fault, LintContext, Rule, quote, shown_place
from tbscope.utils.components import find_cycles

# Attributes that identify a node; nodes that differ in them alone are alike.
_OWN = frozenset({"kernels", "module", "name", "scope", "source"})
_SHAPES = "_output_shapes"


def _wide_level(reading: LintContext) -> Iterator[Fault]:
    """Find levels with so many shapes that their layout is slow.

    Source: measured: 100 shapes take a second, 300 take two or three, 1,000 take ten
    """
    stacks = {stack.name for stack in reading.series()}
    for name, shapes, _ in _drawings(reading):
        if len(shapes) > SLOW_LIMIT:
            yield Fault(
                name,
                f"{shown_place(name)} contains {len(shapes)} shapes, and takes long to open",
                f"group them in boxes of {STACK_LIMIT if name in stacks else LEVEL_LIMIT} or less",
            )


def _long_chain(reading: LintContext) -> Iterator[Fault]:
    """Find chains that are too long for the page's layout.

    Source: dagre's `rank/util.js`, `longestPath`; measured: 2,000 in a chain fail
    """
    for name, shapes, links in _drawings(reading):
        # A chain has at most as many shapes as its level.
        if len(shapes) > CHAIN_LIMIT:
            length = longest_chain(shapes, links)
            if length > CHAIN_LIMIT:
                yield Fault(
                    name,
                    f"{shown_place(name)} contains a chain of {length} shapes, "
                    "and the page may stay blank",
                    f"group them in boxes of {LEVEL_LIMIT} or less",
                )


def _drawings(reading: LintContext) -> Iterator[tuple[str, list[Glyph], Links]]:
    """Yield each level that is laid out at once (boxes, stacks): its name, glyphs and lines."""
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


def _false_series(reading: LintContext) -> Iterator[Fault]:
    """Find stacks of siblings that are not alike.

    Siblings are alike if all are calls of one module, or if their shapes and attributes are
    equal, except the attributes that identify each of them.

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


def _box_cycle(reading: LintContext) -> Iterator[Fault]:
    """Find boxes whose data leaves them and, along lines of their level, enters them again.

    Source: tf_graph_common/layout.ts: some lines of a cycle run against all others
    """
    for scene in reading.scenes:
        for cycle in find_cycles(reading.hierarchy.links(scene.box)):
            members = set(cycle)
            boxes = [glyph for glyph in scene.glyphs if glyph in members and isinstance(glyph, Box)]
            if boxes:
                others = [glyph for glyph in scene.box.children.values() if glyph in members]
                others.remove(boxes[0])
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                yield Fault(
                    boxes[0].name,
                    f"in {shown_place(scene.box.name)}, it and {quote(others[0].name)}{more} "
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


def _lone_node(reading: LintContext) -> Iterator[Fault]:
    """Find operations that the page puts aside: in their box, only circles or icons are linked.

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
    names = [quote(aside.name) for aside, why in scene.aside.items() if why != "isolated"]
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
