"""Mends GraphDefs: changes what breaks a rule of the page, as little as is needed for that.

What a change cannot mend without another drawing (crowded levels, cycles) stays, and is told.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.page.constants import ASIDE_OP, ATTRIBUTE_BYTES, EXACT_INTEGER
from tbscope.page.hierarchy import Hierarchy, parse_input
from tbscope.page.ops import RESERVED, is_circle, is_embedded, op_type
from tbscope.rules.attributes import legend_device
from tbscope.rules.linter import Finding, lint
from tbscope.rules.names import ODD
from tbscope.rules.told_shapes import told_shapes

__all__ = ["Repaired", "repair"]

# What one mend uncovers, the next round mends.
_MOST_ROUNDS = 4
_LISTS = frozenset({"prim::ListConstruct", "prim::TupleConstruct"})
# As torch tells what a constant holds.
_HELD = re.compile(r"\{ *value : ?(.*)\}", re.DOTALL)
# In any other form the page ignores them.
_FORMS = {"_output_shapes": "list", "_XlaCluster": "s"}


@dataclass(frozen=True, slots=True)
class Repaired:
    """A GraphDef that was mended.

    Attributes:
        graph_def: A new message.
        before: What was found in the one given.
        left: What is still found.
        renamed: The new names of nodes, by their old ones.
    """

    graph_def: GraphDef
    before: list[Finding]
    left: list[Finding]
    renamed: dict[str, str]


def repair(graph_def: GraphDef) -> Repaired:
    """Return a GraphDef that breaks fewer rules; the one given stays as it is.

    Names become legal, inputs that name nothing are left out, shapes are listed where the nodes
    around tell them, attributes get a form that the page shows.

    Args:
        graph_def: The GraphDef.
    """
    before = lint(graph_def)
    message = GraphDef()
    message.CopyFrom(graph_def)
    left, renamed = before, {node.name: node.name for node in message.node}
    for _ in range(_MOST_ROUNDS):
        if not left:
            break
        broken = {finding.rule for finding in left}
        for rules, mend in _MENDS:
            if not broken.isdisjoint(rules):
                names = mend(message, left)
                renamed = {old: names.get(new, new) for old, new in renamed.items()}
        found = lint(message)
        if found == left:
            break
        left = found
    changed = {old: new for old, new in renamed.items() if old != new}
    return Repaired(message, before, left, changed)


def _rename(message: GraphDef, left: list[Finding]) -> dict[str, str]:
    """Give every node a legal name of its own, and its readers the new one."""
    taken: set[str] = set()
    known = {node.name for node in message.node}
    boxes = Hierarchy.of(message).boxes
    names: dict[str, str] = {}
    for node in message.node:
        wish = _legal(node.name)
        if node.name in boxes and is_embedded(node.op):
            wish += "/value"
        free, number = wish, 1
        # A name that another node has by right stays with that one.
        while free in taken or (free != node.name and free in known):
            number += 1
            free = f"{wish}_{number}"
        taken.add(free)
        names.setdefault(node.name, free)
        node.name = free
    for node in message.node:
        for place, text in enumerate(node.input):
            caret = "" if text in names or not text.startswith("^") else "^"
            bare = text.removeprefix(caret)
            name = bare if bare in names else parse_input(bare)[0]
            if name in names:
                node.input[place] = f"{caret}{names[name]}{bare[len(name) :]}"
    return names


def _legal(name: str) -> str:
    """Return a name with what the page cannot have in it replaced."""
    parts = [part for part in name.lstrip("^").replace(":", ".").split("/") if part]
    plain = [
        ODD.sub("_", part.encode("ascii", "backslashreplace").decode().replace("\\", "_"))
        for part in parts
    ]
    if plain and plain[0] in RESERVED:
        plain[0] += "_"
    return "/".join(plain) or "unnamed"


def _recast(message: GraphDef, left: list[Finding]) -> dict[str, str]:
    """Give operations op types to which the page gives no other meaning."""
    places = {(finding.rule, finding.node) for finding in left}
    read = _read_names(message)
    constants = {
        node.name
        for node in message.node
        if is_circle(node.op) and not any(text and text[0] != "^" for text in node.input)
    }
    nodes = {node.name: node for node in message.node}
    for node in message.node:
        if ("swallowed-op", node.name) in places:
            if _is_constant_list(node, constants):
                _fold(node, nodes)
            else:
                node.op = op_type(node.op)
        elif ("function-op", node.name) in places:
            node.op += "_"
        elif node.op == ASIDE_OP and _is_put_aside(node.name, places):
            node.op = "Pass"
        elif any((rule, node.name) in places for rule in ("reserved-op", "reference-edge")):
            node.op = op_type(node.op)
        if not node.op.isascii():
            node.op = node.op.encode("ascii", "backslashreplace").decode()
    # What only made up a list of constants has no reader any more.
    after = _read_names(message)
    gone = {name for name in constants if name in read and name not in after}
    kept = [node for node in message.node if node.name not in gone]
    if gone:
        del message.node[:]
        message.node.extend(kept)
    return {}


def _is_put_aside(name: str, places: set[tuple[str, str]]) -> bool:
    """Tell whether data flows through a node that is put aside, or a box that is so around it."""
    while name:
        if ("no-op", name) in places:
            return True
        name = name.rpartition("/")[0]
    return False


def _is_constant_list(node: Any, constants: set[str]) -> bool:
    """Tell whether an operation of torch's makes a list of nothing but constants."""
    named = [parse_input(text)[0] for text in node.input if text]
    return node.op in _LISTS and bool(named) and constants.issuperset(named)


