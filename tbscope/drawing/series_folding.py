"""Series folding: distinct op types keep TensorBoard from folding siblings that are not alike.

The page folds five or more siblings of one op type whose names end in consecutive
numbers (tensorboard/plugins/graph/tf_graph_common/hierarchy.ts, `detectSeries`). That is
right for equal layers or parameters of one list, and for the calls of one module in a loop.
`conv1` to `conv5` are five different modules: each gets its own op type, `Conv2d[conv1]`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import cache, partial
from itertools import groupby
from operator import itemgetter

from tbscope.drawing.naming import GraphDefNames, state_parameters
from tbscope.ir.graph import Graph, Nest, Node, Output, Parameter, Value
from tbscope.ir.pytree import form_of, map_tree
from tbscope.ir.scope_io import STATE
from tbscope.page.constants import CHAIN_LIMIT, SERIES_SIZE
from tbscope.page.level_graph import LevelGraph
from tbscope.page.op_types import is_embedded, op_type

_DIGITS = "0123456789"
_DIGIT = re.compile("[0-9]")
# Facts that differ between equal layers of a list, and so do not count as a difference.
_OWN = dict.fromkeys(("module", "flops", "flops_not_counted"))


def op_types_apart(
    graph: Graph,
    names: GraphDefNames,
    facts: Mapping[Node, Mapping[str, Nest]],
    ops: Mapping[Node | Output, str],
) -> dict[Node | Output, str]:
    """Return new op types for the nodes and outputs that would be folded and must not be.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        names: The names of its nodes.
        facts: The facts of each node that represents a module.
        ops: The op type of each node.
    Returns:
        The new op type (`Conv2d[conv1]`) by node or output; all others keep their op types.
    """
    by_stem: dict[tuple[str, str], list[tuple[int, Node | Output]]] = defaultdict(list)
    for entry, name in names.entries(graph):
        # Circles are never folded.
        if name[-1] in _DIGITS and not is_embedded(ops[entry]):
            above = name.rstrip(_DIGITS)
            # The page ignores a number if its stem contains another digit.
            if not _DIGIT.search(above, above.rfind("/") + 1):
                by_stem[above, ops[entry]].append((int(name[len(above) :]), entry))
    parameters = cache(partial(state_parameters, graph))
    new_types: dict[Node | Output, str] = {}
    for (above, _), members in by_stem.items():
        numbers = sorted(members, key=itemgetter(0))
        # Number minus index is constant along a run of consecutive numbers.
        offsets = [number - at for at, (number, _) in enumerate(numbers)]
        for _, row in groupby(zip(offsets, numbers, strict=True), key=itemgetter(0)):
            run = [entry for _, (_, entry) in row]
            if len(run) < SERIES_SIZE:
                continue
            stem = above[above.rfind("/") + 1 :]
            kinds = [_kind(entry, stem, facts, parameters) for entry in run]
            before_folds = False
            for _, alike in groupby(zip(kinds, run, strict=True), key=itemgetter(0)):
                group = [entry for _, entry in alike]
                # The page would join two adjacent series, so every second one is kept apart.
                before_folds = len(group) >= SERIES_SIZE and not before_folds
                if not before_folds:
                    new_types.update({entry: op_type_apart(entry, ops[entry]) for entry in group})
    return new_types


def _kind(
    member: Node | Output,
    stem: str,
    facts: Mapping[Node, Mapping[str, Nest]],
    parameters: Callable[[], Mapping[Node, Parameter]],
) -> Hashable:
    """Return a key that is equal for members of a series that are alike.

    Args:
        member: A member of the series.
        stem: The part of its label before its number.
        facts: The facts of each node that represents a module.
        parameters: Returns the parameters of modules by their nodes.
    """
    if isinstance(member, Output):
        listed = "." in member.name and not member.name.startswith("out.")
        return (member.value.shape, member.value.dtype) if listed else member.name
    types = tuple([(value.shape, value.dtype) for value in member.outputs])
    if member.kind == "input":
        return types if "." in member.name else member.name
    shown_facts = facts.get(member, member.attributes)
    again = member.kind == "module" and member.scope is not None and member.scope.part.index > 0
    if again and "module" in shown_facts:
        # Repeated calls of one module are alike.
        return str(shown_facts["module"])
    if stem and not again:
        # The number is part of a name that the user chose: `conv1`.
        return member.name
    alike = {**_OWN, **shown_facts, **_OWN}
    if member.kind in STATE:
        parameter = parameters().get(member)
        alike["requires_grad"] = None if parameter is None else parameter.requires_grad
    # Only constants count among the arguments, since values are shown by edges.
    arguments = [
        (key, None if isinstance(nest, Value) else map_tree(nest, _constant))
        for key, nest in member.arguments
    ]
    return types, form_of((alike, arguments)) or repr((alike, arguments))


def _constant(nest: Nest) -> Nest:
    return None if isinstance(nest, Value) else nest


def series_that_break_flow(level: LevelGraph) -> list[str]:
    """Return the labels of a level's series if folding them breaks the flow.

    Examples are layers of a list between which their parent runs operations: their stack has
    the lines of all layers, so that the page puts it aside. Unfolded, the flow stays whole.
    """
    stacks = level.series()
    if not stacks or len(level) > CHAIN_LIMIT:
        return []
    if level.folded().keeps_flow() or not level.keeps_flow():
        return []
    return [level.labels[index] for members in stacks for index in members]


def op_type_apart(item: Node | Output, op: str) -> str:
    """Return an op type that keeps a node or output unfolded: `Linear[0]`, `Output[logits]`."""
    if isinstance(item, Node) and item.kind == "module" and item.scope is not None:
        return op_type(str(item.scope.part))
    return op_type(f"{op.partition('[')[0]}[{item.name}]")
