"""Tells which rules of TensorBoard's page a GraphDef breaks, whoever made it.

for finding in lint(graph_def):
    print(finding)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.rules import attributes, calls, inputs, levels, names, ops
from tbscope.rules.reading import Fault, Reading

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint"]

Severity: TypeAlias = Literal["error", "warning"]
"""An error breaks the page or shows something false; a warning makes it worse than it could be."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a GraphDef breaks a rule.

    Attributes:
        rule: The id of the rule (`dangling-input`).
        node: The name of the node or the box; empty for the whole.
        message: What is the matter, one sentence, with the values.
        fix: What to do, one sentence.
        severity: "error" or "warning".
    """

    rule: str
    node: str
    message: str
    fix: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.rule}: {self.node}: {self.message}"


class Rule(NamedTuple):
    """One rule of the page.

    Attributes:
        name: Its id.
        severity: How bad it is to break it.
        description: What holds where it is kept, one sentence.
        check: Gives the places where it is broken.
    """

    name: str
    severity: Severity
    description: str
    check: Callable[[Reading], Iterator[Fault]]


RULES = (
    Rule("empty-graph", "error", "There is at least one node.", names.empty_graph),
    Rule("empty-name", "error", "Every node has a name.", names.empty_name),
    Rule("leading-slash", "error", "No name begins with `/`.", names.leading_slash),
    Rule("empty-part", "error", "No name ends with `/` or has `//` in it.", names.empty_part),
    Rule("colon-name", "error", "No name has a `:` in it.", names.colon_name),
    Rule("caret-name", "error", "No name begins with `^`.", names.caret_name),
    Rule(
        "reserved-name",
        "error",
        "No first part of a name, and no input, is a key of every JavaScript object.",
        names.reserved_name,
    ),
    Rule(
        "duplicate-name",
        "error",
        "No two nodes have one name on the page.",
        names.duplicate_name,
    ),
    Rule(
        "scope-constant",
        "error",
        "No constant or summary is named like a box.",
        names.scope_constant,
    ),
    Rule(
        "odd-character",
        "warning",
        "Names have no spaces, and none of ``! \" $ % & ' * ; < = ? @ ^ ` { | }``.",
        names.odd_character,
    ),
    Rule("non-ascii", "warning", "Names, op types and devices are ASCII.", names.non_ascii),
    Rule(
        "reserved-op",
        "error",
        "No op type is a key of every JavaScript object.",
        ops.reserved_op,
    ),
    Rule(
        "swallowed-op",
        "error",
        "Op types with `Const` in them are constants, those in `Summary` are summaries.",
        ops.swallowed_op,
    ),
    Rule(
        "unread-constant",
        "warning",
        "Constants are read, and summaries read something, or they are not drawn.",
        ops.unread_constant,
    ),
    Rule(
        "function-op",
        "error",
        "No op type is the name of a box in the function panel.",
        ops.function_op,
    ),
    Rule(
        "function-call",
        "error",
        "Calls of functions of the library have a form that the page draws in the flow.",
        calls.function_call,
    ),
    Rule(
        "reference-edge",
        "error",
        "What `Assign` and its like read first is a variable, or a gradient on its way to one.",
        ops.reference_edge,
    ),
    Rule("no-op", "error", "No data flows through a `NoOp`.", ops.no_op),
    Rule("dangling-input", "error", "Every input names a node.", inputs.dangling_input),
    Rule("scope-input", "error", "No input names a box.", inputs.scope_input),
    Rule("self-input", "error", "No node reads itself.", inputs.self_input),
    Rule(
        "collapsed-edges",
        "error",
        "Between two inputs from one node stands another, or an empty one.",
        inputs.collapsed_edges,
    ),
    Rule(
        "missing-shape",
        "warning",
        "Every output that is read has a shape.",
        inputs.missing_shape,
    ),
    Rule(
        "large-attribute",
        "warning",
        "No attribute has more than 1 KB.",
        attributes.large_attribute,
    ),
    Rule(
        "attribute-text",
        "warning",
        "Attributes are one line of ASCII.",
        attributes.attribute_text,
    ),
    Rule(
        "attribute-number",
        "error",
        "Integers are at most 2 to the power of 53.",
        attributes.attribute_number,
    ),
    Rule(
        "ignored-attribute",
        "warning",
        "`_output_shapes` is a list of shapes, and `_XlaCluster` a text.",
        attributes.ignored_attribute,
    ),
    Rule(
        "device-legend",
        "warning",
        "Devices are written as `/device:GPU:0`.",
        attributes.device_legend,
    ),
    Rule(
        "wide-level",
        "warning",
        "No level and no stack holds more than 300 shapes.",
        levels.wide_level,
    ),
    Rule("long-chain", "error", "No level holds a chain of more than 1,000.", levels.long_chain),
    Rule(
        "box-cycle",
        "warning",
        "No line leads from a box, along others of its level, back to it.",
        levels.box_cycle,
    ),
    Rule(
        "false-series",
        "error",
        "Siblings that are folded into a stack are alike.",
        levels.false_series,
    ),
    Rule(
        "lost-output",
        "error",
        "Lines lead from where data enters a level to where it ends.",
        levels.lost_output,
    ),
    Rule(
        "lone-node",
        "warning",
        "No operation hangs on circles alone in its box.",
        levels.lone_node,
    ),
)
"""The rules in the order in which they are checked; docs/lint.md lists them."""


def lint(graph_def: Any) -> list[Finding]:
    """Tell which rules of TensorBoard's page a GraphDef breaks.

    Args:
        graph_def: A GraphDef of TensorBoard's or TensorFlow's, or anything with its fields.
    Returns:
        A finding for each place, in the order of `RULES`; an empty list where all is well.
    Raises:
        ArgumentError: It is no GraphDef.
    """
    reading = Reading(_checked(graph_def))
    return [
        Finding(rule.name, *fault, rule.severity) for rule in RULES for fault in rule.check(reading)
    ]


def _checked(graph_def: Any) -> Any:
    try:
        first = next(iter(graph_def.node), None)
        fits = all(hasattr(first, name) for name in ("name", "op", "input", "attr", "device"))
    except Exception:  # noqa: BLE001  Whatever it does when it is asked, it is no GraphDef.
        fits, first = False, ""
    if fits or (first is None and not isinstance(graph_def, type)):
        return graph_def
    kind = type(graph_def).__name__
    if kind == "Graph":
        fix = "lint(tbscope.to_graph_def(graph))"
    elif isinstance(graph_def, bytes):
        fix = "lint(GraphDef.FromString(data)), with tensorboard.compat.proto.graph_pb2.GraphDef"
    else:
        fix = "lint(tbscope.to_graph_def(tbscope.trace(model, inputs)))"
    raise ArgumentError(
        f"cannot lint an object of type {kind}",
        why="it is no GraphDef: it has no list 'node' of entries with name, op, input, attr "
        "and device",
        fix=fix,
    )
