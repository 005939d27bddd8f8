"""Rules on nodes: names that the page cannot show, op types, inputs and attributes."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tbscope.page.constants import ASIDE_OP, ATTRIBUTE_BYTES, LIBRARY
from tbscope.page.glyphs import Box, Item
from tbscope.page.hierarchy import parse_input
from tbscope.page.op_types import RESERVED, is_circle, is_embedded
from tbscope.rules.rule import Fault, LintContext, Rule, quote

# -- names ---------------------------------------------------------------------------------

# These are no keys of plain JavaScript objects: such an input only names no node.
_HARMLESS_INPUTS = frozenset({"__root__", "length"})
ODD = re.compile(r"""[!"$%&'*;<=?@^`{|}\x00-\x20\x7f]""")
"""Characters that the page does not escape when it colours shapes."""


def _empty_graph(reading: LintContext) -> Iterator[Fault]:
    """Find a GraphDef without nodes and functions.

    Source: tensorboard/plugins/graph/tf_graph_loader: "The graph is empty".
    """
    if not reading.nodes and not reading.functions:
        yield Fault(
            "",
            "the GraphDef has no nodes, and the page says that the graph is empty",
            "add at least one node",
        )


def _broken_name(reading: LintContext) -> Iterator[Fault]:
    """Find names that the page cannot place, or that no input can name.

    Source: tf_graph_common/op.ts:554; render.ts:350, :903, `buildSubhierarchy`; graph.ts:928,
    :941, `normalizeInputs`, and :1408, `getHierarchicalPath`
    """
    for node in reading.nodes:
        name = node.name
        parts = [part for part in name.lstrip("^").replace(":", ".").split("/") if part]
        mended = "/".join(parts) or "unnamed"
        whys = []
        if not name:
            whys.append(f"a node of op {quote(node.op)} has no name, and the page fails")
        if name.startswith("/"):
            whys.append("the name begins with '/', and the page stays blank")
        if name.lstrip("/").endswith("/") or "//" in name.lstrip("/"):
            whys.append("a part of the name is empty, and what it names is drawn without a label")
        if ":" in name:
            read_as = parse_input(f"{name}:0")[0]
            read_as = read_as if parse_input(name)[0] == name else name.partition(":")[0]
            whys.append(
                f"the name has a ':', and an input of it is read as one of {quote(read_as)}"
            )
        if name.startswith("^"):
            whys.append(
                "the name begins with '^', and inputs of it are read as control inputs of another"
            )
        for why in whys:
            yield Fault(name, why, f"name it {quote(mended)}" if name else "give it a name")


def _reserved_name(reading: LintContext) -> Iterator[Fault]:
    """Find first parts of names, and inputs, that are keys of every JavaScript object.

    `length` is a key of lists only: the page does not draw a box or node of that name.

    Source: tf_graph_common/hierarchy.ts and graph.ts, whose tables are plain objects
    """
    reported: set[str] = set()
    for node in reading.nodes:
        first = node.name.partition("/")[0]
        if first in RESERVED and first not in reported:
            reported.add(first)
            yield Fault(
                node.name,
                f"the name begins with {first!r}, which means something else to JavaScript or "
                "the page, and the page fails or draws it wrongly",
                f"call it {first + '_'!r}",
            )
        for text in node.input:
            name = parse_input(text)[0]
            if name in RESERVED and name not in _HARMLESS_INPUTS and name not in reading.names:
                yield Fault(
                    node.name,
                    f"the input {text!r} is a key of every JavaScript object, and the page fails",
                    "leave the input out",
                )


def _duplicate_name(reading: LintContext) -> Iterator[Fault]:
    """Find names that several nodes have on the page.

    Source: tf_graph_common/graph.ts:1198-1215, `build`
    """
    strict = reading.hierarchy.strict
    counts = Counter(strict.get(node.name, node.name) for node in reading.nodes)
    for name, count in counts.items():
        if count > 1:
            yield Fault(
                name,
                f"{count} nodes have this name on the page, and it shows the last one "
                "with the edges of all",
                "give each node a name of its own",
            )


