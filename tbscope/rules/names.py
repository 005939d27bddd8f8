"""Rules on names: those that make the page fail, or that it shows differently."""

import re
from collections import Counter
from collections.abc import Iterator

from tbscope.page.function_library import is_of_legend
from tbscope.page.hierarchy import parse_input
from tbscope.page.op_types import RESERVED, is_embedded
from tbscope.rules.rule import Fault, LintContext, Rule, quote

__all__ = ["RULES"]

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
        if is_of_legend(name):
            # A box of the colour legend is not coloured so, and its final blanks are invisible.
            label = label.rstrip(" ")
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


RULES = (
    Rule("error", _empty_graph),
    Rule("error", _broken_name),
    Rule("error", _reserved_name),
    Rule("error", _duplicate_name),
    Rule("error", _scope_constant),
    Rule("warning", _odd_character),
    Rule("warning", _non_ascii),
)
"""The rules in the order in which they are checked."""
