"""Info cards: the facts that the page shows for the call of a module, drawn as a box or a node.

`_add_facts` lists every attribute of a call, for both, and then the module's hyper-parameters
under their own names.

A node that represents a module (`passes/collapse_leaves.py`) shows them beside its own
attributes. TensorBoard shows no attributes for a box, so the box of a module contains an extra
node without edges, named like the module's class. Its op type is `NoOp`, which the page puts
aside (tensorboard/plugins/graph/tf_graph_common/render.ts, `extractPredefinedSource`): in the
upper right corner of the opened box, out of the flow, and for the whole model under "Auxiliary
Nodes".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from tbscope.analysis.costs import Costs
from tbscope.analysis.units import counted
from tbscope.graphdef.attr_bytes import nest_to_text
from tbscope.ir.graph import Call, Graph, Nest, Node, Value
from tbscope.ir.module_tree import ModulePart, ParameterTotals, parameters_below
from tbscope.ir.nodes import type_text
from tbscope.ir.scope_io import with_above
from tbscope.ir.scopes import Scope

# Values are many, their types few.
_known_type = lru_cache(maxsize=1000)(type_text)


class Card(NamedTuple):
    """The extra node that shows the facts of a module call drawn as a box.

    Attributes:
        scope: The scope of the call.
        label: The name of the module's class.
        facts: The attributes that the page shows, by name.
    """

    scope: Scope
    label: str
    facts: dict[str, Nest]


def leaf_facts(
    graph: Graph, work: Mapping[Scope, Costs], parts: Mapping[Scope, ModulePart]
) -> dict[Node, dict[str, Nest]]:
    """Return the facts on the info card of each node that represents a module.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        work: The costs of the operations in each scope; scopes may be missing.
        parts: The part of the module tree that each scope belongs to, with parameter totals.
    Returns:
        The node's own attributes, then the facts of the call in its scope, by node.
    """
    calls = {call.scope: call for call in graph.calls}
    facts_of: dict[Node, dict[str, Nest]] = {}
    for node in graph.nodes:
        call = calls.get(node.scope) if node.kind == "module" and node.scope else None
        if call is None:
            continue
        part = parts[call.scope]
        tensors = list(call.parameters)
        if part.children or part.borrowed:
            tensors += parameters_below(part)
        types: dict[str, str] = {}
        for tensor in tensors:
            text = (
                f"{tensor.name} {_known_type(tensor.shape, tensor.dtype, 'cpu', tensor.sharding)}"
            )
            types[tensor.kind] = f"{types[tensor.kind]}, {text}" if tensor.kind in types else text
        facts = node.attributes.copy()
        if not node.outputs and not node.kernels:
            # A node without outputs has no edge that shows its results.
            facts["results"] = _type_text(call.results)
        totals = part.holds if tensors else None
        facts_of[node] = _add_facts(facts, call, work.get(call.scope), totals, types=types)
    return facts_of


def module_cards(
    graph: Graph,
    work: Mapping[Scope, Costs],
    parts: Mapping[Scope, ModulePart],
    embedded: Collection[Node] = (),
) -> Iterator[Card]:
    """Yield a card for each module call that is drawn as a box, in the order of the calls.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        work: The costs of the operations in each scope; scopes may be missing.
        parts: The part of the module tree that each scope belongs to, with parameter totals.
        embedded: Nodes that do not turn their scope into a box.
    """
    boxes = _boxes(graph, embedded)
    times: Counter[str] = Counter()
    for call in graph.calls:
        name, scope = call.qualified_name or call.scope.path, call.scope
        times[name] += 1
        # A call that reruns in the scope of an earlier call shares the card of that call.
        if scope in boxes and not call.number:
            totals = parts[scope].holds if parts[scope].holds.tensors else None
            facts = _add_facts({}, call, work.get(scope), totals, number=times[name])
            yield Card(scope, scope.part.label, facts)


def blank_cards(
    graph: Graph,
    scopes: Iterable[Scope],
    cards: Iterable[Card],
    embedded: Collection[Node] = (),
) -> Iterator[Card]:
    """Yield an empty card for each of some scopes that is a box without a card.

    Args:
        graph: The graph as it is drawn.
        scopes: The scopes that need a card, for figures.
        cards: The existing cards.
        embedded: Nodes that do not turn their scope into a box.
    """
    boxes = _boxes(graph, embedded).difference([card.scope for card in cards])
    for scope in dict.fromkeys(scopes):
        if scope in boxes:
            yield Card(scope, scope.part.label, {})


def _boxes(graph: Graph, embedded: Collection[Node]) -> set[Scope]:
    """Return the scopes that are drawn as boxes: they contain a node, and are not nodes."""
    boxes = with_above({node.scope for node in graph.nodes if node not in embedded})
    return boxes.difference([node.scope for node in graph.nodes if node.kind == "module"])


def _add_facts(
    facts: dict[str, Nest],
    call: Call,
    work: Costs | None,
    holds: ParameterTotals | None,
    *,
    types: Mapping[str, str] | None = None,
    number: int = 1,
) -> dict[str, Nest]:
    """Add the facts of a call, then hyper-parameters; `_` is appended to names in use.

    Args:
        facts: The facts of the card so far; changed in place.
        call: The call.
        work: The costs of its operations; None if unknown.
        holds: The totals of its parameters and buffers, with those of all modules below it, called
            or not; None if there are none.
        types: For a node, its parameters and buffers with their types as text, by kind. None for a
            box, for which that would be too much; a box shows arguments and results as facts, which
            a node shows by its edges.
        number: The number of the call among those of its module, from 1 on.
    Returns:
        `facts`.
    """
    owned = types or {}
    # A node with buffers alone has no parameter count; a box says 0.
    learnt = holds if types is None or "parameter" in owned else None
    call_facts: dict[str, Nest] = {
        "class": call.class_name,
        "module": call.qualified_name or None,
        "call": number if number > 1 else None,
        "training": call.training,
        "defined": None if call.defined is None else str(call.defined),
        "parameters": owned.get("parameter"),
        "buffers": owned.get("buffer"),
        "parameter_count": learnt.parameters if learnt else None,
        "trainable_parameter_count": learnt.trainable if learnt else None,
        "bytes": holds.size_bytes if holds else None,
        "flops": work.flops or None if work else None,
        "flops_not_counted": uncounted_text(work.uncounted) if work and work.uncounted else None,
    }
    if learnt and learnt.trainable == learnt.parameters:
        del call_facts["trainable_parameter_count"]
    if types is None:
        texts = [
            f"{name}: {_type_text(nest)}" if name else _type_text(nest)
            for name, nest in call.arguments
        ]
        call_facts |= {"arguments": ", ".join(texts) or None, "results": _type_text(call.results)}
    for name, fact in call_facts.items():
        if fact is not None:
            facts[name] = fact
    for name, value in call.hyperparameters.items():
        free = name
        while free in facts:
            free += "_"
        facts[free] = value
    return facts


def uncounted_text(uncounted: Mapping[str, int]) -> str:
    """Return the kernels without a FLOP formula as text, the most frequent first.

    For example `aten::add x24, aten::gelu`.
    """
    by_name = sorted(uncounted.items())
    return counted(sorted(by_name, key=itemgetter(1), reverse=True))


def _type_text(nest: object) -> str:
    """Return a pytree as text, with the types of its tensors: `(Float(1, 2), None)`."""
    if isinstance(nest, Value):
        return _known_type(nest.shape, nest.dtype, nest.device, nest.sharding)
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_type_text(entry)}" for key, entry in nest.items()) + "}"
    if isinstance(nest, tuple):
        return f"({', '.join(map(_type_text, nest))}{',' if len(nest) == 1 else ''})"
    if isinstance(nest, list):
        return f"[{', '.join(map(_type_text, nest))}]"
    return nest_to_text(nest)
