"""Cards: what the page tells of the call of a module, drawn as a box or as a node.

Every attribute of a call stands in `ATTRIBUTES`, for both; after them come the module's
hyper-parameters, each by its own name.

The card of a node that stands for a module (`passes/leaves.py`) shows them beside the node's
own attributes. TensorBoard shows no attributes for a box. So each box of a module holds one
more node, named like the module's class, without edges. Its op type is `NoOp`, which the
page puts aside (tensorboard/plugins/graph/tf_graph_common/render.ts,
`extractPredefinedSource`): it stands in the upper right corner of the opened box, out of
the flow, and the card of the whole model under "Auxiliary Nodes".
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from tbscope.figures.costs import Work
from tbscope.graphdef.attributes import nest_to_text
from tbscope.ir.graph import Argument, Call, Graph, Nest, Node, Parameter, Value
from tbscope.ir.modules import Holdings, Part, held_below
from tbscope.ir.nodes import type_text, type_to_text
from tbscope.ir.regions import with_above
from tbscope.ir.scopes import Scope

__all__ = [
    "ATTRIBUTES",
    "Attribute",
    "Card",
    "blank_cards",
    "leaf_facts",
    "module_cards",
    "uncounted_text",
]


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


class _Owned(NamedTuple):
    """What is told of parameters and buffers.

    Attributes:
        totals: How much they are, of the module and of all below it, called or not. None
            for nothing.
        counted: Whether it is told how many numbers there are to learn. A node of buffers
            alone leaves that out; a box says 0.
        types: Those of a node, by kind, with their types.
    """

    totals: Holdings | None
    counted: bool
    types: Mapping[str, str]


class _Told(NamedTuple):
    """What the attributes of a call are made of.

    Attributes:
        call: The call.
        number: Which call of its module it is, counted from 1.
        owned: Its parameters and buffers.
        work: What ran, as far as that is known.
    """

    call: Call
    number: int
    owned: _Owned
    work: Work | None


class Attribute(NamedTuple):
    """One attribute of the card of a call.

    Attributes:
        name: Its name.
        tell: Makes it; None where there is nothing to tell.
        on: Whether it stands on the card of a box, of a node, or on both. On a node alone:
            what is too much to tell of a whole box. On a box alone: what a node has as
            shapes and edges, or in its name.
    """

    name: str
    tell: Callable[[_Told], Nest]
    on: Literal["both", "box", "node"] = "both"


def _defined(told: _Told) -> str | None:
    return None if told.call.defined is None else str(told.call.defined)


def _parameter_count(told: _Told) -> int | None:
    owned = told.owned
    return owned.totals.parameters if owned.totals and owned.counted else None


def _trainable_count(told: _Told) -> int | None:
    """Return how many of the parameters are learnt, where these are not all of them."""
    totals = told.owned.totals if told.owned.counted else None
    return totals.trainable if totals and totals.trainable != totals.parameters else None


def _bytes(told: _Told) -> int | None:
    return told.owned.totals.size_bytes if told.owned.totals else None


def _flops(told: _Told) -> int | None:
    return (told.work.flops or None) if told.work else None


def _flops_not_counted(told: _Told) -> str | None:
    return uncounted_text(told.work.uncounted) if told.work and told.work.uncounted else None


def _arguments(told: _Told) -> str | None:
    return ", ".join(map(_argument_text, told.call.arguments)) or None


ATTRIBUTES = (
    Attribute("class", lambda told: told.call.class_name),
    Attribute("module", lambda told: told.call.qualified_name or None),
    Attribute("call", lambda told: told.number if told.number > 1 else None, "box"),
    Attribute("training", lambda told: told.call.training),
    Attribute("defined", _defined),
    Attribute("parameters", lambda told: told.owned.types.get("parameter"), "node"),
    Attribute("buffers", lambda told: told.owned.types.get("buffer"), "node"),
    Attribute("parameter_count", _parameter_count),
    Attribute("trainable_parameter_count", _trainable_count),
    Attribute("bytes", _bytes),
    Attribute("flops", _flops),
    Attribute("flops_not_counted", _flops_not_counted),
    Attribute("arguments", _arguments, "box"),
    Attribute("results", lambda told: _type_text(told.call.results), "box"),
)
"""What the card of a call tells, in this order. A new attribute is a new line here."""

_NUMBER = Parameter._fields.index("number")
# Many values are of few types.
_known_type = functools.lru_cache(maxsize=1000)(type_text)
_UNKNOWN = (None, _Owned(None, False, {}))
_ON_NODE = [(name, tell) for name, tell, on in ATTRIBUTES if on != "box"]
_ON_BOX = [(name, tell) for name, tell, on in ATTRIBUTES if on != "node"]


def leaf_facts(
    graph: Graph, work: Mapping[Scope, Work], parts: Mapping[Scope, Part]
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
    # Layers of one kind own alike, but for which of all parameters each is: that is told once.
    known: dict[tuple[Any, ...], dict[str, str]] = {}
    # A module that is called again owns what it owned.
    of_part: dict[Part, tuple[tuple[Parameter, ...], _Owned]] = {}
    for node in graph.nodes:
        call = calls.get(node.scope) if node.kind == "module" and node.scope else None
        if call is not None:
            part = parts[call.scope]
            before, owned = of_part.get(part, _UNKNOWN)
            if before is not call.parameters:
                owned = _owned(call, part, known)
                of_part[part] = call.parameters, owned
            told = _Told(call, 1, owned, work.get(call.scope))
            facts = node.attributes.copy()
            if not node.outputs and not node.kernels:
                # No edge tells what it gives: no tensor.
                facts["results"] = _type_text(call.results)
            found[node] = _add_facts(facts, _ON_NODE, told)
    return found


def _owned(call: Call, part: Part, known: dict[tuple[Any, ...], dict[str, str]]) -> _Owned:
    """Return what is told of a leaf module's parameters; their types as they are known."""
    held = list(call.parameters)
    if part.children or part.borrowed:
        held += held_below(part)
    key = tuple([(*one[:_NUMBER], *one[_NUMBER + 1 :]) for one in held])
    types = known.get(key)
    if types is None:
        types = known[key] = _types(held)
    return _Owned(part.holds if held else None, "parameter" in types, types)


