"""Cards: what the page tells of the call of a module, drawn as a box or as a node.

Every attribute of a call stands in `_add_facts`, for both; after them come the module's
hyper-parameters, each by its own name.

The card of a node that stands for a module (`passes/leaves.py`) shows them beside the node's
own attributes. TensorBoard shows no attributes for a box. So each box of a module holds one
more node, named like the module's class, without edges. Its op type is `NoOp`, which the
page puts aside (tensorboard/plugins/graph/tf_graph_common/render.ts,
`extractPredefinedSource`): it stands in the upper right corner of the opened box, out of
the flow, and the card of the whole model under "Auxiliary Nodes".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tbscope.analysis.costs import Costs
from tbscope.graphdef.attributes import nest_to_text
from tbscope.ir.graph import Call, Graph, Nest, Node, Value
from tbscope.ir.module_tree import Holdings, Part, held_below
from tbscope.ir.nodes import type_text
from tbscope.ir.scope_io import with_above
from tbscope.ir.scopes import Scope

__all__ = ["Card", "blank_cards", "leaf_facts", "module_cards", "uncounted_text"]

# Many values are of few types.
_known_type = lru_cache(maxsize=1000)(type_text)


class Card(NamedTuple):
    """What is told of one call of a module that is drawn as a box.

    Attributes:
        scope: Its scope.
        label: The name of the module's class.
        facts: What the page shows, by name.
    """

    scope: Scope
    label: str
    facts: dict[str, Nest]


def leaf_facts(
    graph: Graph, work: Mapping[Scope, Costs], parts: Mapping[Scope, Part]
) -> dict[Node, dict[str, Nest]]:
    """Return the facts on the card of each node that stands for a module.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        work: What ran in each scope, as far as that is known.
        parts: The part that each scope belongs to, with what it holds.
    Returns:
        By node the attributes of its own, then those of the call in its scope.
    """
    calls = {call.scope: call for call in graph.calls}
    found: dict[Node, dict[str, Nest]] = {}
    for node in graph.nodes:
        call = calls.get(node.scope) if node.kind == "module" and node.scope else None
        if call is None:
            continue
        part = parts[call.scope]
        held = list(call.parameters)
        if part.children or part.borrowed:
            held += held_below(part)
        types: dict[str, str] = {}
        for one in held:
            text = f"{one.name} {_known_type(one.shape, one.dtype, 'cpu', one.sharding)}"
            types[one.kind] = f"{types[one.kind]}, {text}" if one.kind in types else text
        facts = node.attributes.copy()
        if not node.outputs and not node.kernels:
            # No edge tells what it gives: no tensor.
            facts["results"] = _type_text(call.results)
        holds = part.holds if held else None
        found[node] = _add_facts(facts, call, work.get(call.scope), holds, types=types)
    return found


def module_cards(
    graph: Graph,
    work: Mapping[Scope, Costs],
    parts: Mapping[Scope, Part],
    embedded: Collection[Node] = (),
) -> Iterator[Card]:
    """Yield a card for each module call that is drawn as a box.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        work: What ran in each scope, as far as that is known.
        parts: The part that each scope belongs to, with what it holds.
        embedded: Nodes that make no box of their scope.
    Yields:
        Cards in the order of the calls. A module whose call holds no node has no box.
    """
    boxes = _boxes(graph, embedded)
    times: Counter[str] = Counter()
    for call in graph.calls:
        name, scope = call.qualified_name or call.scope.path, call.scope
        times[name] += 1
        # One that runs again in its scope has the card of the first call there.
        if scope in boxes and not call.number:
            holds = parts[scope].holds if parts[scope].holds.tensors else None
            facts = _add_facts({}, call, work.get(scope), holds, number=times[name])
            yield Card(scope, scope.part.label, facts)


def blank_cards(
    graph: Graph,
    scopes: Iterable[Scope],
    told: Iterable[Card],
    embedded: Collection[Node] = (),
) -> Iterator[Card]:
    """Return a card without facts for each of some scopes that is a box without a card.

    Args:
        graph: The graph as it is drawn.
        scopes: Scopes of which something is to be told.
        told: The cards that there are.
        embedded: Nodes that make no box of their scope.
    """
    boxes = _boxes(graph, embedded).difference([card.scope for card in told])
    for scope in dict.fromkeys(scopes):
        if scope in boxes:
            yield Card(scope, scope.part.label, {})


def _boxes(graph: Graph, embedded: Collection[Node]) -> set[Scope]:
    """Return the scopes that are boxes: something stands in them, and no node for them."""
    boxes = with_above({node.scope for node in graph.nodes if node not in embedded})
    return boxes.difference([node.scope for node in graph.nodes if node.kind == "module"])


def _add_facts(
    facts: dict[str, Nest],
    call: Call,
    work: Costs | None,
    holds: Holdings | None,
    *,
    types: Mapping[str, str] | None = None,
    number: int = 1,
) -> dict[str, Nest]:
    """Add what a card tells of a call, and hyper-parameters, with `_` after a name that is taken.

    Args:
        facts: What the card tells already.
        call: The call.
        work: What ran, as far as that is known.
        holds: How much its parameters and buffers are, with those of all below it, called or not;
            None for nothing.
        types: Of a node, its parameters and buffers with their types, by kind: of a whole box, it
            would be too much. None for a box, which tells what a node has as shapes and edges, or
            in its name.
        number: Which call of its module it is, counted from 1.
    """
    owned = types or {}
    # A node of buffers alone leaves out how many numbers there are to learn; a box says 0.
    learnt = holds if types is None or "parameter" in owned else None
    told: dict[str, Nest] = {
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
        del told["trainable_parameter_count"]
    if types is None:
        arguments = [(name, _type_text(nest)) for name, nest in call.arguments]
        texts = [f"{name}: {text}" if name else text for name, text in arguments]
        told |= {"arguments": ", ".join(texts) or None, "results": _type_text(call.results)}
    facts |= {name: fact for name, fact in told.items() if fact is not None}
    for name, value in call.hyperparameters.items():
        free = name
        while free in facts:
            free += "_"
        facts[free] = value
    return facts


def uncounted_text(uncounted: Mapping[str, int]) -> str:
    """Return the kernels without formula, the most frequent first: `aten::add x24, aten::gelu`."""
    ordered = sorted(uncounted.items(), key=lambda counted: (-counted[1], counted[0]))
    return ", ".join(f"{name} x{times}" if times > 1 else name for name, times in ordered)


def _type_text(nest: Any) -> str:
    """Return a nest with the types of its tensors: `(Float(1, 2), None)`."""
    if isinstance(nest, Value):
        return _known_type(nest.shape, nest.dtype, nest.device, nest.sharding)
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_type_text(one)}" for key, one in nest.items()) + "}"
    if isinstance(nest, tuple):
        return f"({', '.join(map(_type_text, nest))}{',' if len(nest) == 1 else ''})"
    if isinstance(nest, list):
        return f"[{', '.join(map(_type_text, nest))}]"
    return nest_to_text(nest)