def _scope_constant(reading: LintContext) -> Iterator[Fault]:
    """Find constants and summaries with the name of a box.

    Source: tf_graph_common/graph.ts:1348, `mapStrictHierarchy`, which omits the last name
    """
    for node in reading.nodes:
        if node.name in reading.hierarchy.boxes and is_embedded(node.op):
            yield Fault(
                node.name,
                f"a node of op {quote(node.op)} is named like the box around others, "
                "and may take its place, so that the box cannot be opened",
                f"name it {quote(node.name + '/value')}",
            )


def _odd_character(reading: LintContext) -> Iterator[Fault]:
    """Find characters in names that the page does not escape when it colours shapes.

    Source: tf_graph_common/util.ts:259; node.ts:740-747
    """
    for name in (*reading.hierarchy.boxes, *reading.names):
        label = name.rpartition("/")[2]
        # Only the last component: a fault of a box is reported once, not for everything in it.
        odd = sorted(set(ODD.findall(label)))
        if odd:
            yield Fault(
                name,
                f"the name has {', '.join(map(repr, odd))}, and colouring by device, cluster "
                "or compatibility fails",
                "use A-Z a-z 0-9 _ - . [ ] ( ) and ','",
            )


def _non_ascii(reading: LintContext) -> Iterator[Fault]:
    """Find names, op types and devices that are not ASCII.

    Source: tf_graph_common/parser.ts:147, :170, which splits the text at any byte
    """
    for name in reading.hierarchy.boxes:
        if not name.rpartition("/")[2].isascii():
            yield Fault(name, *_not_ascii("name of the box", name))
    for node in reading.nodes:
        texts = {"name": node.name.rpartition("/")[2], "op": node.op, "device": node.device}
        for what, text in texts.items():
            if not text.isascii():
                yield Fault(node.name, *_not_ascii(what, text))


def _not_ascii(what: str, text: str) -> tuple[str, str]:
    return (
        f"the {what} {quote(text)} is not ASCII, and may be shown as other characters",
        "use ASCII characters",
    )


# -- op types ------------------------------------------------------------------------------


def _reserved_op(reading: LintContext) -> Iterator[Fault]:
    """Find op types that are keys of every JavaScript object.

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


def _swallowed_op(reading: LintContext) -> Iterator[Fault]:
    """Find operations that are drawn as constants or summaries only because of their op type.

    A constant reads no data and has one output; nothing reads a summary.

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


def _does_what_no_constant_does(reading: LintContext, node: Any) -> str:
    for text in node.input:
        if text and text[0] != "^":
            return f"reads {quote(text)}"
    last = reading.outputs_read.get(node.name, 0)
    return f"gives {last + 1} outputs" if last else ""


def _no_op(reading: LintContext) -> Iterator[Fault]:
    """Find data that flows through nodes or boxes that the page puts aside.

    Source: tf_graph_common/render.ts:172, `outExtractTypes`, and :1969, `hasTypeIn`
    """
    for box in reading.stacks:
        links = reading.hierarchy.links(box).items()
        linked = {glyph for ends, link in links if link.data for glyph in ends}
        for glyph in box.children.values():
            node = glyph
            if isinstance(glyph, Box):
                # A box is put aside for a `NoOp` that is named like it.
                node = glyph.children.get(f"({glyph.label})", glyph)
            if glyph in linked and isinstance(node, Item) and node.op == ASIDE_OP:
                what = "the op" if node is glyph else "a box of op"
                yield Fault(
                    glyph.name,
                    f"{what} {ASIDE_OP!r} is put aside, and data flows through it",
                    "use another op, as 'Pass'",
                )


# -- inputs --------------------------------------------------------------------------------