def _fold(node: Any, nodes: Mapping[str, Any]) -> None:
    """Make a list of constants a constant, of torch's form, which tells what they hold."""
    named = [parse_input(text)[0] for text in node.input if text]
    texts = []
    for name in named:
        told = nodes[name].attr["attr"].s.decode() if "attr" in nodes[name].attr else ""
        found = _HELD.fullmatch(told)
        texts.append(found[1].strip() if found else name)
    del node.input[:]
    node.op = "prim::Constant"
    node.attr["attr"].s = f"{{ value : [{', '.join(texts)}]}}".encode()


def _read_names(message: GraphDef) -> Counter[str]:
    return Counter(parse_input(text)[0] for node in message.node for text in node.input if text)


def _reconnect(message: GraphDef, left: list[Finding]) -> dict[str, str]:
    """Leave out inputs that lead nowhere, and put an empty one between two of one node."""
    names = {node.name for node in message.node}
    items = Hierarchy.of(message).items
    for node in message.node:
        kept: list[str] = []
        before = ""
        for text in node.input:
            name = text if text in names else parse_input(text)[0]
            if text and (name == node.name or (name not in names and name not in items)):
                continue
            if text and name == before:
                kept.append("")
            kept.append(text)
            before = name
        del node.input[:]
        node.input.extend(kept)
    return {}


def _tell_shapes(message: GraphDef, left: list[Finding]) -> dict[str, str]:
    """List the shapes that the nodes around tell."""
    nodes = {node.name: node for node in message.node}
    missing = {finding.node for finding in left if finding.rule == "missing-shape"}
    for name, shape in told_shapes(nodes).items():
        if name in missing and "_output_shapes" not in nodes[name].attr:
            listed = nodes[name].attr["_output_shapes"].list.shape.add()
            for size in shape:
                listed.dim.add().size = -1 if size is None else size
    return {}


def _reword(message: GraphDef, left: list[Finding]) -> dict[str, str]:
    """Give attributes and devices a form that the page shows."""
    for node in message.node:
        if node.device:
            node.device = legend_device(_one_line(node.device.encode()).decode())
        large = []
        for key in list(node.attr):
            value = node.attr[key]
            if key in _FORMS and not value.HasField(_FORMS[key]):
                del node.attr[key]
                continue
            _make_plain(value)
            plain = _one_line(key.encode()).decode()
            if plain != key:
                node.attr[plain].CopyFrom(value)
                del node.attr[key]
            if value.ByteSize() > ATTRIBUTE_BYTES and key != "_output_shapes":
                large.append(plain)
        for key in large:
            _cut(node, key)
    return {}


def _make_plain(value: Any) -> None:
    """Have texts be one line of ASCII, and integers that JavaScript cannot hold be texts."""
    if value.s:
        value.s = _one_line(value.s)
    elif abs(value.i) > EXACT_INTEGER:
        value.s = str(value.i).encode()
    elif value.HasField("list"):
        held = value.list
        if any(abs(number) > EXACT_INTEGER for number in held.i):
            texts = [str(number).encode() for number in held.i]
            del held.i[:]
            held.s.extend(texts)
        for place, text in enumerate(held.s):
            held.s[place] = _one_line(text)


def _cut(node: Any, key: str) -> None:
    """Shorten an attribute that is too large, and name it where the page looks for such."""
    value = node.attr[key]
    if value.s:
        value.s = value.s[: ATTRIBUTE_BYTES - 10] + b"..."
    else:
        del node.attr[key]
    node.attr["_too_large_attrs"].list.s.append(key[:100].encode())


def _one_line(text: bytes) -> bytes:
    words = " ".join(text.decode("utf-8", "backslashreplace").split())
    plain = words.encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain).encode()


_MENDS: tuple[tuple[frozenset[str], Callable[[GraphDef, list[Finding]], dict[str, str]]], ...] = (
    (
        frozenset(
            {
                *("empty-name", "leading-slash", "empty-part", "colon-name", "caret-name"),
                *("reserved-name", "duplicate-name", "scope-constant", "odd-character"),
                "non-ascii",
            }
        ),
        _rename,
    ),
    # Before lists of constants become constants, which tell less.
    (frozenset({"missing-shape"}), _tell_shapes),
    (
        frozenset(
            {"reserved-op", "swallowed-op", "function-op", "reference-edge", "no-op", "non-ascii"}
        ),
        _recast,
    ),
    (
        frozenset(
            {"dangling-input", "scope-input", "self-input", "collapsed-edges", "reserved-name"}
        ),
        _reconnect,
    ),
    (
        frozenset(
            {
                *("large-attribute", "attribute-text", "attribute-number", "ignored-attribute"),
                *("device-legend", "non-ascii"),
            }
        ),
        _reword,
    ),
)
"""What mends which rules, in the order in which it is done."""
