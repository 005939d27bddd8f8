"""Cards: what a user wants to know of a module that is drawn as a box.

TensorBoard shows no attributes for a box. So each box of a module holds one more node,
named like the module's class, without edges. Its op type is `NoOp`, which the page puts
aside (tensorboard/plugins/graph/tf_graph_common/render.ts, `extractPredefinedSource`): it
stands in the upper right corner of the opened box, out of the flow, and the card of the
whole model under "Auxiliary Nodes".
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tbscope.figures.costs import Work
from tbscope.figures.totals import Totals, parameter_totals
from tbscope.graphdef.attributes import nest_to_text
from tbscope.ir.graph import Argument, Call, Graph, Nest, Value
from tbscope.ir.regions import with_above
from tbscope.ir.scopes import Scope
from tbscope.ir.text import type_to_text

__all__ = ["Card", "blank_cards", "module_cards", "uncounted_text"]


class Card(NamedTuple):
    """What is told of one call of a module.

    Attributes:
        scope: Its scope.
        label: The name of the module's class.
        facts: What the page shows, by name.
    """

    scope: Scope
    label: str
    facts: dict[str, Nest]


def module_cards(graph: Graph, work: Mapping[Scope, Work]) -> Iterator[Card]:
    """Give a card for each module call that is drawn as a box.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        work: What ran in each scope, as far as that is known.
    Returns:
        Cards in the order of the calls. A module whose call holds no node has no box.
    """
    boxes = _scopes_with_nodes(graph)
    drawn = {node.scope for node in graph.nodes if node.kind == "module"}
    totals = parameter_totals(graph)
    times: dict[str, int] = {}
    for call in graph.calls:
        name = call.qualified_name or call.scope.path
        times[name] = times.get(name, 0) + 1
        # One that runs again in its scope has the card of the first call there.
        if call.scope in boxes and call.scope not in drawn and not call.number:
            facts = _facts(call, totals, times[name], work.get(call.scope))
            yield Card(call.scope, call.scope.part.label, facts)


def blank_cards(graph: Graph, scopes: Iterable[Scope], told: Iterable[Card]) -> Iterator[Card]:
    """Give a card without facts for each of some scopes that is a box without a card.

    Args:
        graph: The graph as it is drawn.
        scopes: Scopes of which something is to be told.
        told: The cards that there are.
    """
    boxes = _scopes_with_nodes(graph)
    boxes.difference_update(node.scope for node in graph.nodes if node.kind == "module")
    boxes.difference_update(card.scope for card in told)
    for scope in dict.fromkeys(scopes):
        if scope in boxes:
            yield Card(scope, scope.part.label, {})


def _scopes_with_nodes(graph: Graph) -> set[Scope]:
    return with_above(node.scope for node in graph.nodes)


def _facts(
    call: Call, totals: dict[Scope, Totals], number: int, work: Work | None
) -> dict[str, Nest]:
    facts: dict[str, Nest] = {"class": call.class_name}
    if call.qualified_name:
        facts["module"] = call.qualified_name
    if number > 1:
        facts["call"] = number
    facts["training"] = call.training
    total = totals.get(call.scope)
    if total is not None:
        facts["parameter_count"] = total.parameters
        facts["trainable_parameter_count"] = total.trainable
        facts["bytes"] = total.size_bytes
    if work is not None and work.flops:
        facts["flops"] = work.flops
    if work is not None and work.uncounted:
        facts["flops_not_counted"] = uncounted_text(work.uncounted)
    if call.defined is not None:
        facts["defined"] = str(call.defined)
    given = [_argument_text(argument) for argument in call.arguments]
    if given:
        facts["arguments"] = ", ".join(given)
    facts["results"] = _type_text(call.results)
    for name, value in call.hyperparameters.items():
        facts[name if name not in facts else f"{name}_"] = value
    return facts


def uncounted_text(uncounted: Mapping[str, int]) -> str:
    """Give the kernels without formula, the most frequent first: `aten::add x24, aten::gelu`."""
    ordered = sorted(uncounted.items(), key=lambda counted: (-counted[1], counted[0]))
    return ", ".join(f"{name} x{times}" if times > 1 else name for name, times in ordered)


def _argument_text(argument: Argument) -> str:
    text = _type_text(argument.nest)
    return f"{argument.name}: {text}" if argument.name else text


def _type_text(nest: Any) -> str:
    """Give a nest with the types of its tensors: `(Float(1, 2), None)`."""
    if isinstance(nest, Value):
        return type_to_text(nest)
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_type_text(one)}" for key, one in nest.items()) + "}"
    if isinstance(nest, tuple):
        return f"({', '.join(map(_type_text, nest))}{',' if len(nest) == 1 else ''})"
    if isinstance(nest, list):
        return f"[{', '.join(map(_type_text, nest))}]"
    return nest_to_text(nest)