def _dangling_input(reading: LintContext) -> Iterator[Fault]:
    """Find inputs that name nothing, or a box; an empty input only separates two others.

    Source: tf_graph_common/hierarchy.ts:790, `addEdges`; render.ts, `traceInputs`, throws
    """
    boxes, items = reading.hierarchy.boxes, reading.hierarchy.items
    for node in reading.nodes:
        for text in node.input:
            name = parse_input(text)[0]
            if not text or text in reading.names or name in reading.names or name in items:
                continue
            if name in boxes:
                yield Fault(
                    node.name,
                    f"the input {quote(text)} names a box, its edge is not drawn, and tracing "
                    "inputs fails",
                    f"name a node in {quote(name)}",
                )
            else:
                yield Fault(
                    node.name,
                    f"the input {quote(text)} names no node, and its edge is not drawn",
                    "name a node, or leave the input out",
                )


def _self_input(reading: LintContext) -> Iterator[Fault]:
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


def _collapsed_edges(reading: LintContext) -> Iterator[Fault]:
    """Find inputs whose edge the page drops, as the input before names the same node.

    Source: tf_graph_common/graph.ts:961, `normalizeInputs`
    """
    for node in reading.nodes:
        before = ""
        lost: list[str] = []
        for text in node.input:
            name = parse_input(text)[0]
            if name and name == before:
                lost.append(text)
            before = name
        if lost:
            comes = "an input comes" if len(lost) == 1 else f"{len(lost)} inputs come"
            yield Fault(
                node.name,
                f"{comes} after one of the same node, as {quote(lost[0])}, "
                "and the page draws no edge for it",
                "put an empty input '' between them",
            )


def _missing_shape(reading: LintContext) -> Iterator[Fault]:
    """Find outputs that some node reads and that have no shape.

    Circles and icons need no shape, and nodes of the function panel are only patterns.

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


# -- attributes ---------------------------------------------------------------------------


def _large_attribute(reading: LintContext) -> Iterator[Fault]:
    """Find attributes of more than 1 KB; shapes of outputs may have any length.

    Source: tensorboard/plugins/graph/tf_graph_dashboard/tf-graph-dashboard-loader.ts:116-129
    does not send `limit_attr_size`
    """
    for node in reading.nodes:
        for key, value in node.attr.items():
            size = value.ByteSize()
            if size > ATTRIBUTE_BYTES and key != "_output_shapes":
                yield Fault(
                    node.name,
                    f"the attribute {quote(key)} has {size} bytes, and the page loads them all",
                    f"cut it to {ATTRIBUTE_BYTES} bytes, and name it in '_too_large_attrs'",
                )


def _attribute_text(reading: LintContext) -> Iterator[Fault]:
    """Find texts that the page shows with escapes: several lines, or non-ASCII characters.

    Source: tf_graph_common/parser.ts:20-33, :316-341, which decodes no escapes
    """
    for node in reading.nodes:
        for key, value in node.attr.items():
            texts = (key.encode(), value.s, *(value.list.s if value.HasField("list") else ()))
            if not all(text.isascii() and text.decode("ascii").isprintable() for text in texts):
                yield Fault(
                    node.name,
                    f"the attribute {quote(key)} is not one line of ASCII, "
                    "and is shown with escapes",
                    "give one line of ASCII characters",
                )


RULES = (
    Rule("error", _empty_graph),
    Rule("error", _broken_name),
    Rule("error", _reserved_name),
    Rule("error", _duplicate_name),
    Rule("error", _scope_constant),
    Rule("warning", _odd_character),
    Rule("warning", _non_ascii),
    Rule("error", _reserved_op),
    Rule("error", _swallowed_op),
    Rule("error", _no_op),
    Rule("error", _dangling_input),
    Rule("error", _self_input),
    Rule("error", _collapsed_edges),
    Rule("warning", _missing_shape),
    Rule("warning", _large_attribute),
    Rule("warning", _attribute_text),
)
"""The rules in the order in which they are checked."""
