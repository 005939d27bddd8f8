"""Series: keeps TensorBoard from folding siblings into one node that are not alike.

The page folds five or more siblings of one op type whose names end in consecutive
numbers (tensorboard/plugins/graph/tf_graph_common/hierarchy.ts, `detectSeries`). That is
right for equal layers or parameters of one list, and for the calls of one module in a loop.
`conv1` to `conv5` are five different things: they get op types of their own, `Conv2d[conv1]`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from itertools import groupby
from operator import itemgetter

from tbscope.drawing.naming import Names, attribute_of, parameters_by_place
from tbscope.ir.graph import Graph, Nest, Node, Output, Parameter, Value
from tbscope.ir.pytree import form_of, map_nest
from tbscope.ir.scope_io import STATE
from tbscope.ir.scopes import Scope
from tbscope.page.constants import CHAIN_LIMIT, SERIES_SIZE
from tbscope.page.level_graph import Siblings
from tbscope.page.op_types import is_embedded, op_type

__all__ = ["folded_in_vain", "op_type_apart", "op_types_apart"]

_DIGITS = "0123456789"
_DIGIT = re.compile("[0-9]")
# Facts that tell one layer of a list from the next, and no difference between them.
_OWN = frozenset({"module", "flops", "flops_not_counted"})


def op_types_apart(
    graph: Graph,
    names: Names,
    facts: Mapping[Node, Mapping[str, Nest]],
    ops: Mapping[Node | Output, str],
) -> dict[Node | Output, str]:
    """Find op types for the nodes that would be folded and must not be.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        names: The names of its nodes.
        facts: What is told of each node that stands for a module.
        ops: The op type of each node.
    Returns:
        For each such node or output its op type, as `Conv2d[conv1]`; the others keep theirs.
    """
    found: dict[tuple[str, str], list[tuple[int, Node | Output]]] = defaultdict(list)
    things: list[tuple[Node | Output, str]] = [*names.nodes.items()]
    things += zip(graph.outputs, names.outputs, strict=True)
    for thing, name in things:
        # Circles are never folded.
        if name[-1] in _DIGITS and not is_embedded(ops[thing]):
            above = name.rstrip(_DIGITS)
            # The page reads no number where another digit stands before it.
            if not _DIGIT.search(above, above.rfind("/") + 1):
                found[above, ops[thing]].append((int(name[len(above) :]), thing))
    parameters = cache(partial(parameters_by_place, graph))
    apart: dict[Node | Output, str] = {}
    for (above, _), members in found.items():
        numbers = sorted(members, key=itemgetter(0))
        # Numbers that follow one another are as far from their places.
        ways = [number - at for at, (number, _) in enumerate(numbers)]
        for _, row in groupby(zip(ways, numbers, strict=True), key=itemgetter(0)):
            run = [thing for _, (_, thing) in row]
            if len(run) < SERIES_SIZE:
                continue
            stem = above[above.rfind("/") + 1 :]
            kinds = [_kind(thing, stem, facts, parameters) for thing in run]
            before_folds = False
            for _, alike in groupby(zip(kinds, run, strict=True), key=itemgetter(0)):
                group = [thing for _, thing in alike]
                # Two series side by side would become one.
                before_folds = len(group) >= SERIES_SIZE and not before_folds
                if not before_folds:
                    apart.update({thing: op_type_apart(thing, ops[thing]) for thing in group})
    return apart


def _kind(
    thing: Node | Output,
    stem: str,
    facts: Mapping[Node, Mapping[str, Nest]],
    parameters: Callable[[], Mapping[tuple[Scope | None, str], Parameter]],
) -> Hashable:
    """Return a key that is equal for members of a series that are alike.

    Args:
        thing: A member.
        stem: The part of its label before its number.
        facts: What is told of each node that stands for a module.
        parameters: Returns the parameters of modules by their places.
    """
    if isinstance(thing, Output):
        listed = "." in thing.name and not thing.name.startswith("out.")
        return (thing.value.shape, thing.value.dtype) if listed else thing.name
    types = tuple([(value.shape, value.dtype) for value in thing.outputs])
    if thing.kind == "input":
        return types if "." in thing.name else thing.name
    told = facts.get(thing, thing.attributes)
    again = thing.kind == "module" and thing.scope is not None and thing.scope.part.index > 0
    if again and "module" in told:
        # One module called again and again.
        return str(told["module"])
    if stem and not again:
        # Its number is a part of a name that the user chose.
        return thing.name
    alike = {name: fact for name, fact in told.items() if name not in _OWN}
    if thing.kind in STATE:
        known = parameters().get((thing.scope, attribute_of(thing)))
        alike["requires_grad"] = None if known is None else known.requires_grad
    # A value is shown by an edge.
    given = [(key, map_nest(nest, _constant)) for key, nest in thing.arguments]
    return types, form_of((alike, given)) or repr((alike, given))


def _constant(given: Nest) -> Nest:
    return None if isinstance(given, Value) else given


def folded_in_vain(level: Siblings) -> list[str]:
    """Return the labels of what the page would fold and then put aside, whole in itself.

    That are layers of a list between which their parent works: their stack has all its lines.
    """
    stacks = level.series()
    if not stacks or len(level) > CHAIN_LIMIT:
        return []
    if level.folded().keeps_flow() or not level.keeps_flow():
        return []
    return [level.labels[place] for members in stacks for place in members]


def op_type_apart(thing: Node | Output, op: str) -> str:
    """Return the op type of a thing that must not be folded: `Linear[0]`, `Output[logits]`."""
    if isinstance(thing, Node) and thing.kind == "module" and thing.scope is not None:
        return op_type(str(thing.scope.part))
    return op_type(f"{op}[{thing.name}]")
