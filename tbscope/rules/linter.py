"""Linter: finds the rules of TensorBoard's page that a GraphDef of any origin breaks.

for finding in lint(graph_def):
    print(finding)
"""

from dataclasses import dataclass
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.rules import levels, names, nodes
from tbscope.rules.rule import LintContext, Severity

__all__ = ["RULES", "Finding", "lint"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule in a GraphDef.

    Attributes:
        rule: The id of the rule (`dangling-input`).
        node: The name of the node or the box; empty for the whole graph.
        message: The problem, one sentence, with the values.
        fix: The remedy, one sentence.
        severity: "error" or "warning".
    """

    rule: str
    node: str
    message: str
    fix: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.rule}: {self.node}: {self.message}"


RULES = (*names.RULES, *nodes.RULES, *levels.RULES)
"""The rules in the order in which they are checked; docs/lint.md lists them."""


def lint(graph_def: object) -> list[Finding]:
    """Find the violations of rules of TensorBoard's page in a GraphDef.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Linear(3, 5), torch.rand(1, 3))
    >>> tbscope.lint(tbscope.to_graph_def(graph))
    []

    Args:
        graph_def: A GraphDef of TensorBoard's or TensorFlow's, or any object with its fields.
    Returns:
        A finding for each violation, in the order of `RULES`.
    Raises:
        ArgumentError: `graph_def` is no GraphDef.
    """
    _check_graph_def(graph_def)
    reading = LintContext(graph_def)
    return [
        Finding(rule.name, *fault, rule.severity) for rule in RULES for fault in rule.check(reading)
    ]


def _check_graph_def(graph_def: Any) -> None:
    """Raise ArgumentError unless this has the fields of a GraphDef."""
    try:
        first = next(iter(graph_def.node), None)
        fits = all(hasattr(first, name) for name in ("name", "op", "input", "attr", "device"))
    except Exception:  # noqa: BLE001  An object that raises here is no GraphDef.
        fits, first = False, ""
    if fits or (first is None and not isinstance(graph_def, type)):
        return
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