def _types(held: Iterable[Parameter]) -> dict[str, str]:
    """Return the names and types of parameters and buffers, as one text for each kind."""
    types: dict[str, list[str]] = {}
    for parameter in held:
        text = f"{parameter.name} {type_to_text(parameter)}"
        types.setdefault(parameter.kind, []).append(text)
    return {kind: ", ".join(entries) for kind, entries in types.items()}


def module_cards(
    graph: Graph,
    work: Mapping[Scope, Work],
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
    boxes = _scopes_with_nodes(graph, embedded)
    drawn = {node.scope for node in graph.nodes if node.kind == "module"}
    times: dict[str, int] = {}
    for call in graph.calls:
        name = call.qualified_name or call.scope.path
        times[name] = times.get(name, 0) + 1
        scope = call.scope
        # One that runs again in its scope has the card of the first call there.
        if scope in boxes and scope not in drawn and not call.number:
            holds = parts[scope].holds
            owned = _Owned(holds if holds.tensors else None, counted=True, types={})
            told = _Told(call, times[name], owned, work.get(scope))
            yield Card(scope, scope.part.label, _add_facts({}, _ON_BOX, told))


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
    boxes = _scopes_with_nodes(graph, embedded)
    boxes.difference_update(node.scope for node in graph.nodes if node.kind == "module")
    boxes.difference_update(card.scope for card in told)
    for scope in dict.fromkeys(scopes):
        if scope in boxes:
            yield Card(scope, scope.part.label, {})


def _scopes_with_nodes(graph: Graph, embedded: Collection[Node]) -> set[Scope]:
    if not embedded:
        return with_above({node.scope for node in graph.nodes})
    return with_above({node.scope for node in graph.nodes if node not in embedded})


def _add_facts(
    facts: dict[str, Nest],
    attributes: Iterable[tuple[str, Callable[[_Told], Nest]]],
    told: _Told,
) -> dict[str, Nest]:
    """Add attributes and hyper-parameters, these with `_` after a name that is taken."""
    for name, tell in attributes:
        fact = tell(told)
        if fact is not None:
            facts[name] = fact
    hyperparameters = told.call.hyperparameters
    if facts.keys().isdisjoint(hyperparameters):
        facts.update(hyperparameters)
        return facts
    for name, value in hyperparameters.items():
        facts[_free(name, facts)] = value
    return facts


def _free(name: str, facts: Mapping[str, Nest]) -> str:
    while name in facts:
        name += "_"
    return name


def uncounted_text(uncounted: Mapping[str, int]) -> str:
    """Return the kernels without formula, the most frequent first: `aten::add x24, aten::gelu`."""
    ordered = sorted(uncounted.items(), key=lambda counted: (-counted[1], counted[0]))
    return ", ".join(f"{name} x{times}" if times > 1 else name for name, times in ordered)


def _argument_text(argument: Argument) -> str:
    text = _type_text(argument.nest)
    return f"{argument.name}: {text}" if argument.name else text


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
