"""Rules on op types to which the page gives a meaning of its own."""

from collections.abc import Iterator
from typing import Any

from tbscope.page.constants import ASIDE_OP, LIBRARY, LIBRARY_ENDING
from tbscope.page.glyphs import Item
from tbscope.page.hierarchy import parse_input
from tbscope.page.library import is_of_legend
from tbscope.page.ops import REFERENCE, RESERVED, is_circle, is_embedded
from tbscope.rules.reading import Fault, Reading, quote

__all__ = [
    "function_op",
    "no_op",
    "reference_edge",
    "reserved_op",
    "swallowed_op",
    "unread_constant",
]


def reserved_op(reading: Reading) -> Iterator[Fault]:
    """Find op types that every JavaScript object has as a key.

    Source: tf_graph_common/hierarchy.ts:664, `addNodes`; template.ts:73, `getSignature`
    """
    for node in reading.nodes:
        if node.op in RESERVED and node.op != "__root__":
            what = "the page colours boxes wrongly" if node.op == "length" else "the page fails"
            yield Fault(
                node.name,
                f"the op {node.op!r} is a key of JavaScript objects, and {what}",
                f"use the op {node.op + '_'!r}",
            )


def swallowed_op(reading: Reading) -> Iterator[Fault]:
    """Find operations drawn as constants or summaries, only because of what they are called.

    A constant reads no data and gives one tensor; a summary is read by none.

    Source: tf_graph_common/graph.ts:1027, `inEmbeddingTypes`, `outEmbeddingTypes`
    """
    for node in reading.nodes:
        if not is_embedded(node.op):
            continue
        if is_circle(node.op):
            does = _does_what_no_constant_does(reading, node)
            drawn, fix = "a small circle, as a constant is", node.op.replace("Const", "const")
        else:
            does = "is read by others" if node.name in reading.outputs_read else ""
            drawn, fix = "a small icon, as a summary is", node.op.replace("Summary", "summary")
        if does:
            yield Fault(
                node.name,
                f"the op {quote(node.op)} {does}, and is drawn as {drawn}",
                f"use the op {quote(fix)}",
            )


def _does_what_no_constant_does(reading: Reading, node: Any) -> str:
    for text in node.input:
        if text and text[0] != "^":
            return f"reads {quote(text)}"
    last = reading.outputs_read.get(node.name, 0)
    return f"gives {last + 1} outputs" if last else ""


def unread_constant(reading: Reading) -> Iterator[Fault]:
    """Find circles and icons with nothing to stand beside.

    Source: tf_graph_common/graph.ts:1225-1268, `build`
    """
    items = reading.hierarchy.items.values()
    beside = {
        source for item in items if not item.embedded for source in (*item.sources, *item.controls)
    }
    for item in items:
        if not item.embedded:
            continue
        if is_circle(item.op):
            shown = item in beside
        else:
            shown = any(not source.embedded for source in (*item.sources, *item.controls))
        if not shown:
            why = "nothing reads it" if is_circle(item.op) else "it reads nothing"
            yield Fault(
                item.name,
                f"the op {quote(item.op)} is drawn beside others, and {why}: it is not drawn",
                "leave it out",
            )


def function_op(reading: Reading) -> Iterator[Fault]:
    """Find nodes that become function calls because a box in the function panel is named so.

    Source: tf_graph_common/render.ts:866, `buildSubhierarchy`
    """
    defined = {function.signature.name for function in reading.functions}
    for node in reading.nodes:
        op = node.op
        if op in reading.library and op not in defined and not node.name.startswith(LIBRARY):
            yield Fault(
                node.name,
                f"the op {quote(op)} is also the name of the box {quote(LIBRARY + op)}, "
                "and the page draws the node as a call of it",
                f"name the box {quote(LIBRARY + op + LIBRARY_ENDING)}",
            )


def reference_edge(reading: Reading) -> Iterator[Fault]:
    """Find edges that are drawn backwards, as if a variable were written to.

    Source: tf_graph_common/graph.ts:1000-1016, `refEdges`
    """
    known = reading.hierarchy.items
    strict = reading.hierarchy.strict
    for node in reading.nodes:
        # What colours boxes is never drawn.
        if node.op in REFERENCE and node.input and not is_of_legend(node.name):
            text = node.input[0]
            name = parse_input(text)[0]
            source = known.get(strict.get(name, name))
            if "gradient_of" in node.attr or (source is not None and source.op in REFERENCE):
                # The colour of references is that of gradients, too.
                continue
            if source is not None and not source.embedded and "Var" not in source.op:
                yield Fault(
                    node.name,
                    f"the edge from {quote(text)} into the op {quote(node.op)} is drawn as a "
                    f"reference to a variable, and {quote(name)} is of op {quote(source.op)}",
                    f"use the op {quote(node.op.swapcase())}",
                )


def no_op(reading: Reading) -> Iterator[Fault]:
    """Find data that flows through what the page puts aside.

    Source: tf_graph_common/render.ts:172, `outExtractTypes`
    """
    for scene in reading.scenes:
        aside = {
            glyph
            for glyph, reason in scene.aside.items()
            if reason == ASIDE_OP and glyph.name not in reading.heralds
        }
        if not aside:
            continue
        told: set[object] = set()
        for ends, link in scene.links.items():
            for glyph in ends:
                if link.data and glyph in aside and glyph not in told:
                    told.add(glyph)
                    what = (
                        f"the op {ASIDE_OP!r}"
                        if isinstance(glyph, Item)
                        else f"a box of op {ASIDE_OP!r}"
                    )
                    yield Fault(
                        glyph.name,
                        f"{what} is put aside, and data flows through it",
                        "use another op, as 'Pass'",
                    )
