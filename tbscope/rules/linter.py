"""Linter: finds the rules of TensorBoard's page that a GraphDef of any origin breaks.

for finding in lint(graph_def):
    print(finding)
"""

import os
from dataclasses import dataclass
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.pipeline import to_graph_def
from tbscope.rules import levels, nodes
from tbscope.rules.rule import LintContext, Severity
from tbscope.sources.graphdef.loading import load_graph_def

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


RULES = (*nodes.RULES, *levels.RULES)
"""The rules in the order in which they are checked; docs/lint.md lists them."""


def lint(graph: object) -> list[Finding]:
    """Find the rules of TensorBoard's page that a GraphDef, or the drawing of a graph, breaks.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Linear(3, 5), torch.rand(1, 3))
    >>> tbscope.lint(tbscope.to_graph_def(graph))
    []

    Args:
        graph: A GraphDef of TensorBoard's or TensorFlow's, any object with its fields, the path of
            its file, or a `Graph`.
    Returns:
        A finding for each violation, in the order of `RULES`.
    Raises:
        ArgumentError: `graph` is neither, or the file contains no GraphDef.
    """
    if isinstance(graph, str | os.PathLike):
        graph = load_graph_def(graph)
    if isinstance(graph, Graph):
        graph = to_graph_def(graph)
    _check_graph_def(graph)
    reading = LintContext(graph)
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
    fix = "lint(tbscope.trace(model, inputs))"
    if isinstance(graph_def, bytes):
        fix = "lint(GraphDef.FromString(data)), with tensorboard.compat.proto.graph_pb2.GraphDef"
    raise ArgumentError(
        f"cannot lint an object of type {type(graph_def).__name__}",
        why="it is no GraphDef: it has no list 'node' of entries with name, op, input, attr "
        "and device",
        fix=fix,
    )
